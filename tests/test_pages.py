"""The tables of the documentation are those of the stored results."""

import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.__main__ import write  # noqa: E402
from benchmarks.pages import condensed, rewritten, store  # noqa: E402
from benchmarks.rows import Row as Measured  # noqa: E402
from benchmarks.rows import Spread, skipped  # noqa: E402

from bnrank.figures import FIGURES  # noqa: E402


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.md")), ids=lambda path: path.stem)
def test_pages_show_the_stored_results(page):
    text = page.read_text(encoding="utf-8")
    assert rewritten(text) == text, "run python -m benchmarks.pages"


def test_some_pages_have_tables_of_stored_results():
    pages = [path.stem for path in (ROOT / "docs").glob("*.md") if "<!-- results: " in path.read_text(encoding="utf-8")]
    assert {"comparisons", "practitioner"} <= set(pages)


def _cell(seed, ours, others, case="BERT"):
    """Return what a measurement stores: parameters left at a change of 2 percent, None where nothing was found."""

    def result(method, size):
        point = None if size is None else {"parameters": size}
        return {"method": method, "dense": {"parameters": 100}, "best": {"0.02": {"cut": point, "tuned": None}}}

    failed = {"method": "breaks", "failed": "ValueError: no"}
    results = [result("bnrank", ours), *(result(name, size) for name, size in others.items()), failed]
    return {"cell": {"case": case, "seed": seed}, "results": results}


def test_the_best_other_is_the_smallest_and_the_network_where_none_is_smaller():
    rows = condensed([_cell(0, 50, {"a": 80, "b": 60}), _cell(1, None, {"a": None, "b": None})])
    assert [(row["bnrank"], row["other"], row["best other"]) for row in rows] == [(50, 60, "b"), (100, 100, "none")]


def test_results_without_bnrank_are_refused():
    with pytest.raises(ValueError, match="has no result of bnrank"):
        condensed([{"cell": {"case": "BERT", "seed": 0}, "results": [{"method": "a", "failed": "no"}]}])


def test_stored_results_become_a_table(tmp_path):
    cells = [_cell(seed, ours, {"a": 80}) for seed, ours in enumerate((40, 60, 90))]
    cells.append(cells[0])  # a cell measured twice counts once
    lines = "".join(json.dumps(cell) + "\n" for cell in cells)
    (tmp_path / "compression_cut.jsonl").write_text(lines, encoding="utf-8")
    with pytest.raises(ValueError, match="no results"):
        store(tmp_path, tmp_path / "results")  # the run has not ended
    (tmp_path / "compression_cut.md").write_text("# Title\n\nA machine, torch 2.13. 3 of 3 cells.\n", encoding="utf-8")
    store(tmp_path, tmp_path / "results")
    marks = "<!-- results: each compression_cut -->\n", "<!-- end of results -->"
    text = rewritten(f"before\n{marks[0]}old\n{marks[1]}\nafter", tmp_path / "results")
    assert text.startswith("before\n")
    assert text.endswith("\nafter")
    assert "old" not in text
    assert "| BERT | 3 | 2 % | 0.600 | 0.800 | 0.75 | 2 of 3 | a |" in text
    assert "A machine, torch 2.13." in text
    assert "python -m benchmarks.against compression_cut" in text
    assert rewritten(text, tmp_path / "results") == text


def test_stored_times_become_a_table(tmp_path, monkeypatch):
    rows = [
        Measured("fits", "a fit", "another", Spread(2.0, 1.5, 2.5, 2.25), at_least=1.5),
        Measured("fits", "memory | peak", "", Spread(3.0, 3.0, 3.0), at_most=2.0, unit="GB"),
        *skipped("jax_peer", "all", "JAX", "not installed"),
    ]
    monkeypatch.setattr(sys, "argv", ["benchmarks", "fits", "jax_peer", "--quick", "--out", str(tmp_path)])
    write(rows, "A machine", tmp_path)
    (kept,) = store(tmp_path, tmp_path / "results")
    assert kept.name == "speed.jsonl"
    text = rewritten("<!-- results: speed speed -->\n<!-- end of results -->", tmp_path / "results")
    assert "| fits | a fit | another | 2 × | 1.5 to 2.5 | 2.25 | ≥ 1.5 | met |  |" in text
    assert "| fits | memory \\| peak |  | 3 GB | 3 to 3 |  | ≤ 2 | missed |  |" in text
    assert "skipped: not installed" in text
    assert "`python -m benchmarks fits jax_peer --quick`" in text


def test_stored_figures_become_a_table(tmp_path):
    (tmp_path / "figures").mkdir()
    first, *others = FIGURES
    claims = [{"passed": True}, {"passed": False}, {"passed": None}]
    stored = {"figure": first.label, "claims": claims, "seconds": 1234.4, "date": "2026-01-01", "machine": "A machine"}
    (tmp_path / "figures" / f"{first.id}.json").write_text(json.dumps(stored), encoding="utf-8")
    text = rewritten("<!-- results: figures figures -->\n<!-- end of results -->", tmp_path)
    assert f"| {first.id} | {first.name} | 1 of 3 | 1,234 |" in text
    assert f"| {others[0].id} | {others[0].name} | not stored | – |" in text
    assert "`bnrank reproduce all`, 2026-01-01: A machine." in text


def test_networks_that_a_run_does_not_have_keep_their_rows_and_their_date(tmp_path):
    marks = "<!-- results: each compression_cut -->\n", "<!-- end of results -->"
    runs = (("BERT", 40), ("ViT", 30)), (("ViT", 50),)
    for number, cells in enumerate(runs):
        folder = tmp_path / str(number)
        folder.mkdir()
        lines = "".join(json.dumps(_cell(0, ours, {"a": 80}, case)) + "\n" for case, ours in cells)
        (folder / "compression_cut.jsonl").write_text(lines, encoding="utf-8")
        (folder / "compression_cut.md").write_text(f"# Title\n\nMachine {number}. Cells.\n", encoding="utf-8")
        store(folder, tmp_path / "results")
    text = rewritten("".join(marks), tmp_path / "results")
    assert "| ViT | 1 | 2 % | 0.500 |" in text
    assert "| BERT | 1 | 2 % | 0.400 |" in text
    assert text.index("| ViT") < text.index("| BERT")
    old, new = (line for line in text.splitlines() if "Machine" in line)
    assert "(BERT)" in old
    assert "Machine 0" in old
    assert "(ViT)" in new
    assert "Machine 1" in new
