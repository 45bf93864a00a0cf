"""The benchmarks of minima: which ends are one minimum, the table, and the section of the page of verdicts."""

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks import at_minima, landscape

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
