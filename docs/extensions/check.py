"""Check a built site: internal links, and that no page loads anything from elsewhere: ``check.py FOLDER``."""

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADED = {"img": "src", "script": "src", "link": "href", "iframe": "src", "source": "src", "video": "src"}


class Page(HTMLParser):
    """What a page names: its anchors, its links, and what it loads."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note the attributes that matter."""
        found = {name: value for name, value in attrs if value is not None}
        self.anchors |= {found[name] for name in ("id", "name") if name in found}
        if tag == "a" and "href" in found:
            self.links.append(found["href"])
        rel = found.get("rel", "")
        if tag in LOADED and LOADED[tag] in found and rel not in ("canonical", "search", "next", "prev", "index"):
            self.loaded.append(found[LOADED[tag]])


def problems(folder: Path) -> list[str]:
    """Return what is wrong with the site in a folder, one line each; empty if nothing is.

    Links to other sites are not followed.
    """
    pages = {path: Page(path.read_text(encoding="utf-8")) for path in sorted(folder.rglob("*.html"))}
    wrong = [] if pages else [f"{folder}: no pages"]
    for path, page in pages.items():
        if "_static" in path.parts:
            continue
        name = path.relative_to(folder)
        for link in [*page.links, *page.loaded]:
            parts = urlsplit(link)
            if parts.scheme in ("http", "https") or parts.netloc:
                if link in page.loaded:
                    wrong.append(f"{name}: loads {link}")
                continue
            if parts.scheme:  # data:, mailto:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path.resolve()
            if not target.exists():
                wrong.append(f"{name}: no file {link}")
            elif parts.fragment and target.suffix == ".html":
                other = pages.get(target) or pages.get(folder.resolve() / target.relative_to(folder.resolve()))
                if other is not None and unquote(parts.fragment) not in other.anchors:
                    wrong.append(f"{name}: no anchor {link}")
    return wrong


if __name__ == "__main__":
    site = Path(sys.argv[1]).resolve()
    found = problems(site)
    print(*found, sep="\n")
    sys.exit(bool(found))
