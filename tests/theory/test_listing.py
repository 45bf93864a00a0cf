"""What verdicts show in a notebook."""

from bnrank.theory.verdicts import HOLDS, INCONCLUSIVE, NOT_APPLICABLE, VIOLATED, Verdict, Verdicts
from notebooks import shown


def verdict(id, status, reason="", vacuous=""):
    sides = {} if status == NOT_APPLICABLE else {"left": 1.0, "right": 2.0, "slack": 1.0}
    return Verdict(id, f"statement <{id}>", "a <= b", "s", status, reason=reason, vacuous=vacuous, **sides)


CHAIN = "the network is a chain: got <GELU>"
FOUND = Verdicts(
    (
        verdict("T1", HOLDS),
        verdict("T2", HOLDS, vacuous="0 <= 1"),
        verdict("T3", VIOLATED),
        verdict("T4", INCONCLUSIVE, "rounding"),
        verdict("T5", NOT_APPLICABLE, CHAIN),
        verdict("T6", NOT_APPLICABLE, CHAIN),
        verdict("T7", NOT_APPLICABLE, "there is a convolution: none"),
    ),
    {"depth": 3, "widths": [4, 5, 6]},
)


def test_the_headline_counts_and_names_what_is_violated():
    page = shown(FOUND._repr_html_())
    assert page.words[0] == "7 statements: 2 hold (1 vacuous), 1 violated (T3), 1 inconclusive, 3 not applicable"


def test_statuses_are_words_with_signs():
    heading, *rows = shown(FOUND._repr_html_()).tables[0]
    assert heading[:3] == ["id", "statement", "status"]
    assert [row[2] for row in rows] == ["✓ holds", "✓ holds (vacuous)", "✗ violated", "? inconclusive"]
    assert rows[3][-1] == "rounding"


def test_what_does_not_apply_is_folded_by_reason():
    html = FOUND._repr_html_()
    assert "<details><summary>3 of 7 not applicable, and why</summary><div" in html
    assert shown(html).tables[1][1:] == [["2", "T5, T6", CHAIN], ["1", "T7", "there is a convolution: none"]]
    assert "network and data" in html
    assert shown(html).tables[2][1:] == [["depth", "3"], ["widths", "4, 5, 6"]]


def test_nothing_is_folded_where_all_apply():
    html = Verdicts(FOUND.verdicts[:2], {})._repr_html_()
    assert "not applicable, and why" not in html
    assert "network and data" not in html


def test_a_single_verdict_is_a_line_and_its_attributes():
    page = shown(FOUND["T3"]._repr_html_())
    assert page.words[0] == "T3, statement <T3>: violated, 1 <= 2"
    assert ["status", "✗ violated"] in page.tables[0]
    assert ["right", "2"] in page.tables[0]
