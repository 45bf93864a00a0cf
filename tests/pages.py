"""Run the code of a page of docs/ as a reader would: block after block, in one namespace, in an empty folder."""

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"


def text_of(name):
    """Return the text of a page."""
    return (DOCS / name).read_text()


def run_page(name, folder):
    """Return the names that the page's Python blocks leave behind, and ``files``, what they wrote in ``folder``."""
    names = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for block in re.findall(r"```(?:python|\{code-cell\} python)\n(.*?)```", text_of(name), re.DOTALL):
            exec(compile(block, f"docs/{name}", "exec"), names)
        names["files"] = {path.name for path in Path().iterdir()}
    return names
