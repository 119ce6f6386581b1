"""`convert_precision model.onnx out.onnx`: a model in float16."""

from ortmodule_py.commands.command import forwarded

COMMAND = forwarded("an ONNX model in another precision", "ortmodule_py.convert_precision")
