"""Tests choose among memory plans by built-in rates, not by those of the machine they run on."""

from __future__ import annotations

import os

os.environ.setdefault("ORTMODULE_MACHINE_RATES", "estimate")
