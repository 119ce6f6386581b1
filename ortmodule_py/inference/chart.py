"""What all pictures of memory share: colours, text at reading size, light and dark, files and notebooks."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

MIB = 2**20
OTHERS = "#9a9a9a"
# Told apart by readers with any colour vision, and on white as on black.
COLORS = (
    "#4477aa",
    "#ee6677",
    "#228833",
    "#ccbb44",
    "#66ccee",
    "#aa3377",
    "#e08214",
    "#8073ac",
    "#35978f",
    "#bf812d",
)
_INK = {False: "#1a1a1a", True: "#e6e6e6"}
_PAPER = {False: "#ffffff", True: "#121212"}
# Replaced by the colour that the text of a page has, whatever its background.
_TEXT_OF_PAGE = "#010203"


def save(
    draw: Callable[[Any], None], size: tuple[float, float], path: str | Path, dark: bool
) -> None:
    """Writes the figure that `draw` fills to `path`; its ending decides on the format.

    Args:
        draw: draws into an empty matplotlib figure.
        size: width and height in inches.
        path: the file.
        dark: light ink on a dark background.

    Raises:
        ImportError: matplotlib is not installed.
    """
    _write(draw, size, path, _INK[dark], _PAPER[dark])


def svg(draw: Callable[[Any], None], size: tuple[float, float]) -> str:
    """The figure as an `<svg>` element for a page with any background; "" without matplotlib."""
    stream = io.StringIO()
    try:
        _write(draw, size, stream, _TEXT_OF_PAGE, "none")
    except ImportError:
        return ""
    text = stream.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    tag, _, content = text.replace(_TEXT_OF_PAGE, "currentColor").partition(">")
    tag = re.sub(r' (width|height)="[^"]*"', "", tag)
    return f'{tag} style="width:100%;max-width:{size[0]:.1f}in;height:auto">{content}'


def _write(
    draw: Callable[[Any], None], size: tuple[float, float], target: Any, ink: str, paper: str
) -> None:
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    names = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
    settings: Any = dict.fromkeys(names, ink)
    settings |= {"font.size": 11, "axes.titlesize": 12, "legend.fontsize": 10}
    settings |= dict.fromkeys(("legend.frameon", "axes.spines.top", "axes.spines.right"), False)
    # Equal pictures have equal names inside, so that a page may hold several.
    settings |= {"axes.facecolor": "none", "svg.hashsalt": "ortmodule_py"}
    with rc_context(settings):
        figure = Figure(figsize=size, facecolor=paper)
        FigureCanvasAgg(figure)
        draw(figure)
        kind: Any = {"format": "svg"} if isinstance(target, io.StringIO) else {}
        figure.savefig(target, dpi=110, bbox_inches="tight", facecolor=paper, **kind)


def bytes_text(count: float) -> str:
    """Bytes as a person reads them: "12.3 MiB"."""
    for unit, size in (("GiB", 2**30), ("MiB", MIB), ("KiB", 2**10)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count:.0f} bytes"
