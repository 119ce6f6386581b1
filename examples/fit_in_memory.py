"""A model and batch that do not fit a memory limit in eager PyTorch and train within it here.

Each variant runs in a process of its own whose address space is limited, so that an allocation
beyond the limit really fails.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
from pathlib import Path

import torch
from torch import Tensor, nn

MIB = 2**20


class Block(nn.Module):
    """A pre-norm transformer block with attention as one op."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        """The next residual stream."""
        batch, length, width = x.shape
        q, k, v = (
            t.view(batch, length, self.heads, -1).transpose(1, 2)
            for t in self.qkv(self.norm1(x)).chunk(3, -1)
        )
        weights = self.dropout(torch.softmax(q @ k.transpose(-1, -2) * 0.125, -1))
        x = x + self.out((weights @ v).transpose(1, 2).reshape(batch, length, width))
        return x + self.dropout(self.down(nn.functional.gelu(self.up(self.norm2(x)))))


class Model(nn.Module):
    """A classifier over sequences; returns its loss."""

    def __init__(self, width: int = 256, heads: int = 4, layers: int = 8) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        """Cross entropy of the mean over the sequence."""
        return nn.functional.cross_entropy(self.head(self.blocks(x).mean(1)), labels)


def _status_bytes(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no {field}")


def child(variant: str, step_bytes: int, batch: int, steps: int) -> int:
    """Train under the limit; 3 if memory ran out."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    module: nn.Module = Model()
    x, labels = torch.randn(batch, 256, 256), torch.randint(0, 10, (batch,))
    if variant == "ours":
        from ortmodule_py import ORTModule, last_run_report

        # A first, small step compiles the module before the limit holds.
        module = ORTModule(module, memory_budget=f"activations:{step_bytes * 85 // 100}")
        module(x[:2], labels[:2]).backward()
    else:
        module(x[:2], labels[:2]).backward()
    optimizer = torch.optim.SGD(module.parameters(), lr=1e-2)
    module.zero_grad()
    limit = _status_bytes("VmSize") + step_bytes
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    try:
        for step in range(steps):
            optimizer.zero_grad()
            loss = module(x, labels)
            loss.backward()
            optimizer.step()
            print(f"  step {step}: loss {loss.item():.4f}", flush=True)
    except (RuntimeError, MemoryError) as error:
        print(f"  out of memory: {str(error).splitlines()[0][:110]}", flush=True)
        return 3
    if variant == "ours":
        report = last_run_report(module)
        print(f"  planned peak {report['planned_peak_bytes'] / MIB:.1f} MiB", flush=True)
    return 0


def main() -> int:
    """Run both variants; 0 if eager does not fit and ours does."""
    parser = argparse.ArgumentParser(description="Train what does not fit")
    parser.add_argument("--limit-mib", type=int, default=400, help="memory for the step")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--child", choices=["eager", "ours"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        return child(options.child, options.limit_mib * MIB, options.batch, options.steps)
    codes = {}
    for variant in ("eager", "ours"):
        print(f"{variant}: {options.limit_mib} MiB for the step, batch {options.batch}", flush=True)
        command = [sys.executable, __file__, *sys.argv[1:], "--child", variant]
        environment = {**os.environ, "MALLOC_ARENA_MAX": "1", "ORTMODULE_LOG_LEVEL": "ERROR"}
        codes[variant] = subprocess.run(command, env=environment).returncode
    fits = codes["ours"] == 0 and codes["eager"] == 3
    print("eager runs out of memory, ortmodule_py trains" if fits else f"unexpected: {codes}")
    return 0 if fits else 1


if __name__ == "__main__":
    sys.exit(main())
