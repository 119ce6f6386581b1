"""Values that all ranks of `torch.distributed` must agree on."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import torch.distributed as dist


def agreed(name: str, value: Any) -> Any:
    """The value that the first rank gave for `name`; `value` itself without a process group.

    `value` consists of what JSON has. No collective is used: a rank may ask alone, for a capture that the
    others make later or never.
    """
    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
        return value
    # Without a store (a group of a test's own kind) each rank keeps its value.
    with contextlib.suppress(RuntimeError, AttributeError, NotImplementedError):
        store = dist.distributed_c10d._get_default_store()
        known = store.compare_set(f"ortmodule_py/{name}", "", json.dumps(value))
        return json.loads(known)
    return value
