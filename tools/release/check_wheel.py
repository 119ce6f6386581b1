"""`python -m tools.release.check_wheel WHEEL`: installs and runs a wheel where nothing else is.

As root on Debian, in a root made by debootstrap, without compiler, CMake and protobuf; elsewhere (`--here`)
in a virtual environment whose PATH has no compiler. Packages come from the folder --packages, or
from where pip is set up to get them. Prints the seconds of each command.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_TOOLS = ("g++", "gcc", "cc", "c++", "clang", "cmake", "ninja", "protoc")


class Place:
    """Where commands run: a root of its own, or this system with a smaller PATH."""

    def __init__(self, folder: Path, chrooted: bool) -> None:
        self.folder = folder
        self._chrooted = chrooted

    def path(self, name: str) -> str:
        """The path of a file in the folder, as commands there see it."""
        return f"/work/{name}" if self._chrooted else str(self.folder / "work" / name)

    def run(self, command: str, expected: int = 0) -> str:
        """Runs a command line in the work folder and prints its time. Returns its output."""
        path = "/usr/bin:/bin" if self._chrooted else str(self.folder / "bin")
        kept = {
            k: v
            for k, v in os.environ.items()
            if k.startswith("PIP_") or k in ("LANG", "SSL_CERT_FILE")
        }
        shell = [str(shutil.which("chroot")), str(self.folder)] if self._chrooted else []
        begin = time.perf_counter()
        done = subprocess.run(
            [*shell, "/bin/sh", "-c", f"cd {self.path('')} && {command}"],
            env={**kept, "PATH": path, "HOME": self.path(""), "OMP_WAIT_POLICY": "PASSIVE"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        print(f"{time.perf_counter() - begin:7.1f} s  {command}", flush=True)
        if done.returncode != expected:
            raise SystemExit(f"{done.stdout}\nexit code {done.returncode}, expected {expected}")
        return done.stdout


def debian_root(folder: Path) -> Place:
    """A Debian system with Python and nothing to build with."""
    if not (folder / "usr/bin/python3").exists():
        command = [
            "debootstrap",
            "--variant=minbase",
            "--include=python3,python3-venv,ca-certificates",
        ]
        subprocess.run([*command, "bookworm", str(folder)], check=True, stdout=subprocess.DEVNULL)
    (folder / "proc").mkdir(exist_ok=True)
    if not (folder / "proc" / "self").exists():
        subprocess.run(["mount", "-t", "proc", "proc", str(folder / "proc")], check=True)
    for name in ("resolv.conf", "pip.conf", "hosts"):  # the way to the packages
        if Path("/etc", name).exists():
            shutil.copy(f"/etc/{name}", folder / "etc" / name)
    certificates = Path("/etc/ssl/certs/ca-certificates.crt")
    if certificates.exists():
        shutil.copy(certificates, folder / str(certificates)[1:])
    return Place(folder, chrooted=True)


def smaller_path(folder: Path) -> Place:
    """This system, with what a shell needs and this Python on PATH."""
    (folder / "bin").mkdir(parents=True, exist_ok=True)
    for name in ("sh", "ls", "cat"):
        (folder / "bin" / name).symlink_to(str(shutil.which(name)))
    (folder / "bin" / "python3").symlink_to(os.path.realpath(sys.executable))
    return Place(folder, chrooted=False)


def check(place: Place, wheel: Path, packages: Path | None) -> None:
    """Installs with and without torch, runs the first steps, and tries a wrong torch."""
    work = place.folder / "work"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    shutil.copy(Path(__file__).with_name("first_steps.py"), work)
    shutil.copytree(wheel.parent, work / "wheels")
    source = "--quiet --disable-pip-version-check"
    if packages is not None:
        shutil.copytree(packages, work / "packages")
        source += f" --no-index --find-links {place.path('packages')}"
    source += f" --find-links {place.path('wheels')}"
    here = {tool: place.run(f"command -v {tool} || true").strip() for tool in _TOOLS}
    assert not any(here.values()), f"there must be nothing to build with, but found {here}"

    version = wheel.name.split("-")[1]
    torch = re.search(r"\+torch(\d+\.\d+)", version)
    assert torch is not None, wheel.name
    place.run("python3 -m venv train")
    place.run(f"train/bin/python -m pip install {source} ortmodule_py=={version}")
    print(place.run("train/bin/python first_steps.py train").splitlines()[-1])
    print(place.run("train/bin/python -m ortmodule_py info"))

    place.run("python3 -m venv infer")
    place.run(f"infer/bin/python -m pip install {source} numpy")
    place.run(f"infer/bin/python -m pip install {source} --no-deps ortmodule_py=={version}")
    print(place.run("infer/bin/python first_steps.py infer").splitlines()[-1])
    place.run("infer/bin/python -m ortmodule_py run model.onnx batch=4")

    stub = next((work / "infer").glob("lib/python*/site-packages")) / "torch"
    stub.mkdir()
    (stub / "__init__.py").write_text("raise SystemExit('torch was imported')\n")
    (stub / "version.py").write_text("__version__ = '2.7.0+cpu'\ncuda = None\n")
    begin = time.perf_counter()
    refused = place.run("infer/bin/python -c 'from ortmodule_py import ORTModule'", expected=1)
    assert f"python -m pip install 'torch=={torch[1]}.*'" in refused, refused
    print(refused.splitlines()[-2] + f"\n({time.perf_counter() - begin:.1f} s with Python's start)")


def main() -> int:
    """Runs the checks of one wheel."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.release.check_wheel", description=__doc__
    )
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--packages", type=Path, help="a folder with wheels of torch and numpy")
    parser.add_argument("--root", type=Path, help="keep the Debian system there for the next time")
    parser.add_argument("--here", action="store_true", help="no root of its own, a smaller PATH")
    given = parser.parse_args()
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="ortmodule-check-") as scratch:
        folder = given.root or Path(scratch) / "root"
        can = os.geteuid() == 0 and shutil.which("debootstrap") is not None
        if not can and not given.here:
            raise SystemExit("debootstrap needs Debian and root; add --here for a smaller check")
        place = smaller_path(folder) if given.here else debian_root(folder)
        print(
            json.dumps({"wheel": given.wheel.name, "in": "this system" if given.here else "Debian"})
        )
        try:
            check(place, given.wheel.resolve(), given.packages)
        finally:
            if not given.here:
                subprocess.run(["umount", str(folder / "proc")], check=False)
    print(f"{time.perf_counter() - begin:7.1f} s  in all")
    return 0


if __name__ == "__main__":
    sys.exit(main())
