"""Checks and times the CUDA build on a GPU: `python -m tools.gpu_check`."""
