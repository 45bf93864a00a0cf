"""Tutorials as notebooks to download, and a line on each page that links to them."""

import re
from pathlib import Path
from typing import Any

import jupytext
from sphinx.application import Sphinx

FOLDER = "notebooks"
KERNEL = """
  name: python3
  display_name: Python 3
  language: python
language_info:
  name: python
"""


def is_notebook(text: str) -> bool:
    """Return whether a page is one whose code is executed."""
    return text.startswith("---\nfile_format: mystnb\n")


def write(source: Path) -> list[Path]:
    """Write the pages that are notebooks as .ipynb files, without outputs; return them."""
    folder = source / FOLDER
    folder.mkdir(exist_ok=True)
    written = []
    for page in sorted([*source.glob("*/*.md"), *source.glob("*.md")]):
        text = page.read_text(encoding="utf-8")
        if is_notebook(text):
            written.append(folder / f"{page.stem}.ipynb")
            notebook = jupytext.reads(_named(text), fmt="md:myst")
            for i, cell in enumerate(notebook.cells):
                cell["id"] = f"cell-{i}"  # the same in every build
            text = jupytext.writes(notebook, fmt="ipynb")
            if not written[-1].exists() or written[-1].read_text(encoding="utf-8") != text:
                written[-1].write_text(text, encoding="utf-8")
    return written


def _link(app: Sphinx, name: str, source: list[str]) -> None:
    if is_notebook(source[0]):
        up = "../" * name.count("/")
        target = f"{up}{FOLDER}/{name.rpartition('/')[2]}.ipynb"
        line = f"*A notebook, executed with bnrank {app.config.release}: {{download}}`download it <{target}>`.*"
        source[0] = re.sub(r"(?m)^(# .+)$", rf"\1\n\n{line}", _named(source[0]), count=1)


def _named(text: str) -> str:
    """Return a page that says in full what its kernel is, which pages leave out for their readers."""
    return text.replace("\n  name: python3\n", KERNEL, 1)


def setup(app: Sphinx) -> dict[str, Any]:
    """Write the notebooks before the build and link to them."""
    app.connect("builder-inited", lambda app: write(Path(app.srcdir)) and None)
    app.connect("source-read", _link)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
