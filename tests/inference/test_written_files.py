"""Files that sessions and tools write: whole or not at all, with any name, from several threads."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from ortmodule_py import InferenceSession, SessionOptions
from ortmodule_py.base import cache_files
from ortmodule_py.inference import Fail, InvalidProtobuf, OrtValue
from ortmodule_py.inference.adapters import AdapterFormat
from ortmodule_py.quantization import quantize_dynamic
from tests.inference.test_session import mlp, x_of

LIMIT = 4096  # bytes of a file, below those of every file that is written here


def saved(path: Path) -> None:
    options = SessionOptions()
    options.optimized_model_filepath = str(path)
    InferenceSession(mlp(2000), options)


def quantized(path: Path) -> None:
    quantize_dynamic(mlp(2000), path, verbose=False)


def profiled(path: Path) -> None:
    options = SessionOptions()
    options.enable_profiling = True
    options.profile_file_prefix = str(path)
    session = InferenceSession(mlp(), options)
    for _ in range(20):
        session.run(None, {"x": x_of(2)})
    session.end_profiling()


def adapted(path: Path) -> None:
    adapter = AdapterFormat()
    adapter.set_parameters({"a": OrtValue.ortvalue_from_numpy(np.zeros(4000, np.float32))})
    adapter.export_adapter(path)


WRITERS = [saved, quantized, profiled, adapted]


def with_small_files(write: Callable[[Path], None], path: Path) -> str:
    """What a process says that may write LIMIT bytes to a file, as where the disk is full."""
    script = f"""
import resource, signal, sys
from pathlib import Path
from tests.inference import test_written_files as tested
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (tested.LIMIT, tested.LIMIT))
try:
    tested.{write.__name__}(Path(sys.argv[1]))
except Exception as error:
    print(type(error).__name__, error)
"""
    done = subprocess.run([sys.executable, "-c", script, path], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("write", WRITERS)
def test_a_full_disk_leaves_what_was_there(write: Callable[[Path], None], tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("as it was")
    said = with_small_files(write, path)
    assert "File too large" in said, said
    assert [each.name for each in tmp_path.iterdir()] == ["file"]
    assert path.read_text() == "as it was"


@pytest.mark.parametrize("write", [saved, quantized, profiled])
def test_a_folder_that_is_not_there_is_named(write: Callable[[Path], None], tmp_path: Path) -> None:
    path = tmp_path / "absent" / "file"
    with pytest.raises(Fail, match=r"\[save\] '.*absent/file.*' must be writable, but found: No"):
        write(path)


def test_a_file_that_cannot_be_written_is_no_damaged_model(tmp_path: Path) -> None:
    with pytest.raises(Fail) as raised:
        saved(tmp_path / "absent" / "file")
    assert not isinstance(raised.value, InvalidProtobuf)


def test_threads_may_write_one_path(tmp_path: Path) -> None:
    path = tmp_path / "file.onnx"
    errors: list[BaseException] = []

    def write() -> None:
        try:
            for _ in range(5):
                saved(path)
                onnx.load(path)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors
    assert [each.name for each in tmp_path.iterdir()] == ["file.onnx"]


def test_a_leftover_of_a_killed_process_is_no_obstacle(tmp_path: Path) -> None:
    for count in range(50):
        (tmp_path / f"file.{os.getpid()}.{count}.tmp").write_text("left")
    saved(tmp_path / "file")
    onnx.load(tmp_path / "file")


def test_a_trace_that_nobody_can_write_is_said_in_one_line(tmp_path: Path) -> None:
    script = f"""
from ortmodule_py import InferenceSession, SessionOptions
from tests.inference.test_session import mlp
options = SessionOptions()
options.enable_profiling = True
options.profile_file_prefix = {str(tmp_path / "absent" / "trace")!r}
session = InferenceSession(mlp(), options)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr
    assert done.stderr.count("[save] '") == 1, done.stderr


# ---- names that are no UTF-8 ---------------------------------------------------------------------

ODD = os.fsdecode(b"odd\xff name.onnx")


def test_paths_of_any_bytes(tmp_path: Path) -> None:
    model, feeds = mlp(), {"x": x_of(3)}
    (tmp_path / ODD).write_bytes(model)
    session = InferenceSession(tmp_path / ODD)
    wanted: list[Any] = InferenceSession(model).run(None, feeds)
    np.testing.assert_array_equal(session.run(None, feeds)[0], wanted[0])
    for write in (saved, quantized):
        write(tmp_path / f"new {ODD}")
        onnx.load(tmp_path / f"new {ODD}")
    (tmp_path / ODD).write_bytes(b"no model")
    with pytest.raises(InvalidProtobuf, match=r"odd\\xff name\.onnx: must be an ONNX model"):
        InferenceSession(tmp_path / ODD)


# ---- small files of ours -------------------------------------------------------------------------


def test_caches_leave_nothing_behind_on_a_full_disk(tmp_path: Path) -> None:
    script = f"""
import resource, signal
from pathlib import Path
from ortmodule_py.base.cache_files import write_json
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (10, 10))
write_json(Path({str(tmp_path / "rates.json")!r}), list(range(1000)))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert not list(tmp_path.iterdir())
    cache_files.write_json(tmp_path / "rates.json", [1])
    assert json.loads((tmp_path / "rates.json").read_text()) == [1]


def test_a_user_without_a_home_has_no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv(cache_files.FOLDER, raising=False)
    monkeypatch.setattr(Path, "home", no_home)
    path = cache_files.cache_path("rates.json")
    cache_files.write_json(path, [1])
    assert cache_files.read_json(path) is None
