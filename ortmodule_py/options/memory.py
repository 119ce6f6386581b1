"""The user's request to the memory optimizer: a level, a configuration, or a budget in bytes."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ortmodule_py.base.environment import choice, flag
from ortmodule_py.base.offload import BUDGET_VARIABLE as OFFLOAD_BUDGET, offload_setting
from ortmodule_py.inference.memory import UNITS

LEVEL = "ORTMODULE_MEMORY_OPT_LEVEL"
CONFIG = "ORTMODULE_MEMORY_OPT_CONFIG"
BUDGET = "ORTMODULE_MEMORY_OPT_BUDGET"
STRICT = "ORTMODULE_MEMORY_OPT_STRICT"

LEVEL_NAMES = (
    "USER_SPECIFIED",
    "TRANSFORMER_LAYERWISE_RECOMPUTE",
    "TRANSFORMER_LAYERWISE_RECOMPUTE_WITH_COMPROMISE",
)

_AMOUNT = r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*([a-zA-Z%]*)"
"""A number and its unit."""

OFFLOADED = 3
"""The strategy that keeps values on the host."""

_PARTS = (
    (
        r"(?:[A-Za-z_][A-Za-z0-9_.]*\+)+",
        "a cluster id is op types each followed by '+'",
        "; copy an id from the table of plans",
    ),
    (
        "[0-3]",
        "the strategy must be 0 (none), 1 (recompute), 2 (compromise) or 3 (offload)",
        "",
    ),
    ("-1|[0-9]{1,9}", "the count must be -1 (all) or a number of occurrences", ""),
)
"""The form of each part of an element, what it must be, and what to do."""

_EXAMPLE = '["BiasGelu+:1:-1"]'


@dataclass(frozen=True)
class ConfigElement:
    """`cluster_id:strategy:count` of a configuration."""

    cluster_id: str
    strategy: int
    """0 to keep (forbids the others), 1 to recompute, 2 to recompute with compromise, 3 to keep on the host."""
    count: int
    """The first `count` occurrences in program order; -1 for all."""

    def __str__(self) -> str:
        return f"{self.cluster_id}:{self.strategy}:{self.count}"


@dataclass(frozen=True)
class Budget:
    """Bytes that a step may take. Exactly one of the three limits is set."""

    text: str
    total_bytes: int | None = None
    """For all bytes on the device: parameters, gradients, optimizer state and the step."""
    activation_bytes: int | None = None
    """For the step alone."""
    activation_fraction: float | None = None
    """For the step alone, relative to its peak without the optimizer."""
    where: str = BUDGET
    """The variable or argument that sets it."""


@dataclass
class MemoryRequest:
    """The memory optimizer's settings of one module."""

    level: int = 0
    config: list[ConfigElement] = field(default_factory=list)
    config_source: str = ""
    """The value of the variable: a path or the elements."""
    budget: Budget | None = None
    strict: bool = False
    warnings: list[str] = field(default_factory=list)
    level_is_given: bool = False
    """The level was set, possibly to 0."""
    offload: str = "auto"
    """Whether values may be kept on the host: the value of its variable."""
    offload_bytes: int | None = None
    """The most bytes of them; None for a quarter of the machine's memory."""

    def count_of(self, cluster_id: str, strategy: int) -> int:
        """The count of an element of the configuration, the last one if there are several; else -1."""
        for element in reversed(self.config):
            if (element.cluster_id, element.strategy) == (cluster_id, strategy):
                return element.count
        return -1

    @property
    def asked(self) -> bool:
        """Whether a level, a configuration or a budget was set."""
        return self.level > 0 or bool(self.config_source) or self.budget is not None

    @property
    def setting(self) -> str:
        """What the user set, such as `ORTMODULE_MEMORY_OPT_LEVEL=1`; "" if nothing."""
        if self.budget is not None:
            return f"{self.budget.where}={self.budget.text}"
        if self.level > 0 and self.level_is_given:
            return f"{LEVEL}={self.level}"
        return CONFIG if self.config_source else ""

    @property
    def without_effect(self) -> str:
        """Continues a sentence about eager PyTorch: what was set has no effect there."""
        return f", where {self.setting} has no effect" if self.setting else ""

    @classmethod
    def from_environment(cls, memory_budget: str | int | float | None = None) -> MemoryRequest:
        """Reads the variables; `memory_budget`, an argument of `ORTModule`, overrides its variable.

        Raises:
            ValueError: an invalid value; the text names the variable, the element and the remedy.
        """
        given_level = bool(os.environ.get(LEVEL, "").strip())
        request = cls(
            level=_level(),
            strict=flag(STRICT),
            level_is_given=given_level,
            offload=offload_setting(),
            offload_bytes=_offload_bytes(),
        )
        where = "memory_budget" if memory_budget is not None else BUDGET
        given = memory_budget if memory_budget is not None else os.environ.get(BUDGET)
        if given is not None and str(given).strip():
            request.budget = parse_budget(given, where)
        text = os.environ.get(CONFIG, "").strip()
        if text and request.level > 0:
            request.warnings.append(
                f"[{CONFIG}] ignored, since {LEVEL}={request.level} applies whole layers; set "
                f"{LEVEL}=0 to use the configuration"
            )
        elif text:
            request.config = parse_config(text)
            request.config_source = text
        request._check_budget(where)
        return request

    def _check_budget(self, where: str) -> None:
        if self.budget is None:
            return
        if self.level > 0:
            raise ValueError(
                f"[{where}] a budget chooses the plan itself, but found {LEVEL}={self.level} "
                f"beside it; set {LEVEL}=0 or remove the budget"
            )
        for element in self.config:
            if element.strategy != 0:
                raise ValueError(
                    f"[{CONFIG}] beside a budget only elements of strategy 0 (which forbid) are "
                    f"possible, but found {str(element)!r}; write "
                    f"'{element.cluster_id}:0:{element.count}' or remove the budget"
                )


