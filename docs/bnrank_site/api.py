"""Pages of the API, a page per public module, written from ``__all__`` before each build."""

import functools
import importlib
import inspect
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from sphinx.application import Sphinx
from sphinx.pycode import ModuleAnalyzer

import bnrank
from bnrank_site.docstrings import escaped

ROOMS = ("tasks", "networks", "measures", "training", "theory", "discovery", "reporting", "figures")
# Public modules that no __all__ names: used by their full names.
MORE = (
    *("discovery.dimension", "training.plateaus"),
    *("discovery.attention", "discovery.gated", "theory.tangents", "theory.tours"),
)
REQUEST = re.compile(r"set_\w+_request$")  # methods that scikit-learn adds


@dataclass
class Page:
    """A public module: the name by which users know it, its room, and the names that its page documents."""

    module: ModuleType
    name: str
    room: str
    names: dict[str, Any] = field(default_factory=dict)

    @property
    def file(self) -> str:
        """Name of the page in ``docs/api``."""
        return self.name.removeprefix("bnrank.")


def public(name: str) -> Any:
    """Return the object of a dotted public name."""
    found: Any = bnrank
    for part in name.split(".")[1:]:
        if not hasattr(found, part):
            importlib.import_module(f"{found.__name__}.{part}")
        found = getattr(found, part)
    return found


def _exported(module: ModuleType) -> Iterator[tuple[str, Any]]:
    for name in getattr(module, "__all__", [name for name, value in vars(module).items() if _defined(value, module)]):
        if not name.startswith("_"):
            yield name, getattr(module, name)


def _defined(value: Any, module: ModuleType) -> bool:
    return (inspect.isfunction(value) or inspect.isclass(value)) and value.__module__ == module.__name__


def _room(value: Any) -> str:
    """Return the room in which a function or class is defined, such as ``bnrank.theory``."""
    return ".".join(getattr(value, "__module__", "").split(".")[:2])


def pages() -> list[Page]:
    """Return the pages of the API: every public name once, at its shortest path."""
    modules: dict[str, str] = {}  # name of the module -> public path
    for room in ROOMS:
        modules[f"bnrank.{room}"] = f"bnrank.{room}"
    for path, found in [(f"bnrank.{name}", found) for name, found in _exported(bnrank)]:
        if inspect.ismodule(found):
            modules.setdefault(found.__name__, path)
    for parent in list(modules):
        for name, found in _exported(importlib.import_module(parent)):
            if inspect.ismodule(found):
                modules.setdefault(found.__name__, f"{modules[parent]}.{name}")
    for name in MORE:
        modules.setdefault(f"bnrank.{name}", f"bnrank.{name}")
    found = [Page(importlib.import_module(full), path, full.split(".")[1]) for full, path in modules.items()]
    found.sort(key=lambda page: (ROOMS.index(page.room), page.name != f"bnrank.{page.room}"))
    top = {id(value): f"bnrank.{name}" for name, value in _exported(bnrank)}
    seen: set[int] = set()
    for page in found:
        own = [pair for pair in _exported(bnrank) if _room(pair[1]) == page.name]  # that only the top exports
        for name, value in [*_exported(page.module), *own]:
            if not inspect.ismodule(value) and (id(value) not in seen or isinstance(value, str | tuple)):
                seen.add(id(value))
                page.names[top.get(id(value), f"{page.name}.{name}")] = value
    return [page for page in found if page.names]


def entry(name: str, value: Any) -> str:
    """Return the directive that documents a name."""
    if inspect.isclass(value):
        kind = "autoexception" if issubclass(value, Exception) else "autoclass"
        members = ", ".join(_members(value))
        return f".. {kind}:: {name}\n" + (f"   :members: {members}\n" if members else "")
    if callable(value):
        return f".. autofunction:: {name}\n"
    module, _, last = name.rpartition(".")
    comments = ModuleAnalyzer.for_module(public(module).__name__).find_attr_docs()
    if ("", last) in comments:
        return f".. autodata:: {name}\n   :no-value:\n"
    return f".. py:data:: {name}\n\n   ``{textwrap.shorten(repr(value), 300)}``\n"


