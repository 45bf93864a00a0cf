"""docs/theory.md has an entry for each id in the code, and each entry names a source, code and tests that exist."""

import ast
import functools
import importlib
import re
from pathlib import Path

import pytest

from bnrank.figures import FIGURES

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "docs" / "theory.md").read_text(encoding="utf-8")
HEADING = re.compile(r"^### ([TFE]\d+[bL]?)\. ", flags=re.MULTILINE)
ID = re.compile(r"\b[TFE][1-9]\d?[bL]?\b")
KEYS = set(re.findall(r"^## (\w+20\d\d\w?)$", (ROOT / "docs" / "references.md").read_text("utf-8"), flags=re.MULTILINE))


def entries():
    """{id: text} of the sections headed ### T1., ### T2., ..."""
    parts = HEADING.split(re.sub(r"^## .*$", "", TEXT, flags=re.MULTILINE))
    return dict(zip(parts[1::2], parts[2::2], strict=True))


ENTRIES = entries()


def field(text, name):
    """The paragraph of an entry after "- name: "."""
    found = re.search(rf"^- {name}: (.*?)(?=^- |\n\n|\Z)", text, flags=re.MULTILINE | re.DOTALL)
    return found.group(1) if found else ""


def names(text):
    return re.findall(r"`([^`]+)`", text)


def resolve(name):
    """The object of a dotted public name, the longest importable part of it as a module."""
    parts = name.split(".")
    found = importlib.import_module(parts[0])
    for i, part in enumerate(parts[1:], start=2):
        if not hasattr(found, part):
            importlib.import_module(".".join(parts[:i]))
        found = getattr(found, part)
    return found


@functools.cache
def functions_in(path):
    return {node.name for node in ast.parse(path.read_text(encoding="utf-8")).body if isinstance(node, ast.FunctionDef)}


def test_every_statement_figure_and_erratum_has_one_entry():
    headings = HEADING.findall(TEXT)
    assert len(headings) == len(set(headings))
    errata = re.findall(
        r"^### (E\d+)\. ", (ROOT / "docs" / "errata.md").read_text(encoding="utf-8"), flags=re.MULTILINE
    )
    expected = [f"T{i}" for i in range(1, 51)] + ["T17b"] + [figure.id for figure in FIGURES] + errata
    assert set(headings) == set(expected)


def test_every_id_in_the_code_has_an_entry():
    used = {
        (found, str(path.relative_to(ROOT)))
        for path in (ROOT / "src").rglob("*.py")
        for found in ID.findall(path.read_text(encoding="utf-8"))
    }
    assert used
    assert {(found, path) for found, path in used if found not in ENTRIES} == set()


@pytest.mark.parametrize("key", ENTRIES)
def test_an_entry_has_a_statement_a_source_code_and_tests(key):
    text = ENTRIES[key]
    assert text.partition("\n- Source:")[0].partition("\n\n")[2].strip()
    source = field(text, "Source")
    assert any(k in source for k in KEYS)
    assert set(re.findall(r"\b[A-Z]\w+20\d\d\w?\b", source)) <= KEYS
    assert names(field(text, "Code"))
    assert names(field(text, "Tests"))
    assert not key.startswith("E") or f"errata.md#{key.lower()}-" in text


@pytest.mark.parametrize("key", ENTRIES)
def test_the_code_and_the_tests_of_an_entry_exist(key):
    for name in names(field(ENTRIES[key], "Code")):
        resolve(name)
    for name in names(field(ENTRIES[key], "Tests")):
        path, _, function = name.partition("::")
        assert (ROOT / path).is_file(), name
        assert not function or function in functions_in(ROOT / path), name


def test_every_figure_that_can_be_reproduced_has_an_entry():
    figures = importlib.import_module("bnrank.figures").FIGURES
    assert {figure.id for figure in figures} <= set(ENTRIES)


def test_links_and_references_lead_somewhere():
    for target in re.findall(r"\]\(([\w.-]+\.md)(?:#[\w-]+)?\)", TEXT):
        assert (ROOT / "docs" / target).is_file(), target
    errata = (ROOT / "docs" / "errata.md").read_text(encoding="utf-8")
    anchors = {
        re.sub(r"[^a-z0-9 _-]", "", heading.lower()).replace(" ", "-")
        for heading in re.findall(r"^#+ (.*)$", errata, flags=re.MULTILINE)
    }
    assert set(re.findall(r"errata\.md#([\w-]+)", TEXT)) <= anchors
