"""A capture that takes long says so, and can be stopped."""

from __future__ import annotations

import io
import logging
import re
import sys

import pytest
import torch

from ortmodule_py import LogLevel, ORTModule
from ortmodule_py.dynamo import progress
from ortmodule_py.options.logger import module_logger
from tests.fresh_process import run
from tests.small_modules import Breaking

tqdm = pytest.importorskip("tqdm").tqdm
STATUS = "capturing the model takes a while: "


def capture(capsys: pytest.CaptureFixture[str]) -> list[str]:
    torch._dynamo.reset()  # Dynamo forgets all that was registered with it
    model = ORTModule(Breaking())
    for _ in range(2):
        model(torch.randn(3, 4))[0].backward()
    return [line for line in capsys.readouterr().err.splitlines() if STATUS in line]


def test_only_a_long_capture_is_mentioned(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert progress.AFTER_SECONDS == 3.0
    monkeypatch.setattr(progress, "AFTER_SECONDS", 600.0)  # this machine may be slow
    assert capture(capsys) == []
    monkeypatch.setattr(progress, "AFTER_SECONDS", 0.05)
    (line,) = capture(capsys)
    assert line.startswith(f"ortmodule_py: {STATUS}") and line.endswith(" s so far")
    assert re.search(r": (tracing|exporting|compiling), \d+ s so far$", line)
    monkeypatch.setenv("ORTMODULE_LOG_LEVEL", "ERROR")
    assert capture(capsys) == []


def test_lines_stand_above_progress_bars(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    logger = module_logger(LogLevel.WARNING, 20_000)
    with tqdm(total=3, file=sys.stderr) as bar:
        bar.update()
        logger.log(logging.WARNING, "a line")
        text = sys.stderr.getvalue()
        (before, _) = text.split("a line\n")
        assert before.endswith("\r")  # the bar was wiped, and the line begins at the left
        bar.update()


STOPPED = """
import os, signal, time
import torch
from torch import nn
from ortmodule_py import ORTModule, last_run_report
from ortmodule_py.compile import compiler
from ortmodule_py.lower import emitter

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.a, self.b = nn.LayerNorm(8), nn.Linear(8, 32), nn.Linear(32, 8)
    def forward(self, x):
        return x + self.b(nn.functional.gelu(self.a(self.norm(x))))

# A job in the background of a shell begins with Ctrl-C switched off.
signal.signal(signal.SIGINT, signal.default_int_handler)
torch.manual_seed(0)
net, x, sent = nn.Sequential(*[Block() for _ in range(8)]), torch.randn(2, 8), []

def interrupt_in(owner, name):
    original = getattr(owner, name)
    def interrupted(*args, **kwargs):
        setattr(owner, name, original)
        sent.append(time.perf_counter())
        os.kill(os.getpid(), signal.SIGINT)
        return original(*args, **kwargs)
    setattr(owner, name, interrupted)

# When tracing begins, and when the graph is written.
for owner, name in ((compiler, "lower"), (emitter.Emitter, "calls")):
    torch._dynamo.reset()
    model = ORTModule(net)
    interrupt_in(owner, name)
    try:
        model(x)
        print("finished")
    except KeyboardInterrupt:
        print("stopped", time.perf_counter() - sent[-1])
    net.zero_grad()
    model(x).sum().backward()
    ours = [p.grad.clone() for p in net.parameters()]
    net.zero_grad()
    net(x).sum().backward()
    for p, grad in zip(net.parameters(), ours):
        torch.testing.assert_close(grad, p.grad, rtol=1e-4, atol=1e-5)
    assert last_run_report(model)["compiled"]
"""


@pytest.mark.slow
def test_an_interrupted_capture_stops_and_the_module_is_usable() -> None:
    done = run(STOPPED, ORTMODULE_LOG_LEVEL="ERROR")
    assert done.returncode == 0, done.stderr
    results = [line.split() for line in done.stdout.splitlines()]
    stopped = [float(words[1]) for words in results if words[0] == "stopped"]
    assert len(stopped) == 2 and max(stopped) < 1, done.stdout
