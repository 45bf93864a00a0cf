"""Every room keeps within its budget of code lines, which pyproject.toml sets."""

import ast
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BUDGETS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["bnrank"]["budgets"]
DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def code_lines(path):
    """Return the number of lines of a file that are not blank, a comment, or part of a docstring."""
    text, prose = path.read_text(encoding="utf-8"), set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            prose |= set(range(node.body[0].lineno, node.body[0].end_lineno + 1))
    lines = enumerate(text.splitlines(), 1)
    return sum(bool(line.strip()) and not line.lstrip().startswith("#") and i not in prose for i, line in lines)


def test_lines_of_code_are_counted_without_comments_and_docstrings(tmp_path):
    path = tmp_path / "example.py"
    prose = '"""A module\n\nof three lines."""\n\n# a comment\n'
    path.write_text(prose + 'x = """\na string"""\n\n\ndef f():\n    """F."""\n    return x  # x\n')
    assert code_lines(path) == 4


@pytest.mark.parametrize("folder", BUDGETS)
def test_every_room_keeps_within_its_budget(folder):
    size = sum(map(code_lines, (ROOT / folder).rglob("*.py")))
    assert size <= BUDGETS[folder], f"{folder} has {size} code lines, its budget is {BUDGETS[folder]}"


def test_every_room_has_a_budget():
    rooms = {
        str(path.relative_to(ROOT)) for path in (ROOT / "src" / "bnrank").iterdir() if (path / "__init__.py").exists()
    }
    assert rooms <= set(BUDGETS)
