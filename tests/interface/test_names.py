"""The names of `onnxruntime.training`: an old import works after one word is changed."""

from __future__ import annotations

import pytest
from torch import nn

import ortmodule_py
import ortmodule_py.training
from ortmodule_py.training import ortmodule as old


def test_old_imports() -> None:
    for name in ("ORTModule", "DebugOptions", "LogLevel"):
        assert getattr(old, name) is getattr(ortmodule_py, name)
        assert getattr(ortmodule_py.training, name) is getattr(ortmodule_py, name)
    assert issubclass(old.ORTModuleFallbackException, RuntimeError)
    assert issubclass(old.ORTModuleInitException, RuntimeError)


def test_an_old_script() -> None:
    script = "from onnxruntime.training.ortmodule import ORTModule, DebugOptions, LogLevel"
    names: dict[str, type] = {}
    exec(script.replace("onnxruntime", "ortmodule_py"), names)
    assert isinstance(names["ORTModule"](nn.Linear(2, 2)), nn.Module)


def test_graph_optimizers_are_refused() -> None:
    with pytest.raises(NotImplementedError, match=r"^\[register_graph_optimizer\]"):
        old.register_graph_optimizer(priority=1)
