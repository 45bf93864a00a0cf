"""F15: its claims on planted losses and ranks, the crossing depths, and a tiny run."""

import numpy as np
import pytest
import torch
import xarray as xr

from bnrank import MLP
from bnrank.figures.f15_rank_recovery import computation as recovery
from bnrank.figures.f15_rank_recovery import figure as f15
from bnrank.theory import constructions
from helpers import norm, passed

SIZES = np.array([10, 20, 40, 80])
DEPTHS = np.array([24, 80])


RATE = (20.0, 20.7, 21.4, 22.1)  # grows like 2 (1 - 1/k) log N


def planted(excess=(18.0, 33.0, 47.0, 63.0), ranks=(2, 2, 2, 2), usual=50.0, bound_rate=1.0):
    """Results for k = 2 and five draws, which differ by up to 1 percent."""
    seeds, bound_sizes = np.arange(5), np.array([40, 160, 640])
    factor = 1 + 0.005 * (seeds - 2)
    line = DEPTHS + np.array(excess)[:, None, None] * factor[:, None]
    dims = ("size", "seed", "depth")
    bound = bound_rate * np.log(bound_sizes)[:, None] * factor
    return xr.Dataset(
        {
            "line": (dims, line),
            "planted": (dims, np.broadcast_to(2.0 * DEPTHS, line.shape)),
            "usual": (dims[:2], np.full((4, 5), usual)),
            "usual_rank": (dims[:2], np.repeat(np.array(ranks)[:, None], 5, axis=1)),
            "bound": (("bound_size", "seed"), bound),
        },
        coords={"size": SIZES, "seed": seeds, "depth": DEPTHS, "bound_size": bound_sizes, "rank": 2},
    )


def test_claims_hold_on_planted_results():
    """But for the rate: fits whose crossing depth grows by layers do not have the printed one."""
    for data in (planted(), planted().isel(size=[2, 0, 3, 1], depth=[1, 0])):
        assert passed(f15.claims(data, 2, 24)) == [True] * 4 + [False] + [True] * 3
    assert passed(f15.claims(planted(RATE), 2, 24))[4]


@pytest.mark.parametrize(
    ("changes", "failing"),
    [
        ({"excess": (90.0, 95.0, 99.0, 105.0)}, [0, 7]),
        ({"excess": (5.0, 10.0, 15.0, 20.0)}, [1]),
        ({"excess": (18.0, 33.0, 31.0, 63.0)}, [2]),
        ({"excess": (26.0, 26.5, 27.0, 27.5), "usual": 60.0}, [3]),
        ({"bound_rate": 1.3}, [5]),
        ({"bound_rate": 0.7}, [5]),
        ({"ranks": (2, 2, 1, 2)}, [6]),
        ({"ranks": (2, 2, 2, 3)}, [6]),
        ({"ranks": (1, 2, 2, 2)}, [7]),
        ({"usual": 41.0}, [7]),
    ],
)
def test_claims_fail_where_they_should(changes, failing):
    found = passed(f15.claims(planted(**changes), 2, 24))
    assert [i for i, one in enumerate(found) if not one and i != 4] == failing


def test_crossing_depths_of_planted_losses():
    excess = np.array([18.0, 33.0, 47.0, 63.0])
    data = planted().expand_dims("rank")
    factor = 1 + 0.005 * (np.arange(5) - 2)
    assert recovery.crossings(data).sel(rank=2).values == pytest.approx(excess[:, None] * factor)
    flat = data.assign(line=data.planted + 1.0)
    assert np.isnan(recovery.crossings(flat)).all()


def test_the_bottleneck_rank_is_the_smallest_of_all_layers():
    x = torch.rand(9, 2, dtype=torch.float64)
    assert recovery.bottleneck_rank(constructions.line_interpolant(x, x, 6)) == 1
    assert recovery.bottleneck_rank(constructions.identity(3, 4)) == 3
    assert recovery.bottleneck_rank(MLP([4, 4, 4], init="he", seed=0)) > 1


def test_a_tiny_run_goes_through_and_starts_at_the_constructions(tmp_path):
    tiny = {"ranks": (2,), "sizes": (4, 6), "depths": (6, 8), "depth": 6, "width": 4, "seeds": (0, 1)}
    tiny |= {"ridge": 1e-5, "steps": 5, "usual_steps": 10, "bound_sizes": (5, 9)}
    assert set(tiny) == set(vars(f15.FIGURE.settings["quick"]))
    outcome = f15.FIGURE.run("quick", tmp_path, progress=False, **tiny)
    assert outcome.error == ""
    assert len(outcome.claims) == 8
    assert [(row["k"], row["N"]) for row in outcome.sections[0].rows] == [(2, 4), (2, 6)]
    assert (tmp_path / f15.FIGURE.name / "rank-recovery.png").stat().st_size > 5000
    for row in outcome.sections[0].rows:
        assert row["planted, L = 8"] == pytest.approx(16, rel=1e-3)
        points = [recovery.samples(row["N"], 2, seed).x for seed in (0, 1)]
        starts = [norm(constructions.line_interpolant(x, x, 8, seed)) for seed, x in enumerate(points)]
        assert row["rank one, L = 8"] < np.mean(starts)
