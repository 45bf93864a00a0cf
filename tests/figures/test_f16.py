"""F16: its claims on planted fits, exponents and descents against plain formulas, and a tiny run."""

import json
import math

import numpy as np
import pandas as pd
import pytest
import torch

from bnrank import constructions
from bnrank.figures.f16_stability import computation as stability
from bnrank.figures.f16_stability import figure as f16
from bnrank.figures.f16_stability.computation import BUILT, PLANTED, Settings
from helpers import norm, passed

C = 0.25


def planted(*, tsp=0.0, sharp=3.0, trace=0.0, flat=0.0, stay=1.0, leave=math.inf, bound=0.1, hidden=False):
    rows = []
    for seed in range(5):
        for n in (5, 10, 20, 40, 80):
            for k, depth in ((2, 20), (3, 20), (2, 40)):
                noise = 0.01 * math.sin(7 * seed + n)
                limit = 2 * depth / C
                low = limit * (n / 4) ** (sharp + noise) * (0.3 if n == 5 else 1)
                own = {
                    "k": k,
                    "N": n,
                    "L": depth,
                    "seed": seed,
                    "TSP": n ** (1 - 1 / k + tsp / 4),
                    "c1": 4 * math.log(n),
                }
                left = leave if n >= 20 else (stay if low < limit else 1e9)
                left = stay if hidden and n < 20 else left
                largest = math.e * n ** (trace - 1.9)
                rows.append(own | {"kind": BUILT, "sharpness": low, "rise": left, "largest trace": largest})
                rows[-1] |= {"bound": bound * largest, "mean trace": largest, "error": 0.0, "end": 0.0}
                own |= {"kind": PLANTED, "sharpness": limit / 2 * n ** (flat + noise), "rise": stay, "c1": 0.0}
                rows.append(
                    own | {"largest trace": 60.0, "mean trace": 40.0, "bound": math.nan, "error": 0.0, "end": 0.0}
                )
    return pd.DataFrame(rows)


ALL = [True] * 8


def test_claims_hold_on_planted_fits():
    assert passed(f16.claims(planted(trace=1.0), C)) == ALL


@pytest.mark.parametrize(
    ("failed", "changes"),
    [
        ({0}, {"tsp": 0.6}),
        ({0}, {"tsp": -0.6}),
        ({1}, {"trace": 0.3}),
        ({2}, {"sharp": 2.0}),
        ({3}, {"flat": -0.25}),
        ({4}, {"bound": 1.1}),
        ({5}, {"stay": 2.0}),
        ({6, 7}, {"leave": 900.0}),  # these fits are far sharper than the step allows
        ({7}, {"hidden": True}),
    ],
)
def test_claims_fail_where_they_should(failed, changes):
    found = passed(f16.claims(planted(**{"trace": 1.0} | changes), C))
    assert {i for i, one in enumerate(found) if not one} == failed


def test_claims_fail_on_values_that_are_not_numbers():
    data = planted(trace=1.0)
    data.loc[data["N"] == 40, ["sharpness", "largest trace", "rise"]] = np.nan
    assert passed(f16.claims(data, C))[1:] == [False] * 7


def test_exponents_have_students_intervals():
    slopes = np.array([1.0, 2.0, 4.0])
    rows = pd.DataFrame([{"seed": i, "N": n, "y": s * math.log(n)} for i, s in enumerate(slopes) for n in (10, 20, 40)])
    found = stability.exponent(rows, rows["y"])
    half = 4.302652729911275 * slopes.std(ddof=1) / math.sqrt(3)
    assert (found.value, found.low, found.high) == pytest.approx((7 / 3, 7 / 3 - half, 7 / 3 + half))


def test_exponents_are_fitted_where_n_is_large_enough():
    found = {(k, depth): one for k, depth, one in f16._fitted(planted(), BUILT)}
    assert set(found) == {(2, 20), (3, 20), (2, 40)}
    assert found[2, 40]["sharpness"].value == pytest.approx(3, abs=0.05)  # N = 5 lies below the power
    assert found[3, 20]["e^c1"].value == pytest.approx(4)
    few = planted()
    assert not list(f16._fitted(few[few["N"] <= 20], BUILT))


