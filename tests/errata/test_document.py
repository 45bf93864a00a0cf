"""docs/errata.md and the tests beside this file name each other, completely, and its code prints what it says."""

import ast
import functools
import re
from pathlib import Path

import pytest

HERE = Path(__file__).parent
TEXT = (HERE.parents[1] / "docs" / "errata.md").read_text(encoding="utf-8")
REFERENCE = re.compile(r"tests/(?:\w+/)*test_\w+\.py(?:::test_\w+)?")
BLOCK = re.compile(r"^```python\n(.*?)^```\n\n```text\n(.*?)^```", flags=re.MULTILINE | re.DOTALL)


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


def test_every_entry_has_its_source_first_and_its_tests_last():
    for number, text in entries().items():
        paragraphs = [paragraph for paragraph in text.split("\n\n") if paragraph.strip()]
        assert paragraphs[1].startswith("**Source.**"), number
        assert paragraphs[-1].startswith("**Tests.**"), number


BLOCKS = {f"E{number}-{i}": block for number, text in entries().items() for i, block in enumerate(BLOCK.findall(text))}


def test_many_entries_compute_their_counterexample():
    assert TEXT.count("```python\n") == len(BLOCKS)
    assert len({key.partition("-")[0] for key in BLOCKS}) >= 20


@pytest.mark.parametrize("key", BLOCKS)
def test_a_block_prints_the_lines_below_it(key, capsys):
    code, printed = BLOCKS[key]
    exec(compile(code, f"docs/errata.md, {key}", "exec"), {})
    assert capsys.readouterr().out == printed
