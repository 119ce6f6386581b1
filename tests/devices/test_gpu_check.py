"""tools/gpu_check on a machine without a GPU: what it says, and that it goes on where it stopped.

The driver runs parts that are short scripts here, since it needs neither torch nor a GPU.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from ortmodule_py import _C, ORTModule, last_run_report
from tests.ops import harness
from tests.ops.case import case, normal
from tools.gpu_check import __main__ as gpu_check, kernels, offload, operators, table, worker
from tools.gpu_check.driver import MOST_TRIES, Entry, Results, Run, todo
from tools.gpu_check.part import Context, Part
from tools.gpu_check.parts import PARTS
from tools.gpu_check.profile import apart, beside, by_kernel, kind_of, short_name
from tools.gpu_check.speed import compared

without_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")

_SCRIPT = """
import json, os, subprocess, sys, time
out = os.fdopen(int(sys.argv[1]), "w", buffering=1)
for line in sys.stdin:
    request = json.loads(line)
    name = request["row"]
    begin = time.time()
    if name == "crashes":
        print("something broke", flush=True)
        os.kill(os.getpid(), 11)
    if name == "hangs":
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        open(os.environ["CHILD"], "w").write(str(child.pid))
        time.sleep(600)
    if name.startswith("waits"):
        time.sleep(0.5)
    facts = {"ok": name != "wrong", "why": "", "seconds": 101.0 if name == "long" else 0.0}
    facts |= {"known": sorted(request["known"]), "process": os.getpid(), "from": begin, "to": time.time()}
    facts["threads"] = os.environ.get("OMP_NUM_THREADS")
    out.write(json.dumps({"row": name, "facts": facts, "last": name == "lost"}) + "\\n")
    if name == "lost":
        sys.exit(3)
