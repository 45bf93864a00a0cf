"""Content as text and as HTML: tables, folds, curves, status words, limits of size, hostile text."""

import dataclasses
import math

import numpy as np
import pytest
import torch
import xarray as xr

from bnrank._core import markup
from bnrank._core.content import FEW, STATUS, Curves, Fold, Headline, Table, as_text, remarks
from bnrank._core.results import MAX_OPEN, Printed, described
from notebooks import numbers, shown

ROWS = [{"layer": i, "name": f"block {i}", "value": i / 7} for i in range(500)]
BIG = {str(i): "'" * 400 for i in range(6)}  # 14 kB as HTML


def test_text_and_html_have_the_same_rows():
    rows = [{"layer": 1, "rank": 0.123456, "name": None}, {"layer": 20, "rank": -0.5, "note": "a & b"}]
    content = ["two layers", Table("Layers", rows), "  and a remark"]
    page = shown(markup.page(content))
    assert page.tables == [[["layer", "rank", "name", "note"], ["1", "0.1235", "–", "–"], ["20", "-0.5", "–", "a & b"]]]
    assert page.captions == ["Layers"]
    lines = as_text(content).splitlines()
    assert [line.split() for line in lines[1:3]] == [page.tables[0][0], page.tables[0][1]]
    assert (lines[0], lines[-1]) == ("two layers", "  and a remark")


def test_headings_have_scopes_and_numbers_are_aligned():
    html = markup.page([Table("Layers", [{"layer": 1, "name": "a", "rank": 3}])])
    heads = "<th scope='col' class='n'>layer</th><th scope='col'>name</th><th scope='col' class='n'>rank</th>"
    assert heads in html
    assert "<th scope='row' class='n'>1</th><td>a</td><td class='n'>3</td>" in html


def test_only_the_first_line_is_the_headline_and_lines_are_indented():
    html = markup.page(["first\n  second", "third"]).partition("</style>")[2]
    assert html.startswith("<p class='l h'>first</p><p class='l' style='padding-left:1em'>second</p><p class='l'>third")


def test_what_is_for_notebooks_alone_is_not_printed():
    content = [Headline("above"), Table("hidden", [{"a": 1}], printed=False), Curves("loss", [0, 1], [[1, 2]])]
    assert as_text(content) == ""
    page = shown(markup.page(content))
    assert page.words[0] == "above"
    assert page.captions == ["hidden"]


def test_folded_lines_are_printed_and_folded_parts_are_shown():
    content = [Fold("why", ["one reason", "another"], [Table("Reasons", [{"reason": "x", "times": 2}])])]
    assert as_text(content) == "one reason\nanother"
    html = markup.page(content)
    assert "<details><summary>why</summary><div" in html
    assert "one reason" not in html
    assert "<details><summary>why</summary><p class='l'>one reason</p>" in markup.page([Fold("why", ["one reason"])])


def test_many_remarks_are_folded_and_all_are_printed():
    few, many = [f"skipped {i}" for i in range(FEW)], [f"skipped {i}" for i in range(FEW + 1)]
    assert remarks(few, "skipped") == few
    (fold,) = remarks(many, "skipped")
    assert fold.title == f"{FEW + 1} skipped"
    assert as_text([fold]).splitlines() == many


def test_long_tables_are_folded_below_their_first_rows():
    whole = shown(markup.page([Table("Layers", ROWS[: markup.MAX_ROWS])]))
    assert [len(table) for table in whole.tables] == [markup.MAX_ROWS + 1]
    page = shown(markup.page([Table("Layers", ROWS)]))
    assert [len(table) for table in page.tables] == [len(ROWS) + 1, markup.FIRST_ROWS + 1]
    assert page.tables[0][: markup.FIRST_ROWS + 1] == page.tables[1]
    assert page.captions[1] == "Layers, the first 10 of 500"
    assert "Layers: all 500 rows" in page.text
    assert numbers(as_text([Table("Layers", ROWS)])) <= numbers(page.text)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ([Table("Layers", ROWS * 100)], "of 50,000 rows are not shown"),
        ([Table("Layers", [{"text": "&" * 10_000} for _ in range(5000)])], "of 5,000 rows are not shown"),
        ([Table("Wide", [{f"column {i}": i for i in range(20_000)}] * 3)], "Wide: a table of 3 rows that is too large"),
        ([Table("Few", [BIG] * 9 + ROWS)], "rows are not shown"),
        (["'" * 10**6] * 100, "more lines or tables are not shown"),
        (["\n".join(["a line"] * 50_000)], "more lines or tables are not shown"),
        ([Fold("f", ["a line"] * 50_000)], "more lines or tables are not shown"),
        ([Curves("loss", range(10**5), [[1.0] * 10**5] * 40), "end"], "end"),
        ([Table(f"t{i}", ROWS) for i in range(30)], "more lines or tables are not shown"),
    ],
)
def test_size_is_limited_and_what_is_left_out_is_said(content, said):
    assert said in shown(markup.page(content)).text


