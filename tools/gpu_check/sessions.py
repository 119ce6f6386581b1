"""Part `sessions`: `InferenceSession` on CUDA against the CPU, with memory bound on the device."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx

import ortmodule_py.onnxruntime as ort

from .part import Context, Part, Row

CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"
_EXPORTED = ("bert", "gpt2", "vit", "resnet18", "lstm")
"""Those of benchmarks/onnx_models.py that are run, as far as it has them."""
Array = np.ndarray[Any, Any]


@contextmanager
def _on_device(context: Context) -> Iterator[None]:
    before = os.environ.get("ORTMODULE_CUDA_EMULATION")
    os.environ["ORTMODULE_CUDA_EMULATION"] = "1" if context.emulated else "0"
    try:
        yield
    finally:
        if before is None:
            del os.environ["ORTMODULE_CUDA_EMULATION"]
        else:
            os.environ["ORTMODULE_CUDA_EMULATION"] = before


def _exported() -> list[str]:
    from benchmarks import onnx_models

    return [name for name in _EXPORTED if name in onnx_models.MODELS]


def _feed(path: Path, turn: int) -> dict[str, Array]:
    """Example inputs; sizes with a name grow from turn to turn."""
    generator = np.random.default_rng(turn)
    feed: dict[str, Array] = {}
    for value in onnx.load(str(path)).graph.input:
        kind = value.type.tensor_type
        sizes = {"batch": 1 + turn, "length": 16 * (2 + turn)}
        shape = [d.dim_value or sizes.get(d.dim_param, 2 + turn) for d in kind.shape.dim]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)
        if value.name == "attention_mask":
            feed[value.name] = np.ones(shape, dtype)
        elif np.issubdtype(dtype, np.integer):
            feed[value.name] = generator.integers(0, 100, shape).astype(dtype)
        else:
            feed[value.name] = generator.standard_normal(shape).astype(dtype)
    return feed


def _difference(found: list[Any], exact: list[Any]) -> float:
    """The largest difference as a part of the largest value of its result."""
    worst = 0.0
    for a, b in zip(found, exact, strict=True):
        if b.size:
            scale = max(float(np.abs(b).max()), 1e-6)
            worst = max(worst, float(np.abs(a.astype("f8") - b.astype("f8")).max()) / scale)
    return worst


def _sessions(model: str | bytes) -> tuple[ort.InferenceSession, ort.InferenceSession]:
    exact = {"use_tf32": "0"}  # so that the CPU is near
    return (
        ort.InferenceSession(model, providers=[(CUDA, exact), CPU]),
        ort.InferenceSession(model, providers=[CPU]),
    )


def _bound(session: Any, feed: dict[str, Array]) -> tuple[list[Array], int]:
    """Results of a run from and into memory of the device, and the bytes that it copied."""
    binding = session.io_binding()
    for name, array in feed.items():
        binding.bind_ortvalue_input(name, ort.OrtValue.ortvalue_from_numpy(array, "cuda", 0))
    for output in session.get_outputs():
        binding.bind_output(output.name, "cuda")
    before = session._session.copied_bytes
    session.run_with_iobinding(binding)
    copied = session._session.copied_bytes - before
    results = binding.get_outputs()
    assert all(result.device_name() == "cuda" for result in results)
    return [result.numpy() for result in results], copied


def _checked(model: str | bytes, feeds: list[dict[str, Array]], allowed: float) -> Row:
    """Three shapes, plain and bound runs, against the CPU; predicted bytes against taken ones."""
    session, other = _sessions(model)
    why: list[str] = []
    if session.get_providers() != [CUDA, CPU]:
        why.append(f"it runs on {session.get_providers()}")
    worst, predicted_bytes, taken_bytes, copied_bytes = 0.0, [], [], 0
    for feed in feeds:
        exact = other.run(None, feed)
        predicted = session.memory(dict(feed))
        worst = max(worst, _difference(session.run(None, feed), exact))
        predicted_bytes.append(predicted.peak_bytes)
        taken_bytes.append(session._session.last_peak_bytes)
        found, copied = _bound(session, feed)
        worst, copied_bytes = max(worst, _difference(found, exact)), copied_bytes + copied
        again, _ = _bound(session, feed)
        if any(not np.array_equal(a, b) for a, b in zip(found, again, strict=True)):
            why.append("two runs gave other bits")
    if not worst <= allowed:
        why.append(f"differs from the CPU by {worst:.1e}, more than {allowed:.0e}")
    if predicted_bytes != taken_bytes:
        why.append("took other bytes than predicted")
    if copied_bytes:
        why.append("bound memory was copied")
    return {
        "difference": worst,
        "predicted": predicted_bytes,
        "taken": taken_bytes,
        "copied": copied_bytes,
        "ok": not why,
        "why": "; ".join(why),
    }


def _classifier(context: Context) -> Row:
    from tests.inference import models

    feeds = [{"x": models.x_of(n, 3, height, 10)} for n, height in ((2, 8), (3, 12), (64, 40))]
    return _checked(models.classifier(), feeds, 1e-3)


def _loop(context: Context) -> Row:
    """A model whose result is the next run's input, for 50 runs on the device."""
    from tests.inference import models

    session, other = _sessions(models.step())
    x, state = models.x_of(4, 32), np.zeros((4, 32), "float32")
    binding = session.io_binding()
    binding.bind_ortvalue_input("x", ort.OrtValue.ortvalue_from_numpy(x, "cuda", 0))
    binding.bind_ortvalue_input("state", ort.OrtValue.ortvalue_from_numpy(state, "cuda", 0))
    binding.bind_output("next", "cuda")
    binding.bind_output("sum", "cuda")
    for _ in range(50):
        session.run_with_iobinding(binding)
        binding.bind_ortvalue_input("state", binding.get_outputs()[0])
        state = other.run(["next"], {"state": state, "x": x})[0]
    difference = _difference([binding.get_outputs()[0].numpy()], [state])
    why = "" if difference <= 1e-3 else f"differs from the CPU by {difference:.1e}"
    return {"difference": difference, "ok": not why, "why": why}


