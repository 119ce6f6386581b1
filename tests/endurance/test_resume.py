"""A run that is killed and resumed in a new process ends with the same bits."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest

from tests import forked_process

SCRIPT = """
import hashlib, os, signal, sys
from pathlib import Path

import torch
from torch import nn
from ortmodule_py import DebugOptions, LogLevel, ORTModule

folder, kill_at, last = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
saved = folder / "checkpoint.pt"
torch.manual_seed(0)
net = nn.Sequential(
    nn.Linear(6, 32), nn.BatchNorm1d(32), nn.GELU(), nn.Dropout(0.2), nn.Linear(32, 32), nn.Tanh(),
    nn.Dropout(0.5), nn.Linear(32, 3),
)
model = ORTModule(net, DebugOptions(LogLevel.ERROR))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
first = 0
if saved.exists():
    state = torch.load(saved)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    torch.set_rng_state(state["generator"])
    first = state["step"]
for step in range(first, last):
    if step == kill_at:
        os.kill(os.getpid(), signal.SIGKILL)
    x = torch.randn(8 + step % 5, 6)
    loss = nn.functional.cross_entropy(model(x), (x[:, :3].argmax(1) + step) % 3)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if (step + 1) % 100 == 0:
        torch.save(
            {
                "model": model.state_dict(), "optimizer": optimizer.state_dict(),
                "generator": torch.get_rng_state(), "step": step + 1,
            },
            saved,
        )
text = hashlib.sha256(loss.detach().numpy().tobytes())
for value in model.state_dict().values():
    text.update(value.numpy().tobytes())
print(first, text.hexdigest())
"""


def _train(folder: Path, kill_at: int = -1, last: int = 600) -> subprocess.CompletedProcess[str]:
    folder.mkdir(exist_ok=True)
    return forked_process.run("-c", SCRIPT, str(folder), str(kill_at), str(last))


@pytest.mark.slow
def test_killed_and_resumed(tmp_path: Path) -> None:
    """At step 500, between two saves, with dropout and changing batches."""
    killed = _train(tmp_path / "killed", kill_at=555)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    resumed = _train(tmp_path / "killed")
    whole = _train(tmp_path / "whole")
    assert resumed.stdout.startswith("500 "), resumed.stderr
    assert whole.stdout.startswith("0 "), whole.stderr
    assert resumed.stdout.split()[1] == whole.stdout.split()[1]
