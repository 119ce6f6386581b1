"""`ops`: the table of ops."""

from ortmodule_py.commands.command import forwarded

COMMAND = forwarded(
    "every op with its gradient, kernels and ONNX form", "ortmodule_py.ops", needs_torch=True
)
