"""Sizes of captured tensors as integer expressions."""
