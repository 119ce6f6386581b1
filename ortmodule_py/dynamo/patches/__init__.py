"""Functions of torch that are replaced while Dynamo traces for us, and what else captures depend on in torch.

Every file here is imported, and its rows are in the table: see `table.py`.
"""

from __future__ import annotations

import importlib
import pkgutil

from ortmodule_py.dynamo.patches.table import during_runs, install, missing_for, states

for _file in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_file.name}")

__all__ = ["during_runs", "install", "missing_for", "states"]
