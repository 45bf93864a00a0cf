"""Pictures of the API: what the examples of functions that draw show."""

import contextlib
import doctest
import hashlib
import io
import re
import sys
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

from bnrank_site.sources import digest

DRAWS = re.compile(r"^bnrank\.plots\.\w+$|\.(plot|draw)$")


def drawn(examples: str, names: dict[str, Any]) -> list[Any]:
    """Return the matplotlib figures that the examples of a docstring make in a namespace, in their order."""
    from matplotlib.figure import Figure

    figures: list[Any] = []
    begin = Figure.__init__

    def noted(self: Any, *args: Any, **options: Any) -> None:
        begin(self, *args, **options)
        figures.append(self)

    Figure.__init__ = noted  # type: ignore[method-assign]
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            for example in doctest.DocTestParser().get_examples(examples):
                exec(compile(example.source, "<example>", "single"), names)
    finally:
        Figure.__init__ = begin  # type: ignore[method-assign]
    return [figure for figure in figures if any(axes.has_data() for axes in figure.axes)]


def _process(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Add the picture of the last figure to the docstring; it is kept as long as the docstring is the same."""
    text = "\n".join(lines)
    if not DRAWS.search(name) or ">>>" not in text:
        return
    key = hashlib.sha256(f"{digest()}\n{text}".encode()).hexdigest()[:12]
    folder = Path(app.srcdir) / "api" / "pictures"
    path = folder / f"{name}-{key}.png"
    if not path.exists():
        figures = drawn(text, dict(vars(sys.modules[obj.__module__])))
        if not figures:
            return
        folder.mkdir(exist_ok=True)
        for old in folder.glob(f"{name}-*.png"):
            old.unlink()
        figures[-1].savefig(path, dpi=90)
    lines += ["", f".. image:: /api/pictures/{path.name}", f"   :alt: Picture drawn by the example of {name}", ""]


def setup(app: Sphinx) -> dict[str, Any]:
    """Draw before numpydoc reads the docstrings."""
    app.connect("autodoc-process-docstring", _process, priority=300)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
