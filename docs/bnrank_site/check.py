"""Check a built site: internal links, and that no page loads anything from elsewhere: ``check.py FOLDER``."""

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

# One of each kind: names of the API, of statements, figures and errata, titles of pages, notebooks, formulas.
LINKS = (
    ("theory/cost.html", "../api/cost.html#bnrank.cost.bracket"),
    ("theory/structure.html", "../api/theory.tangents.html#bnrank.theory.tangents.tangent_change_at"),
    ("api/discovery.html", "../theory/ranks.html#t5-jacobian-rank-limit-of-the-cost-and-bottleneck-rank"),
    ("minima.html", "gallery/F4.html"),
    ("theory/ranks.html", "../errata.html#e9-the-function-of-jacobian-rank-one-and-bottleneck-rank-two"),
    ("errata.html", "theory.html"),
    ("tutorials/first_training.html", "../api/theory.html#bnrank.check"),
    ("gallery/F1.html", "../figures.html#f1-spectra-of-a-deep-network-jacot2023a-figure-1"),
)
FILES = (
    "_static/mathjax/tex-chtml.js",
    "_static/mathjax/output/chtml/fonts/woff-v2/MathJax_Main-Regular.woff",
    "api/index.html",
    "gallery/compression.html",
)
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
            if not target.is_relative_to(folder.resolve()):
                wrong.append(f"{name}: leaves the site: {link}")
            elif not target.exists():
                wrong.append(f"{name}: no file {link}")
            elif parts.fragment and target.suffix == ".html":
                other = pages.get(folder / target.relative_to(folder.resolve()))
                if other is not None and unquote(parts.fragment) not in other.anchors:
                    wrong.append(f"{name}: no anchor {link}")
    return wrong


def missing(folder: Path) -> list[str]:
    """Return the links and files that the site must have and does not, so that nothing is lost silently."""
    pages = {name: Page((folder / name).read_text(encoding="utf-8")) for name, _ in LINKS if (folder / name).exists()}
    lost = [f"{name}: no link {link}" for name, link in LINKS if name not in pages or link not in pages[name].links]
    return lost + [f"no file {name}" for name in FILES if not (folder / name).exists()]


if __name__ == "__main__":
    site = Path(sys.argv[1]).resolve()
    found = problems(site) + missing(site)
    print(*found, sep="\n")
    sys.exit(bool(found))
