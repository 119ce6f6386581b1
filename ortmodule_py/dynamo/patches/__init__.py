"""Patches of Dynamo, one or two per file; the table of their rows is in `table.py`.

All files here are imported.
"""

from __future__ import annotations

import importlib
import pkgutil

from ortmodule_py.dynamo.patches.table import during_runs, install, missing_for, states

for _file in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_file.name}")

__all__ = ["during_runs", "install", "missing_for", "states"]
