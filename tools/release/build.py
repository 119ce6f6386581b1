"""`python -m tools.release.build`: the wheel for this Python and torch, and the C++ library.

The wheel lies in a folder of its own, dist/<torch>-<python>, since pip would prefer the highest label
of a version and so change torch. The objects of the C++ library are those of the wheel.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from tools.torch_facts import TorchFacts, find_torch

ROOT = Path(__file__).resolve().parents[2]
MOST_WHEEL_BYTES = 60 * 10**6
# They come with torch and with NVIDIA's packages that torch needs.
EXCLUDED = ("libtorch*.so", "libc10*.so", "libcu*.so*", "libnv*.so*")


def run(*command: str | Path, **environment: str) -> str:
    """Runs in the source tree; its output is shown only if it fails."""
    done = subprocess.run(
        [str(part) for part in command],
        cwd=ROOT,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode:
        raise SystemExit(f"{done.stdout}\nfailed: {' '.join(map(str, command))}")
    return done.stdout


def tool(name: str) -> str:
    """The path of a program of this environment or of the system."""
    beside = Path(sys.executable).parent
    path = shutil.which(name, path=str(beside)) or shutil.which(name)
    if path is None:
        raise SystemExit(
            f"{name} was not found; run: {sys.executable} -m pip install -r requirements-release.txt"
        )
    return path


def folder_name() -> str:
    """Of the wheel for this environment: "torch2.13-cp311"."""
    return f"{find_torch().label}-cp{sys.version_info.major}{sys.version_info.minor}"


def build_wheel(facts: TorchFacts, folder: Path, target: Path) -> Path:
    """Builds the wheel with the objects in `folder` into `target`, tagged by what auditwheel finds."""
    auditwheel, patchelf = tool("auditwheel"), tool("patchelf")
    with tempfile.TemporaryDirectory(prefix="ortmodule-wheel-") as raw:
        # All instruction sets, whatever a developer left in the folder. Not in build/lib, where files of
        # former builds would be packed too.
        run(
            sys.executable, "setup.py", "--quiet", "build", "--build-base", Path(raw) / "build",
            "bdist_wheel", "--dist-dir", raw,
            ORTMODULE_BUILD_FOLDER=str(folder), CMAKE_ARGS="-DORTMODULE_TESTS=OFF -UORTMODULE_ISAS",
        )  # fmt: skip
        (built,) = Path(raw).glob("*.whl")
        excluded = [part for name in EXCLUDED for part in ("--exclude", name)]
        path = os.pathsep.join([str(Path(patchelf).parent), os.environ["PATH"]])
        run(auditwheel, "repair", *excluded, "--strip", "-w", Path(raw) / "out", built, PATH=path)
        (wheel,) = (Path(raw) / "out").glob("*.whl")
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(parents=True)
        result = Path(shutil.copy2(wheel, target))
    if result.stat().st_size > MOST_WHEEL_BYTES:
        raise SystemExit(f"{result.name} has {result.stat().st_size:,} bytes, more than may be")
    return result


def build_cpp_library(folder: Path, target: Path, version: str) -> Path:
    """Packs headers, library and CMake package of the objects in `folder`."""
    run("cmake", "--build", folder, "--target", "ortmodule_cpp")
    name = f"ortmodule-cpp-{version}-linux-{os.uname().machine}"
    with tempfile.TemporaryDirectory(prefix="ortmodule-cpp-") as place:
        run("cmake", "--install", folder, "--prefix", Path(place) / name, "--strip")
        target.mkdir(parents=True, exist_ok=True)
        archive = target / f"{name}.tar.gz"
        with tarfile.open(archive, "w:gz") as packed:
            packed.add(Path(place) / name, name)
    return archive


def build_source(target: Path) -> Path:
    """The source distribution: the files that git knows."""
    run(sys.executable, "setup.py", "--quiet", "sdist", "--dist-dir", target)
    return max(target.glob("*.tar.gz"), key=lambda path: path.stat().st_mtime)


def main() -> int:
    """Builds what is asked for and prints a line for each file."""
    parser = argparse.ArgumentParser(prog="python -m tools.release.build", description=__doc__)
    parser.add_argument("--dist", type=Path, default=ROOT / "dist")
    parser.add_argument("--only", choices=["wheel", "cpp", "sdist"], help="one of the three")
    given = parser.parse_args()
    facts = find_torch()
    folder = ROOT / "build" / facts.build_tag
    made: list[Path] = []
    if given.only in (None, "wheel"):
        made.append(build_wheel(facts, folder, given.dist / folder_name()))
    if given.only in (None, "cpp"):
        version = run(sys.executable, "setup.py", "--version").split()[-1].partition("+")[0]
        made.append(build_cpp_library(folder, given.dist / "cpp", version))
    if given.only in (None, "sdist"):
        made.append(build_source(given.dist / "source"))
    for path in made:
        print(f"{path.stat().st_size / 1e6:6.1f} MB  {os.path.relpath(path, ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
