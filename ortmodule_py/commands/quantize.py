"""`quantize model.onnx out.onnx`: weights as 8-bit integers."""

from ortmodule_py.commands.command import forwarded

COMMAND = forwarded(
    "the weights of an ONNX model as 8-bit integers", "ortmodule_py.quantization.__main__"
)
