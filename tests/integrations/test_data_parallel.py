"""DistributedDataParallel and ZeroRedundancyOptimizer around an ORTModule, two ranks with gloo."""

from __future__ import annotations

import pytest
import torch.distributed as dist

from .data_parallel import SCENARIOS
from .ranks import run_in_ranks

pytestmark = pytest.mark.skipif(
    not (dist.is_available() and dist.is_gloo_available()), reason="torch was built without gloo"
)


@pytest.mark.slow
def test_two_ranks() -> None:
    """All scenarios in one pair of processes; the failures are told apart by name."""
    failures = run_in_ranks("tests.integrations.data_parallel", list(SCENARIOS))
    assert not failures, "\n".join(f"{name}, {text}" for name, text in failures.items())
