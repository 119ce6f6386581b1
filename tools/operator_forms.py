"""Writes the tables of operator forms (csrc/importer/forms_*.cpp) from the installed onnxruntime.

    python tools/operator_forms.py && make format

A form is how many operands, outputs and which attributes a node may have. Of consecutive versions with the
same form, the table has the first.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnxruntime
from onnxruntime.capi import onnxruntime_pybind11_state as stock

IMPORTER = Path(__file__).resolve().parent.parent / "csrc" / "importer"
FILES = {"standard": ["", "ai.onnx.ml"], "contrib": ["com.microsoft", "com.microsoft.nchwc"]}
LETTERS = {
    "INT": "i",
    "FLOAT": "f",
    "STRING": "s",
    "TENSOR": "t",
    "GRAPH": "g",
    "SPARSE_TENSOR": "t",
    "INTS": "I",
    "FLOATS": "F",
    "STRINGS": "S",
}


def letters(values: list[Any], least: int) -> str:
    """One for each operand or output: single, optional, variadic, or w for one that may be empty."""
    text = "".join(str(value.option).rsplit(".", 1)[-1][0].lower() for value in values)
    return text.replace("v", "w") if least < len(text) else text


def form(schema: Any) -> str:
    if schema.deprecated:
        return '"-", "", ""'
    attrs = [
        f"{name}{'!' if attr.required else ''}:{LETTERS.get(str(attr.type).rsplit('.', 1)[-1], 'p')}"
        for name, attr in sorted(schema.attributes.items())
    ]
    inputs, outputs = (
        letters(schema.inputs, schema.min_input),
        letters(schema.outputs, schema.min_output),
    )
    lines = [""]
    for attr in attrs:
        if len(lines[-1]) + len(attr) > 80:
            lines.append("")
        lines[-1] += attr + " "
    return f'"{inputs}", "{outputs}",' + "\n".join(f' "{line}"' for line in lines)


def rows(domain: str) -> Iterator[str]:
    schemas = [each for each in stock.get_all_operator_schema() if each.domain == domain]
    last: tuple[str, str] | None = None
    for schema in sorted(schemas, key=lambda each: (each.name, each.since_version)):
        found = (schema.name, form(schema))
        if found != last:
            yield f'    {{"{domain}", "{schema.name}", {schema.since_version}, {found[1]}}},\n'
        last = found


def main() -> None:
    version = ".".join(onnxruntime.__version__.split(".")[:2])
    for name, domains in FILES.items():
        lines = [
            f"// Written by tools/operator_forms.py, of onnxruntime {version}. Sorted by domain, operator,"
            " operator set.\n",
            '#include "importer/operator_forms.h"\n\nnamespace ortmodule {\nnamespace {\n\n',
            f"constexpr OperatorForm k{name.title()}Forms[] = {{\n",
            *(row for domain in domains for row in rows(domain)),
            "};\n\n}  // namespace\n\n",
            f"std::span<const OperatorForm> {name}_forms() {{ return k{name.title()}Forms; }}\n\n",
            "}  // namespace ortmodule\n",
        ]
        (IMPORTER / f"forms_{name}.cpp").write_text("".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
