"""The pages of docs/theory/ have an entry for each id in the code, and each entry names a source, code and tests that
exist and the statements of `bnrank.check` with its id; docs/theory.md is the index of the pages."""

import ast
import functools
import importlib
import re
from pathlib import Path

import pytest

from bnrank.figures import FIGURES
from bnrank.theory import STATEMENTS

ROOT = Path(__file__).parents[1]
INDEX = ROOT / "docs" / "theory.md"
PAGES = sorted((ROOT / "docs" / "theory").glob("*.md"))
TEXT = "\n\n".join(page.read_text(encoding="utf-8") for page in PAGES)
HEADING = re.compile(r"^### ([TFE]\d+[bL]?)\. (.*)$", flags=re.MULTILINE)
ID = re.compile(r"\b[TFE][1-9]\d?[bL]?\b")
KEYS = set(re.findall(r"^## (\w+20\d\d\w?)$", (ROOT / "docs" / "references.md").read_text("utf-8"), flags=re.MULTILINE))
LINK = re.compile(r"\[([^\]]*)\]\(([^)\s]+)\)")


def entries():
    """{id: text} of the sections headed ### T1., ### T2., ... of all pages"""
    parts = HEADING.split(re.sub(r"^##? .*$", "", TEXT, flags=re.MULTILINE))
    return dict(zip(parts[1::3], parts[3::3], strict=True))


ENTRIES = entries()


def field(text, name):
    """The paragraph of an entry after "- name: "."""
    found = re.search(rf"^- {name}: (.*?)(?=^- |\n\n|\Z)", text, flags=re.MULTILINE | re.DOTALL)
    return found.group(1) if found else ""


def names(text):
    return [re.sub(r"\s+", " ", name) for name in re.findall(r"`([^`]+)`", text)]


def slug(heading):
    """The anchor of a heading, as GitHub and MyST write it."""
    return re.sub(r"[^a-z0-9 _-]", "", heading.lower()).replace(" ", "-")


@functools.cache
def anchors(page):
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    return {slug(heading) for heading in re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE)}


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
    headings = [key for key, _ in HEADING.findall(TEXT)]
    assert len(headings) == len(set(headings))
    errata = re.findall(
        r"^### (E\d+)\. ", (ROOT / "docs" / "errata.md").read_text(encoding="utf-8"), flags=re.MULTILINE
    )
    numbers = sorted(int(heading[1:]) for heading in headings if re.fullmatch(r"T\d+", heading))
    assert numbers == list(range(1, numbers[-1] + 1)), "the numbers of statements follow each other"
    assert numbers[-1] >= 50
    statements = [f"T{i}" for i in numbers] + ["T17b"] + [s.id for s in STATEMENTS]
    assert set(headings) == {*statements, *(figure.id for figure in FIGURES), *errata}
    counted = re.search(
        r"statements \(T1 to (T\d+)\), figures \(F1 to (F\d+)\) and errata \(E1 to (E\d+)\)", INDEX.read_text("utf-8")
    )
    assert counted is not None
    last = [max(int(h[1:]) for h in headings if re.fullmatch(rf"{kind}\d+", h)) for kind in "TFE"]
    assert counted.groups() == tuple(f"{kind}{n}" for kind, n in zip("TFE", last, strict=True))


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
    assert text.partition("\n- Source:")[0].strip()
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


@pytest.mark.parametrize("key", [key for key in ENTRIES if key.startswith("T")])
def test_the_verdict_of_a_statement_names_what_is_registered(key):
    verdict = field(ENTRIES[key], "Verdict")
    registered = {statement.name for statement in STATEMENTS if statement.id == key}
    quoted = names(verdict)
    for name in (name for name in quoted if name.startswith("bnrank.")):
        resolve(name)
    assert {name for name in quoted if not name.startswith("bnrank.")} == registered
    assert verdict.startswith("Not part of `bnrank.check`") == (not registered)


def test_every_figure_that_can_be_reproduced_has_an_entry():
    figures = importlib.import_module("bnrank.figures").FIGURES
    assert {figure.id for figure in figures} <= set(ENTRIES)


def test_the_index_has_one_line_per_entry():
    rows = re.findall(
        r"^\| \[([TFE]\d+[bL]?)\]\((\S+)\) \| (.*?) \| (.*?) \|(?: (\w+) \|)?$", INDEX.read_text("utf-8"), re.MULTILINE
    )
    listed = {
        key: (f"theory/{page.name}#{slug(f'{key}. {name}')}", name)
        for page in PAGES
        for key, name in HEADING.findall(page.read_text(encoding="utf-8"))
    }
    assert len(rows) == len(listed)
    assert {key: (target, name) for key, target, name, _, _ in rows} == listed
    assert all(content for *_, content, _ in rows)
    evaluated = {statement.id for statement in STATEMENTS}
    checks = {key: check for key, *_, check in rows if key.startswith("T")}
    assert checks == {key: "yes" if key in evaluated else "no" for key in checks}


def test_the_index_lists_every_page():
    text = INDEX.read_text(encoding="utf-8")
    tree = re.search(r"```\{toctree\}\n:hidden:\n\n(.*?)\n```", text, re.DOTALL).group(1).split("\n")
    assert sorted(name for name in tree if name.startswith("theory/")) == [f"theory/{page.stem}" for page in PAGES]
    for page in PAGES:
        assert f"](theory/{page.name})" in text


@pytest.mark.parametrize("page", [INDEX, *PAGES], ids=lambda page: page.stem)
def test_links_and_references_lead_somewhere(page):
    for _, target in LINK.findall(page.read_text(encoding="utf-8")):
        if re.match(r"https?://", target):
            continue
        path, _, anchor = target.partition("#")
        found = (page.parent / path).resolve() if path else page
        assert found.is_file(), target
        assert not anchor or anchor in anchors(found), target
    text = re.sub(r"`[^`]*`|\$\$.*?\$\$|\$[^$]*\$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert set(ID.findall(LINK.sub(r"\1", text))) <= set(ENTRIES)
    assert set(re.findall(r"\b[A-Z][a-z]\w+20\d\d\w?\b", text)) <= KEYS


@pytest.mark.parametrize("page", [INDEX, *PAGES], ids=lambda page: page.stem)
def test_formulas_are_closed_and_fit_into_tables(page):
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    formulas = re.findall(r"\$\$(.*?)\$\$|\$([^$\n]*)\$", text, re.DOTALL)
    assert "$" not in re.sub(r"\$\$.*?\$\$|\$[^$\n]*\$", "", text, flags=re.DOTALL)
    for formula in ("".join(pair) for pair in formulas):
        assert formula.count("{") == formula.count("}"), formula
        assert formula.count(r"\left") - formula.count(r"\leftarrow") == formula.count(r"\right"), formula
        assert r"\|" not in formula, rf"\lVert and \rVert, since GitHub reads \| as |: {formula}"
        assert r"\\" not in formula, rf"\cr, since GitHub reads \\ as \: {formula}"
        assert not re.search(r"\\[^A-Za-z]|[*|`~]|[^\w\s]_", formula), f"Markdown has a use for this: {formula}"
    text = re.sub(r"\$\$.*?\$\$", "", text, flags=re.DOTALL)
    for before, after in re.findall(r"(.?)\$[^$\n]+\$(.?)", text):
        assert not re.search(r"[\w-]", before), "GitHub reads a formula only after a space or a parenthesis"
        assert not re.search(r"\w", after), "GitHub reads a formula only before a space or punctuation"
