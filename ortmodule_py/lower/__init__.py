"""Writes a functional ATen graph into the C++ graph builder."""
