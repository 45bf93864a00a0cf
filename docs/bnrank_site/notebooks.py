"""Tutorials as notebooks to download, and a line on each page that links to them."""

import re
from pathlib import Path
from typing import Any

import jupytext
from sphinx.application import Sphinx

FOLDER = "notebooks"
RELATIVE = re.compile(r"\[([^\]]+)\]\((?!https?:)[^)\s]+\)")
INLINE = """
```{code-cell} python
:tags: [remove-cell]

%matplotlib inline
```
"""
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
    for old in folder.glob("*.ipynb"):
        old.unlink()
    written: list[Path] = []
    for page in sorted([*source.glob("*/*.md"), *source.glob("*.md")]):
        text = page.read_text(encoding="utf-8")
        if is_notebook(text):
            written.append(folder / f"{page.stem}.ipynb")
            if written[-1].exists():
                raise ValueError(f"{page}: a second notebook of the name {page.stem!r}, expected another name")
            words = RELATIVE.sub(r"\1", _completed(text))  # there are no other pages beside a downloaded notebook
            notebook = jupytext.reads(words, fmt="md:myst")
            for i, cell in enumerate(notebook.cells):
                cell["id"] = f"cell-{i}"  # the same in every build
            written[-1].write_text(jupytext.writes(notebook, fmt="ipynb"), encoding="utf-8")
    return written


def _link(app: Sphinx, name: str, source: list[str]) -> None:
    if is_notebook(source[0]):
        up = "../" * name.count("/")
        target = f"{up}{FOLDER}/{name.rpartition('/')[2]}.ipynb"
        executed = "" if app.config.nb_execution_mode == "off" else f", executed with bnrank {app.config.release}"
        link = f"*A notebook{executed}: {{download}}`download it <{target}>`.*"
        source[0] = _completed(source[0], f"\n{link}\n")


def _completed(text: str, link: str = "") -> str:
    """Return a page with what it leaves out for its readers: the kernel in full, a link, and pictures as outputs."""
    text = text.replace("\n  name: python3\n", KERNEL, 1)
    pictures = "" if "%matplotlib inline" in text else INLINE
    return re.sub(r"(?m)^(# .+\n)", lambda title: f"{title[1]}{link}{pictures}", text, count=1)


def setup(app: Sphinx) -> dict[str, Any]:
    """Write the notebooks before the build and link to them."""
    app.connect("builder-inited", lambda app: write(Path(app.srcdir)) and None)
    app.connect("source-read", _link)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