"""


def _entry(*rows: str, name: str = "numbers", limit_s: float = 60.0, alone: bool = False) -> Entry:
    return Entry(name, rows, limit_s, (sys.executable, "-c", _SCRIPT), alone=alone)


def _run(
    path: Path, *entries: Entry, seconds: float = 60.0, jobs: int = 1
) -> tuple[list[str], dict[str, Any]]:
    """The rows in the order in which they ended, and the file."""
    shown: list[str] = []
    results = Results.load(path, {"device": "A"})
    run = Run(results, seconds, lambda part, name, row: shown.append(f"{part}/{name}"))
    run.all(entries, jobs)
    return shown, json.loads(path.read_text())["parts"] if path.exists() else {}


def _alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_parts_run_in_order_and_go_on_where_they_stopped(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "results.json"  # whose folder is not there yet
    one, two = _entry("a", "wrong", "b"), _entry("c", name="second")
    shown, parts = _run(path, one, two)
    assert shown == ["numbers/a", "numbers/wrong", "numbers/b", "second/c"]
    # What failed runs again, what is new before it, and what is right does not.
    shown, parts = _run(path, _entry("a", "wrong", "b", "new"), two)
    assert shown == ["numbers/new", "numbers/wrong"]
    assert parts["numbers"]["new"]["known"] == ["a", "b", "wrong"]
    assert parts["numbers"]["wrong"]["process"] == parts["numbers"]["new"]["process"]
    assert Results.load(path, {"device": "B"}).parts == {}


def test_a_crash_costs_its_row(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    shown, parts = _run(path, _entry("a", "crashes", "b"), _entry("c", name="second"))
    assert shown == ["numbers/a", "numbers/crashes", "numbers/b", "second/c"]
    row = parts["numbers"]["crashes"]
    assert row["why"] == "the process ended with signal 11: something broke" and not row["ok"]
    for _ in range(3):  # it gets one more try, not one more in every run
        _, parts = _run(path, _entry("a", "crashes", "b"))
    assert parts["numbers"]["crashes"]["tries"] == MOST_TRIES


def test_a_lost_gpu_costs_no_other_row(tmp_path: Path) -> None:
    shown, parts = _run(tmp_path / "results.json", _entry("lost", "b"))
    assert shown == ["numbers/lost", "numbers/b"] and parts["numbers"]["b"]["ok"]
    assert parts["numbers"]["lost"]["process"] != parts["numbers"]["b"]["process"]


def test_processes_side_by_side_and_what_must_be_alone(tmp_path: Path) -> None:
    timed = _entry("waits 4", name="timed", alone=True)
    one = _entry("waits 1", "waits 2", "crashes", "waits 3")
    two = _entry("a", name="second")
    shown, parts = _run(tmp_path / "results.json", timed, one, two, jobs=3)
    assert len(shown) == 6 and shown[-1] == "timed/waits 4"
    numbers = parts["numbers"]
    assert numbers["crashes"]["tries"] == 1 and "signal 11" in numbers["crashes"]["why"]
    waiting = [numbers[f"waits {i}"] for i in (1, 2, 3)]
    assert len({row["process"] for row in waiting}) > 1
    last = parts["timed"]["waits 4"]
    assert all(row["to"] <= last["from"] for row in [*waiting, parts["second"]["a"]])
    assert last["threads"] == os.environ.get("OMP_NUM_THREADS")
    assert waiting[0]["threads"] == str(max((os.cpu_count() or 1) // 3, 1))


def test_no_row_begins_that_may_not_end(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    assert _run(path, _entry("long", "b", limit_s=100.0))[0] == ["numbers/long"]
    # One at least, or nothing would ever be done.
    assert _run(path, _entry("long", "b", "c", limit_s=100.0))[0] == ["numbers/b"]


@pytest.mark.slow
def test_a_hang_costs_its_part_and_leaves_no_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CHILD", str(tmp_path / "child"))
    path = tmp_path / "results.json"
    begin = time.monotonic()
    shown, parts = _run(
        path, _entry("a", "hangs", "b", limit_s=4.0), _entry("c", name="second", limit_s=20.0)
    )
    assert time.monotonic() - begin < 60
    assert shown == ["numbers/a", "numbers/hangs", "second/c"]
    assert parts["numbers"]["hangs"]["why"] == "it did not end in time"
    child = int((tmp_path / "child").read_text())
    deadline = time.monotonic() + 10
    while _alive(child) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _alive(child)
    shown, _ = _run(path, _entry("a", "b", "hangs", limit_s=8.0))  # to start a process and do b
    assert shown == ["numbers/b", "numbers/hangs"]


def test_the_time_of_the_run_ends_it_and_is_no_fault_of_a_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CHILD", str(tmp_path / "child"))
    path = tmp_path / "results.json"
    later = _entry("c", name="second")
    shown, parts = _run(path, _entry("a", "hangs", limit_s=6.0), later, seconds=3.5)
    assert shown == ["numbers/a"] and list(parts["numbers"]) == ["a"]
    assert "second" not in parts
    shown, _ = _run(path, later, seconds=0.0)
    assert shown == []


def test_an_interrupted_run_kills_its_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CHILD", str(tmp_path / "child"))

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 2.0)
    try:
        with pytest.raises(KeyboardInterrupt):
            _run(tmp_path / "results.json", _entry("hangs"))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
    child = tmp_path / "child"
    time.sleep(0.2)
    assert not child.exists() or not _alive(int(child.read_text()))


def test_a_file_that_is_cut_off_is_begun_again(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    path.write_text('{"machine": {"dev')
    assert Results.load(path, {"device": "A"}).parts == {}


def test_the_order_of_what_is_left() -> None:
    known = {
        "right": {"ok": True},
        "wrong": {"ok": False},
        "ended": {"ok": False, "tries": 1},
        "given up": {"ok": False, "tries": MOST_TRIES},
    }
    rows = ["given up", "ended", "wrong", "right", "new"]
    assert todo(rows, known) == ["new", "wrong", "ended"]


# ---- the worker ------------------------------------------------------------------------------------
def _context() -> Context:
    return Context(torch.device("cpu"), emulated=True)


def _part(calls: list[str]) -> Part:
    def run(name: str, context: Context) -> dict[str, object]:
        calls.append(name)
        if name == "breaks":
            raise RuntimeError("it broke\nsecond line")
        return {"ok": True, "why": "", "figure": 1.5, "known": list(context.known)}

    return Part("numbers", "numbers", lambda: ["one", "breaks", "three"], run)


def _work(calls: list[str]) -> tuple[int, list[dict[str, Any]]]:
    events: list[dict[str, Any]] = []
    requests = [json.dumps({"row": n, "known": {"zero": {}}}) for n in ("one", "breaks", "three")]
    return worker.work(_part(calls), _context(), requests, events.append), events


def test_a_worker_says_what_came_of_each_row() -> None:
    status, events = _work([])
    assert status == 0
    assert [event["row"] for event in events] == ["one", "breaks", "three"]
    assert events[0]["facts"]["figure"] == 1.5 and events[0]["facts"]["ok"]
    assert events[0]["facts"]["known"] == ["zero"]
    assert events[1]["facts"]["why"] == "RuntimeError: it broke"
    assert not any(event["last"] for event in events)


def test_a_lost_gpu_ends_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    monkeypatch.setattr(Context, "lost", lambda _: calls[-1] == "breaks")
    status, events = _work(calls)
    assert status == worker.LOST and calls == ["one", "breaks"]
    why = events[-1]["facts"]["why"]
    assert why == "RuntimeError: it broke; the GPU was lost to the process" and events[-1]["last"]


def test_results_are_those_of_a_module() -> None:
    content = Path(_C.__file__).read_bytes()
    assert hashlib.sha256(content).hexdigest().startswith(worker.machine()["module"])


# ---- the command -----------------------------------------------------------------------------------
def test_a_dry_run_lists_parts_and_limits(capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu_check.main(["--dry-run"]) == 0
    said = capsys.readouterr().out
    places = [said.index(f". {part.name} ") for part in PARTS]
    assert places == sorted(places)
    names = [part.name for part in PARTS]
    first = ["smoke", "generated", "offload", "attention", "convolution plans", "epilogues"]
    first += ["speed resnet50", "speed gpt2-medium", "speed bert-large", "kernels", "products"]
    assert names[: len(first)] == first
    assert names.index("ops 8/8") < names.index("budgets")
    assert all(0 < part.limit_s <= 480 and part.rows() for part in PARTS)
    assert len(set(names)) == len(names)
    timed = {part.name.split()[0] for part in PARTS if part.timed}
    assert timed == {
        *("generated", "offload", "attention", "convolution", "speed", "kernels", "products"),
        *("epilogues", "optimizer"),
    }


@without_gpu
def test_it_says_what_it_would_run(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    results = str(tmp_path / "results.json")
    assert gpu_check.main(["speed", "budgets", "--results", results]) == 0
    said = capsys.readouterr().out
    assert "no GPU was found; on one this would run:" in said
    assert re.search(r"speed llama-1b +6 rows, at most 480 s", said)
    assert "ops" not in said.split()
    assert gpu_check.main(["speed", "--require-gpu", "--results", results]) == 1
    with pytest.raises(SystemExit):
        gpu_check.main(["sped"])
    assert (
        "there is no part sped; there are smoke, generated, offload, attention"
        in capsys.readouterr().err
    )


@pytest.mark.slow
@without_gpu
@pytest.mark.skipif(
    not _C.build_info()["cuda_emulation"], reason="this build has no CUDA kernels for the host"
)
def test_a_part_runs_through_the_host_s_kernels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "results.json"
    part = next(part for part in PARTS if part.name.startswith("ops") and "trilu" in part.rows())
    monkeypatch.setattr(gpu_check, "PARTS", (part,))
    entry = gpu_check.entry_of(part)
    monkeypatch.setattr(
        gpu_check, "entry_of", lambda _: Entry(part.name, ("trilu",), 120, entry.command)
    )
    assert gpu_check.main([part.name, "--results", str(path)]) == 0
    row = json.loads(path.read_text())["parts"][part.name]["trilu"]
    assert row["ok"] and row["passed"] > 10
    assert "all is well" in capsys.readouterr().out
    assert os.listdir(tmp_path / "results")


def test_operators_are_compared_without_tf32(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []
    places = (torch.backends.cudnn, torch.backends.cuda.matmul)

    def cases(*_: object) -> dict[str, object]:
        seen.extend(place.allow_tf32 for place in places)
        return {}

    before = [place.allow_tf32 for place in places]
    monkeypatch.setattr(operators, "_run_cases", cases)
    operators.OPERATORS[0].run("relu", _context())
    assert seen == [False, False]
    assert [place.allow_tf32 for place in places] == before


@pytest.mark.parametrize("refused", [True, False])
def test_what_eager_refuses_on_the_device_is_no_failure(
    refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed: list[object] = []

    def fails(*_: object) -> list[object]:
        failed.append(None)
        raise RuntimeError("a kernel failed")

    def eager(x: torch.Tensor) -> torch.Tensor:
        if failed and refused:
            raise RuntimeError("not implemented here")
        return torch.relu(x)

    monkeypatch.setattr(harness.Compiled, "run", fails)
    one = case("aten.relu.default", lambda n: (normal(n, 3),), function=eager)
    with pytest.raises(harness.EagerRefuses if refused else RuntimeError) as raised:
        harness.check_fixed(one, harness.Arguments.of(one, 5))
    assert ("not implemented here" if refused else "a kernel failed") in str(raised.value)


def test_every_operator_is_in_one_shard() -> None:
    rows = [row for part in operators.OPERATORS for row in part.rows()]
    files = {p.stem for p in Path("tests/ops").glob("*.py") if "def cases" in p.read_text()}
    assert sorted(rows) == sorted(files)


# ---- what it makes of times ------------------------------------------------------------------------
def test_ratios_near_one_are_even() -> None:
    def rows(ours: float, **others: float) -> dict[str, Any]:
        kernels = [["gemm", 2.0, 500.0], ["pointwise_group_cuda<bf16>", 3.0, 100.0]]
        times = {"ours": ours, "ours level 1": ours} | others
        return {k: {"ms": v, "busy_ms": v / 2, "kernels": kernels} for k, v in times.items()}

    even = compared(rows(10.1, eager=20.0, compile=10.0))
    assert even["ok"] and even["verdict"] == "even" and even["idle"] == 0.5
    assert compared(rows(9.0, eager=20.0, compile=10.0))["verdict"] == "faster"
    slower = compared(rows(10.5, eager=20.0, compile=10.0))
    assert not slower["ok"] and slower["why"] == "slower than a peer by 5%"
    assert compared(rows(9.0, eager=20.0))["why"] == "there is no time of compile"
    # A graph that could not be recorded is wrong in its own row.
    assert "graphs_against_ours" not in even
    replayed = compared(rows(10.0, eager=20.0, compile=10.0) | {"ours graphs": {"ms": 7.0}})
    assert replayed["ok"] and replayed["graphs_against_ours"] == 0.7
    assert not compared({})["ok"]


@pytest.mark.parametrize(
    ("kept", "moved", "why"),
    [
        ((1, 1, 1, 1), (1, 1, 1), ""),
        ((1, 1, 2, 1), (1, 1, 1), "without offload other bits: w"),
        ((1, 1, 1, 1), (1, 3, 1), "other bits: w"),
    ],
)
def test_steps_that_differ_without_offload_are_told_apart(
    monkeypatch: pytest.MonkeyPatch, kept: tuple[int, ...], moved: tuple[int, ...], why: str
) -> None:
    steps = {"kept": iter(kept), "moved": iter(moved)}
    report = {"host_bytes": 1, "nondeterministic_kernels": []}
    report |= {"measured_peak_bytes": 1, "planned_peak_bytes": 1}
    monkeypatch.setattr(offload, "prepared", lambda *_: (torch.nn.Identity(), {}))
    monkeypatch.setattr(offload, "wrapped", lambda *_: "kept")
    monkeypatch.setattr(offload, "_offloading", lambda *_: "moved")
    monkeypatch.setattr(offload, "last_run_report", lambda _: report)
    monkeypatch.setattr(
        offload, "_step_of", lambda _: lambda model, _: {"w": torch.tensor(next(steps[model]))}
    )
    row = offload._same_bits("t5", "float32", Context(torch.device("cpu"), True))
    assert row["why"] == why and row["ok"] == (not why)


def test_kernels_are_named_counted_and_sorted() -> None:
    ours = "void ortmodule::cuda::(anonymous namespace)::softmax_cuda<float, 4>(float const*)"
    assert short_name(ours) == "softmax_cuda<float, 4>"
    assert [
        kind_of(n) for n in ("nvjet_tst_128", "triton_poi_fused_add_1", "Memcpy DtoD", "x")
    ] == [
        "product",
        "pointwise",
        "copy",
        "other",
    ]
    events = [(ours, 4.0), (ours, 6.0), ("gemm_1", 30.0)]
    first, second = by_kernel(events, steps=2)
    assert (first.name, first.us, second.us, second.launches) == ("gemm_1", 15.0, 5.0, 1.0)
    lines = beside([["gemm_1", 1.0, 15.0]], [["triton_poi_0", 2.0, 7.0]])
    assert [line.split()[0] for line in lines[1:4]] == ["all", "product", "pointwise"]


def test_passes_of_one_record_are_apart() -> None:
    mark = "void at::cuda::(anonymous namespace)::spin_kernel(long)"
    events = [("a", 1.0), ("b", 2.0), (mark, 0.5), ("c", 3.0)]
    assert apart(events) == [[("a", 1.0), ("b", 2.0)], [("c", 3.0)]]


@pytest.mark.parametrize("name", kernels.CASES)
def test_modules_that_are_timed_are_compiled_whole(name: str) -> None:
    case = kernels.CASES[name]
    module, args = case.make("cpu", 256)
    for tensor in args:
        tensor.requires_grad_(tensor.is_floating_point() and case.backward_bytes > 0)
    model = ORTModule(module)
    y = model(*args)
    if y.requires_grad:
        y.backward(torch.ones_like(y))
    report = last_run_report(model)
    assert report["compiled"], report["eager_pieces"]


def test_a_table_shows_lines_below_and_counts_what_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    row = {
        "ok": True,
        "why": "",
        "seconds": 1.0,
        "bytes": 2**31,
        "kernels": [1],
        "lines": ["below"],
    }
    results = Results(tmp_path / "r.json", {}, {"numbers": {"a": row}})
    assert table.table(results, [_entry("a", "b")]) == 1
    said = capsys.readouterr().out
    assert "bytes=2GiB" in said and "kernels" not in said
    assert said.index("1 rows left") < said.index("numbers, a\nbelow")
