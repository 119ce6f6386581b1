"""Lets Dynamo read the counter of a batch normalization with `momentum=None`.

Its momentum is then 1 / number of batches, read from a tensor. Dynamo breaks the graph at such a
read, and leaves a container of layers wholly to eager PyTorch for it; but this number is only
computed with, so that a graph can say it.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.modules import batchnorm

FindCompiler = Callable[[Any], Any]
"""Our compiler that a Dynamo backend stands for, or None."""


@functools.cache
def install(find_compiler: FindCompiler) -> None:
    """Watch Dynamo's reads of tensors, which go through one private method of torch."""
    variable: Any = getattr(torch._dynamo.variables, "TensorVariable", None)
    method_item = getattr(variable, "method_item", None)
    if method_item is None or "tx" not in inspect.signature(method_item).parameters:
        return  # another torch: such layers run in eager PyTorch

    @functools.wraps(method_item)
    def read(self: Any, tx: Any, *args: Any, **kwargs: Any) -> Any:
        of_counter = getattr(tx, "f_code", None) is batchnorm._BatchNorm.forward.__code__
        if not of_counter or find_compiler(getattr(tx.output, "compiler_fn", None)) is None:
            return method_item(self, tx, *args, **kwargs)
        # This method only refuses; torch reads when it is done. Reads elsewhere are refused here still.
        tx.output.fake_mode.allow_scalar_outputs = True
        with torch._dynamo.config.patch(capture_scalar_outputs=True):
            return method_item(self, tx, *args, **kwargs)

    variable.method_item = read
