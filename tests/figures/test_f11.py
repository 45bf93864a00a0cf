"""F11: its claims on planted speeds, its shares, and a tiny run."""

import json

import numpy as np
import pytest
import xarray as xr

from bnrank.figures.f11_escape_width import figure as f11
from helpers import passed


def planted(shares=(0.0, 0.3, 0.7, 1.0), runs=50, top=0.4999, widths=(4, 8, 16, 32)):
    speed = np.full((len(widths), runs), f11.RANK_ONE - 0.02)
    for row, share in enumerate(shares):
        speed[row, : round(share * runs)] = top
    return xr.Dataset(
        {"speed": (("width", "run"), speed), "settled": (("width", "run"), speed)},
        coords={"width": list(widths), "run": np.arange(runs)},
    )


def test_claims_hold_on_planted_speeds():
    assert passed(f11.claims(planted())) == [True] * 4
    order = [3, 0, 2, 1]
    assert passed(f11.claims(planted().isel(width=order))) == [True] * 4


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"shares": (0.0, 0.7, 0.2, 1.0)}, [False, True, True, True]),
        ({"shares": (0.1, 0.1, 0.1, 0.1)}, [False, False, True, True]),
        ({"shares": (0.5, 0.6, 0.7, 1.0)}, [True, True, False, True]),
        ({"shares": (0.0, 0.3, 0.6, 0.8)}, [True, False, True, True]),
        ({"top": 0.48}, [True, True, True, False]),
        ({"top": 0.51}, [True, True, True, False]),
        ({"top": f11.RANK_ONE + 5e-4}, [False, False, True, False]),
    ],
)
def test_claims_fail_where_they_should(changes, expected):
    assert passed(f11.claims(planted(**changes))) == expected


def test_intervals_are_wilsons():
    _, share, low, high = f11.shares(planted(shares=(0.3, 0, 0, 0)).speed).iloc[0]
    z, n = 1.959963984540054, 50
    center, half = (share + z**2 / 2 / n), z * np.sqrt(share * (1 - share) / n + z**2 / 4 / n**2)
    assert share == 0.3
    assert (low, high) == pytest.approx(((center - half) / (1 + z**2 / n), (center + half) / (1 + z**2 / n)))


def test_runs_settle_at_the_known_speeds():
    data = f11.trials(f11.Settings((8, 24), runs=12, steps=800, decaying=1200))
    assert (data.settled <= 0.5 + 1e-12).all()
    assert (data.speed <= 0.5 + 1e-12).all()
    known = np.array([0.5, f11.LOCAL, f11.RANK_ONE])
    settled = data.settled.sel(width=24).values
    assert np.median(np.abs(settled[:, None] - known).min(1)) < 2e-3
    assert data.settled.max() == pytest.approx(0.5, abs=1e-3)
    assert 0.47 < data.speed.max() < 0.49  # steps of one length hover


def test_a_tiny_run_goes_through_and_is_stored(tmp_path):
    tiny = {"widths": [2, 4], "runs": 5, "steps": 20, "step": 0.05, "decaying": 10, "seed": 1}
    assert set(tiny) == set(vars(f11.FIGURE.settings["quick"]))
    outcome = f11.FIGURE.run("quick", tmp_path, progress=False, **tiny)
    assert outcome.error == ""
    stored = json.loads((tmp_path / f11.FIGURE.name / "claims.json").read_text())
    assert [c["passed"] for c in stored["claims"]] == passed(outcome.claims)
    assert (tmp_path / f11.FIGURE.name / "width.png").stat().st_size > 5000
    assert [row["width"] for row in outcome.sections[0].rows] == [2, 4]
