"""The benchmarks of minima: which ends are one minimum, the table, and the section of the page of verdicts."""

import json
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks import at_minima, continuation, landscape, minima
from benchmarks.pages import rewritten, store

import bnrank
from bnrank.theory import STATEMENTS

ROOT = Path(__file__).parents[1]


def end(seed, loss, outputs, rank=2):
    return landscape.End(seed, 2 * loss, loss, 1e-12, "local minimum", rank, 2, (3, 2), 5, torch.tensor(outputs))


def test_ends_of_one_loss_and_function_are_one_minimum():
    ends = [
        end(0, 0.5, [1.0, 2.0]),
        end(1, 0.4, [1.0, 2.0]),
        end(2, 0.5 + 1e-9, [1.0, 2.0 + 1e-7]),
        end(3, 0.5, [1.0, -2.0]),  # the same loss, another function
        end(4, 0.4 * (1 + 1e-6), [1.0, 2.0]),  # nearly the same loss, beyond rounding
    ]
    groups = landscape.distinct(ends)
    assert [[e.seed for e in group] for group in groups] == [[1], [4], [0, 2], [3]]
    table = landscape.table(groups).splitlines()
    assert len(table) == 6
    assert table[4].startswith("| 0.50000000 | 2 | 2 |")


def test_permuted_and_rescaled_networks_are_one_minimum():
    task, net, _ = landscape.problem()
    weights, biases = [w.detach().double() for w in net.weights], [b.detach().double() for b in net.biases]
    order, scale = torch.tensor([3, 1, 0, 5, 4, 2]), torch.tensor([1.0, 2.0, 0.5, 1.0, 3.0, 0.2]).double()
    other = [weights[0][order] * scale[:, None], weights[1][:, order] / scale, *weights[2:]]
    same = bnrank.networks.from_layers(other, [biases[0][order] * scale, *biases[1:]])
    x = task.x.double()
    with torch.no_grad():
        ends = [
            landscape.End(i, 1.0, 0.5, 0.0, "", 2, 2, (), 0, n(x))
            for i, n in enumerate((bnrank.networks.from_layers(weights, biases), same))
        ]
    assert len(landscape.distinct(ends)) == 1


def test_the_landscape_is_drawn(tmp_path):
    landscape.draw(landscape.distinct([end(0, 0.5, [1.0]), end(1, 0.4, [1.0], 3)]), tmp_path / "a.png")
    assert (tmp_path / "a.png").stat().st_size > 5000


# stored results -------------------------------------------------------------------------------------------------------

TASK = bnrank.tasks.low_rank_map(n=25, d_in=3, d_out=3, latent=2, rank=1, width=10, seed=0)


@pytest.fixture
def stored(tmp_path, monkeypatch):
    """Run ``python -m benchmarks.minima`` on small networks, store its numbers, and return the text of a page."""
    net, train = bnrank.MLP([3, 1, 3]), bnrank.train
    monkeypatch.setattr(bnrank, "train", lambda *data, **options: train(*data, **options | {"steps": 50}))
    monkeypatch.setattr(minima, "draw", lambda seed: (TASK, net, 5e-3))
    monkeypatch.setattr(landscape, "problem", lambda: (TASK, net, 5e-3))
    monkeypatch.setattr(minima, "figures", lambda name, depths: ((f"{name} at {L}", net, TASK, 5e-3) for L in depths))

    def text(kind, subject, *runs):
        for run in runs:
            monkeypatch.setattr(sys, "argv", ["minima", *run.split(), "--out", str(tmp_path / "run")])
            minima.main()
        store(tmp_path / "run", tmp_path / "results")
        return rewritten(f"<!-- results: {kind} {subject} -->\n<!-- end of results -->", tmp_path / "results")

    return text


