"""`python -m ortmodule_py`: what it lists, what each command prints, and how it fails."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from ortmodule_py import commands
from ortmodule_py.commands import info, main
from tests.fresh_process import ROOT, environment

COMMANDS = ["convert_precision", "explain", "info", "ops", "plan", "quantize", "run"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """y[batch,3] = Relu(x[batch,8] w)."""
    path = tmp_path_factory.mktemp("models") / "model.onnx"
    values = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", size])
        for name, size in (("x", 8), ("y", 3))
    ]
    weight = numpy_helper.from_array(np.arange(24, dtype=np.float32).reshape(8, 3), "w")
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Relu", ["h"], ["y"])]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:], [weight])
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), path)
    return path


def test_the_overview_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    text = capsys.readouterr().out
    assert list(commands.commands()) == COMMANDS
    assert all(f"\n  {name} " in text for name in COMMANDS)
    assert main(["--version"]) == 0
    pyproject = (ROOT / "pyproject.toml").read_text()
    assert f'\nversion = "{capsys.readouterr().out.strip()}"\n' in pyproject


@pytest.mark.parametrize("name", [n for n, c in commands.commands().items() if c.is_there()])
def test_every_command_has_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([name, "--help"])
    assert ended.value.code == 0
    assert f"python -m ortmodule_py {name}" in capsys.readouterr().out


def test_run_computes_what_a_file_feeds(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    x = np.linspace(-1, 1, 16, dtype=np.float32).reshape(2, 8)
    np.savez(tmp_path / "x.npz", x=x)
    feeds, out = str(tmp_path / "x.npz"), tmp_path / "y.npz"
    assert main(["run", str(model), "--feeds", feeds, "--out", str(out), "--repeat", "3"]) == 0
    printed = capsys.readouterr()
    expected = np.maximum(x @ np.arange(24, dtype=np.float32).reshape(8, 3), 0)
    np.testing.assert_allclose(np.load(out)["y"], expected, rtol=1e-5)
    assert (
        f"mean {expected.mean():.4g}"[:9] in printed.out and "median of the others" in printed.out
    )
    assert "running 3 times: " in printed.err and "\r" not in printed.err


def test_run_makes_random_inputs_of_given_sizes(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", str(model), "batch=5", "--json", "-q"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["outputs"]["y"]["shape"] == [5, 3] and facts["weights_bytes"] == 96


def test_explain_tells_bytes_and_draws_them(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture = tmp_path / "plan.svg"
    command = ["explain", str(model), "batch=4", "--picture", str(picture), "--limit", "batch=1KiB"]
    assert main(command) == 0
    text = capsys.readouterr().out
    assert "outputs 48" in text and "largest batch within 1KiB: " in text
    assert picture.read_text().count("<svg") == 1
    assert main(["explain", str(model)]) == 0
    assert "assumed sizes: x=2x8" in capsys.readouterr().out
    assert main(["explain", str(model), "--json", "--limit", "batch=1KiB"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["memory"]["outputs_bytes"] == 24 and facts["largest"]["batch"] > 0


def test_run_writes_strings(tmp_path: Path) -> None:
    x = helper.make_tensor_value_info("x", TensorProto.STRING, ["n"])
    y = helper.make_tensor_value_info("y", TensorProto.STRING, ["n"])
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "g", [x], [y])
    opset = [helper.make_opsetid("", 17)]
    path, feeds, out = (tmp_path / name for name in ("model.onnx", "x.npz", "y.npz"))
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), path)
    np.savez(feeds, x=np.array(["a", "bée"]))
    assert main(["run", str(path), "--feeds", str(feeds), "--out", str(out)]) == 0
    np.testing.assert_array_equal(np.load(out)["y"], ["a", "bée"])


@pytest.mark.parametrize(
    ("arguments", "message", "code"),
    [
        (["explian"], "a command must be one of", 2),
        (["run", "absent.onnx", "batch=1"], "the model must be a file, but found 'absent.onnx'", 1),
        (["run", "MODEL"], "add batch=N", 1),
        (["run", "MODEL", "batch"], "written as in batch=8", 1),
        (["run", "MODEL", "--feeds", "absent.npz"], "found none at absent.npz", 1),
        (["run", "MODEL", "--feeds", "EMPTY"], "--feeds must be a file of numpy.savez", 1),
        (["run", "MODEL", "--feeds", "CUT"], "--feeds must be a file of numpy.savez", 1),
        (["run", "MODEL", "--feeds", "TEXT"], "write it by numpy.savez", 1),
        (["run", "MODEL", "--feeds", "ARRAY"], "write it by numpy.savez", 1),
        (["run", "MODEL", "--feeds", "OBJECTS"], "one with objects", 1),
        (["run", "MODEL", "batch=1", "--out", "FOLDER/y.npz"], "absent/y.npz'", 1),
        (["run", "MODEL", "batch=1", "--memory-limit", "8"], "[memory]", 1),
        (["explain", "MODEL", "x=2x9"], "error: ", 1),
        (["quantize", "absent.onnx", "out.onnx"], "absent.onnx", 1),
        (["quantize", "MODEL", "out.onnx", "--samples", "CUT"], "[quantize] --samples must be", 1),
        (["convert_precision", "MODEL", "out.onnx", "--samples", "ARRAY"], "numpy.savez(path", 1),
        (["run", __file__, "batch=1"], "error: ", 1),
    ],
    ids=lambda value: " ".join(map(str, value)) if isinstance(value, list) else "",
)
def test_errors_are_one_message_and_a_code(
    arguments: list[str],
    message: str,
    code: int,
    model: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    files = {"MODEL": model, "EMPTY": tmp_path / "empty.npz", "CUT": tmp_path / "cut.npz"}
    files |= {name: tmp_path / f"{name}.npz" for name in ("TEXT", "ARRAY", "OBJECTS")}
    files["EMPTY"].touch()
    files["TEXT"].write_text("a text")
    with files["ARRAY"].open("wb") as file:
        np.save(file, np.zeros(2))
    np.savez(files["OBJECTS"], x=np.array([object()]))
    files["CUT"].write_bytes(b"PK\x03\x04 and no more")
    given = [
        str(files.get(part, part)).replace("FOLDER", str(tmp_path / "absent")) for part in arguments
    ]
    assert main(given) == code
    error = capsys.readouterr().err
    assert message in error and "Traceback" not in error


def test_a_command_that_this_version_lacks_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    absent = commands.command.forwarded("does what is not there", "ortmodule_py.not_there")
    monkeypatch.setattr(commands, "commands", lambda: {"absent": absent})
    assert main(["absent", "x"]) == 1
    assert "has no module ortmodule_py.not_there" in capsys.readouterr().err
    assert main([]) == 0
    assert "not in this version" in capsys.readouterr().out


def test_models_run_where_torch_is_absent(model: Path) -> None:
    script = (
        "import sys; sys.modules['torch'] = None; from ortmodule_py.commands import main; "
        f"model = {str(model)!r}; assert main(['run', model, 'batch=2', '-q']) == 0; "
        "assert main(['explain', model, '-q']) == 0; assert main(['ops']) == 1"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment(), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "training needs torch" in done.stderr and "Traceback" not in done.stderr


def test_info_names_problems_and_their_remedy(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("ORTMODULE_MEMORY_OPT_LEVEL", raising=False)
    assert main(["info", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)["facts"]
    assert facts["torch"] and facts["built for"].startswith("torch ")
    monkeypatch.setenv("ORTMODULE_MEMORY_OPT_LEVEL", "7")
    monkeypatch.setenv("ORTMODULE_MEMRY_OPT_LEVEL", "1")
    assert main(["info"]) == 1
    text = capsys.readouterr().out
    assert "problem: " in text and "unset ORTMODULE_MEMRY_OPT_LEVEL" in text
    wrong = {"torch": "2.7.0", "cuda": ""}
    monkeypatch.setattr(info._build_info, "installed_torch", lambda: wrong)
    assert main(["info"]) == 1
    assert "this is torch 2.7.0" in capsys.readouterr().out
