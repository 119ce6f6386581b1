"""The name under which programs import the look-ups of element types."""

from __future__ import annotations

from ortmodule_py.inference.element_types import TypeHelper as TypeHelper
