"""Decompositions of ATen operators that replace those of torch."""
