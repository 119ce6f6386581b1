"""The stubs of the extensions have all of their names, and no others."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from ortmodule_py import _C, _inference

PACKAGE = Path(_inference.__file__).parent


def _public(names: Any) -> set[str]:
    return {name for name in names if not name.startswith("_")}


def _of_stub(body: list[ast.stmt]) -> dict[str, ast.stmt]:
    """The statement that declares each name."""
    found: dict[str, ast.stmt] = {}
    for line in body:
        if isinstance(line, (ast.FunctionDef, ast.ClassDef)):
            found[line.name] = line
        elif isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
            found[line.target.id] = line
    return found


@pytest.mark.parametrize("module", [_C, _inference], ids=["_C", "_inference"])
def test_the_stub_declares_what_the_extension_has(module: ModuleType) -> None:
    stub = ast.parse((PACKAGE / f"{module.__name__.rpartition('.')[2]}.pyi").read_text())
    declared = _of_stub(stub.body)
    assert _public(declared) == _public(vars(module))
    for name, line in declared.items():
        value = getattr(module, name)
        if isinstance(line, ast.ClassDef) and (inspect.isclass(value) or inspect.ismodule(value)):
            assert _public(_of_stub(line.body)) == _public(vars(value)), name


def test_the_package_says_that_it_is_typed() -> None:
    assert (PACKAGE / "py.typed").exists()
