"""DistributedDataParallel and ZeroRedundancyOptimizer around an ORTModule, two ranks with gloo."""

from __future__ import annotations

import pytest
import torch.distributed as dist

from .data_parallel import SCENARIOS
from .ranks import run_in_two_ranks

pytestmark = pytest.mark.skipif(
    not (dist.is_available() and dist.is_gloo_available()), reason="torch was built without gloo"
)

TOGETHER = ["double_batch", "no_sync", "find_unused_parameters", "gradients_in_pieces"]


def _check(names: list[str]) -> None:
    failures = run_in_two_ranks("tests.integrations.data_parallel", names)
    assert not failures, "\n".join(f"{name}, {text}" for name, text in failures.items())


@pytest.mark.slow
def test_two_ranks() -> None:
    _check(TOGETHER)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in SCENARIOS if name not in TOGETHER])
def test_two_ranks_also(name: str) -> None:
    _check([name])
