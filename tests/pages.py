"""Run the code of a page of docs/ as a reader would: block after block, in one namespace, in an empty folder."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"


def text_of(name):
    """Return the text of a page."""
    return (DOCS / name).read_text(encoding="utf-8")


def blocks_of(name, language):
    """Return the blocks of a page in one language."""
    return re.findall(rf"```{language}\n(.*?)```", text_of(name), re.DOTALL)


def run_page(name, folder, others=None):
    """Return the names that the page's Python blocks leave behind, ``folder``, and ``files``, what they wrote in it.

    ``others`` maps further languages, such as "sh", to what is done with their blocks, in the order of the page.
    """
    names, others = {}, others or {}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for language, block in re.findall(r"```(\w*|\{code-cell\} python)\n(.*?)```", text_of(name), re.DOTALL):
            if language in ("python", "{code-cell} python"):
                exec(compile(block, f"docs/{name}", "exec"), names)
            elif language in others:
                others[language](block)
        names["folder"] = Path(folder)
        names["files"] = {path.name for path in Path().iterdir()}
    return names


def shell(block, *, check=True):
    """Return the lines that a shell prints for a block; ``bnrank`` is the command of this source tree."""
    command = f'bnrank() {{ "{sys.executable}" -m bnrank "$@"; }}\nset -o pipefail -e\n{block}'
    paths = os.pathsep.join([str(DOCS.parent / "src"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, env=os.environ | {"PYTHONPATH": paths}, check=False
    )
    assert not check or done.returncode == 0, f"{block}\n{done.stdout}\n{done.stderr}"
    return done.stdout.splitlines()
