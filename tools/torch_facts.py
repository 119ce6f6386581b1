"""Where torch lies and which torch it is, read without importing it (0.05 s instead of 3 s).

Used by setup.py and, printed as CMake variables, by CMakeLists.txt. Under pip's build isolation the
target environment's site-packages is not on sys.path, but sysconfig still names it.
"""

from __future__ import annotations

import dataclasses
import os
import runpy
import sys
import sysconfig

OLDEST, NEWEST = (2, 11), (2, 14)


@dataclasses.dataclass(frozen=True)
class TorchFacts:
    root: str
    version: str
    cuda: str  # "" for a CPU build

    @property
    def major_minor(self) -> str:
        return ".".join(self.version.split(".")[:2])

    @property
    def label(self) -> str:
        """Names the torch in the version of a build."""
        return f"torch{self.major_minor}" + (
            ".cu" + self.cuda.replace(".", "") if self.cuda else ""
        )

    @property
    def build_tag(self) -> str:
        """Names the build folder: two torches never share a CMake cache."""
        python = f"cp{sys.version_info.major}{sys.version_info.minor}"
        device = "cu" + self.cuda.replace(".", "") if self.cuda else "cpu"
        return f"{self.version.split('+')[0]}-{python}-{device}"


def find_torch() -> TorchFacts:
    """Returns the torch of this environment, or exits saying what to do."""
    places = [*sys.path, sysconfig.get_path("platlib"), sysconfig.get_path("purelib")]
    for place in places:
        root = os.path.join(place or ".", "torch")
        version_file = os.path.join(root, "version.py")
        if os.path.isfile(version_file) and os.path.isdir(os.path.join(root, "include", "ATen")):
            version = runpy.run_path(version_file)
            facts = TorchFacts(root, str(version["__version__"]), version.get("cuda") or "")
            return _supported(facts)
    python = sys.executable or "python"
    sys.exit(
        "ortmodule_py is compiled against the torch that it will run with, and no torch "
        f"(>= {OLDEST[0]}.{OLDEST[1]}) was found for {python}.\n"
        "Install torch in the environment first, then run:\n"
        "    python -m pip install --no-build-isolation ."
    )


def _supported(facts: TorchFacts) -> TorchFacts:
    version = tuple(int(part) for part in facts.major_minor.split("."))
    if version < OLDEST:
        sys.exit(
            f"ortmodule_py needs torch {OLDEST[0]}.{OLDEST[1]} or newer; "
            f"this environment has {facts.version} ({facts.root})."
        )
    if version > NEWEST:
        print(
            f"warning: torch {facts.version} is newer than {NEWEST[0]}.{NEWEST[1]}, "
            "the newest that ortmodule_py was tried with.",
            file=sys.stderr,
        )
    return facts


if __name__ == "__main__":
    found = find_torch()
    print(f'set(TORCH_ROOT "{found.root}")')
    print(f'set(TORCH_VERSION "{found.version}")')
    print(f'set(TORCH_CUDA_VERSION "{found.cuda}")')