def test_finished_problems_are_stored_run_by_run_and_seed_by_seed(stored, tmp_path):
    text = stored("problems", "minima", "--seeds 0 2", "--seeds 1 2 --max-minutes 1")
    written = [json.loads(line) for line in (tmp_path / "run" / "minima.jsonl").read_text("utf-8").splitlines()]
    assert [line.get("seed") for line in written] == [None, 0, 1, None, 1]
    assert "| all | 2 | " in text
    assert "2 of 2 reach a relative gradient of 1e-8, 0 end above" in text
    assert "`python -m benchmarks.minima --seeds 0 2` (0), " in text
    assert "`python -m benchmarks.minima --seeds 1 2 --max-minutes 1` (1), " in text
    numbers = written[1]
    assert numbers["loss"] <= numbers["before"]
    assert numbers["residual"] <= 1e-8
    assert len(numbers["live"]) == 1
    assert numbers["processor"] > 0
    assert numbers["seconds"] > 0


def test_finished_networks_of_a_figure_become_a_table(stored, tmp_path):
    text = stored("depths", "minima_F4", "--figure F4 --no-births --depths 2")
    numbers = json.loads((tmp_path / "run" / "minima_F4.jsonl").read_text("utf-8").splitlines()[1])
    losses = f"{numbers['before']:.6f} | {numbers['loss']:.6f} | {numbers['residual']:.0e}"
    start = f"| {numbers['network']} | {losses} | {numbers['kinks']} | "
    middle = [", ".join(f"{value:.3g}" for value in numbers[name]) for name in ("middle_before", "middle")]
    assert middle[1]
    times = f"{numbers['processor']:.0f} s | {numbers['seconds']:.0f} s |"
    assert start + f"{middle[0]} | {middle[1]} | {times}" in text
    assert "`python -m benchmarks.minima --figure F4 --no-births --depths 2`, 20" in text


def test_a_stored_landscape_has_the_table_of_the_run(stored, capsys):
    text = stored("landscape", "minima_landscape", "--landscape --seeds 0 2")
    table = capsys.readouterr().out.partition("seeds\n\n")[2].strip()
    assert table.startswith("| loss | seeds |")
    assert table in text
    assert " different points of 2 seeds, with relative gradients of at most " in text


def test_stored_ends_are_told_apart_as_the_ends_are():
    generator = torch.Generator().manual_seed(0)
    first, second = torch.randn(2, 40, 4, generator=generator, dtype=torch.float64)
    outputs = first, second, first * (1 + 1e-9), first + 1e-3 * second
    ends = [landscape.End(i, 1.0, 0.5, 1e-12, "", 2, 2, (3, 2), 5, some) for i, some in enumerate(outputs)]
    rows = [json.loads(json.dumps(one.row())) for one in ends]
    again = [landscape.End.of(row) for row in rows]
    groups = [[[e.seed for e in group] for group in landscape.distinct(some)] for some in (ends, again)]
    assert groups == [[[0, 2], [1], [3]]] * 2
    assert again[0].live == (3, 2)
    assert landscape.shown(rows).endswith("3 different points of 4 seeds, with relative gradients of at most 1e-12.")


def test_statements_of_a_stored_branch_become_a_table():
    task = bnrank.tasks.low_rank_map(n=25, d_in=3, d_out=3, latent=2, rank=1, width=10, seed=0)
    verdicts = bnrank.check(bnrank.MLP([3, 4, 4, 3]).double(), task.x, task.y, 1e-2, only=continuation.STATEMENTS)
    found = [
        continuation.Minimum(L, 1, 1, 0, "", (3,), (1,), bnrank.MLP([3, 4, 4, 3], seed=L).double()) for L in (8, 4)
    ]
    rows = [{"seed": 6, **row} for one in found for row in continuation.statements(one, task, 1e-2)]
    text = continuation.judged(json.loads(json.dumps(rows)))
    assert "| id | statement | left of right, depth 4 | left of right, depth 8 | verdict, depth 8 |" in text
    by_depth = {row["depth"]: row for row in rows if row["name"] == "trace of the kernel, layer by layer"}
    sides = " | ".join(f"{by_depth[L]['left']:.4g} of {by_depth[L]['right']:.4g}" for L in (4, 8))
    assert f"| T24 | trace of the kernel, layer by layer | {sides} | {by_depth[8]['label']} |" in text
    for one in verdicts.verdicts:
        assert f"| {one.name} |" in text or f"({one.name})" in text
    assert text.splitlines()[-1].startswith("Seed 6. Not in the table: T")


