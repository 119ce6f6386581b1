"""`python -m tools.release.check_wheel WHEEL`: installs and runs a wheel where nothing else is.

In a Debian made by debootstrap (which needs Debian and root), without compiler, CMake and protobuf. Packages
come from the folder --packages, or from where pip is set up to get them. Prints the seconds of each command.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

_TOOLS = ("g++", "gcc", "cc", "c++", "clang", "cmake", "ninja", "protoc")


class BareSystem:
    """A root in which commands run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def run(self, command: str, expected: int = 0) -> str:
        """Runs a command line in /work of the root and prints its time. Returns its output."""
        kept = {k: v for k, v in os.environ.items() if k.startswith("PIP_") or k == "SSL_CERT_FILE"}
        begin = time.perf_counter()
        done = subprocess.run(
            [
                str(shutil.which("chroot")),
                str(self.folder),
                "/bin/sh",
                "-c",
                f"cd /work && {command}",
            ],
            env={**kept, "PATH": "/usr/bin:/bin", "HOME": "/work", "OMP_WAIT_POLICY": "PASSIVE"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        print(f"{time.perf_counter() - begin:7.1f} s  {command}", flush=True)
        if done.returncode != expected:
            raise SystemExit(f"{done.stdout}\nexit code {done.returncode}, expected {expected}")
        return done.stdout


def debian_root(folder: Path) -> BareSystem:
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
    return BareSystem(folder)


def check(system: BareSystem, wheel: Path, packages: Path | None) -> None:
    """Installs with and without torch, runs the first steps, and tries a wrong torch."""
    work = system.folder / "work"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    shutil.copy(Path(__file__).with_name("first_steps.py"), work)
    shutil.copytree(wheel.parent, work / "wheels")
    source = "--quiet --disable-pip-version-check"
    if packages is not None:
        shutil.copytree(packages, work / "packages")
        source += " --no-index --find-links /work/packages"
    source += " --find-links /work/wheels"
    here = {tool: system.run(f"command -v {tool} || true").strip() for tool in _TOOLS}
    assert not any(here.values()), f"there must be nothing to build with, but found {here}"

    version = wheel.name.split("-")[1]
    torch = re.search(r"\+torch(\d+\.\d+)", version)
    assert torch is not None, wheel.name
    system.run("python3 -m venv train")
    system.run(f"train/bin/python -m pip install {source} ortmodule_py=={version}")
    print(system.run("train/bin/python first_steps.py train").splitlines()[-1])
    print(system.run("train/bin/python -m ortmodule_py info"))

    system.run("python3 -m venv infer")
    system.run(f"infer/bin/python -m pip install {source} numpy")
    system.run(f"infer/bin/python -m pip install {source} --no-deps ortmodule_py=={version}")
    print(system.run("infer/bin/python first_steps.py infer").splitlines()[-1])
    system.run("infer/bin/python -m ortmodule_py run model.onnx batch=4")

    stub = next((work / "infer").glob("lib/python*/site-packages")) / "torch"
    stub.mkdir()
    (stub / "__init__.py").write_text("raise SystemExit('torch was imported')\n")
    (stub / "version.py").write_text("__version__ = '2.7.0+cpu'\ncuda = None\n")
    begin = time.perf_counter()
    refused = system.run("infer/bin/python -c 'from ortmodule_py import ORTModule'", expected=1)
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
    given = parser.parse_args()
    if os.geteuid() != 0 or shutil.which("debootstrap") is None:
        raise SystemExit(
            "debootstrap was not found, or this is not root: apt-get install debootstrap"
        )
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="ortmodule-check-") as scratch:
        system = debian_root((given.root or Path(scratch) / "root").resolve())
        print(given.wheel.name)
        try:
            check(system, given.wheel.resolve(), given.packages)
        finally:
            subprocess.run(["umount", str(system.folder / "proc")], check=False)
    print(f"{time.perf_counter() - begin:7.1f} s  in all")
    return 0


if __name__ == "__main__":
    sys.exit(main())