def test_the_smallest_n_is_that_from_which_all_leave():
    rises = {0: (9e9, 1.0, 9e9, 9e9), 1: (9e9, 9e9, math.inf, 9e9), 2: (9e9, 9e9, 9e9, 1.0)}
    rows = [
        {"seed": s, "N": n, "rise": r} for s, all_ in rises.items() for n, r in zip((2, 4, 8, 16), all_, strict=True)
    ]
    assert f16.leaving(pd.DataFrame(rows[::-1])) == [8, 2, math.inf]


def test_fits_of_rank_k_have_the_sharpness_of_the_formula():
    """Theta(x, x') = L (x . x' + 1) times the identity."""
    x = torch.rand(12, 3, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    fits = dict(stability._fits(x, 7, Settings()))
    found = stability.read(fits[PLANTED], x, PLANTED)
    gram = 7 * (x @ x.T + 1)
    assert found["sharpness"] == pytest.approx(2 / 12 * float(torch.linalg.eigvalsh(gram)[-1]), rel=1e-6)
    assert found["largest trace"] == pytest.approx(3 * float(gram.diagonal().max()))
    assert found["c1"] == 0
    assert stability.read(fits[BUILT], x, BUILT)["c1"] == pytest.approx(norm(fits[BUILT]) - 7)


def test_the_sharpness_of_fits_of_rank_one_is_that_of_the_hessian():
    """At zero error, the Hessian of the mean squared error is (2/N) J^T J."""
    x = torch.rand(5, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    net = dict(stability._fits(x, 5, Settings()))[BUILT]
    named = {name: p.detach() for name, p in net.named_parameters()}
    sizes = [p.numel() for p in named.values()]

    def outputs(vector):
        parts = [part.view_as(p) for part, p in zip(vector.split(sizes), named.values(), strict=True)]
        return torch.func.functional_call(net, dict(zip(named, parts, strict=True)), (x,)).flatten()

    jacobian = torch.autograd.functional.jacobian(outputs, torch.cat([p.flatten() for p in named.values()]))
    expected = 2 / 5 * float(torch.linalg.svdvals(jacobian)[0]) ** 2
    assert stability.read(net, x, BUILT)["sharpness"] == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(("share", "left"), [(0.9, False), (1.1, True)])
def test_descent_leaves_beyond_the_largest_stable_step(share, left):
    """A linear chain of width 1 has no kinks: 2 / sharpness is the limit, to first order in the perturbation."""
    x = torch.linspace(0.1, 1, 6, dtype=torch.float64)[:, None]
    net = constructions.identity(1, 5)
    settings = Settings(c=share * 5 * stability.sharpness_bound(net, x).largest_step, steps=300)
    assert (stability.descend(net, x, settings, 0)["rise"] > f16.LEFT) == left


def test_a_loss_that_overflows_is_infinite():
    x = torch.linspace(0.1, 1, 6, dtype=torch.float64)[:, None]
    found = stability.descend(constructions.identity(1, 5, slope=1.0), x, Settings(c=100.0, steps=60), 0)
    assert found == {"rise": math.inf, "end": math.inf}


def test_perturbations_have_the_given_size():
    net = constructions.identity(3, 4)
    moved = stability.perturbed(net, 1e-3, 5)
    apart = sum(
        float((p - q).detach().square().sum()) for p, q in zip(net.parameters(), moved.parameters(), strict=True)
    )
    assert math.sqrt(apart / norm(net)) == pytest.approx(1e-3)


def test_a_tiny_run_goes_through_and_is_stored(tmp_path):
    tiny = {
        "dims": [2], "samples": [3, 10, 20, 30], "shortened": [3], "depths": [6], "shortening": 3, "c": C,
        "perturbation": 1e-6, "steps": 20, "n_seeds": 2, "seed": 40,
    }  # fmt: skip
    assert set(tiny) == set(vars(f16.FIGURE.settings["quick"]))
    outcome = f16.FIGURE.run("quick", tmp_path, progress=False, **tiny)
    assert outcome.error == ""
    stored = json.loads((tmp_path / f16.FIGURE.name / "claims.json").read_text())
    assert [c["passed"] for c in stored["claims"]] == passed(outcome.claims)
    assert (tmp_path / f16.FIGURE.name / "stability.png").stat().st_size > 5000
    fits = outcome.sections[0].rows
    assert len(fits) == 2 * 4 + 1
    assert max(row["error"] for row in fits) < 1e-6
    by_n = {row["N"]: row for row in fits if row["fit"] == BUILT}
    assert by_n[20]["left"] == "2 of 2"
    assert all(row["left"] == "0 of 2" for row in fits if row["fit"] == PLANTED)
