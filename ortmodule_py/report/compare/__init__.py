"""Runs a module beside eager PyTorch and compares."""
