"""docs/references.md and docs/how-to/cite.md agree with CITATION.cff, and have the ids of every source."""

import re
from pathlib import Path

import pytest
import yaml

from theory_entries import ENTRIES, KEYS, field, ids_in

ROOT = Path(__file__).parents[1]
CITATION = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
TEXT = (ROOT / "docs" / "references.md").read_text(encoding="utf-8")
CITE = (ROOT / "docs" / "how-to" / "cite.md").read_text(encoding="utf-8")


def test_the_bibtex_entry_is_that_of_the_citation_file():
    (entry,) = re.findall(r"^@software\{bnrank,\n(.*?)^\}", CITE, flags=re.MULTILINE | re.DOTALL)
    fields = dict(re.findall(r"^  (\w+) += \{+(.*?)\}+,?$", entry, flags=re.MULTILINE))
    year = fields.pop("year")
    assert year == str(CITATION.get("date-released", year))[:4]
    assert CITATION["title"] == f"bnrank: {CITATION['abstract'].rstrip('.')}"
    assert fields == {
        "author": " and ".join(author["name"] for author in CITATION["authors"]),
        "title": CITATION["title"],
        "version": CITATION["version"],
        "license": CITATION["license"],
    }


def test_the_papers_of_the_citation_file_are_those_of_the_references_with_their_links():
    assert len(CITATION["references"]) == len(KEYS)
    for paper in CITATION["references"]:
        assert paper["title"] in " ".join(TEXT.split()).replace("*", "")
        for identifier in paper.get("identifiers", []):
            name = identifier["value"]
            assert f"[{name}](https://arxiv.org/abs/{name.removeprefix('arXiv:')})" in TEXT


@pytest.mark.parametrize("key", sorted(KEYS))
def test_a_source_lists_the_statements_and_figures_that_it_has(key):
    """An entry of docs/theory/ whose source begins with a key is listed with it; a result of bnrank's own need not."""
    (paper,) = re.findall(rf"^## {key}$(.*?)^## ", TEXT, flags=re.MULTILINE | re.DOTALL)
    (row,) = re.findall(rf"^\| (.*) \| {key} \|$", CITE, flags=re.MULTILINE)
    begins = {i: re.match(r"\[(\w+)\]", field(text, "Source")) for i, text in ENTRIES.items() if i[0] in "TF"}
    own = {re.sub(r"[bL]$", "", i) for i, begin in begins.items() if begin and begin.group(1) == key}
    for page, listed in (("docs/references.md", paper), ("docs/how-to/cite.md", row)):
        missing = sorted(own - set(ids_in(listed)))
        assert not missing, f"add to {key} in {page}: {', '.join(missing)}"
    assert set(ids_in(paper)) == set(ids_in(row))
