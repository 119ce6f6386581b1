"""`python -m tests.fuzz --cases N --seed S`, or `--replay SEED`."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from typing import Any

from .driver import run_seeds
from .generator import generate
from .run_case import is_valid, quiet, run_seed

REPLAY = "python -m tests.fuzz --replay {}"


def describe(outcome: dict[str, Any], with_trace: bool = False) -> str:
    """A failure as text: what differed, the module, and how to run it again."""
    lines = [f"seed {outcome['seed']} {outcome['status']}: {outcome.get('message', '')}"]
    if with_trace and "trace" in outcome:
        lines.append(outcome["trace"])
    lines += [outcome.get("case", ""), "replay: " + REPLAY.format(outcome["seed"])]
    return "\n".join(lines)


def main() -> int:
    """The number of cases that differ decides the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--cases", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--replay", type=int, help="run one seed in this process")
    parser.add_argument("--show", type=int, help="print the module of a seed")
    parser.add_argument("--brief", action="store_true", help="one line per failure")
    options = parser.parse_args()
    quiet()
    if options.show is not None:
        print(generate(options.show, is_valid).describe())
        return 0
    if options.replay is not None:
        outcome = run_seed(options.replay)
        print(describe(outcome, with_trace=True))
        return int(outcome["status"] in ("differs", "error"))
    statuses: Counter[str] = Counter()
    features: Counter[str] = Counter()
    for outcome in run_seeds(list(range(options.seed, options.seed + options.cases))):
        statuses[outcome["status"]] += 1
        features.update(outcome.get("features", ()))
        if outcome["status"] not in ("same", "sensitive", "refused", "eager crash"):
            head = f"seed {outcome['seed']} {outcome['status']}: {outcome['message'][:300]}"
            print(head if options.brief else describe(outcome) + "\n", flush=True)
    print(dict(statuses))
    print("features:", ", ".join(f"{name} {count}" for name, count in features.most_common()))
    return int(any(statuses[s] for s in ("differs", "error", "crash", "timeout")))


if __name__ == "__main__":
    sys.exit(main())
