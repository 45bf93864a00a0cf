"""F17: jumps counted on planted courses, starts and global ranks against plain formulas, and a tiny run."""

import json
import math

import numpy as np
import pandas as pd
import pytest
import torch

from bnrank import cost
from bnrank.figures.f17_rank_jumps import computation as jumps
from bnrank.figures.f17_rank_jumps import figure as f17
from bnrank.figures.f17_rank_jumps.computation import Settings


def course(*values):
    """Smallest singular values of one direction over time."""
    return np.array(values, dtype=float)[None, :, None]


@pytest.mark.parametrize(
    ("values", "ranks"),
    [
        ((0.6, 0.5, 0.2, 0.5), (1, 1, 1, 1)),  # never below 0.15
        ((0.6, 0.1, 0.3, 0.39), (1, 0, 0, 0)),  # lost, and not won by noise below 0.4
        ((0.6, 0.1, 0.41, 0.1), (1, 0, 1, 0)),
        ((0.0, 0.3, 0.5, 0.5), (0, 0, 1, 1)),
        ((0.3, 0.3, 0.3, 0.3), (0, 0, 0, 0)),
    ],
)
def test_directions_are_lost_and_won_with_hysteresis(values, ranks):
    assert jumps.jumps(course(*values)).tolist() == [list(ranks)]


def test_ranks_add_up_over_directions_and_jumps_in_both_directions_are_counted():
    values = np.concatenate([course(0.6, 0.6, 0.1), course(0.6, 0.1, 0.5), course(0.0, 0.5, 0.0)], axis=2)
    ranks = jumps.jumps(values)
    assert ranks.tolist() == [[2, 2, 1]]  # two exchange in the first step
    (row,) = jumps._rows(np.array([[3, 1, 2, 0]]))
    assert row == {"first": 3, "last": 0, "down": 4, "up": 1}


def test_balanced_networks_are_truncations_of_least_norm():
    rng = np.random.default_rng(0)
    wanted = torch.as_tensor(rng.normal(size=(4, 4)))
    left, values, right = torch.linalg.svd(wanted)
    for rank in range(5):
        net = jumps.balanced(wanted, rank, 3)
        truncated = left[:, :rank] @ torch.diag(values[:rank]) @ right[:rank]
        torch.testing.assert_close(net(torch.eye(4, dtype=torch.float64)).T.detach(), truncated)
        norm = sum(float(p.detach().square().sum()) for p in net.parameters())
        assert norm == pytest.approx(3 * float((values[:rank] ** (2 / 3)).sum()))
    assert norm == pytest.approx(float(cost.linear(wanted, 3)))


def test_the_global_rank_counts_directions_that_pay():
    for target, ridge in ((0.35, 0.1), (0.36, 0.1), (1.0, 0.1), (1.0, 0.5)):
        grid = np.linspace(1e-4, 2, 100_000)
        pays = bool(((target - grid) ** 2 + 3 * ridge * grid ** (2 / 3) < target**2).any())
        assert jumps.global_rank(Settings(targets=(target,), ridge=ridge)) == pays
    assert jumps.global_rank(Settings()) == 2


def test_shares_have_exact_intervals():
    share, low, high = jumps.share(0, 1000)
    assert (share, low) == (0, 0)
    assert high == pytest.approx(1 - 0.025 ** (1 / 1000))
    assert math.isnan(jumps.share(0, 0)[0])


def planted(**changes):
    rows = [{"batch": 1, "first": 4, "last": 3, "down": 1, "up": 0}] * 600
    rows += [{"batch": 2, "first": 2, "last": 2, "down": 0, "up": 0}] * 600
    rows += [{"batch": 0, "first": 4, "last": 4, "down": 0, "up": 0}] * 3
    data = pd.DataFrame(rows)
    for place, value in changes.items():
        column, row = place.split("_")
        data.loc[int(row), column] = value
    return data


@pytest.mark.parametrize(
    ("changes", "fails"),
    [({}, None), ({"up_700": 1}, 2), ({"last_3": 1}, 3), ({"down_1201": 1}, 4), ({"up_1202": 1}, 4)],
)
def test_claims_fail_where_they_should(changes, fails):
    found = [claim.passed for claim in f17.claims(planted(**changes), best=2)]
    assert found == [i != fails for i in range(5)]


def test_claims_need_enough_networks_and_jumps():
    data = planted()
    assert not f17.claims(data[300:], 2)[0].passed
    data["down"] = 0
    assert not f17.claims(data, 2)[1].passed


def test_a_tiny_run_goes_through_and_is_stored(tmp_path):
    tiny = {"steps": 2000, "repeats": 4, "controls": 1, "seeds": [100], "samples": 300, "batches": [1], "noise": 1.0}
    outcome = f17.FIGURE.run("quick", tmp_path, progress=False, **tiny)
    assert outcome.error == ""
    stored = json.loads((tmp_path / f17.FIGURE.name / "claims.json").read_text())
    assert [claim["passed"] for claim in stored["claims"]] == [claim.passed for claim in outcome.claims]
    assert (tmp_path / f17.FIGURE.name / "jumps.png").stat().st_size > 5000
    rows = {row["batches"]: row for row in outcome.sections[0].rows}
    assert rows["all samples"]["jumps down"] == rows["all samples"]["jumps up"] == 0
    assert rows["one sample"]["jumps down"] > 0 == rows["one sample"]["jumps up"]


def test_networks_from_the_same_start_see_different_batches(tmp_path):
    settings = Settings(perturbation=0.0, steps=5, repeats=3, seeds=(100,), samples=50)
    run = jumps.trained(settings, 100, 1, tmp_path, False)
    one, two, three = run.history["weight_singular_values"].values[-3:]  # of the highest rank
    assert np.array_equal(one[0], two[0])
    assert not np.allclose(one[-1], two[-1], rtol=1e-9, atol=0)
    assert not np.allclose(two[-1], three[-1], rtol=1e-9, atol=0)


def test_a_step_that_diverges_is_said(tmp_path):
    outcome = f17.FIGURE.run("quick", tmp_path, progress=False, steps=300, repeats=1, controls=1, seeds=[100], lr=1.0)
    assert "lr: a network diverged" in outcome.error
