"""Every op against eager: all cases of all data files of this folder, through all checks of the harness.

Each case is captured once with a symbolic size and run, forward and backward in float64, with two
sizes; the first case of each operator belongs to the quick part. The slow part captures it with
fixed sizes: narrower types, other strides (float64 again), empty tensors and sizes of one.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from ortmodule_py import _C

from . import harness
from .case import Case

_FOLDER = Path(__file__).parent
_SOURCES = _FOLDER.parents[1] / "csrc" / "ops"
_NO_DATA = {"__init__", "case", "harness", "test_ops", "test_rounding"}
_STEMS = sorted(path.stem for path in _FOLDER.glob("*.py") if path.stem not in _NO_DATA)


def _cases_of(stem: str) -> list[Case]:
    cases: list[Case] = importlib.import_module(f"{__package__}.{stem}").cases()
    return cases


_CASES = {stem: _cases_of(stem) for stem in _STEMS}


def _every_case(*, quick_firsts: bool) -> pytest.MarkDecorator:
    """All cases; slow are all, or all but the first of each operator."""
    seen, parameters = set(), []
    for stem in _STEMS:
        for case in _CASES[stem]:
            quick = quick_firsts and case.target not in seen
            seen.add(case.target)
            marks = () if quick else (pytest.mark.slow,)
            parameters.append(pytest.param(case, id=f"{stem}-{case.name}", marks=marks))
    return pytest.mark.parametrize("case", parameters)


every_case = _every_case(quick_firsts=False)


@pytest.fixture(autouse=True)
def _one_thread() -> object:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def _run(check: Callable[[], None]) -> None:
    try:
        check()
    except harness.EagerRefuses as refusal:
        pytest.skip(f"eager refuses: {str(refusal)[:80]}")


def _first_cases() -> pytest.MarkDecorator:
    """The first case of each operator whose gradient is compared."""
    firsts: dict[str, object] = {}
    for stem in _STEMS:
        for case in _CASES[stem]:
            if case.gradient and case.check is None:
                firsts.setdefault(case.target, pytest.param(case, id=f"{stem}-{case.name}"))
    return pytest.mark.parametrize("case", list(firsts.values()))


_STEPS = {f"ortmodule_py.{kind}.default" for kind in ("gru", "lstm", "rnn")}
"""Layers whose gradients, one op over all steps, have no gradient themselves."""


@pytest.mark.slow
@_first_cases()
def test_second_gradient(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORTMODULE_DOUBLE_BACKWARD", "1")
    arguments = harness.Arguments.of(case, harness.SIZE)
    if any(t.is_floating_point() and t.dtype != torch.float64 for t in arguments.tensors):
        pytest.skip("other types have the same rules")
    if case.target in _STEPS:
        with pytest.raises(RuntimeError, match="PreviousStates has none"):
            harness.check_second(case, arguments)
        return
    _run(lambda: harness.check_second(case, arguments))


_TORCH_BEFORE_2_13 = tuple(map(int, torch.__version__.split(".")[:2])) < (2, 13)
# torch 2.11's C++ reads the number of classes of a soft target by `Tensor::size`, which fixes all
# sizes of the scores, in Dynamo too; 2.13 reads it by `sym_size`.
_FIXED_BEFORE_2_13 = r"cross_entropy_loss-(none|mean|sum)-soft"


@_every_case(quick_firsts=True)
def test_symbolic(case: Case, request: pytest.FixtureRequest) -> None:
    if _TORCH_BEFORE_2_13 and re.search(_FIXED_BEFORE_2_13, request.node.name):
        _run(lambda: harness.check_fixed(case, harness.Arguments.of(case, harness.SIZE)))
        return
    _run(lambda: harness.check_symbolic(case))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@every_case
def test_dtype(case: Case, dtype: torch.dtype) -> None:
    arguments = harness.Arguments.of(case, harness.SIZE)
    if not any(t.dtype == torch.float64 for t in arguments.tensors):
        pytest.skip("fixed types")
    _run(lambda: harness.check_fixed(case, arguments.in_dtype(dtype)))


@every_case
def test_strided(case: Case) -> None:
    arguments = harness.Arguments.of(case, harness.SIZE)
    if not arguments.tensors:
        pytest.skip("no tensors")
    _run(lambda: harness.check_fixed(case, arguments.strided()))


def _special_sizes() -> pytest.MarkDecorator:
    """The cases with the sizes that they allow; torch itself does not survive the others."""
    return pytest.mark.parametrize(
        ("case", "size"),
        [
            pytest.param(case, size, id=f"{stem}-{case.name}-{size}")
            for stem in _STEMS
            for case in _CASES[stem]
            for size in case.sizes
        ],
    )


@pytest.mark.slow
@_special_sizes()
def test_special_sizes(case: Case, size: int) -> None:
    _run(lambda: harness.check_size(case, size))


def test_every_rule_has_a_case() -> None:
    """Of all overloads that torch has, and those for recurrent layers, the ones that the exporter converts."""
    names = {s.name + "." + (s.overload_name or "default") for s in torch._C._jit_get_all_schemas()}
    targets = {n.replace("::", ".") for n in names if n.startswith(("aten::", "ortmodule_py::"))}
    builder = _C.GraphBuilder()
    rules = {target for target in targets if builder.has_rule(target)}
    tested = {case.target for cases in _CASES.values() for case in cases}
    assert len(rules) > 200
    assert rules - tested == set()
    assert tested - rules == set()


def test_cases_stand_in_the_file_of_their_op() -> None:
    """The data of csrc/ops/softmax.cpp is in softmax.py."""
    sources = {path.stem: path.read_text() for path in _SOURCES.glob("*.cpp")}
    owners = {
        target: stem
        for stem, text in sources.items()
        for target in re.findall(r'"((?:aten|ortmodule_py)\.[\w.]+)"', text)
    }
    misplaced = [
        f"{case.target} in {stem}.py belongs to {owners.get(case.target)}.py"
        for stem, cases in _CASES.items()
        for case in cases
        if owners.get(case.target) != stem
    ]
    assert misplaced == []
