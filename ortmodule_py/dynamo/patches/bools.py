"""Makes a comparison that Dynamo traces for us a bool of Python.

Of numbers that change Dynamo makes symbols, and of a comparison of them a symbol too, which is no
bool: `is True` is false, `str` gives "1", an index or a flag of torch's refuses it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

FindCompiler = Callable[[Any], Any]
"""Our compiler that a Dynamo backend stands for, or None."""


@functools.cache
def install(find_compiler: FindCompiler) -> None:
    """Watch what Dynamo makes of symbols, which it does in one private function of torch."""
    variables = torch._dynamo.variables
    symbol: Any = getattr(variables, "SymNodeVariable", None)
    create = getattr(symbol, "create", None)
    if create is None:
        return  # another torch: such bools stay symbols

    @functools.wraps(create)
    def decided(tx: Any, *args: Any, **kwargs: Any) -> Any:
        made = create(tx, *args, **kwargs)
        number = getattr(made, "sym_num", None)
        if not isinstance(number, torch.SymBool) or free_unbacked_symbols(number):
            return made  # what only the data decide is not known yet
        if find_compiler(getattr(tx.output, "compiler_fn", None)) is None:
            return made
        return variables.ConstantVariable.create(bool(number))  # leaves a guard on the outcome

    symbol.create = staticmethod(decided)
