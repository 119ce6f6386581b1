"""Methods called through the wrapper that train the module's parameters without its forward.

Only calls of the module itself go to the engine. Such a method calls the submodules, so that all of it
is eager PyTorch, which is said once.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from torch import Tensor, nn

from ortmodule_py.wrap.outputs import parameters_used

_MOST_TENSORS = 64
"""How many items of a result or an argument are looked at."""


class DirectMethods:
    """Of one wrapper: those whose first result with a gradient was looked at."""

    def __init__(self) -> None:
        self.known: set[str] = set()

    def look(self, model: Any, name: str, given: Sequence[Any], result: Any) -> None:
        """To be called after a method in which no forward of the wrapper ran."""
        results = list(_with_gradient(result))
        if not results or model._engine_options.bypass:
            return
        taken = (tensor for value in given for tensor in _with_gradient(value))
        reached = parameters_used(results, taken)
        names = [n for n, p in model.module.named_parameters() if id(p) in reached]
        if names:
            model._compiler.log.report_direct(
                f"the method {name} of {type(model.module).__name__}, which calls neither self(...) "
                f"nor self.forward(...); {_remedy(model.module, names[0])}"
            )
        self.known.add(name)


def _with_gradient(value: Any) -> Iterator[Tensor]:
    items: Iterable[Any] = value.values() if isinstance(value, dict) else value
    if not isinstance(value, (tuple, list, dict)):
        items = (value,)
    for item in itertools.islice(items, _MOST_TENSORS):
        # Asked for its node, a tensor without a gradient may raise where its base was changed in place.
        if isinstance(item, Tensor) and item.requires_grad and item.grad_fn is not None:
            yield item


def _remedy(module: nn.Module, parameter: str) -> str:
    """What to do about this parameter, which the method uses."""
    path = "model"
    *owners, _ = parameter.split(".")
    for name in owners:
        listed = isinstance(module, nn.ModuleList)
        keyed = listed or isinstance(module, nn.ModuleDict)
        path += f"[{name if listed else repr(name)}]" if keyed else f".{name}"
        module = module.get_submodule(name)
        if not isinstance(module, (nn.ModuleList, nn.ModuleDict)):
            return f"wrap the submodules that it calls instead: {path} = ORTModule({path})"
    return "let forward compute this instead"
