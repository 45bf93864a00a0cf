"""Formulas in the pages are read alike by MyST (dollarmath) and by GitHub."""

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"
PAGES = [
    "discovery",
    "errata",
    "functions",
    "invariances",
    "low-rank-tails",
    "saddles",
    "speed",
    "verdicts",
]


def prose(name):
    """The lines of a page outside its blocks of code, without code in the text."""
    text = (DOCS / f"{name}.md").read_text(encoding="utf-8")
    text = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"^    .*$", "", text, flags=re.MULTILINE)  # indented code
    return re.sub(r"`[^`]*`", "", text)


def displays(name):
    return re.findall(r"^\$\$\n(.*?)^\$\$", prose(name), flags=re.MULTILINE | re.DOTALL)


def lines(name):
    return re.sub(r"^\$\$\n.*?^\$\$", "", prose(name), flags=re.MULTILINE | re.DOTALL).splitlines()


def inline(name):
    return [formula for line in lines(name) for formula in re.findall(r"\$([^$]*)\$", line)]


@pytest.mark.parametrize("name", PAGES)
def test_a_formula_ends_on_its_line_and_stands_apart(name):
    for line in lines(name):
        assert line.count("$") % 2 == 0, line
        around = re.split(r"\$[^$]*\$", line)
        assert all(re.search(r"(^|[\s(*])$", before) for before in around[:-1]), line
        assert all(re.match(r"$|[\s).,;:?*'-]", after) for after in around[1:]), line
        assert all(formula == formula.strip() != "" for formula in re.findall(r"\$([^$]*)\$", line)), line


@pytest.mark.parametrize("name", PAGES)
def test_formulas_have_nothing_that_markdown_takes_for_its_own(name):
    """No escaped punctuation, emphasis or bars, of which Markdown makes something else before a formula is read."""
    for formula in inline(name) + displays(name):
        assert not re.search(r"\\[^A-Za-z]", formula), formula
        assert not re.search(r"[*|`~<>]", re.sub(r" [<>] ", " ", formula)), formula
        assert not re.search(r"[^\w\s]_", formula), formula
        assert formula.count("{") == formula.count("}"), formula
        assert formula.count(r"\left") == formula.count(r"\right"), formula


@pytest.mark.parametrize("name", PAGES)
def test_no_norm_or_power_is_left_as_plain_text(name):
    for line in lines(name):
        if not line.lstrip().startswith("|"):
            text = re.sub(r"\$[^$]*\$", "", line)
            assert not re.search(r"\|\||\^|\btheta\b|\blambda\b|[a-zA-Z]_\{|\bsqrt\b", text), line


@pytest.mark.parametrize("name", PAGES)
def test_rows_of_a_table_have_as_many_cells_as_its_head(name):
    head = 0
    for line in prose(name).splitlines():
        if not line.startswith("| "):
            head = 0
            continue
        cells = len(re.findall(r"(?<!\\)\|", line))
        head = head or cells
        assert cells == head, line
