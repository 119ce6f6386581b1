"""Builds the extension with CMake and Ninja against the torch of this environment.

Editable installs build in build/<torch>-<python>-<device>, which is kept, so that the next build
compiles only what changed; other installs build in a temporary folder, or in ORTMODULE_BUILD_FOLDER.
CMAKE_ARGS is passed on.
"""

from __future__ import annotations

import fcntl
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT / "tools"))
from torch_facts import OLDEST, TorchFacts, find_torch  # noqa: E402


def require_tool(name: str, package: str) -> str:
    beside_python = os.path.dirname(sys.executable)
    path = shutil.which(name) or shutil.which(name, path=beside_python)
    if path is None:
        raise SystemExit(f"{name} was not found. On Debian and Ubuntu: apt-get install {package}")
    return path


class CMakeBuild(build_ext):
    def run(self) -> None:
        facts = find_torch()
        given = os.environ.get("ORTMODULE_BUILD_FOLDER")
        if self.inplace or given:
            folder = Path(given).resolve() if given else ROOT / "build" / facts.build_tag
            folder.mkdir(parents=True, exist_ok=True)
            with open(folder / ".lock", "w") as lock:  # two builds in one folder spoil it
                fcntl.flock(lock, fcntl.LOCK_EX)
                self.build_in(folder, facts)
        else:
            with tempfile.TemporaryDirectory(prefix="ortmodule_py-") as folder:
                self.build_in(Path(folder), facts)

    def build_in(self, folder: Path, facts: TorchFacts) -> None:
        cmake = require_tool("cmake", "cmake")
        keeps_folder = folder.parent == ROOT / "build"  # of a developer, whose warnings are errors
        ninja = require_tool("ninja", "ninja-build")
        print(f"building for torch {facts.version} in {folder}")
        configure = [
            cmake,
            "-G",
            "Ninja",
            f"-S{ROOT}",
            f"-B{folder}",
            f"-DCMAKE_MAKE_PROGRAM={ninja}",
            f"-DPython_EXECUTABLE={sys.executable}",
            f"-DORTMODULE_WERROR={'ON' if keeps_folder else 'OFF'}",
        ]
        if "ORTMODULE_CUDA" in os.environ:
            configure.append(f"-DORTMODULE_CUDA={os.environ['ORTMODULE_CUDA']}")
        configure += shlex.split(os.environ.get("CMAKE_ARGS", ""))
        build = [cmake, "--build", str(folder), "--target", "_C"]
        jobs = os.environ.get("MAX_JOBS")
        if jobs:
            build += ["--parallel", jobs]
        try:
            self.configure(configure, folder)
            subprocess.run(build, check=True)
        except subprocess.CalledProcessError as error:
            command = shlex.join(error.cmd)
            raise SystemExit(
                f"the C++ build failed; its messages are above. Command: {command}"
            ) from None
        self.copy_package(folder / "package")

    def configure(self, command: list[str], folder: Path) -> None:
        """Runs CMake when the command or the wanted architectures changed; Ninja itself reruns it when
        a CMake file changed."""
        stamp = folder / "configured_with.txt"
        # The variable is read by tools/cmake/cuda_architectures.cmake.
        text = f"{shlex.join(command)} {os.environ.get('TORCH_CUDA_ARCH_LIST', '')}".rstrip()
        if stamp.exists() and stamp.read_text() == text and (folder / "build.ninja").exists():
            return
        stamp.unlink(missing_ok=True)
        subprocess.run(command, check=True)
        stamp.write_text(text)

    def copy_package(self, built: Path) -> None:
        target = ROOT / "ortmodule_py" if self.inplace else Path(self.build_lib) / "ortmodule_py"
        target.mkdir(parents=True, exist_ok=True)
        for source in sorted(built.iterdir()):
            copy = target / source.name
            if copy.exists() and copy.read_bytes() == source.read_bytes():
                continue
            copy.unlink(missing_ok=True)  # never write into a file that a process has mapped
            shutil.copy2(source, copy)

    def get_outputs(self) -> list[str]:
        folder = Path(self.build_lib) / "ortmodule_py"
        return [
            str(path)
            for path in folder.glob("*")
            if path.name.startswith(("_C.", "_inference.", "lib"))
        ]


def version() -> str:
    """The version in pyproject.toml. A source distribution has it as it is."""
    lines = (ROOT / "pyproject.toml").read_text().splitlines()
    (line,) = [line for line in lines if line.startswith("version = ")]
    return line.split('"')[1]


def is_source_distribution() -> bool:
    return "sdist" in sys.argv


def build_version() -> str:
    """A build fits one torch: 0.2.0+torch2.13, or 0.2.0+torch2.14.cu130."""
    return version() if is_source_distribution() else f"{version()}+{find_torch().label}"


def install_requires() -> list[str]:
    """The built extension fits one torch minor version only."""
    fitting = f">={OLDEST[0]}.{OLDEST[1]}"
    if not is_source_distribution():
        fitting = f"=={find_torch().major_minor}.*"
    return ["numpy", "rich", f"torch{fitting}"]


setup(
    version=build_version(),
    ext_modules=[Extension("ortmodule_py._C", sources=[])],
    cmdclass={"build_ext": CMakeBuild},
    install_requires=install_requires(),
)
