"""The tables of the documentation are those of the stored results."""

import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.__main__ import write  # noqa: E402
from benchmarks.about import command  # noqa: E402
from benchmarks.against import counting, directions, films, physics, prediction, trials  # noqa: E402
from benchmarks.against.compression_shown import condensed  # noqa: E402
from benchmarks.pages import rewritten, store  # noqa: E402
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
    (tmp_path / "compression_cut.md").write_text("# Others: compression_cut\n\nA machine. 3 of 3.\n")
    store(tmp_path, tmp_path / "results")
    marks = "<!-- results: each compression_cut -->\n", "<!-- end of results -->"
    text = rewritten(f"before\n{marks[0]}old\n{marks[1]}\nafter", tmp_path / "results")
    assert text.startswith("before\n")
    assert text.endswith("\nafter")
    assert "old" not in text
    assert "| BERT | 3 | 2 % | 0.600 | 0.800 | 0.75 | 2 of 3 | a |" in text
    assert "A machine." in text
    assert "python -m benchmarks.against compression_cut" in text
    assert rewritten(text, tmp_path / "results") == text


def test_stored_times_become_a_table(tmp_path, monkeypatch):
    rows = [
        Measured("fits", "a fit", "another", Spread(2.0, 1.5, 2.5, 2.25), at_least=1.5),
        Measured("fits", "memory | peak", "", Spread(3.0, 3.0, 3.0), at_most=2.0, unit="GB"),
        *skipped("jax_peer", "all", "JAX", "not installed"),
    ]
    monkeypatch.setattr(sys, "argv", ["benchmarks", "fits", "jax_peer", "--quick", "--out", f"{tmp_path}/"])
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
        (folder / "compression_cut.md").write_text(
            f"# Others: compression_cut\n\nMachine {number}. Cells.\n", encoding="utf-8"
        )
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


def test_subjects_that_a_run_did_not_time_keep_their_rows_and_their_date(tmp_path, monkeypatch):
    results = tmp_path / "results"
    for number, subjects in enumerate((("memory", "fits"), ("fits", "ensemble"))):
        folder = tmp_path / str(number)
        monkeypatch.setattr(sys, "argv", ["benchmarks", *subjects, f"--out={folder}"])
        rows = [Measured(name, f"run {number}", "", Spread(1.0, 1.0, 1.0)) for name in subjects]
        write(rows, f"Machine {number}", folder)
        store(folder, results)
    text = rewritten("<!-- results: speed speed -->\n<!-- end of results -->", results)
    table = [line.split(" | ")[:2] for line in text.splitlines() if "run " in line]
    assert table == [["| ensemble", "run 1"], ["| memory", "run 0"], ["| fits", "run 1"]]  # as `python -m benchmarks`
    assert "`python -m benchmarks memory fits` (memory), " in text
    assert "`python -m benchmarks fits ensemble` (fits; ensemble), " in text


def test_the_command_does_not_say_where_results_were_written():
    words = ["--landscape", "--out", "folder/", "--seeds", "0", "5", "--picture=a.png"]
    assert command("benchmarks.minima", words) == "python -m benchmarks.minima --landscape --seeds 0 5"


# comparisons ----------------------------------------------------------------------------------------------------------

MARK = "<!-- results: {} -->\n<!-- end of results -->"


def finished(folder, subject, lines, head="A machine, torch 2.13. 4 of 9 cells measured.", options=""):
    """Write what ``python -m benchmarks.against`` writes of a run that has ended."""
    folder.mkdir(exist_ok=True)
    text = "".join(json.dumps({"cell": cell, "results": results, "seconds": 1.0}) + "\n" for cell, results in lines)
    (folder / f"{subject}.jsonl").write_text(text, encoding="utf-8")
    (folder / f"{subject}.md").write_text(
        f"# bnrank against others: {subject}{options}\n\n{head}\n\nTables\n", encoding="utf-8"
    )


@pytest.fixture
def shown(tmp_path):
    """Return a function from subject, kind and measured cells to the text of the page."""

    def texts(subject, lines, *kinds, head="A machine, torch 2.13. 4 of 9 cells measured.", options=""):
        finished(tmp_path / "run", subject, lines, head, options)
        store(tmp_path / "run", tmp_path / "results")
        return [rewritten(MARK.format(f"{kind} {subject}"), tmp_path / "results") for kind in kinds]

    return texts


def row(text, start):
    """Return the entries of the one row of a table that starts so."""
    (line,) = (line for line in text.splitlines() if line.startswith(f"| {start}"))
    return [entry.strip() for entry in line.strip("|").split("|")]