def _level() -> int:
    remedy = f"; 0 applies {CONFIG}, 1 recomputes by layer, 2 keeps narrower tensors as well"
    return int(choice(LEVEL, ("0", "1", "2"), "the level must be 0, 1 or 2", remedy))


def _offload_bytes() -> int | None:
    text = os.environ.get(OFFLOAD_BUDGET, "").strip()
    if not text:
        return None
    match = re.fullmatch(_AMOUNT, text)
    unit = match[2].lower() if match else ""
    if match is None or unit not in UNITS or float(match[1]) * UNITS[unit] >= 1 << 63:
        raise ValueError(
            f"[{OFFLOAD_BUDGET}] bytes of the host are written as '64GiB' and below 2^63, but found "
            f"{text!r}"
        )
    return int(float(match[1]) * UNITS[unit])


def parse_budget(given: str | int | float, where: str = BUDGET) -> Budget:
    """Parses `20GiB`, `activations:900MB` or `activations:60%`; a plain number is in bytes.

    Raises:
        ValueError: another text, or a number that is not positive.
    """
    text = str(given).strip()
    rule = "a budget is written as '20GiB', 'activations:900MB' or 'activations:60%'"
    of_step = text.lower().startswith("activations:")
    amount = text.split(":", 1)[1].strip() if of_step else text
    match = re.fullmatch(_AMOUNT, amount)
    if match is None or isinstance(given, bool):
        raise ValueError(f"[{where}] {rule}, but found {text!r}")
    number, unit = float(match[1]), match[2].lower()
    if number <= 0:
        raise ValueError(f"[{where}] a budget must be positive, but found {text!r}")
    if unit == "%":
        if not of_step:
            raise ValueError(
                f"[{where}] a percentage needs 'activations:' before it, but found {text!r}; "
                f"write 'activations:{amount}'"
            )
        return Budget(text, activation_fraction=number / 100, where=where)
    if unit not in UNITS:
        raise ValueError(
            f"[{where}] {rule}, but found the unit {match[2]!r} in "
            f"{text!r}; write one of {', '.join(filter(None, UNITS))}"
        )
    if number * UNITS[unit] >= 1 << 63:
        raise ValueError(
            f"[{where}] a budget must be below 2^63 bytes, but found {text!r}; leave it out for none"
        )
    count = int(number * UNITS[unit])
    if count < 1:
        raise ValueError(f"[{where}] a budget is at least one byte, but found {text!r}")
    if of_step:
        return Budget(text, activation_bytes=count, where=where)
    return Budget(text, total_bytes=count, where=where)


def parse_config(text: str) -> list[ConfigElement]:
    """Parses a JSON file, a JSON list, or a comma-separated list of elements.

    Raises:
        ValueError: the file is missing or not a list of strings, or an element is malformed.
    """
    texts = [text]
    if text.startswith("["):
        texts = _strings(text, "its value")
    # An element ends in `:strategy:count`, so that anything else is a path.
    elif text.endswith(".json") or ":" not in text or os.path.isfile(text):
        try:
            content = Path(text).expanduser().read_text(encoding="utf-8-sig")
        except (OSError, RuntimeError, UnicodeDecodeError) as error:
            raise ValueError(
                f"[{CONFIG}] the file {text!r} must be readable, but found: "
                f"{getattr(error, 'strerror', None) or error}; write a JSON list of "
                "'<cluster id>:<strategy>:<count>' into it"
            ) from None
        texts = _strings(content, f"the file {text!r}")
    return [_element(part.strip()) for text in texts for part in text.split(",")]


def _strings(content: str, source: str) -> list[str]:
    rule = f"[{CONFIG}] {source} must hold a JSON list of strings as in {_EXAMPLE}, but found"
    try:
        value: Any = json.loads(content)
    except (json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"{rule}: {error}") from None
    if not isinstance(value, list):
        raise ValueError(f"{rule} {type(value).__name__}")
    for item in value:
        if not isinstance(item, str):
            raise ValueError(f"{rule} {item!r}")
    return value


def _element(text: str) -> ConfigElement:
    rule = "an element is '<cluster id>:<strategy>:<count>', as in 'BiasGelu+:1:-1'"
    parts = text.split(":")
    if len(parts) != 3:
        raise ValueError(f"[{CONFIG}] {rule}, but found {text!r} with {len(parts)} parts")
    parts = [part.strip() for part in parts]
    for part, (pattern, rule, remedy) in zip(parts, _PARTS, strict=True):
        if re.fullmatch(pattern, part) is None:
            raise ValueError(f"[{CONFIG}] {rule}, but found {part!r} in {text!r}{remedy}")
    cluster, strategy, count = parts
    return ConfigElement(cluster, int(strategy), int(count))
