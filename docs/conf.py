"""The documentation as a site: `make docs`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
sys.path.insert(0, str(ROOT))
os.environ["PYTHONPATH"] = str(ROOT)  # of the notebook's kernel
os.environ |= {"ORTMODULE_LOG_LEVEL": "ERROR", "OMP_WAIT_POLICY": "PASSIVE"}

import ortmodule_py  # noqa: E402
from ortmodule_py.ops import kernel_names, op_rows  # noqa: E402

project = "ortmodule_py"
author = "the authors of ortmodule_py"
project_copyright = author
version = release = ortmodule_py.__version__

extensions = ["breathe", "myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build", "README.md"]
html_theme = "furo"
html_title = f"ortmodule_py {version}"
html_copy_source = False
html_show_sourcelink = False
html_static_path = ["_static"]
html_css_files = ["site.css"]
highlight_language = "none"  # blocks without a language are output
default_role = "code"  # of docstrings
pygments_style, pygments_dark_style = "friendly", "monokai"

myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]
nb_execution_mode = "force"
nb_execution_raise_on_error = True
nb_execution_timeout = 600
nb_execution_in_temp = True
nb_merge_streams = True

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
napoleon_google_docstring = True
napoleon_numpy_docstring = False

_DOXYGEN = DOCS / "_build" / "doxygen"
breathe_projects = {"ortmodule": str(_DOXYGEN / "xml")}
breathe_default_project = "ortmodule"
# Macros that only say what is exported.
cpp_id_attributes = ["ORTMODULE_API"]


def _generate() -> None:
    """Pages that are made from other files, in docs/generated, and the XML of the C++ headers."""
    generated = DOCS / "generated"
    shutil.rmtree(generated, ignore_errors=True)
    generated.mkdir()
    for name in ("CONTRIBUTING", "CHANGELOG", "SECURITY"):
        text = (ROOT / f"{name}.md").read_text().replace("](docs/", "](../")
        for other in ("CONTRIBUTING", "CHANGELOG", "SECURITY"):
            text = text.replace(f"]({other}.md", f"]({other.lower()}.md")
        (generated / f"{name.lower()}.md").write_text(text)
    (generated / "ops.md").write_text(_ops_page())
    shutil.copy(ROOT / "examples" / "quick_start.ipynb", generated)
    _DOXYGEN.mkdir(parents=True, exist_ok=True)
    settings = {
        "INPUT": ROOT / "include" / "ortmodule" / "inference.h",
        "OUTPUT_DIRECTORY": _DOXYGEN,
        "GENERATE_XML": "YES",
        "GENERATE_HTML": "NO",
        "GENERATE_LATEX": "NO",
        "QUIET": "YES",
        "EXTRACT_ALL": "YES",
        "JAVADOC_AUTOBRIEF": "YES",
        "MACRO_EXPANSION": "YES",
        "EXPAND_ONLY_PREDEF": "YES",
        "PREDEFINED": '"ORTMODULE_API="',
        "WARN_IF_UNDOCUMENTED": "NO",
        # Users do not write the version's namespace, and Breathe would.
        "INPUT_FILTER": "\"sed -e '/^inline namespace v1 {/d' -e '/^}.*namespace v1$/d'\"",
    }
    lines = "\n".join(f"{name} = {value}" for name, value in settings.items())
    subprocess.run(["doxygen", "-"], input=lines, text=True, check=True)


def _ops_page() -> str:
    rows = op_rows()
    lines = [
        "# Ops",
        "",
        f"The {len(rows)} ops of the engine, as `python -m ortmodule_py ops` lists them. A gradient by *body*",
        "is that of the op's decomposition; *ATen* is a kernel of torch on planned memory. An op without kernel",
        "runs as its body.",
        "",
        "| op | gradient | ONNX form | CPU kernel | CUDA kernel |",
        "|---|---|---|---|---|",
    ]
    for row in rows:
        name = f"{row['domain']}::{row['name']}" if row["domain"] else row["name"]
        kernels = [kernel_names(row, device) for device in ("cpu", "cuda")]
        cells = [f"`{name}`", row["gradient"] or "-", row["onnx"], *kernels]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _links_to_root(app: object, page: str, source: list[str]) -> None:
    """In the repository, pages link to CONTRIBUTING.md where it lies; a page may not be there yet."""
    if page == "index" and not (DOCS / "distributed.md").exists():
        source[0] = source[0].replace("\ndistributed\n", "\n")
    if page in ("design", "building"):
        source[0] = source[0].replace("](../CONTRIBUTING.md", "](generated/contributing.md")


def setup(app: object) -> None:
    """Called by Sphinx."""
    app.connect("source-read", _links_to_root)  # type: ignore[attr-defined]


_generate()
