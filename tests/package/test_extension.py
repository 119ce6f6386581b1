"""The extension as a file: what it exports, what it needs, and which torch it accepts."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
import torch

from ortmodule_py import _C, _build_info, _inference, build_info

ROOT = Path(__file__).parents[2]
EXTENSION = Path(_C.__file__)
SESSIONS = Path(_inference.__file__)
(CORE,) = EXTENSION.parent.glob(f"libortmodule_core.{sysconfig.get_config_var('SOABI')}.so")
needs_nm = pytest.mark.skipif(shutil.which("nm") is None, reason="nm is not installed")


def exported(library: Path) -> list[str]:
    command = ["nm", "-D", "--defined-only", str(library)]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return [line.split()[-1] for line in output.splitlines()]


@needs_nm
def test_only_the_init_function_is_exported() -> None:
    assert exported(EXTENSION) == ["PyInit__C"]
    assert exported(SESSIONS) == ["PyInit__inference"]


@needs_nm
def test_both_extensions_share_one_engine_that_exports_its_namespace_alone() -> None:
    symbols = exported(CORE)
    assert any("select_kernel" in symbol for symbol in symbols)
    assert all(re.match(r"_Z(N|NK|GVN|T[A-Z]N)9ortmodule", symbol) for symbol in symbols)
    assert not any(re.search(r"9ortmodule\d+(avx|baseline)", symbol) for symbol in symbols)
    for extension in (EXTENSION, SESSIONS):
        listed = subprocess.run(["ldd", str(extension)], check=True, capture_output=True, text=True)
        assert f"=> {CORE} " in listed.stdout
        assert extension.stat().st_size < CORE.stat().st_size


def test_the_engine_links_neither_python_nor_torch() -> None:
    listed = subprocess.run(["ldd", str(CORE)], check=True, capture_output=True, text=True).stdout
    names = {line.split()[0].partition(".so")[0].rpartition("/")[2] for line in listed.splitlines()}
    system = {"linux-vdso", "ld-linux-x86-64", "ld-linux-aarch64", "libc", "libm", "libgcc_s"}
    assert names - system <= {"libstdc++", "libpthread", "libprotobuf-lite", "libz"}


def test_protobuf_lies_beside_the_extension() -> None:
    assert list(EXTENSION.parent.glob("libprotobuf-lite.so.*"))


def test_build_info_names_this_torch() -> None:
    info = build_info()
    assert info["torch"] == _build_info.built_for()["torch"] == torch.__version__
    wanted = torch.version.cuda is not None and os.environ.get("ORTMODULE_CUDA") != "OFF"
    assert (info["cuda"] != {}) == wanted


MAJOR, MINOR = torch.__version__.split(".")[:2]


@pytest.mark.parametrize(
    ("running", "built", "message"),
    [
        (
            {"torch": "2.7.1", "cuda": ""},
            "",
            r"built for torch .* this is torch 2\.7\.1.*pip install",
        ),
        (
            {"torch": f"{MAJOR}.{MINOR}.0+cpu", "cuda": ""},
            "13.0",
            r"built for torch .* with CUDA 13\.0, but this is .*, which has none.*pip install",
        ),
        (
            None,
            "",
            rf"training needs torch .*but found none.*pip install 'torch=={MAJOR}.{MINOR}\.\*'",
        ),
    ],
    ids=["version", "without CUDA", "absent"],
)
def test_another_torch_is_refused_with_the_command_to_run(
    running: dict[str, str] | None, built: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = {**_build_info.built_for(), **({"cuda": built} if built else {})}
    monkeypatch.setattr(_build_info, "built_for", lambda: facts)
    with pytest.raises(ImportError, match=message):
        _build_info.check_torch(running)


def test_a_patch_release_is_accepted() -> None:
    cuda = torch.version.cuda or ""
    _build_info.check_torch({"torch": f"{MAJOR}.{MINOR}.9", "cuda": cuda})


def test_another_torch_is_refused_before_it_is_imported(tmp_path: Path) -> None:
    """And the message of a wheel says how to get the torch that it is for."""
    package, stub = tmp_path / "ortmodule_py", tmp_path / "torch"
    shutil.copytree(EXTENSION.parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    stub.mkdir()
    (stub / "__init__.py").write_text("raise SystemExit('torch was imported')")
    (stub / "version.py").write_text("__version__ = '2.7.1+cpu'\ncuda: str | None = None\n")
    script = "from ortmodule_py import InferenceSession, ORTModule"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-c", script]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60
    )
    assert "torch was imported" not in done.stderr
    assert f"Install that torch: python -m pip install 'torch=={MAJOR}.{MINOR}.*'" in done.stderr


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")
def test_nvcc_knows_the_architectures_of_a_build_without_a_gpu() -> None:
    """.ci/run compiles for two of them."""
    text = (ROOT / "tools" / "cmake" / "cuda_architectures.cmake").read_text()
    named = re.search(r"set\(CMAKE_CUDA_ARCHITECTURES ([\d].*)\)", text)
    assert named is not None
    command = ["nvcc", "--list-gpu-code"]
    known = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    wanted = [f"sm_{number}" for number in re.findall(r"\d+", named[1])]
    assert len(wanted) >= 5 and set(wanted) <= set(known)
    chosen = re.findall(r"\d+\.\d", (ROOT / ".ci" / "run").read_text())
    oldest_and_newest = [f"{wanted[i][3:-1]}.{wanted[i][-1]}" for i in (0, -1)]
    assert chosen == oldest_and_newest


@pytest.mark.slow
@pytest.mark.parametrize(
    "order", [("torch", "onnx", "ortmodule_py"), ("onnx", "ortmodule_py"), ("ortmodule_py", "onnx")]
)
def test_any_import_order_works(order: tuple[str, ...]) -> None:
    """ortmodule_py imports torch itself before its extension, so these are all orders of the three."""
    pytest.importorskip("onnx")
    subprocess.run([sys.executable, "-c", f"import {', '.join(order)}"], check=True)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("objdump") is None, reason="objdump is not installed")
@pytest.mark.skipif(platform.machine() != "x86_64", reason="one instruction set only")
def test_wide_instructions_stay_within_their_kernels() -> None:
    """Code that runs before the processor is asked, static initialisers too, is baseline code."""
    command = ["objdump", "-d", "-C", "--no-show-raw-insn", "-w", str(CORE)]
    # Some names are too long for objdump, which leaves them as they are.
    within = re.compile(
        r"\bavx(2|512|512_vnni|512_bf16)::|ortmodule(4avx2|6avx512|11avx512_(vnni|bf16))|\[clone "
    )
    function, wrong = "", set()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as dump:
        assert dump.stdout is not None
        for line in dump.stdout:
            if line.endswith(">:\n"):
                function = line.split("<", 1)[1][:-3]
            # A local clone is called from its own object file only.
            elif re.search(r"\t(v[a-z0-9]+ |.*%[yz]mm)", line) and not within.search(function):
                wrong.add(function)
    assert not wrong
