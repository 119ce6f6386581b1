"""`plan train.py`: the plan table of a training script."""

from ortmodule_py.commands.command import forwarded

COMMAND = forwarded(
    "the plan table of a training script, before it trains",
    "ortmodule_py.plan",
    needs_torch=True,
    runs_a_script=True,
)
