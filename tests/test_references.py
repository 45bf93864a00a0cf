"""docs/references.md and docs/how-to/cite.md agree with CITATION.cff."""

import re
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[1]
CITATION = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
TEXT = (ROOT / "docs" / "references.md").read_text(encoding="utf-8")
CITE = (ROOT / "docs" / "how-to" / "cite.md").read_text(encoding="utf-8")


def test_the_bibtex_entry_is_that_of_the_citation_file():
    (entry,) = re.findall(r"^@software\{bnrank,\n(.*?)^\}", CITE, flags=re.MULTILINE | re.DOTALL)
    fields = dict(re.findall(r"^  (\w+) += \{+(.*?)\}+,?$", entry, flags=re.MULTILINE))
    assert fields == {
        "author": " and ".join(author["name"] for author in CITATION["authors"]),
        "title": f"{CITATION['title']}: {CITATION['abstract'].rstrip('.')}",
        "version": CITATION["version"],
        "license": CITATION["license"],
    }


def test_the_papers_of_the_citation_file_are_listed_with_their_links():
    for paper in CITATION["references"]:
        assert paper["title"] in " ".join(TEXT.split()).replace("*", "")
        for identifier in paper.get("identifiers", []):
            name = identifier["value"]
            assert f"[{name}](https://arxiv.org/abs/{name.removeprefix('arXiv:')})" in TEXT
