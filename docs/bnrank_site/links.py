"""Links to the API: names of the library in running text, and names that docstrings give by another path."""

import functools
import importlib
import inspect
import re
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.transforms.post_transforms import SphinxPostTransform

from bnrank_site import api

ID = re.compile(r"\b([TFE][1-9]\d?[bL]?)\b")
KEPT = (nodes.reference, nodes.literal, nodes.literal_block, nodes.title, nodes.math, nodes.math_block, nodes.raw)
KEPT += (addnodes.pending_xref, addnodes.desc_signature)
NAME = re.compile(r"^(bnrank(?:\.\w+)+)(?:\(.*\))?$", re.DOTALL)


@functools.cache
def documented() -> dict[int, str]:
    """Return the name that is documented for each public object and module, by identity."""
    pages = api.pages()
    named = {id(page.module): page.name for page in pages}
    return named | {id(value): name for page in pages for name, value in page.names.items()}


def documented_name(name: str) -> tuple[bool, str]:
    """Return whether a dotted name exists, and the name by which it, or its class, is documented; "" if it is not."""
    parts = name.split(".")
    for i in range(len(parts), 0, -1):
        found = _found(".".join(parts[:i]))
        if found is not None:
            known, rest = documented().get(id(found), ""), parts[i:]
            exists = not rest or (inspect.isclass(found) and len(rest) == 1 and _has(found, rest[0]))
            return exists, ".".join([known, *rest]) if known and exists else ""
    return False, ""


def _has(kind: type, name: str) -> bool:
    return hasattr(kind, name) or any(name in getattr(base, "__annotations__", {}) for base in kind.__mro__)


def _found(name: str) -> Any:
    try:
        return api.public(name)
    except (ImportError, AttributeError):
        try:
            return importlib.import_module(name)
        except ImportError:
            return None


def _link(env: BuildEnvironment, docname: str, name: str, app: Sphinx) -> nodes.reference | None:
    entries = env.get_domain("py").objects  # type: ignore[attr-defined]
    if name not in entries:
        return None
    place = app.builder.get_relative_uri(docname, entries[name].docname)
    return nodes.reference("", "", internal=True, refuri=f"{place}#{entries[name].node_id}")


class Names(SphinxPostTransform):
    """``bnrank.rank(net, x)`` in a page becomes a link."""

    default_priority = 8  # before references are resolved

    def run(self, **kwargs: Any) -> None:
        """Wrap literals that are public names in references."""
        for literal in list(self.document.findall(nodes.literal)):
            match = NAME.match(literal.astext())
            if match and not isinstance(literal.parent, nodes.reference | addnodes.pending_xref | nodes.title):
                _, name = documented_name(match[1])
                if reference := _link(self.env, self.env.docname, name, self.app):
                    literal.replace_self(reference)
                    reference += literal


class Titles(SphinxPostTransform):
    """A link to ``minima.md`` that has no other words shows the title of the page."""

    default_priority = 8

    def run(self, **kwargs: Any) -> None:
        """Replace the words of links that are file names."""
        for link in self.document.findall(addnodes.pending_xref):
            target = self.env.titles.get(link.get("reftarget", ""))
            if link.get("reftype") == "myst" and target is not None and re.fullmatch(r"[\w./-]+\.md", link.astext()):
                link.children = []
                link += nodes.inline("", "", nodes.Text(target.astext()), classes=["std", "std-doc"])


class Statements(SphinxPostTransform):
    """T7, F4 and E12 in running text become links to the statement, the figure and the erratum."""

    default_priority = 9

    def run(self, **kwargs: Any) -> None:
        """Split texts at ids that have an entry."""
        places = self._places()
        for text in list(self.document.findall(nodes.Text)):
            if not ID.search(text) or any(isinstance(up, KEPT) for up in _above(text)):
                continue
            new: list[nodes.Node] = []
            for part in ID.split(str(text)):
                docname, anchor = places.get(part, ("", ""))
                if docname and docname != self.env.docname:
                    uri = self.app.builder.get_relative_uri(self.env.docname, docname) + anchor
                    new.append(nodes.reference("", "", nodes.Text(part), internal=True, refuri=uri))
                elif part:
                    new.append(nodes.Text(part))
            text.parent.replace(text, new)

    def _places(self) -> dict[str, tuple[str, str]]:
        """Return the page and the anchor of every id: those of headings such as "T7. First correction"."""
        found = {}
        theory = [docname for docname in sorted(self.env.tocs) if docname.startswith("theory/")]
        gallery = [docname for docname in sorted(self.env.tocs) if docname.startswith("gallery/")]
        for docname in [*theory, "errata", *gallery]:  # the later one has more to say of an id
            for entry in self.env.tocs[docname].findall(nodes.reference):
                match = re.match(r"([TFE]\d+[bL]?)\. ", entry.astext())
                if match:
                    found[match[1]] = docname, entry["anchorname"]
        return found


def _above(node: nodes.Node) -> list[nodes.Node]:
    above = []
    while node.parent is not None:
        node = node.parent
        above.append(node)
    return above


def _resolve(app: Sphinx, env: BuildEnvironment, node: Any, inner: nodes.Node) -> nodes.Node | None:
    """Find what a docstring names by a path of its own; what exists and is not public remains a word."""
    if node.get("refdomain") != "py" or node["reftarget"].startswith("sklearn"):
        return None
    target, here = node["reftarget"], node.get("py:module") or ""
    outer = [here.rsplit(".", i)[0] for i in range(here.count(".") + 1)] if here else []
    for place in ["", *([f"{here}.{node['py:class']}"] if node.get("py:class") else []), *outer]:
        exists, name = documented_name(f"{place}.{target}".strip("."))
        if exists:
            reference = _link(env, node["refdoc"], name, app)
            if reference is None:
                return inner
            reference += inner
            return reference
    return None


def setup(app: Sphinx) -> dict[str, Any]:
    """Add both."""
    app.add_post_transform(Names)
    app.add_post_transform(Titles)
    app.add_post_transform(Statements)
    app.connect("missing-reference", _resolve)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
