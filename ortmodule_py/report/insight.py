"""The memory optimizer's table of saved activations by node, shown at log level DEVINFO."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from ortmodule_py.options.memory import MemoryRequest
from ortmodule_py.report.plan_table import renamed, symbol_names

_NAMES = {1: "Recompute", 2: "RecomputeWithCompromise", 3: "Offload"}
_FIRST = 7
_TITLE = 15


def insight_lines(piece: Any, request: MemoryRequest) -> list[str]:
    """One row for all nodes with equal saved activations and equal options, the most frequent first."""
    facts = piece.memory()
    names = symbol_names(facts)
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = defaultdict(list)
    for stash in facts["stashes"]:
        groups[_group_key(stash)].append(stash)
    keys = sorted(groups, key=lambda key: (-len(groups[key]), str(key)))
    rows = [(len(groups[key]), _row(groups[key], request, names)) for key in keys]
    width = max((len(line) for _, row in rows for line in row), default=0)
    width = max(width, 80) + width % 2
    source = request.config_source or "not provided"
    rule = "=" * (_FIRST + width + 3)
    blank = f"|{'_ ' * (_FIRST // 2)}_|{'_ ' * (width // 2)}|"
    title = " Memory Optimization Opportunities (Clustered by node-level activation patterns)"
    lines = ["", f"MemoryInsight Summary - User config file path: {source}", rule]
    lines += [f"|{'Freq':<{_FIRST}}|{title:<{width}}|", blank]
    for count, row in rows:
        for first, text in zip((count, *[""] * len(row)), row, strict=False):
            lines.append(f"|{first:<{_FIRST}}|{text:<{width}}|")
        lines.append(blank)
    return [*lines, rule, "Note: use comma as a separator for enabling more than one subgraphs."]


def _group_key(stash: dict[str, Any]) -> tuple[Any, ...]:
    outputs = tuple((o["index"], tuple(o["dims"]), o["element_bytes"]) for o in stash["outputs"])
    subgraphs = tuple((p["strategy"], p["cluster_id"]) for p in stash["plans"])
    return (stash["op"], subgraphs, outputs, stash["refusal"])


def _line(title: str, text: str) -> str:
    return f"{title:<{_TITLE}}: {text}"


def _row(group: list[dict[str, Any]], request: MemoryRequest, names: dict[str, str]) -> list[str]:
    stash = group[0]
    if not stash["plans"]:
        lines = [f"{stash['op']} is kept: {stash['refusal']}", ""]
        return lines + [_output(output, 0, names) for output in stash["outputs"]]
    lines = ["For each row options are mutually exclusive, only one of them can be enabled."]
    for number, subgraph in enumerate(stash["plans"], start=1):
        share = round(100 * subgraph["saving_bytes"] / stash["bytes"]) if stash["bytes"] else 0
        name = f"{_NAMES[subgraph['strategy']]} subgraph {subgraph['cluster_id']}"
        lines += ["", _line(f">>Option {number}", name)]
        lines.append(_line("  Status", _status(group, subgraph, request)))
        lines.append("  Stashed Activations:")
        lines += [_output(output, share, names) for output in stash["outputs"]]
    return lines


def _status(group: list[dict[str, Any]], subgraph: dict[str, Any], request: MemoryRequest) -> str:
    applied = sum(stash["chosen"] == subgraph["strategy"] for stash in group)
    if not applied:
        return "Disabled."
    asked = request.count_of(subgraph["cluster_id"], subgraph["strategy"])
    return f"Enabled, requested count={asked}, actual applied count={applied}."


def _output(output: dict[str, Any], share: int, names: dict[str, str]) -> str:
    dims = "*".join(f"({renamed(dim, names)})" for dim in output["dims"])
    text = f"[({dims or '(1)'})], byte/elem: {output['element_bytes']}, {share}% saved"
    return _line(f"   - Output {output['index']}", text)
