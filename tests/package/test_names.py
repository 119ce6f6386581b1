"""The names of `onnxruntime.training`: an old import works after one word is changed."""

from __future__ import annotations

import importlib
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import ortmodule_py
import ortmodule_py.training
from ortmodule_py import ORTModule
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


@pytest.mark.parametrize(
    "script",
    [
        "from onnxruntime.training.optim import AdamWMode, FP16_Optimizer, FusedAdam",
        "from onnxruntime.training.optim.fused_adam import AdamWMode, FusedAdam",
        "from onnxruntime.training.optim.fp16_optimizer import FP16_Optimizer",
    ],
)
def test_old_optimizers(script: str) -> None:
    names: dict[str, type] = {}
    exec(script.replace("onnxruntime", "ortmodule_py"), names)
    for name in ("AdamWMode", "FP16_Optimizer", "FusedAdam"):
        assert name not in names or names[name] is getattr(ortmodule_py.optim, name)


@pytest.mark.slow
def test_modules_are_reached_by_attributes() -> None:
    """In a new process, where no other import has put them there."""
    script = (
        "import ortmodule_py; ortmodule_py.training.optim.FusedAdam; "
        "import ortmodule_py.training as t; t.optim.FusedAdam, t.ortmodule.ORTModule, t.ORTModule"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "script",
    [
        "from onnxruntime.training import amp",
        "import onnxruntime.training.amp",
        "from onnxruntime.training.utils.hooks import GlobalSubscriberManager",
        "from onnxruntime.training.optim import lr_scheduler",
        "from onnxruntime.training.optim.lr_scheduler import LinearWarmupLRScheduler",
        "from onnxruntime.training.ortmodule import ONNX_OPSET_VERSION",
        "from onnxruntime.training.ortmodule.experimental.json_config import JSONConfig",
    ],
)
def test_names_that_are_gone(script: str) -> None:
    with pytest.raises(ImportError, match=r"was kept, but found .*; docs/migrating.md says"):
        exec(script.replace("onnxruntime", "ortmodule_py"))
    assert not hasattr(ortmodule_py.training, "amp")
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("ortmodule_py.nothing")


def test_seeds() -> None:
    model = ORTModule(nn.Dropout(0.5))
    drawn = []
    for _ in range(2):
        ortmodule_py.set_seed(3)
        drawn.append((torch.rand(4), model(torch.ones(64))))
    assert torch.equal(drawn[0][0], drawn[1][0]) and torch.equal(drawn[0][1], drawn[1][1])
    assert not torch.equal(drawn[0][1], model(torch.ones(64)))


def test_old_arguments_of_fused_adam() -> None:
    parameters = inspect.signature(ortmodule_py.optim.FusedAdam).parameters.values()
    old = [p for p in parameters if p.kind == inspect.Parameter.POSITIONAL_OR_KEYWORD]
    assert [(p.name, p.default) for p in old[1:]] == [
        ("lr", 1e-3),
        ("bias_correction", True),
        ("betas", (0.9, 0.999)),
        ("eps", 1e-6),
        ("adam_w_mode", ortmodule_py.optim.AdamWMode.ADAMW_TRANSFORMERS),
        ("weight_decay", 0.0),
        ("set_grad_none", True),
    ]
    text = (Path(__file__).parents[2] / "docs" / "migrating.md").read_text()
    documented = re.search(r"`optim.FusedAdam\(params, (.*?)\)`", text)
    assert documented is not None
    assert re.findall(r"(\w+)=", documented[1]) == [p.name for p in old[1:]]


def test_graph_optimizers_are_refused() -> None:
    with pytest.raises(NotImplementedError, match=r"^\[register_graph_optimizer\]"):
        old.register_graph_optimizer(priority=1)


def test_a_star_import_leaves_torchs_names_alone() -> None:
    names: dict[str, object] = {}
    exec("from torch import nn, optim\nfrom ortmodule_py import *", names)
    assert names["nn"] is nn and names["optim"] is torch.optim
    assert ortmodule_py.nn.LinearCrossEntropy and ortmodule_py.optim
