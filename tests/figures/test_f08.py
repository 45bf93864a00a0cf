"""F8: its claims on planted spectra, its measures against plain loops, and a tiny run."""

import numpy as np
import pytest

from bnrank.figures.f08_kernel_jacobians import figure as f08
from bnrank.figures.f08_kernel_jacobians.figure import Predictor
from helpers import failing


def spectrum(*values, points=3):
    return np.tile(np.array(values, float), (points, 1))


def fitted(noise=0.0, network=(4, 2, 1e-9, 1e-12), kernel=(4, 2, 1, 0.5), expected=4, errors=(0.1, 0.2)):
    return [
        Predictor("network", noise, spectrum(*network), 2, errors[0], 0.01, "depth 13, width 100"),
        Predictor("rbf", noise, spectrum(*kernel), expected, errors[1], 0.01, ""),
        Predictor("laplace", noise, spectrum(5, 3, 2, 1), expected, 0.3, 0.01, ""),
    ]


def test_claims_hold_on_planted_spectra():
    assert failing(f08.claims([*fitted(), *fitted(0.1)], 2)) == []
    assert len(f08.claims([*fitted(), *fitted(0.1)], 2)) == 8


@pytest.mark.parametrize(
    ("changes", "fails"),
    [
        ({"kernel": (4, 2, 1, 1e-11)}, [0]),
        ({"expected": 3}, [0]),
        ({"network": (4, 2, 0.11, 0)}, [1]),
        ({"kernel": (4, 2, 0.09, 0.08)}, [2]),
        ({"errors": (0.2, 0.1)}, [3]),
        ({"errors": (np.nan, 0.1)}, [3]),
        ({"network": (4, np.nan, np.nan, np.nan)}, [1]),
    ],
)
@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_claims_fail_where_they_should(changes, fails, noise):
    """With noise or without: claims of the noises come one after another."""
    both = [*fitted(0.0, **(changes if noise == 0 else {})), *fitted(0.1, **(changes if noise else {}))]
    assert failing(f08.claims(both, 2)) == [i + (4 if noise else 0) for i in fails]


def test_one_point_with_too_low_a_rank_or_gap_is_seen():
    network, kernel, other = fitted()
    kernel.values[1, 3] = 0
    assert failing(f08.claims([network, kernel, other], 2)) == [0]
    network, kernel, other = fitted()
    network.values[2, 2] = 1
    assert failing(f08.claims([network, kernel, other], 2)) == [1]


def test_measures_of_a_spectrum():
    p = Predictor("rbf", 0.0, np.array([[3.0, 1.0, 1e-5], [2.0, 2.0, 0.0]]), 2, 0, 0, "")
    assert p.ranks.tolist() == [3, 2]
    np.testing.assert_allclose(p.gaps(1), [3, 1])
    np.testing.assert_allclose(p.gaps(2), [1e5, 1e16])  # never infinite
    assert p.effective == pytest.approx((100 / 82 + 2) / 2)
    assert p.beyond(1) == pytest.approx((0.1 + 0.5) / 2)


TINY = {"rank": 2, "depth": 3, "width": 8, "samples": 70, "steps": 3, "noises": (0.0, 0.1)}
TINY |= {"kernels": ("rbf", "laplace"), "points": 5}


def test_a_tiny_run(tmp_path, monkeypatch):
    monkeypatch.setattr(f08, "RIDGES", (1e-3, 0.1))
    monkeypatch.setattr(f08, "SCALES", (1.0, 2.0))
    assert set(TINY) == set(vars(f08.FIGURE.settings["quick"]))
    outcome = f08.FIGURE.run("quick", tmp_path, progress=False, **TINY)
    assert outcome.error == ""
    assert len(outcome.claims) == 8
    assert [c.passed for c in outcome.claims if c.name.partition(": ")[2].startswith("kernels")] == [True, True]
    assert set(outcome.pictures) == set(outcome.captions) == {"jacobian-spectra"}
    rows = outcome.sections[0].rows
    assert [(r["noise in y"], r["fit"]) for r in rows] == [
        (noise, fit) for noise in (0.0, 0.1) for fit in ("network", "rbf", "laplace")
    ]
    assert rows[1]["rank expected"] == 50
    assert rows[1]["relative training error"] < rows[4]["relative training error"]
