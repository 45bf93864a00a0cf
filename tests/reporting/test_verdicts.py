"""Verdicts as rows, as a picture and on the page."""

import dataclasses
import math

import pytest

from bnrank import report
from bnrank.reporting import Section
from bnrank.reporting.stills.results import drawable, tightness
from bnrank.reporting.tables import about_rows, summary, verdict_rows
from bnrank.theory.verdicts import Verdict, Verdicts

TIGHT = Verdict("T4", "Jacobian bound", "L sum s^(2/L) <= ||theta||^2", "Jacot2023a", "holds", 1.0, 2.0, slack=1.0)
BAD = Verdict("T7", "R1 <lower> bound", "a <= b", "Jacot2023b", "violated", 3.0, 2.0, slack=-1.0, note="sample 3")
CLOSE = Verdict("T10", "two points", "a <= b", "Jacot2023b", "inconclusive", 2.0, 2.0, reason="fails by 1e-11")
EQUAL = Verdict("T14", "balance", "in = out", "Jacot2023a", "holds", 1.0, 1.0, "=", 0.0)
NONE = Verdict("T28", "convolutions", "a = b", "Jacot2023a", "not applicable", reason="a convolution: none is there")
NEGATIVE = Verdict("T8", "R2", "0 <= R2", "Jacot2023b", "holds", -1.0, 2.0, slack=3.0)
ALL = Verdicts((TIGHT, BAD, CLOSE, EQUAL, NONE, NEGATIVE), {"depth": 3, "widths": [3, 8, 2], "‖θ‖²": 2.5})


def test_the_rows_say_what_came_of_each_statement():
    rows = verdict_rows(ALL)
    assert [row["status"] for row in rows] == [v.status for v in ALL]
    assert (rows[0]["left"], rows[0]["relation"], rows[0]["right"]) == (1.0, "<=", 2.0)
    assert rows[4]["relation"] is None
    assert math.isnan(rows[4]["left"])
    assert (rows[1]["remarks"], rows[4]["remarks"]) == ("sample 3", "a convolution: none is there")
    assert summary(ALL) == "3 hold, 1 violated, 1 inconclusive, 1 not applicable"
    assert about_rows(ALL)[1] == {"of the network and the data": "widths", "value": "[3, 8, 2]"}


def test_what_holds_vacuously_is_shown_as_such(tmp_path):
    empty = dataclasses.replace(TIGHT, vacuous="the bound is 4, of a ratio", note="layer 3")
    verdicts = Verdicts((empty, TIGHT), {})
    rows = verdict_rows(verdicts)
    assert [row["status"] for row in rows] == ["holds (vacuous)", "holds"]
    assert rows[0]["remarks"] == "the bound is 4, of a ratio; layer 3"
    assert summary(verdicts) == "2 hold (1 vacuous), 0 violated, 0 inconclusive, 0 not applicable"
    assert "holds (vacuous)" in report(verdicts, tmp_path / "p.html").read_text()
    assert drawable(TIGHT)
    assert not drawable(empty)


def test_the_picture_has_one_row_per_inequality_of_positive_numbers():
    ax = tightness(ALL)
    assert [t.get_text().split()[0] for t in ax.get_yticklabels()] == ["T4", "T7", "T10"]
    points = [float(line.get_xdata()[0]) for line in ax.lines if line.get_marker() == "o" and len(line.get_xdata())]
    assert points == [0.5, 1.5, 1.0]
    assert ax.get_xlim()[1] > 1.5
    assert {t.get_text() for t in ax.get_legend().get_texts()} == {"holds", "violated", "inconclusive"}
    assert not drawable(EQUAL)
    with pytest.raises(ValueError, match="verdicts: got no inequality"):
        tightness(Verdicts((EQUAL, NONE), {}))


@pytest.mark.parametrize("source", [ALL, Section("Mine", verdicts=ALL)], ids=["verdicts", "section"])
def test_the_page_shows_them(tmp_path, source):
    text = report(source, tmp_path / "p.html").read_text()
    assert "Verdicts: 3 hold, 1 violated, 1 inconclusive, 1 not applicable" in text
    assert '<span class="mark bad">violated</span>' in text
    assert '<span class="mark good">holds</span>' in text
    assert "R1 &lt;lower&gt; bound" in text
    assert "data:image/svg+xml;base64" in text
    assert "[3, 8, 2]" in text
    assert text.index("5 of 6 statements apply: 3 hold, 1 violated, 1 inconclusive.") < text.index("Verdicts: 3 hold")
    assert text.index("Jacobian bound") < text.index("a convolution: none is there")


def test_what_keeps_most_statements_from_applying_leads(tmp_path):
    text = report(Verdicts((NONE, NONE, TIGHT), {}), tmp_path / "p.html").read_text()
    assert "1 of 3 statements apply: 1 hold, 0 violated, 0 inconclusive. 2 assume more: a" in text
    assert "a convolution: none is there. Ranks and spectra of any network are measured by bnrank.profile." in text


def test_a_page_without_inequalities_has_no_picture(tmp_path):
    assert "data:image/svg+xml" not in report(Verdicts((NONE,), {}), tmp_path / "p.html").read_text()


def test_what_is_no_verdict_is_refused():
    with pytest.raises(TypeError, match=r"verdicts: got .*expected what bnrank\.check returns"):
        Section("s", verdicts=[TIGHT])
