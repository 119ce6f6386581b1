"""`python -m tools.check_site FOLDER`: checks the links of a built site, and that it needs no other host.

Prints a line per broken link and exits with 1 if there is any.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

# Elements whose address a browser loads by itself, and the attribute that has it.
_LOADED = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src"}
_NOT_LOADED_LINKS = {"canonical", "search", "index", "next", "prev", "author"}


class Page(HTMLParser):
    """The names and links of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Called by the parser."""
        given = {name: value or "" for name, value in attrs}
        self.names |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        if tag in _LOADED and _LOADED[tag] in given and given.get("rel") not in _NOT_LOADED_LINKS:
            self.loaded.append(given[_LOADED[tag]])


def broken(folder: Path) -> Iterator[str]:
    """A line for each link to a page or a name that is not there, and for each file of another host."""
    pages = {path: Page(path.read_text()) for path in sorted(folder.rglob("*.html"))}
    for path, page in pages.items():
        where = path.relative_to(folder)
        for address in page.loaded:
            if urlsplit(address).netloc:
                yield f"{where}: loads {address} from another host"
        for address in [*page.links, *page.loaded]:
            parts = urlsplit(address)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path.resolve()
            if not target.is_file():
                yield f"{where}: {address} is not there"
                continue
            other = pages.get(folder.resolve() / target.relative_to(folder.resolve()))
            name = unquote(parts.fragment)
            if name and other is not None and name not in other.names:
                yield f"{where}: {address} has no such name"
    for style in sorted(folder.rglob("*.css")):
        text = style.read_text()
        if "url(http" in text or "@import url(" in text or "url(//" in text:
            yield f"{style.relative_to(folder)}: loads from another host"


def main() -> int:
    """Checks the site."""
    folder = Path(sys.argv[1]).resolve()
    found = list(broken(folder))
    pages = len(list(folder.rglob("*.html")))
    print("\n".join(found) or f"site: {pages} pages, all links right, nothing of other hosts")
    return 1 if found or not pages else 0


if __name__ == "__main__":
    sys.exit(main())
