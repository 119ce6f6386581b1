"""Links between pages lead somewhere, in the repository and on the built site."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.fresh_process import ROOT
from tools.check_site import broken

PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "docs" / "api").glob("*.md")]


def _names(page: Path) -> set[str]:
    """The names of a page's headings, as GitHub and the site make them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_of_a_page_lead_somewhere(page: Path) -> None:
    for address in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if address.startswith("https://"):
            continue
        name, _, heading = address.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.is_file(), f"{page.name}: {address}"
        if heading:
            assert heading in _names(target), f"{page.name}: {address}"


def test_every_page_is_in_the_table_of_contents() -> None:
    index = (ROOT / "docs" / "index.md").read_text()
    for page in (ROOT / "docs").glob("*.md"):
        assert page.stem == "index" or f"\n{page.stem}\n" in index, page.name


def test_the_check_of_the_site_sees_what_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(
        '<h1 id="top">A</h1><a href="b.html#there">x</a><a href="#top">x</a><a href="https://x.org">x</a>'
    )
    (tmp_path / "b.html").write_text('<p id="there"></p><a href="a.html">x</a>')
    assert list(broken(tmp_path)) == []
    (tmp_path / "b.html").write_text(
        '<script src="https://x.org/a.js"></script><a href="c.html">x</a><a href="a.html#gone">x</a>'
    )
    found = "\n".join(broken(tmp_path))
    assert found.count("\n") == 3 and "from another host" in found
    assert "a.html: b.html#there has no such name" in found
    assert "c.html is not there" in found and "a.html#gone has no such name" in found
