"""The classes of onnxruntime that are written in Python."""

from __future__ import annotations

from ortmodule_py.inference.session import InferenceSession as InferenceSession

Session = InferenceSession
