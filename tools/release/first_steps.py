"""What a newcomer does first, run by `check_wheel` where only the wheel is: no sources, no compiler.

    python first_steps.py train|infer

Prints one line of facts as JSON. Every library that the process has loaded must be of the wheel, of a
package of this environment, or of the system's C and C++ runtime.
"""

from __future__ import annotations

import json
import re
import sys
import sysconfig
import time

_SYSTEM = re.compile(
    r"/(ld-linux[^/]*|lib(c|m|dl|rt|pthread|util|resolv|gcc_s|stdc\+\+|z|bz2|lzma|ffi|crypto|ssl|expat|uuid"
    r"|mpdec|sqlite3|readline|tinfo|ncursesw|crypt|nss_files|nsl|tirpc|python3))[.-][^/]*$"
)


def foreign_libraries() -> list[str]:
    """Loaded libraries that are neither of an installed package nor of the C and C++ runtime."""
    packages = sysconfig.get_path("platlib")
    standard = sysconfig.get_path("platstdlib").replace(sys.prefix, sys.base_prefix)
    with open("/proc/self/maps") as maps:
        loaded = {line.split(maxsplit=5)[5].strip() for line in maps if ".so" in line}
    own = (packages, standard)
    return sorted(p for p in loaded if not p.startswith(own) and not _SYSTEM.search(p))


def train() -> dict[str, object]:
    """Two steps of a small model, and its file run by a session."""
    import torch
    from torch import nn

    from ortmodule_py import InferenceSession, ORTModule

    torch.manual_seed(0)
    model = ORTModule(nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 4)))
    optimizer = torch.optim.AdamW(model.parameters())
    losses = []
    x, y = torch.randn(32, 16), torch.randint(4, (32,))
    for _ in range(2):
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[1] < losses[0], losses
    model.eval()
    model.save_onnx("model.onnx", x, input_names=["x"], dynamic_shapes={"x": {0: "batch"}})
    (z,) = InferenceSession("model.onnx").run(None, {"x": x.numpy()})
    with torch.no_grad():
        assert abs(z - model(x).numpy()).max() < 1e-5
    return {"losses": losses, "torch": torch.__version__}


def infer() -> dict[str, object]:
    """A session on the file that `train` wrote, without torch."""
    import numpy as np

    from ortmodule_py import InferenceSession

    session = InferenceSession("model.onnx")
    x = np.ones((8, 16), np.float32)
    (y,) = session.run(None, {"x": x})
    assert y.shape == (8, 4) and "torch" not in sys.modules
    return {"peak_bytes": session.memory({"x": x.shape}).peak_bytes}


def main() -> int:
    """Runs what is asked for."""
    begin = time.perf_counter()
    facts = {"train": train, "infer": infer}[sys.argv[1]]()
    facts["seconds"] = round(time.perf_counter() - begin, 2)
    facts["foreign_libraries"] = foreign_libraries()
    print(json.dumps(facts))
    return 1 if facts["foreign_libraries"] else 0


if __name__ == "__main__":
    sys.exit(main())
