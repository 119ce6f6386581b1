"""Lets Hugging Face's accelerate see through a wrapper: `accelerator.unwrap_model` gives the original."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

_HOME = "accelerate.utils.other"
_NAME = "extract_model_from_parallel"
_OURS = "_sees_through_ortmodule"


def teach_accelerate(wrapper: type[Any]) -> None:
    """Replace accelerate's function that unwraps models, also where it was imported from its module.

    Does nothing before accelerate is imported, and after the first time. `wrapper` is the class of
    wrappers, whose original is `.module`.
    """
    unwrap: Callable[..., Any] | None = getattr(sys.modules.get(_HOME), _NAME, None)
    if unwrap is None or hasattr(unwrap, _OURS):
        return

    @functools.wraps(unwrap)
    def unwrapped(*args: Any, **kwargs: Any) -> Any:
        model = unwrap(*args, **kwargs)
        return model.module if isinstance(model, wrapper) else model

    setattr(unwrapped, _OURS, True)
    for module in list(sys.modules.values()):
        if getattr(module, "__dict__", {}).get(_NAME) is unwrap:
            setattr(module, _NAME, unwrapped)
