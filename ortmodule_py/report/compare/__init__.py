"""Compares a module's steps with eager PyTorch."""
