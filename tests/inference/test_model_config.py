"""Options of a session that its model holds, beside stock onnxruntime."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import onnx
import onnxruntime as stock
import pytest
from onnx import helper

import ortmodule_py.onnxruntime as ours
from ortmodule_py.inference import InvalidArgument
from tests.inference.test_session import mlp

VARIABLE = "ORT_LOAD_CONFIG_FROM_MODEL"


def model_with(config: str) -> bytes:
    model = onnx.load_from_string(mlp())
    helper.set_model_props(model, {"ort_config": config})
    return bytes(model.SerializeToString())


CONFIG = json.dumps(
    {
        "session_options": {
            "intra_op_num_threads": 2,
            "inter_op_num_threads": 5,
            "execution_mode": 0,
            "graph_optimization_level": 1,
        }
    }
)


@pytest.mark.parametrize(
    ("package", "by"), [(stock, "variable"), (ours, "variable"), (ours, "argument")]
)
def test_the_options_of_the_model_win(
    package: Any, by: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(model_with(CONFIG))
    own = package.SessionOptions()
    own.intra_op_num_threads = 1
    own.logid = "mine"
    if by == "variable":
        monkeypatch.setenv(VARIABLE, "1")
    keywords = {"read_config_from_model": 1} if by == "argument" else {}
    options = package.InferenceSession(str(path), own, **keywords).get_session_options()
    assert (options.intra_op_num_threads, options.inter_op_num_threads) == (2, 5)
    assert options.graph_optimization_level == package.GraphOptimizationLevel.ORT_ENABLE_BASIC
    assert own.intra_op_num_threads == 1
    if package is ours:  # onnxruntime gives up what else was asked for
        assert options.logid == "mine"


def test_a_profile_that_the_model_asks_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    model = model_with('{"session_options": {"enable_profiling": 1}}')
    session = ours.InferenceSession(model, read_config_from_model=1)
    assert Path(session.end_profiling()).exists()
    assert not ours.InferenceSession(model).get_session_options().enable_profiling


@pytest.mark.parametrize("config", ["no JSON", "[]", '{"session_options": {"execution_mode": 7}}'])
def test_what_is_no_configuration_is_refused(config: str) -> None:
    with pytest.raises(InvalidArgument, match="the model's 'ort_config'"):
        ours.InferenceSession(model_with(config), read_config_from_model=1)
    ours.InferenceSession(model_with(config))


def test_other_options_of_the_model_are_named(capfd: pytest.CaptureFixture[str]) -> None:
    model = model_with('{"session_options": {"enable_mem_pattern": 0}}')
    options = ours.InferenceSession(model, read_config_from_model=1).get_session_options()
    assert (
        options.enable_mem_pattern and "'enable_mem_pattern' is ignored" in capfd.readouterr().err
    )