def test_stored_branches_have_the_expansion_of_exact_norms():
    def row(seed, depth, rank=2):
        norm, loss = 2 * depth + 4 + 7 / depth, continuation.RIDGE * (2 * depth + 5 + 3 / depth)
        one = continuation.Minimum(depth, loss, norm, 1e-10 * depth, "stationary", (3, rank), (1.2, 1.1), None)
        return {"seed": seed, **json.loads(json.dumps(one.row()))}

    rows = [row(seed, depth, 3 if seed == 7 and depth == 8 else 2) for seed in (6, 7) for depth in (8, 10, 12, 14, 16)]
    said = {"seed": 6, "depth": 8, "id": "T14", "name": "balance", "label": "holds", "left": 1.0, "right": 1.0}
    lines = continuation.shown([*rows, row(8, 16), said]).splitlines()
    exact = "2.000 [2.000, 2.000] | 4.0 | 7.0 | 2.000 [2.000, 2.000] | 5.0 | 3.0 |"
    assert lines[2:4] == [f"| 6 | {exact}", f"| 7 (depths 10 to 16) | {exact}"]
    assert lines[4] == f"| 8 (depths 16 to 16) |{' – |' * 6}"
    assert lines[-1].startswith("Depths 8 to 16: 2 of 11 points have a relative gradient below 1e-9")


def test_the_table_of_problems_says_what_is_not_as_it_should_be():
    def row(seed, kind, loss=0.5, residual=1e-12, births=0.0):
        times = {"processor": 1.0 + seed, "seconds": 9.0}
        return {"seed": seed, "before": 1.0, "loss": loss, "residual": residual, "kind": kind, "births": births} | times

    text = minima.problems(
        [row(0, "stationary", births=1.02), row(1, "local minimum", residual=2e-3), row(2, "stationary", 1.1, 3e-9)]
    )
    assert "| all | 3 | 2e-03 | 2.0 s | 3.0 s |" in text
    assert "| stationary | 2 | 3e-09 | 2.0 s | 3.0 s |" in text
    assert text.endswith(
        "2 of 3 reach a relative gradient of 1e-8, 1 end above the loss of the start, and 1 leave a new neuron of an "
        "effect above 1 (1.0200)."
    )


def test_the_section_of_verdicts_is_replaced(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# A\n\ntext\n\n## The statements\n\n| T1 |\n", encoding="utf-8")
    for text in ("one", "two"):
        at_minima.write(page, f"{at_minima.HEADING}\n\n{text}\n\n")
    expected = "# A\n\ntext\n\n## At real minima\n\ntwo\n\n## The statements\n\n| T1 |\n"
    assert page.read_text(encoding="utf-8") == expected


@pytest.mark.parametrize("id_", at_minima.IDS)
def test_the_page_lists_the_statements_at_minima(id_):
    text = (ROOT / "docs" / "verdicts.md").read_text(encoding="utf-8")
    rows = text.partition(at_minima.HEADING)[2].partition(at_minima.NEXT)[0].splitlines()
    for statement in (s for s in STATEMENTS if s.id == id_):
        mine = [row for row in rows if row.startswith(f"| {id_} | {statement.name} |")]
        assert len(mine) == len(at_minima.PROBLEMS)
        assert not any("violated" in row for row in mine)


def test_balance_and_features_hold_to_one_part_in_a_million_on_the_page():
    text = (ROOT / "docs" / "verdicts.md").read_text(encoding="utf-8")
    starts = "| T14 | balance of layers |", "| T14 | balance of neurons |", "| T50 | features at convergence |"
    rows = [row for row in text.splitlines() if row.startswith(starts) and row.count("|") == 8]
    assert len(rows) == 3 * len(at_minima.PROBLEMS)
    for row in rows:
        *_, status, left, _, slack = (cell.strip() for cell in row.strip("|").split("|"))
        assert status == "holds"
        assert abs(float(slack)) <= 1e-6 * max(float(left), 1.0)