def counted(family, k, seed, ours, pls):
    """Return a cell of the counts: bnrank's count, one peer's, one that is not shown, and one that failed."""
    cell = counting.Center | {"family": family, "k": k, "seed": 100 + seed, "tuned": False}
    own = {"low": ours, "high": ours, "undetermined": seed == 1, "model": "network", "coordinates": 0.5 + 0.1 * seed}
    return cell, [
        {"method": "bnrank", "count": ours, "prediction": 0.3 + 0.1 * seed, "seconds": 1.0, **own},
        {"method": "PLS (scikit-learn)", "count": pls, "prediction": 0.7, "seconds": 1.0},
        {"method": "MLE (scikit-dimension) on x", "count": 9, "seconds": 1.0},
        {"method": "SIR (sliced), own rule", "failed": "not installed (sliced)"},
    ]


def test_counts_become_tables_in_the_order_of_the_benchmark(shown):
    cells = [("linear", 3, 0, 3, 3), ("smooth", 2, 0, 2, 1), *(("smooth", 3, s, n, 3) for s, n in enumerate((3, 3, 4)))]
    correct, errors, recovery = shown("counting", [counted(*cell) for cell in cells], "correct", "errors", "recovery")
    rows = [line.partition(",")[0] for line in correct.splitlines() if line.startswith("| `")]
    assert rows == ["| `smooth`", "| `smooth`", "| `linear`"]
    case = "`smooth`, k = 3, d = 20, noise 10 %, N = 300"
    assert row(correct, case) == [case, "2 of 3", "–", "–", "3 of 3", "0 of 3", "–", "–", "–", "–", "–"]
    assert "| fraction correct, 95 percent intervals | smooth | linear |" in correct
    assert row(correct, "bnrank") == ["bnrank", f"{trials.wilson(3, 4):.2f}", f"{trials.wilson(1, 1):.2f}"]
    assert "bnrank: 4 of 5 counts are correct, and 4 intervals cover the truth. 1 counts are `undetermined`, 1 of" in (
        correct
    )
    assert "Failed: SIR in 5 of 5 cells (not installed (sliced))." in correct
    assert row(errors, case) == [case, "0.40", "–", "0.70", "–", "–", "–"]
    assert "Means over 1 to 3 seeds." in errors
    assert row(recovery, case) == [case, "0.60", *"–––––"]
    assert "`python -m benchmarks.against counting`, " in recovery
    assert ": A machine, torch 2.13." in recovery


def test_cells_are_kept_with_the_fields_that_are_shown(shown, tmp_path):
    lines = [counted("linear", 3, 0, 1, 1), counted("linear", 3, 0, 3, 3)]  # measured twice: the last counts
    lines[1][1][1]["prediction"] = 1 / 3
    shown("counting", lines, head="A machine. 1 of 6 cells measured (quick).", options=" --quick --only linear")
    about, kept = map(json.loads, (tmp_path / "results" / "counting.jsonl").read_text(encoding="utf-8").splitlines())
    assert about["command"] == "python -m benchmarks.against counting --quick --only linear"
    assert (about["machine"], about["groups"]) == ("A machine", ["linear"])
    ours, pls, failed = kept["results"]
    assert ours.keys() == {"method", "count", "low", "high", "undetermined", "prediction", "coordinates"}
    assert pls == {"method": "PLS (scikit-learn)", "count": 3, "prediction": 0.333333}
    assert failed == {"method": "SIR (sliced), own rule", "failed": "not installed (sliced)"}


def test_directions_become_a_table_with_the_best_first(shown):
    def cell(k, n, seed, ours, gap):
        own = {"low": k, "high": k + seed, "undetermined": seed == 1 or n == 1000}
        others = {"SAVE (sliced), own rule": 9, "active subspace, gap": gap}
        found = [{"method": "bnrank", "count": ours, **own}]
        found += [{"method": name, "count": count} for name, count in others.items()]
        return {"k": k, "n": n, "seed": seed}, [r | ({"angle": 2.0 + seed} if r["count"] == k else {}) for r in found]

    lines = [cell(1, 300, 0, 1, 1), cell(2, 300, 0, 2, 2), cell(2, 300, 1, 3, 2), cell(1, 1000, 0, 1, 3)]
    (text,) = shown("directions", lines, "angles")
    heads = "| method | right | of 3 with N = 300 | of 1 with N = 1,000 | angle, k = 1 to 2, N = 300 |"
    assert text.splitlines()[1].startswith(heads)
    names = [line.split(" | ")[0] for line in text.splitlines()[3:6]]
    assert names == ["| bnrank", "| active subspace, gap", "| SAVE, own rule"]
    share = f"{trials.wilson(3, 4):.2f}"
    assert row(text, "bnrank") == ["bnrank", share, "2", "1", "2.0, 2.0", "2.0, –"]
    assert row(text, "active") == ["active subspace, gap", share, "3", "0", "2.0, 2.5", "–, –"]
    assert "4 tables: k = 1 to 2, 300 and 1,000 rows, 1 to 2 seeds. 4 of 4 intervals of bnrank contain" in text
    assert "1 of its 3 right counts are `undetermined`, and 1 of the 1 wrong ones." in text