@pytest.mark.parametrize(
    "text",
    ["</style><script>alert(1)</script>", "<img src=x onerror=alert(1)>", "'\"><b>", "a\x00b", "\ud800", "\x1b[31mred"],
)
def test_hostile_text_stays_text(text):
    rows = [{text: text, "status": text}, {text: 1, "status": "holds"}]
    content = [text, Headline(text), Table(text, rows), Fold(text, [text]), Curves(text, [0, 1], [[1, 2]])]
    html = markup.page(content)
    html.encode()
    assert not any(f"<{tag}" in html for tag in ("script", "img", "b>"))
    found = markup.page(["x"]).partition("</style>")[0]
    assert html.startswith(found)
    if text.isprintable():
        assert html.count("<style>") == html.count("</style>") == 1


@pytest.mark.parametrize("kind", ["good", "bad", "warn"])
def test_status_words_are_told_apart_without_color(kind):
    words = [word for word, of in STATUS.items() if of == kind]
    assert words
    for word in words:
        sign = markup.mark(word).partition(">")[2].partition(" ")[0]
        assert sign == {"good": "✓", "bad": "✗", "warn": "✓" if word.startswith("holds") else "?"}[kind]
    assert "color" not in markup.STYLE.partition(".bnrank .m{")[2].partition("}")[0]


def test_marks_are_in_columns_of_statuses_alone():
    html = markup.page([Table("t", [{"name": "holds", "status": "holds"}, {"name": "x", "status": "not applicable"}])])
    assert html.count("<span") == 2
    assert "<th scope='row'>holds</th><td><span class='m good'>✓ holds</span></td>" in html
    assert "– not applicable" in html


def points(html):
    return [
        [tuple(map(float, pair.split(","))) for pair in part.split("'")[0].split()]
        for part in html.split("<polyline points='")[1:]
    ]


def test_curves_go_from_left_to_right_and_a_falling_loss_falls():
    ((first, *_, last),) = points(markup.curves(Curves("loss", [0, 10, 20], [[3.0, 2.0, 1.0]])))
    assert first == (2.0, 2.0)
    assert last == (markup.WIDTH - 2.0, markup.HEIGHT - 2.0)


def test_curves_are_logarithmic_over_more_than_a_decade():
    html = markup.curves(Curves("loss", [0, 1, 2], [[1.0, 0.1, 0.01]]))
    ((_, middle, _),) = points(html)
    assert middle[1] == pytest.approx(markup.HEIGHT / 2, abs=0.1)
    assert "loss: 0.01 to 1, logarithmic" in html
    assert "logarithmic" not in markup.curves(Curves("loss", [0, 1, 2], [[1.0, 0.1, -0.01]]))


def test_curves_leave_out_what_is_not_finite_and_need_two_values():
    ((first, last),) = points(markup.curves(Curves("loss", [0, 1, 2], [[1.0, math.nan, 3.0]])))
    assert first[1] > last[1]
    assert points(markup.curves(Curves("loss", [0, 1], [[1.0, 1.0]])))[0][0][1] == markup.HEIGHT / 2
    for values in ([[math.nan, math.inf]], [[1.0, math.nan]]):
        assert markup.curves(Curves("loss", [0, 1], values)) == ""
    assert markup.curves(Curves("loss", [0], [[1.0]])) == ""


@dataclasses.dataclass(frozen=True)
class Plain(Printed):
    rank: int
    values: np.ndarray
    status: str = "violated"
    _hidden: int = 7


@dataclasses.dataclass(frozen=True)
class WithTable(Plain):
    def _content(self):
        return ["a table", Table("Numbers", [{"rank": self.rank}])]


def test_attributes_of_a_dataclass_are_shown_and_folded_below_a_table():
    page = shown(Plain(3, np.zeros((2, 9)))._repr_html_())
    assert page.tables == [
        [["attribute", "value"], ["rank", "3"], ["values", "float64 of shape (2, 9)"], ["status", "✗ violated"]]
    ]
    assert str(Plain(3, np.zeros(2))) == repr(Plain(3, np.zeros(2)))
    html = WithTable(3, np.zeros(2))._repr_html_()
    assert "<details><summary>Attributes of WithTable</summary><div" in html
    assert "<details" not in Plain(3, np.zeros(2))._repr_html_()
    many = dataclasses.make_dataclass("Many", [f"a{i}" for i in range(MAX_OPEN + 1)], bases=(Printed,))
    assert "<details><summary>Attributes of Many" in many(*range(MAX_OPEN + 1))._repr_html_()


def test_values_are_described_by_type_and_size():
    data = xr.Dataset({"a": (("layer", "index"), np.zeros((2, 3)))})
    for value, said in (
        (torch.zeros(2, 3), "float32 of shape (2, 3)"),
        (torch.arange(3), [0, 1, 2]),
        (np.float64(0.5), 0.5),
        (np.zeros(0), "float64 of shape (0,)"),
        (data, "Dataset over layer: 2, index: 3"),
        (data["a"], "DataArray over layer: 2, index: 3"),
        ({"a": 1, "b": "c"}, "a: 1, b: c"),
        ({"a": object()}, "a: object"),
        ({i: i for i in range(20)}, "dict of 20"),
        ((), "tuple of 0"),
        ([1.0] * 20, "list of 20"),
        ((Plain(3, 0), Plain(4, 0)), "tuple of 2 Plain"),
        (torch.nn.ReLU(), "ReLU"),
        (torch.zeros(3, device="meta"), "float32 of shape (3,)"),
        (torch.zeros((), device="meta"), "float32 of shape ()"),
    ):
        assert described(value) == said
