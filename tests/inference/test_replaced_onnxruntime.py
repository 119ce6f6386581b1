"""Programs of others that import onnxruntime, unchanged, with this package under that name."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

PROGRAM = """
import json, sys
if sys.argv[1] == "ours":
    import ortmodule_py.onnxruntime
    sys.modules["onnxruntime"] = ortmodule_py.onnxruntime
import numpy as np

def characters():
    import cv2
    from rapidocr_onnxruntime import RapidOCR
    image = np.full((120, 420, 3), 255, "uint8")
    for line, text in enumerate(("Plan every byte", "before it runs 2026")):
        cv2.putText(image, text, (12, 45 + 45 * line), cv2.FONT_HERSHEY_SIMPLEX, 1, (0, 0, 0), 2)
    found, _ = RapidOCR()(image)
    return [[np.asarray(box).tolist(), text, float(score)] for box, text, score in found]

def voices():
    import torch
    from silero_vad import get_speech_timestamps, load_silero_vad
    model = load_silero_vad(onnx=True)
    time = np.arange(3 * 16000) / 16000
    voice = sum(np.sin(2 * np.pi * 140 * k * time) / k for k in range(1, 20))
    wave = (voice * (np.sin(2 * np.pi * 3 * time) > 0) * 0.2).astype("float32")
    wave = torch.from_numpy(wave)
    chunks = [model(wave[i : i + 512], 16000).item() for i in range(0, 16384, 512)]
    model.reset_states()
    spans = get_speech_timestamps(wave, model, sampling_rate=16000, threshold=0.1)
    return [chunks, [[span["start"], span["end"]] for span in spans]]

def kinds():
    from magika import Magika
    magika = Magika()
    texts = [
        b"import os\\n\\ndef main():\\n    print(os.getcwd())\\n" * 8,
        b"<!DOCTYPE html><html><body><p>text</p></body></html>" * 9,
        b"#include <stdio.h>\\nint main(void) { return puts(\\"a\\"); }\\n" * 8,
        bytes(range(256)) * 8,
    ]
    results = [magika.identify_bytes(text) for text in texts]
    return [[str(result.output.label), float(result.score)] for result in results]

facts = {name: globals()[name]() for name in sys.argv[3:]}
import onnxruntime
facts["package"] = onnxruntime.InferenceSession.__module__.partition(".")[0]
json.dump(facts, open(sys.argv[2], "w"))
"""


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("replaced")
    found = {}
    programs = ["voices", "kinds"] + (["characters"] if find_spec("cv2") else [])
    for package in ("stock", "ours"):
        path = folder / f"{package}.json"
        subprocess.run([sys.executable, "-c", PROGRAM, package, str(path), *programs], check=True)
        found[package] = json.loads(Path(path).read_text())
    assert found["stock"]["package"] == "onnxruntime"
    assert found["ours"]["package"] == "ortmodule_py"
    return found


def assert_like(ours: Any, stock: Any, tolerance: float) -> None:
    if isinstance(stock, list):
        assert len(ours) == len(stock)
        for one, other in zip(ours, stock, strict=True):
            assert_like(one, other, tolerance)
    elif isinstance(stock, float):
        assert ours == pytest.approx(stock, abs=tolerance)
    else:
        assert ours == stock


def test_rapidocr_reads_the_same(facts: dict[str, Any]) -> None:
    pytest.importorskip("cv2")
    ours, stock = facts["ours"]["characters"], facts["stock"]["characters"]
    assert len(stock) >= 2
    assert_like([row[1:] for row in ours], [row[1:] for row in stock], 1e-3)
    assert_like([row[0] for row in ours], [row[0] for row in stock], 1.0)  # pixels


def test_silero_hears_the_same(facts: dict[str, Any]) -> None:
    ours, stock = facts["ours"]["voices"], facts["stock"]["voices"]
    assert max(stock[0]) > 0.1
    assert_like(ours, stock, 1e-3)


def test_magika_says_the_same(facts: dict[str, Any]) -> None:
    ours, stock = facts["ours"]["kinds"], facts["stock"]["kinds"]
    assert len({label for label, _ in stock}) >= 3
    assert_like(ours, stock, 1e-3)