def _members(value: type) -> list[str]:
    """Return the documented methods and properties that the library itself defines, inherited ones included."""
    found = {}
    for base in reversed(value.__mro__):
        if base.__module__.startswith("bnrank"):
            for name, member in vars(base).items():
                if (
                    not name.startswith("_")
                    and not REQUEST.match(name)
                    and inspect.isroutine(member)
                    | isinstance(member, property | classmethod | staticmethod | functools.cached_property)
                ):
                    found[name] = member
    return [name for name in found if inspect.getdoc(getattr(value, name))]


def summary(value: Any) -> str:
    """Return the first line of a docstring, or nothing for values without one."""
    text = inspect.getdoc(value) if callable(value) or inspect.ismodule(value) else ""
    return (text or "").strip().partition("\n\n")[0].replace("\n", " ")


def write(folder: Path) -> list[Path]:
    """Write the pages and their index into a folder; return the files."""
    folder.mkdir(exist_ok=True)
    found = pages()
    files = {f"{page.file}.rst": _page(page, found) for page in found}
    files["index.rst"] = _index(found)
    for old in folder.glob("*.rst"):
        old.unlink()
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    return [folder / name for name in files]


def _returned(name: str, value: Any, found: list[Page]) -> str:
    """Return a line that names the functions with an example that return a class which has none of its own."""
    if not inspect.isclass(value) or ">>>" in (inspect.getdoc(value) or ""):
        return ""
    own = name.rpartition(".")[2]
    makers = [
        other
        for page in found
        for other, function in page.names.items()
        if inspect.isfunction(function)
        and ">>>" in (inspect.getdoc(function) or "")
        and own in re.findall(r"\w+", str(inspect.signature(function).return_annotation))
        and getattr(inspect.getmodule(function), own, value) is value  # not another class of this name
    ]
    listed = ", ".join(f":any:`{maker}`" for maker in makers)
    return f"\n   Returned by {listed}, with an example.\n" if makers else ""


def _page(page: Page, found: list[Page]) -> str:
    title = page.name
    intro = [escaped(line) for line in (inspect.getdoc(page.module) or "").splitlines()]
    rows = "\n".join(f"   * - :any:`{name}`\n     - {escaped(summary(value))}" for name, value in page.names.items())
    table = f".. list-table::\n   :widths: 35 65\n   :class: names\n\n{rows}\n"
    entries = "\n".join(entry(name, value) + _returned(name, value, found) for name, value in page.names.items())
    return f"{title}\n{'=' * len(title)}\n\n.. py:module:: {title}\n\n" + "\n".join(intro) + f"\n\n{table}\n{entries}"


def _index(found: list[Page]) -> str:
    text = [
        "API reference",
        "=============",
        "",
        "Every public name, by room: data flow from the first room to the last. A name is given by the shortest path "
        "by which it can be imported; :doc:`../architecture` describes the rooms.",
        "",
    ]
    for room in ROOMS:
        own = [page for page in found if page.room == room]
        about = summary(importlib.import_module(f"bnrank.{room}"))
        text += [room, "-" * len(room), "", about, "", ".. list-table::", "   :widths: 30 70", ""]
        for page in own:
            names = ", ".join(f":any:`{name.rpartition('.')[2]} <{name}>`" for name in page.names)
            text += [f"   * - :doc:`{page.name} <{page.file}>`", f"     - {names}"]
        text.append("")
    listed = "\n".join(page.file for page in found)
    text += [".. toctree::", "   :hidden:", "", textwrap.indent(listed, "   "), ""]
    return "\n".join(text)


def setup(app: Sphinx) -> dict[str, Any]:
    """Write the pages before the build."""
    app.connect("builder-inited", lambda app: write(Path(app.srcdir) / "api"))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