def test_scores_become_two_tables(shown):
    def cell(table, classes, **scores):
        found = [{"method": name, "classes": classes, "score": s, "seconds": 2.0} for name, s in scores.items()]
        found.append({"method": "xRFM", "failed": "ValueError: no"})
        return {"table": table, "source": "bundled"}, found

    some = {"bnrank": 0.9, "kernel ridge": 0.92}
    lines = [cell("a", 2, **some), cell("b", 3, bnrank=0.8, **{"kernel ridge": 0.9}), cell("c", 0, bnrank=0.5)]
    (text,) = shown("prediction", lines, "scores")
    first, _, second = text.partition("R², 1 tables")
    assert "Accuracy, 2 tables (means with 95 percent intervals over the tables):" in first
    ours, ridge = row(first, "bnrank"), row(first, "kernel ridge")
    assert (ours[1][:5], ours[2:]) == ("0.850", ["1 of 2", "–", "2.00"])
    assert (ridge[1][:5], ridge[2], ridge[3][:6]) == ("0.910", "2 of 2", "-0.060")
    assert row(second, "bnrank") == ["bnrank", "0.500", "1 of 1", "–", "2.00"]
    assert "Failed: xRFM in 3 of 3 cells (ValueError: no)." in text


def test_physical_systems_become_two_tables_of_the_seeds_that_were_measured(shown):
    def cell(seed, count, sweep):
        own = {"low": 2, "high": 3, "undetermined": True, "model": "linear", "seconds": 4.0}
        own |= {"unexplained": 0.25, "unexplained_at_truth": 0.5}
        found = [{"method": "bnrank", "count": count, **own}, {"method": "encoder-decoder sweep", "count": sweep}]
        return {"seed": seed, "tuned": False, "system": "pendulum", "noise": 0.02, "rows": 500}, found

    counts, own = shown("physics", [cell(0, 2, 3), cell(1, 3, 3), cell(2, 4, 3)], "counts", "own")
    assert row(counts, "pendulum")[:7] == [
        *("pendulum", "2%", "3", "2", "2"),
        f"{trials.interval([2, 3, 4]):.2f}",
        "3.00 [3.00, 3.00]",
    ]
    assert row(own, "pendulum")[5:] == [
        *("2 of 2", f"{trials.wilson(3, 3):.2f}", f"{trials.wilson(3, 3):.2f}"),
        *("0.500 [0.500, 0.500]", "0.250 [0.250, 0.250]", "4 [4, 4]"),
    ]


def film(seed, system="pendulum", count=2, two=2.4):
    own = {"low": 1, "high": count, "undetermined": count == 3, "coordinates": seed % 2 + 2}
    own |= {"unexplained": 0.001 * (seed % 5), "seconds": 10.0 + seed % 5}
    found = [
        {"method": "bnrank", "count": count, **own},
        {"method": "TwoNN, pixels", "count": two},
        {"method": "MLE, pixels", "failed": "ValueError: no"},
    ]
    return {"seed": seed, "tuned": False, "system": system, "noise": 0.0, "films": 500}, found


def test_films_become_a_table_of_ranges_over_draws(shown):
    (text,) = shown("films", [film(2000), film(2001), film(2002, count=3, two=2.6)], "draws")
    assert row(text, "pendulum") == [
        *("pendulum", "0%", "3", "2", "2 of 3", "1 to 3", "2 to 3", "0.0 to 0.2", "10 to 12", "2.4 to 2.6", "failed"),
        films.SYSTEMS["pendulum"].published,
    ]
    assert "right in 2 of 3 draws; 3 intervals contain it, and 1 are `undetermined`." in text
    assert "rounded, are right for TwoNN in 2 of 3 at noise 0%, for MLE in 0 of 3 at noise 0%." in text
    assert "Failed: MLE, pixels in 3 of 3 cells (ValueError: no)." in text


def test_systems_that_a_run_does_not_have_keep_their_draws_and_their_machine(shown):
    shown("films", [film(seed, name) for seed in (2000, 2001) for name in ("vortices", "pendulum")])
    (text,) = shown("films", [film(2005)], "draws", head="Another machine. 1 of 400 cells measured.")
    assert row(text, "pendulum")[2] == "1"
    assert row(text, "vortices")[2] == "2"
    old, new = (line for line in text.splitlines() if line.startswith("`python"))
    assert "(vortices)" in old
    assert ": A machine" in old
    assert "(pendulum)" in new
    assert ": Another machine." in new


@pytest.mark.parametrize("module", [counting, directions, films, physics, prediction])
def test_the_methods_that_are_kept_are_those_of_the_benchmark(module):
    methods = getattr(module, "METHODS", None) or {"bnrank", *counting.PEERS}
    assert set(module.KEPT.methods) <= set(methods)
    assert module.KEPT.group is None or module.KEPT.group in module.cells(True)[0]
