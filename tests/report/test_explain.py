"""explain, the plan command and the example of the documents."""

from __future__ import annotations

import copy
import json
import os
import re
import subprocess
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from ortmodule_py import ORTModule, explain, last_run_report, plan
from tests import forked_process
from tests.fresh_process import ROOT
from tests.small_models import make

SEED_MODEL = ROOT / "examples" / "seed_model.py"


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LEVEL", "CONFIG", "BUDGET", "STRICT"):
        monkeypatch.delenv(f"ORTMODULE_MEMORY_OPT_{name}", raising=False)
    monkeypatch.setenv("ORTMODULE_LOG_LEVEL", "ERROR")


def test_explain_before_the_first_step_changes_nothing() -> None:
    module, batch = make("resnet")
    before = copy.deepcopy(module.state_dict())
    model = ORTModule(module)
    torch.manual_seed(3)
    state = torch.random.get_rng_state()
    explanation = explain(model, **batch)
    assert torch.equal(state, torch.random.get_rng_state())
    for name, value in module.state_dict().items():
        assert torch.equal(value, before[name]), name
    assert all(p.grad is None for p in module.parameters())
    assert explanation.peak_bytes == explanation.unoptimized_peak_bytes > 0
    assert explanation.sizes == {"batch": 2} and "For the batch: batch=2\n" in str(explanation)
    alive = sum(item["bytes"] for item in explanation.largest_at_peak)
    assert 0 < alive <= explanation.peak_bytes
    assert any(item["module"] and item["source"] for item in explanation.largest_at_peak)


class Remembering(nn.Module):
    """Changes what it holds by assignment, in a container, and with Python's own generator."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("average", torch.zeros(4))
        self.steps = 0
        self.seen: list[float] = []

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x)
        self.average = 0.9 * self.average + 0.1 * y.detach().mean(0)
        self.steps += 1
        self.seen.append(1.0)
        return (y - self.average).pow(2).mean()


def test_explain_leaves_what_forward_assigns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORTMODULE_VERIFY_EVERY", "2")
    module = Remembering()
    average = module.average
    model = ORTModule(module)
    explain(model, torch.randn(3, 4))
    assert module.average is average and not average.any()
    assert module.steps == 0 and module.seen == []
    assert model._verifier is not None and model._verifier._forwards == 0
    model(torch.randn(3, 4)).backward()
    assert module.steps == 1 and module.average.any()


@pytest.mark.slow
def test_explain_names_decisions_and_reasons(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORTMODULE_MEMORY_OPT_LEVEL", "1")
    module, batch = make("gpt")
    model = ORTModule(module)
    model(**batch).backward()
    explanation = explain(model)
    assert explanation.layers == [4]
    assert explanation.peak_bytes < explanation.unoptimized_peak_bytes
    decided = {item["decision"] for item in explanation.decisions}
    assert decided == {"keep", "recompute"}
    assert all(item["reason"] for item in explanation.decisions)
    assert any(item["reason"] == "a layer begins with it" for item in explanation.decisions)
    values = json.loads(explanation.to_json())
    assert values["peak_bytes"] == explanation.peak_bytes
    assert "% against" in str(explanation) and "nothing is recomputed" not in str(explanation)
    picture = tmp_path / "memory.png"
    explanation.save_picture(picture)
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_explain_without_a_plan_says_what_to_do() -> None:
    with pytest.raises(RuntimeError, match="give a batch"):
        explain(ORTModule(torch.nn.Linear(2, 2)))
    with pytest.raises(TypeError, match="must be an ORTModule"):
        explain(torch.nn.Linear(2, 2))
    averaged = torch.optim.swa_utils.AveragedModel(ORTModule(torch.nn.Linear(2, 2)))
    for ask in (explain, last_run_report):
        with pytest.raises(TypeError, match=r"found AveragedModel; pass its \.module"):
            ask(averaged)


def test_explain_says_why_there_is_no_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(3, 2)
    with torch.inference_mode(), pytest.raises(RuntimeError, match="call explain outside of it"):
        explain(ORTModule(nn.Linear(2, 2)), x)
    with pytest.raises(RuntimeError, match="nothing to compute"):
        explain(ORTModule(nn.Identity()), x)
    with pytest.raises(RuntimeError, match=r"eager PyTorch runs it: .*; take out") as left:
        explain(ORTModule(LeftToEager()), x)
    assert "give a batch" not in str(left.value)
    monkeypatch.setenv("ORTMODULE_BYPASS", "1")
    with pytest.raises(RuntimeError, match=r"found ORTMODULE_BYPASS=1, .*; unset it"):
        explain(ORTModule(nn.Linear(2, 2)), x)


@pytest.mark.parametrize(("level", "budget"), [("0", None), ("1", None), ("0", "activations:90%")])
def test_explain_is_about_the_last_batch(
    level: str, budget: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORTMODULE_MEMORY_OPT_LEVEL", level)
    module = nn.Sequential(
        *[nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16)) for _ in range(4)]
    )
    model = ORTModule(module, memory_budget=budget)
    small, large = torch.randn(8, 16), torch.randn(64, 16)
    model(small).sum().backward()
    first = explain(model)
    told = explain(model, large)
    assert (first.sizes, told.sizes) == ({"batch": 8}, {"batch": 64})
    assert told.timelines["after"]["peak_bytes"] == told.peak_bytes > first.peak_bytes
    assert told.rows[0]["saving_bytes"] == 8 * first.rows[0]["saving_bytes"]
    applied = sum(row["applied"] for row in told.rows)
    assert applied == sum(d["decision"] != "keep" for d in told.decisions)
    for batch, wanted in ((large, told), (small, first)):
        model(batch).sum().backward()
        assert explain(model).peak_bytes == wanted.peak_bytes
        assert last_run_report(model)["planned_peak_bytes"] == wanted.peak_bytes
    if level == "0" and budget is None:  # else what is recomputed follows from the first batch
        alone = explain(ORTModule(module), large)
        assert (alone.peak_bytes, alone.rows) == (told.peak_bytes, told.rows)


class LeftToEager(nn.Module):
    @torch._dynamo.disable
    def forward(self, x: Tensor) -> Tensor:
        return (x * x).sum()


@pytest.mark.parametrize(
    ("options", "environment", "message"),
    [
        (["--select", "1", "--out", "absent/out.json"], {}, "found 'absent'; make it"),
        (["--select", "1", "--out", "."], {}, "found the folder '.'"),
        (["--select", "1,,2", "--out", "out.json"], {}, "but found '1,,2'"),
        (["--select", "0", "--out", "out.json"], {}, "but found '0'"),
        (["--select", "x", "--out", "out.json"], {}, "but found 'x'"),
        ([], {"ORTMODULE_BYPASS": "1"}, "found ORTMODULE_BYPASS=1"),
        ([], {"ORTMODULE_MEMORY_OPT_LEVEL": "7"}, "but found '7'"),
    ],
)
def test_plan_command_refuses_before_the_script_starts(
    options: list[str],
    environment: dict[str, str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("raise AssertionError('it ran')\n")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit) as ended:
        plan.main([*options, "train.py"])
    assert ended.value.code == 2
    assert message in capsys.readouterr().err.splitlines()[-1]


CATCHING = """
import torch
from ortmodule_py import ORTModule

