"""The pages of docs/theory/ have an entry for each id in the code, and each entry names a source, code and tests that
exist and the statements of `bnrank.check` with its id; docs/theory.md is the index of the pages."""

import re

import pytest

from bnrank.figures import FIGURES
from bnrank.theory import STATEMENTS
from theory_entries import (
    ENTRIES,
    HEADING,
    ID,
    INDEX,
    PAGES,
    ROOT,
    ROW,
    TEXT,
    check_code_and_tests,
    check_fields,
    check_formulas,
    check_links,
    check_rows,
    check_verdict,
    ids_in,
    link_of,
    registered,
)


def test_every_statement_figure_and_erratum_has_one_entry():
    headings = [key for key, _ in HEADING.findall(TEXT)]
    twice = {key for key in headings if headings.count(key) > 1}
    assert not twice, f"docs/theory/ has two entries of {twice}"
    errata = re.findall(
        r"^### (E\d+)\. ", (ROOT / "docs" / "errata.md").read_text(encoding="utf-8"), flags=re.MULTILINE
    )
    titles = {s.id: s.name for s in STATEMENTS} | {figure.id: figure.title for figure in FIGURES}
    for key in dict.fromkeys([*(s.id for s in STATEMENTS), *(figure.id for figure in FIGURES), *errata]):
        page = {"T": "a page of docs/theory/", "F": "docs/theory/figures.md", "E": "docs/theory/errata.md"}[key[0]]
        assert key in headings, f"add to {page}: '### {key}. {titles.get(key, 'Its title')}' with its entry"
    numbers = sorted(int(heading[1:]) for heading in headings if re.fullmatch(r"T\d+", heading))
    gaps = set(range(1, numbers[-1] + 1)) - set(numbers)
    assert not gaps, f"the numbers of statements follow each other, but {gaps} have no entry in docs/theory/"
    assert numbers[-1] >= 50
    statements = [f"T{i}" for i in numbers] + ["T17b"] + [s.id for s in STATEMENTS]
    unknown = set(headings) - {*statements, *(figure.id for figure in FIGURES), *errata}
    assert not unknown, (
        f"docs/theory/ has entries of what is no figure of bnrank.figures, or not in docs/errata.md: {unknown}"
    )


def test_the_pages_count_the_entries():
    last = {kind: max(int(h[1:]) for h in ENTRIES if re.fullmatch(rf"{kind}\d+", h)) for kind in "TFE"}
    counted = "statements (T1 to T{T}), figures (F1 to F{F}) and errata (E1 to E{E})".format(**last)
    assert counted in INDEX.read_text("utf-8"), f"docs/theory.md must begin with: The {counted}"
    used = f"the entries T1 to T{last['T']} use"
    assert used in (INDEX.parent / "theory" / "notation.md").read_text("utf-8"), (
        f"docs/theory/notation.md must say: {used}"
    )


def test_every_id_in_the_code_has_an_entry():
    used = {
        (found, str(path.relative_to(ROOT)))
        for path in (ROOT / "src").rglob("*.py")
        for found in ID.findall(path.read_text(encoding="utf-8"))
    }
    assert used
    for found, path in sorted(used):
        assert found in ENTRIES, f"{path} mentions {found}: add its entry '### {found}. ...' to a page of docs/theory/"


@pytest.mark.parametrize("key", ENTRIES)
def test_an_entry_has_a_statement_a_source_code_and_tests(key):
    check_fields(key, ENTRIES[key])


@pytest.mark.parametrize("key", ENTRIES)
def test_the_code_and_the_tests_of_an_entry_exist(key):
    check_code_and_tests(key, ENTRIES[key])


@pytest.mark.parametrize("key", [key for key in ENTRIES if key.startswith("T")])
def test_the_verdict_of_a_statement_names_what_is_registered(key):
    check_verdict(key, ENTRIES[key], registered(key))


def test_the_index_has_one_line_per_entry():
    listed = {
        key: (link_of(page, key, name), name)
        for page in PAGES
        for key, name in HEADING.findall(page.read_text(encoding="utf-8"))
    }
    check_rows(ROW.findall(INDEX.read_text("utf-8")), listed, {statement.id for statement in STATEMENTS})


def test_the_index_lists_every_page_with_its_entries():
    text = INDEX.read_text(encoding="utf-8")
    tree = re.search(r"```\{toctree\}\n:hidden:\n\n(.*?)\n```", text, re.DOTALL).group(1).split("\n")
    assert sorted(name for name in tree if name.startswith("theory/")) == [f"theory/{page.stem}" for page in PAGES]
    for page in PAGES:
        assert f"](theory/{page.name})" in text, f"docs/theory.md does not link theory/{page.name}"
        own = [key for key, _ in HEADING.findall(page.read_text(encoding="utf-8"))]
        if own:
            line = re.search(rf"^- \[[^]]*\]\(theory/{page.name}\): ([^;\n]*)", text, re.MULTILINE)
            assert line, f"the list of pages in docs/theory.md has no line for theory/{page.name}"
            unlisted = (set(own) ^ set(ids_in(line.group(1)))) - {"F9L"}  # in "F1 to F17"
            assert not unlisted, f"list under Pages in docs/theory.md what {page.name} has: {sorted(unlisted)}"


@pytest.mark.parametrize("page", [INDEX, *PAGES], ids=lambda page: page.stem)
def test_links_and_references_lead_somewhere(page):
    check_links(page, page.read_text(encoding="utf-8"))


@pytest.mark.parametrize("page", [INDEX, *PAGES], ids=lambda page: page.stem)
def test_formulas_are_closed_and_fit_into_tables(page):
    check_formulas(page.read_text(encoding="utf-8"))
