"""What FSDP2 (`fully_shard`) holds of a module's parameters, and when.

A unit is a group of parameters that is gathered before it computes and whose gradients are reduced behind
its backward. Its parameters are two tensors: the shard, which the module, its optimizer and its state dict
know, and the gathered one, which forward and backward compute with. Only private attributes of torch tell
them apart; without them a module counts as not sharded.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

_STATES = "torch.distributed._composable_state"
_UNITS = "torch.distributed.fsdp._fully_shard._fsdp_state"


@dataclass(eq=False)
class Unit:
    """The parameters that FSDP2 gathers together, with their bytes on this rank."""

    name: str
    """Of the module that was given to `fully_shard`; "" for the root."""
    shards: dict[int, Tensor]
    """By id of the gathered parameter: the shard."""
    gradients: dict[int, int]
    """By id of the gathered parameter: the bytes of its gradient before it is reduced; frozen ones: 0."""
    gathered_bytes: int
    """Of the gathered parameters; also of the buffer that the collective gathers into."""
    between_bytes: int
    """What stays gathered between forward and backward: all, nothing, or a part (`reshard_after_forward`)."""
    reduce_bytes: int
    """Of the buffer that is reduced, with padding."""
    shard_gradient_bytes: int
    """Of the gradients after they are reduced."""
    ranks: int
    """The number of ranks that a parameter is spread over."""

    @property
    def stays_gathered(self) -> bool:
        """Whether backward finds it gathered."""
        return self.between_bytes == self.gathered_bytes


def units_of(module: nn.Module) -> list[Unit]:
    """The units of `module` in the order of its submodules; none if nothing is sharded."""
    seen: dict[int, Unit] = {}
    for name, part in module.named_modules():
        for group in _groups_of(part):
            if id(group) not in seen:
                seen[id(group)] = _unit(name, group)
    return list(seen.values())


def gathered_ids() -> set[int]:
    """The ids of all gathered parameters of this process, of whatever module."""
    return {id(gathered) for group in _live_groups() for gathered, _ in _parameters(group)}


def count_of_units() -> int:
    """The number of units in this process, of whatever module, gathered before or not."""
    return len(_live_groups())


def _live_groups() -> list[Any]:
    states: Any = sys.modules.get(_STATES)
    if states is None or _UNITS not in sys.modules:
        return []
    alive = [reference() for reference in list(states._module_state_mapping.values())]
    found = {id(group): group for state in alive for group in _of_state(state)}
    return list(found.values())


def held_parameters(module: nn.Module) -> Iterator[Tensor]:
    """The parameters of `module` as this rank holds them between steps: the local parts of shards."""
    shards = {
        id(now): known.sharded_param
        for part in module.modules()
        for group in _groups_of(part)
        for known in group.fsdp_params
        for name in ("_unsharded_param", "_sharded_post_forward_param")
        if (now := getattr(known, name, None)) is not None
    }
    for parameter in module.parameters():
        yield shards.get(id(parameter), parameter)


def local_bytes(tensor: Tensor) -> int:
    """Bytes of a tensor on this rank; of a DTensor those of its local part."""
    local = getattr(tensor, "_local_tensor", tensor)
    return int(local.numel()) * int(local.element_size())


def computed_with(module: nn.Module) -> dict[int, int]:
    """By id of a shard: the id of the gathered parameter, which the pieces know."""
    return {id(shard): key for unit in units_of(module) for key, shard in unit.shards.items()}


def _groups_of(part: nn.Module) -> list[Any]:
    states: Any = sys.modules.get(_STATES)
    if states is None or _UNITS not in sys.modules:
        return []
    return _of_state(states._get_module_state(part))


def _of_state(state: Any) -> list[Any]:
    """The groups of a state; before torch 2.13 it has at most one."""
    if hasattr(state, "_fsdp_param_groups"):
        return list(state._fsdp_param_groups)
    group = getattr(state, "_fsdp_param_group", None)
    return [] if group is None else [group]


def _parameters(group: Any) -> Iterator[tuple[Tensor, Any]]:
    """The gathered parameters of a group that has run, and what FSDP2 knows of each."""
    for known in group.fsdp_params:
        gathered = getattr(known, "_unsharded_param", None)
        if gathered is not None:
            yield gathered, known


def _unit(name: str, group: Any) -> Unit:
    ranks = getattr(group.mesh_info, "shard_mesh_size", 1)
    shards, gradients, gathered, reduced, kept = {}, {}, 0, 0, 0
    for tensor, known in _parameters(group):
        shards[id(tensor)] = known.sharded_param
        gradients[id(tensor)] = local_bytes(tensor) if tensor.requires_grad else 0
        padded = ranks * known._sharded_param_data.numel()
        gathered += padded * tensor.element_size()
        if tensor.requires_grad:
            reduced += padded * (known.reduce_dtype or tensor.dtype).itemsize
            kept += local_bytes(known.sharded_param)
    between = 0
    if not group._reshard_after_forward:
        between = gathered
    elif group._use_post_forward_mesh:
        between = gathered // group.post_forward_mesh_info.shard_mesh_size
    return Unit(name, shards, gradients, gathered, between, reduced, kept, ranks)


@dataclass(frozen=True)
class Beside:
    """What a run of a piece needs outside of the engine."""

    gradient_bytes: int
    """Of the gradients that its backward leaves, less those that a reduction behind it frees."""
    around_bytes: int = 0
    """Held by FSDP2 while it runs."""
    behind_bytes: int = 0
    """Held by FSDP2 while gradients are reduced behind its backward, those included."""
    passing_bytes: int = 0
    """Of the gradients that later runs have passed on to this one and to runs before it."""
    units: tuple[str, ...] = ()
    """The names of the units whose parameters it takes."""


def beside_runs(
    units: Sequence[Unit],
    runs: Sequence[frozenset[int]],
    gradient_bytes: Sequence[int],
    passed: Sequence[dict[int, int]],
) -> list[Beside]:
    """What FSDP2 holds around each run of a forward; empty if nothing is sharded.

    `runs` are the ids of the parameters of each run, `gradient_bytes` those of its piece. `passed` are those
    of them, by the run that they are passed on to, which autograd frees behind it. Figures are for backward,
    where the peak is: the gathered parameters of the run and those that stay gathered, the buffer of the unit
    that is gathered ahead, and the last one that was reduced. A unit is reduced behind its first run, which
    is the last one of backward.
    """
    if not units:
        return []
    first = {
        u: min((n for n, ids in enumerate(runs) if ids & u.shards.keys()), default=-1)
        for u in units
    }
    later: set[int] = set()
    passing = [0] * len(runs)
    found: list[Beside] = []
    for n in reversed(range(len(runs))):
        mine = [u for u in units if runs[n] & u.shards.keys()]
        around = sum(u.gathered_bytes for u in mine)
        around += sum(u.between_bytes for u in units if u not in mine and 0 <= first[u] < n)
        ahead = max((at for u, at in first.items() if at < n and not u.stays_gathered), default=-1)
        around += sum(
            u.gathered_bytes for u in units if first[u] == ahead >= 0 and not u.stays_gathered
        )
        behind = min((at for at in first.values() if at > n), default=-1)
        reduced = sum(u.reduce_bytes for u in units if first[u] == behind >= 0)
        # A tied parameter accumulates into the gradient of its later use.
        left = gradient_bytes[n] - sum(
            u.gradients[i] for u in mine for i in u.gradients.keys() & runs[n] & later
        )
        for maker, size in passed[n].items():
            left -= size
            for run in range(maker, n):
                passing[run] += size
        ends = [u for u in mine if first[u] == n]
        reducing = (
            around + left - sum(u.gathered_bytes - u.reduce_bytes for u in ends) if ends else 0
        )
        left += sum(u.shard_gradient_bytes - sum(u.gradients.values()) for u in ends)
        names = tuple(u.name for u in mine)
        found.append(Beside(left, around + reduced, reducing, passing[n], names))
        later |= runs[n]
    return found[::-1]
