"""What a notebook shows, parsed: balanced tags, text, tables, and what must not be in it."""

from __future__ import annotations

import re
from html.parser import HTMLParser

VOID = {"br", "hr", "img", "col", "input", "meta"}
KNOWN = {"div", "style", "p", "table", "caption", "thead", "tbody", "tr", "th", "td", "span", "details", "summary"}
KNOWN |= {"figure", "figcaption", "svg", "polyline"}


class Shown(HTMLParser):
    """HTML of a result: raises AssertionError where tags are not balanced or not expected."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.attributes: list[tuple[str, str, str | None]] = []
        self.words: list[str] = []
        self.tables: list[list[list[str]]] = []
        self.captions: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open, self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in KNOWN, tag
        self.attributes += [(tag, name, value) for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")
        elif tag == "caption":
            self.captions.append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open, tag
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" in self.open:
            return
        self.words.append(data)
        if {"td", "th"} & set(self.open):
            self.tables[-1][-1][-1] += data
        elif "caption" in self.open:
            self.captions[-1] += data

    @property
    def text(self) -> str:
        return " ".join(self.words)


def shown(html: str) -> Shown:
    """Return the parsed HTML of a result, after the checks that hold for all: size, nothing loaded, no scripts."""
    assert len(html.encode()) <= 200_000
    assert not re.search(r"https?:|<script|javascript:|@import|url\(|\bon\w+=", html.lower())
    found = Shown(html)
    for tag, name, value in found.attributes:
        assert name in ("class", "style", "scope", "role", "aria-label", "points") or tag in ("svg", "polyline")
        assert "#" not in (value or "")
    return found


def numbers(text: str) -> set[str]:
    """Return the numbers in a text, as they are written."""
    return set(re.findall(r"(?<![\w.])-?\d+(?:[.,]\d+)*(?:e[+-]?\d+)?", text))
