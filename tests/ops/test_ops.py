"""Every op against eager: all cases of all data files of this folder, through all checks of the harness.

Each case is captured once with a symbolic size and run, forward and backward in float64, with two
sizes; the first case of each operator belongs to the quick part. The slow part captures it with
fixed sizes: narrower types, other strides (float64 again), empty tensors and sizes of one.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from ortmodule_py import _C

from . import harness
from .case import Case, normal

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


@pytest.mark.slow
@_first_cases()
def test_second_gradient(case: Case) -> None:
    arguments = harness.Arguments.of(case, harness.SIZE)
    if any(t.is_floating_point() and t.dtype != torch.float64 for t in arguments.tensors):
        pytest.skip("other types have the same rules")
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


_FORMS = ("float32", "bfloat16", "float16", "strided")


def _shared_out(parts_of: Callable[[Case], Sequence[Any]]) -> pytest.MarkDecorator:
    """The parts shared out among the cases of an operator: each case has one, and each part has a case."""
    cases: dict[str, list[tuple[str, Case]]] = {}
    for stem in _STEMS:
        for case in _CASES[stem]:
            cases.setdefault(case.target, []).append((stem, case))
    parameters = {}
    for of_target in cases.values():
        most = max(len(parts_of(case)) for _, case in of_target)
        for i in range(max(len(of_target), most)):
            stem, case = of_target[i % len(of_target)]
            parts = parts_of(case)
            if parts:
                part = parts[i % len(parts)]
                name = f"{stem}-{case.name}-{part}"
                parameters[name] = pytest.param(case, part, id=name)
    return pytest.mark.parametrize(("case", "part"), list(parameters.values()))


@pytest.mark.slow
@_shared_out(lambda case: _FORMS)
def test_form(case: Case, part: str) -> None:
    arguments = harness.Arguments.of(case, harness.SIZE)
    if part == "strided":
        _run(lambda: harness.check_fixed(case, arguments.strided()))
        return
    if not any(t.dtype == torch.float64 for t in arguments.tensors):
        pytest.skip("fixed types")
    _run(lambda: harness.check_fixed(case, arguments.in_dtype(getattr(torch, part))))


# Other sizes than a case allows torch itself does not survive.
@pytest.mark.slow
@_shared_out(lambda case: case.sizes)
def test_special_sizes(case: Case, part: int) -> None:
    _run(lambda: harness.check_size(case, part))


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


def test_a_size_that_torch_fixes_is_captured_again() -> None:
    """As soft labels of cross_entropy_loss in torch 2.11."""

    def fixing(x: torch.Tensor) -> torch.Tensor:
        rows = int(x.shape[0])
        return torch.relu(x) * rows

    harness.check_symbolic(Case("aten.relu.default", lambda n: (normal(n, 3),), function=fixing))