def _torch_memory(context: Context) -> Row:
    """Tensors of torch on the device, by their addresses, on torch's current stream."""
    import torch

    from tests.inference import models

    session, other = _sessions(models.step())
    arrays = {"x": models.x_of(4, 32), "state": models.x_of(4, 32)}
    given = {name: torch.from_numpy(array).to(context.device) for name, array in arrays.items()}
    result = torch.empty(4, 32, device=context.device)
    binding = session.io_binding()
    for name, tensor in given.items():
        binding.bind_input(name, "cuda", 0, np.float32, list(tensor.shape), tensor.data_ptr())
    binding.bind_output("next", "cuda", 0, np.float32, [4, 32], result.data_ptr())
    binding.bind_output("sum", "cuda")
    session.run_with_iobinding(binding)
    torch.cuda.synchronize()
    difference = _difference([result.cpu().numpy()], other.run(["next"], arrays))
    why = "" if difference <= 1e-4 else f"differs from the CPU by {difference:.1e}"
    return {"difference": difference, "ok": not why, "why": why}


def _export(name: str, context: Context) -> Row:
    from benchmarks import onnx_models

    with tempfile.TemporaryDirectory() as folder:
        path = onnx_models.export(name, Path(folder))
        return _checked(str(path), [_feed(path, turn) for turn in range(3)], 5e-3)


_ROWS: dict[str, Callable[[Context], Row]] = {
    "classifier": _classifier,
    "loop": _loop,
    "torch's memory": _torch_memory,
    **{name: partial(_export, name) for name in _exported()},
}


def _run(name: str, context: Context) -> Row:
    if context.emulated and name not in ("classifier", "loop"):
        return {
            "skipped": "it takes minutes, or memory of torch, on the host",
            "ok": True,
            "why": "",
        }
    with _on_device(context):
        return _ROWS[name](context)


SESSIONS = Part(
    "sessions",
    "InferenceSession on CUDA against the CPU: results, bound device memory, predicted bytes",
    lambda: list(_ROWS),
    _run,
    on_host=True,
    limit_s=240,
    row_s=2.0,
)