model = ORTModule(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.GELU()))
other = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD([*model.parameters(), *other.parameters()], 0.1)
{setup}
while True:
    other(torch.ones(2, 4)).sum().backward()
    try:
        model(torch.ones(2, 4)).sum().backward()
    except:
        print("caught")
    {after}
    print("trained")
"""


@pytest.mark.slow
@pytest.mark.parametrize("after", ["optimizer.step()", "continue"])
def test_a_script_that_catches_everything_does_not_train(after: str, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(CATCHING.format(setup="", after=after))
    done = run("-m", "ortmodule_py.plan", str(script))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("caught") == 1 and "trained" not in done.stdout
    assert plans(done.stdout)


@pytest.mark.slow
def test_a_script_without_a_plan_does_not_train(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    setup = "import os; os.environ['ORTMODULE_BYPASS'] = '1'; model = ORTModule(model.module)"
    script.write_text(CATCHING.format(setup=setup, after="optimizer.step()"))
    done = run("-m", "ortmodule_py.plan", str(script))
    assert done.returncode == 1 and "trained" not in done.stdout
    assert "[plan] the module must have a plan, but found ORTMODULE_BYPASS=1" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def run(*command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    ours = {k: v for k, v in os.environ.items() if k.startswith("ORTMODULE_")}
    return forked_process.run(*command, variables=ours | environment)


def plans(text: str) -> dict[str, bool]:
    """Config -> ON, of the rows of a table."""
    rows = re.findall(r"^ - Plan \d+ +:  (ON |OFF)  :  (\S+)", text, re.M)
    return {config: state == "ON " for state, config in rows}


@pytest.mark.slow
def test_the_seed_model_has_every_plan_of_the_documents() -> None:
    done = run(str(SEED_MODEL), "--steps", "1", ORTMODULE_LOG_LEVEL="INFO")
    assert done.returncode == 0, done.stderr
    listed = plans(done.stderr)
    for cluster in ("BiasGelu+", "BiasSoftmax+", "Dropout+", "FusedMatMul+", "Reshape+Where+"):
        assert f"{cluster}:1:-1" in listed
    assert "Cast+:1:-1" in listed and "Cast+:2:-1" in listed
    assert not any(listed.values())


@pytest.mark.slow
def test_selected_rows_are_on_in_the_next_run(tmp_path: Path) -> None:
    out = tmp_path / "mem_opt.json"
    select = ("-m", "ortmodule_py.plan", "--select", "1,3", "--out", str(out))
    planned = run(*select, str(SEED_MODEL), "--steps", "2")
    assert planned.returncode == 0, planned.stderr
    assert "step 0" not in planned.stdout, "no optimizer step runs"
    rows = list(plans(planned.stdout))
    chosen = json.loads(out.read_text())
    assert chosen == [rows[0], rows[2]]
    environment = {"ORTMODULE_MEMORY_OPT_CONFIG": str(out), "ORTMODULE_LOG_LEVEL": "INFO"}
    done = run(str(SEED_MODEL), "--steps", "1", **environment)
    assert done.returncode == 0, done.stderr
    assert {config for config, on in plans(done.stderr).items() if on} == set(chosen)
    peaks = re.search(r"planned peak ([\d,]+) bytes, measured ([\d,]+) bytes", done.stdout)
    assert peaks and peaks[1] == peaks[2]


@pytest.mark.slow
def test_plan_command_refuses_what_it_cannot_do(tmp_path: Path) -> None:
    script = tmp_path / "empty.py"
    script.write_text("print('nothing')\n")
    ended = run("-m", "ortmodule_py.plan", str(script))
    assert ended.returncode == 1 and "before an ORTModule ran" in ended.stderr
    out = tmp_path / "out.json"
    wrong = run("-m", "ortmodule_py.plan", "--select", "99", "--out", str(out), str(SEED_MODEL))
    assert wrong.returncode == 2 and "row numbers from 1 to" in wrong.stderr
    assert not out.exists()


@pytest.mark.slow
def test_a_model_that_does_not_fit_in_eager_trains() -> None:
    done = run(str(ROOT / "examples" / "fit_in_memory.py"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "eager runs out of memory, ortmodule_py trains" in done.stdout
