"""Memory that ORTModule takes on top of eager PyTorch from its construction to the first plan.

A transformer with over 200 million parameters does one training step on a small batch, once in eager
PyTorch and once under ORTModule, each in a process of its own. What counts is the high-water mark of
the resident set from before the wrapper is made to the end of the first forward and backward, above
what is resident once the model exists. Eager takes its gradients and activations; ORTModule those,
the captured graph, the plan, and the code of torch's compiler front end, which is loaded
beforehand in both so that the table shows what grows with the model.

    python -m benchmarks.first_plan_memory
    python -m benchmarks.first_plan_memory --layers 2
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys

import torch
from torch import Tensor, nn

from ortmodule_py import DebugOptions, LogLevel, ORTModule, last_run_report, testing

LIMIT = 0.05


class Net(nn.Module):
    """Pre-norm transformer blocks of dense layers: 17 million parameters each at width 1,448."""

    def __init__(self, layers: int, width: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(layers))
        self.up = nn.ModuleList(nn.Linear(width, 4 * width) for _ in range(layers))
        self.down = nn.ModuleList(nn.Linear(4 * width, width) for _ in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        """Mean square of the last layer."""
        for norm, up, down in zip(self.norms, self.up, self.down, strict=True):
            x = x + down(nn.functional.gelu(up(norm(x))))
        return x.square().mean()


def measure(kind: str, layers: int, width: int) -> dict[str, float]:
    """High-water marks in bytes above the resident model, after forward and after backward."""
    testing.install_counting_allocator()
    torch.manual_seed(0)
    small = ORTModule(Net(1, 8), DebugOptions(LogLevel.FATAL))
    small(torch.randn(2, 8)).backward()
    model: nn.Module = Net(layers, width)
    parameter_bytes = sum(p.numel() * p.element_size() for p in model.parameters())
    x = torch.randn(8, width)
    testing.reset_vm_hwm()
    start, allocated = testing.vm_rss_bytes(), testing.cpu_memory_stats().current_bytes
    with testing.measure_peak() as peak:
        if kind == "ortmodule":
            model = ORTModule(model, DebugOptions(LogLevel.FATAL))
        loss = model(x)
        forward = testing.vm_hwm_bytes() - start
        forward_allocated = testing.cpu_memory_stats().peak_bytes - allocated
        loss.backward()
    if kind == "ortmodule":
        assert last_run_report(model)["compiled"]
    return {
        "parameters": parameter_bytes,
        "forward": forward,
        "forward_allocated": forward_allocated,
        "step": testing.vm_hwm_bytes() - start,
        "step_allocated": peak.peak_above_start,
    }


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=1448)
    parser.add_argument("--kind", choices=["eager", "ortmodule"], help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.kind:
        print(json.dumps(measure(given.kind, given.layers, given.width)))
        return 0
    found = {}
    for kind in ("eager", "ortmodule"):
        command = [sys.executable, "-m", "benchmarks.first_plan_memory", "--kind", kind]
        command += ["--layers", str(given.layers), "--width", str(given.width)]
        finished = subprocess.run(command, capture_output=True, text=True, check=True)
        found[kind] = json.loads(finished.stdout.splitlines()[-1])
    parameters = found["eager"]["parameters"]
    print(f"parameters {parameters / 2**20:.0f} MiB ({parameters / 4e6:.0f} million)")
    print(f"{'MiB above the model':24s}{'eager':>10s}{'ORTModule':>11s}{'of parameters':>15s}")
    worst = 0.0
    for what in ("forward", "forward_allocated", "step", "step_allocated"):
        eager, ours = found["eager"][what], found["ortmodule"][what]
        share = (ours - eager) / parameters
        worst = max(worst, share)
        print(f"{what:24s}{eager / 2**20:10.1f}{ours / 2**20:11.1f}{share:15.2%}")
    if worst > LIMIT:
        print(f"FAULT: more than {LIMIT:.0%} of the parameters above eager")
    return int(worst > LIMIT)


if __name__ == "__main__":
    sys.exit(main())
