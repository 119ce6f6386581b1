"""The banner of the first step."""

from __future__ import annotations

import re

import torch

from ortmodule_py import ORTModule
from ortmodule_py.report.run import banner
from tests.semantics import QUIET


def test_export_time_covers_every_stage_of_capture() -> None:
    """Traced gradients included: they may take longer than all other stages."""

    def export_seconds() -> float:
        (line,) = (
            line
            for line in banner(model._compiler, model.module, "training", 0.0)
            if "export" in line
        )
        found = re.search(r"export takes ([\d.]+)s", line)
        assert found is not None, line
        return float(found[1])

    class Traced(torch.nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.special.i0e(super().forward(x)).sum()

    model = ORTModule(Traced(4, 4), QUIET)
    model(torch.randn(3, 4)).backward()
    (piece,) = model._compiler.pieces
    assert piece.traced_gradients and piece.seconds["gradients"] > 0.0
    for stage in set(piece.seconds) - {"compile"}:
        before = export_seconds()
        piece.seconds[stage] += 100.0
        assert abs(export_seconds() - before - 100.0) < 0.02, stage
