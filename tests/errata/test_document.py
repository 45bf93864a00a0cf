"""docs/errata.md and the tests beside this file name each other, completely."""

import ast
import functools
import re
from pathlib import Path

HERE = Path(__file__).parent
TEXT = (HERE.parents[1] / "docs" / "errata.md").read_text(encoding="utf-8")
REFERENCE = re.compile(r"tests/(?:\w+/)*test_\w+\.py(?:::test_\w+)?")


def entries():
    """{number: text} of the sections headed ### E1., ### E2., ..."""
    parts = re.split(r"^### E(\d+)\. ", TEXT.split("\n## ")[0], flags=re.MULTILINE)
    return dict(zip(map(int, parts[1::2]), parts[2::2], strict=True))


@functools.cache
def functions_in(path):
    return {node.name for node in ast.parse(path.read_text(encoding="utf-8")).body if isinstance(node, ast.FunctionDef)}


def test_every_erratum_has_an_entry_in_order():
    numbers = [int(n) for n in re.findall(r"^### E(\d+)\. ", TEXT, flags=re.MULTILINE)]
    assert numbers == list(range(1, len(numbers) + 1))
    assert len(numbers) >= 20


def test_every_entry_names_a_test():
    without = [number for number, text in entries().items() if "::" not in "".join(REFERENCE.findall(text))]
    assert without == []


def test_every_test_named_exists():
    references = REFERENCE.findall(TEXT)
    assert references
    for reference in references:
        path, _, name = reference.partition("::")
        assert (HERE.parents[1] / path).is_file(), reference
        assert not name or name in functions_in(HERE.parents[1] / path), reference


def test_every_erratum_test_is_named():
    defined = {
        f"tests/errata/{path.name}::{name}"
        for path in HERE.glob("test_*.py")
        if path != Path(__file__)
        for name in functions_in(path)
        if name.startswith("test_")
    }
    assert defined
    assert defined <= set(REFERENCE.findall(TEXT))
