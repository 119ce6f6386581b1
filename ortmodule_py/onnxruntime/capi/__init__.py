"""Modules of onnxruntime that programs import names from."""
