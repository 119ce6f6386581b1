"""Values that all ranks of `torch.distributed` must agree on."""

from __future__ import annotations

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
    store = dist.distributed_c10d._get_default_store()
    try:
        known = store.compare_set(f"ortmodule_py/{name}", "", json.dumps(value))
    except dist.DistError:
        raise  # a store that is lost: with values of their own ranks would decide differently
    except RuntimeError:  # torch's FakeStore keeps nothing, and its group has one process
        return value
    return json.loads(known)
