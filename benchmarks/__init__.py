"""Benchmarks of ORTModule beside eager PyTorch, torch.compile and activation checkpointing."""
