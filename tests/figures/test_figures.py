"""The claims of the figures can fail, and a tiny run of each goes through."""

import json

import matplotlib.pyplot as plt
import numpy as np
import pytest
import xarray as xr

from bnrank import figures
from bnrank.figures.f01_bottleneck_spectra import figure as f01
from bnrank.figures.f04_norm_and_depth import figure as f04
from bnrank.figures.f09_first_escape import figure as f09
from bnrank.figures.f09_first_escape.saddles import Descent
from bnrank.figures.harness.claims import Claim
from bnrank.figures.harness.figure import Figure, Outcome, middle
from helpers import passed

from .reproduce_common import Settings


@pytest.fixture(autouse=True)
def _close_figures():
    yield
    plt.close("all")


def planted_profile(depth=13, rank=4, tail=0.01, bent=0.01, norm=6.5, height=1.2):
    values = np.full((depth, 10), tail)
    values[:, :rank] = height
    return xr.Dataset(
        {
            "weight_singular_values": (("layer", "index"), values),
            "nonlinearity": ("layer", np.full(depth, bent)),
            "parameter_norm": ("layer", np.full(depth, norm)),
        },
        coords={"layer": np.arange(1, depth + 1), "index": np.arange(1, 11)},
    )


def test_f1_claims_hold_on_a_planted_bottleneck_and_report_its_numbers():
    gap, near, bent, share = f01.claims(planted_profile(), 4)
    assert passed([gap, near, bent, share]) == [True] * 4
    assert near.measured == pytest.approx(1.2)
    assert gap.measured == pytest.approx(120)
    assert bent.measured == pytest.approx(0.01)
    assert share.measured == pytest.approx(6.5)


@pytest.mark.parametrize(
    ("changes", "which"),
    [
        ({"rank": 5}, [0]),
        ({"rank": 3}, [0, 1]),
        ({"tail": 0.07}, [0]),
        ({"height": 1e-3, "tail": 1e-6}, [1]),
        ({"bent": 0.06}, [2]),
        ({"norm": 12.0}, [3]),
    ],
)
def test_f1_claims_fail_where_they_should(changes, which):
    verdicts = passed(f01.claims(planted_profile(**changes), 4))
    assert verdicts == [i not in which for i in range(4)]


def test_f1_gap_is_taken_in_the_middle_layer_only():
    profile = planted_profile()
    profile.weight_singular_values.loc[{"layer": 1}] = 1.0
    profile.weight_singular_values.loc[{"layer": 13}] = 1.0
    assert f01.claims(profile, 4)[0].passed


DEPTHS = (4, 5, 6, 7, 8, 10, 12, 14, 16, 18, 20, 24, 100)


def planted_runs(depths=DEPTHS, slopes=None, rank_of=None, cost_of=None, bent=None, seed=0):
    """Runs with five seeds per depth; the rank by depth is 3, then 2, and 0 at 100 unless given."""
    rank_of = rank_of or (lambda depth: 0 if depth == 100 else 2 if depth >= 10 else 3)
    cost_of = cost_of or (lambda depth: 1.9 if depth == 100 else 0.003)
    slopes = {2: 2.0, 3: 3.0, 0: 0.0} | (slopes or {})
    spectra = np.full((len(depths), 5, max(depths), 5), np.nan)
    for i, depth in enumerate(depths):
        spectra[i, :, :depth] = 0.0
        spectra[i, :, :depth, : rank_of(depth)] = 1.1
    apart = 0.1 * np.random.default_rng(seed).normal(size=(len(depths), 5))
    norm = apart + np.array([slopes[rank_of(d)] * d + 30 + (bent(d) if bent else 0) for d in depths])[:, None]
    cost = np.array([[cost_of(d)] * 5 for d in depths])
    grid = xr.Dataset(
        {
            "weight_singular_values": (("depth", "seed", "layer", "index"), spectra),
            "parameter_norm": (("depth", "seed"), norm),
            "cost": (("depth", "seed"), cost),
            "status": (("depth", "seed"), np.full(norm.shape, "finished")),
        },
        coords={
            "depth": list(depths),
            "seed": range(5, 10),
            "layer": np.arange(1, max(depths) + 1),
            "index": range(1, 6),
        },
    )
    return grid.stack(run=("depth", "seed"))


def test_f4_middle_ranks_are_those_of_the_layer_at_half_depth():
    runs = planted_runs(depths=(6, 10, 14, 18, 100))
    assert f04.middle_ranks(runs).tolist() == [3] * 5 + [2] * 15 + [0] * 5
    spoiled = runs.copy(deep=True)
    spoiled.weight_singular_values.loc[{"layer": 7}] = 1.0  # the middle of depth 14 only
    assert f04.middle_ranks(spoiled).tolist()[5:20] == [2] * 5 + [5] * 5 + [2] * 5


def test_f4_ranges_end_where_a_run_has_another_rank_or_is_not_fitted():
    runs = planted_runs()
    assert [(of.rank, of.depths) for of in f04.ranges(runs)] == [(3, DEPTHS[:5]), (2, DEPTHS[5:12])]
    runs.weight_singular_values[{"run": 11}] = 1.0  # second seed of depth 6
    runs.cost[{"run": 51}] = 0.2  # second seed of depth 20
    found = f04.ranges(runs)
    assert [(of.rank, of.depths) for of in found] == [(3, (4, 5)), (3, (7, 8)), (2, (10, 12, 14, 16, 18)), (2, (24,))]
    assert np.isnan(found[-1].slope)
    assert np.isnan([found[0].bend, found[-1].bend]).all()  # no line through one or two depths can be wrong
    assert (found[0].expansion, found[-1].expansion) == (None, None)
    assert f04.longest(3, found) is found[0]
    assert f04.longest(4, found) is None
    assert f04.ends(found) == (4, 5, 10, 18)
    assert f04.ends([]) == ()


def test_f4_intervals_hold_the_planted_slope_in_about_95_percent_of_draws():
    found = [f04.ranges(planted_runs(slopes={2: 1.93}, seed=seed))[1] for seed in range(200)]
    inside = [of.low < 1.93 < of.high for of in found]
    assert 180 <= sum(inside) < 200
    assert np.mean([of.slope for of in found]) == pytest.approx(1.93, abs=0.005)


def test_f4_bend_is_the_largest_deviation_from_the_line():
    depths = np.array([4, 6, 8, 10, 12])
    assert f04.bend(depths, 2.0 * depths + 1) == pytest.approx(0, abs=1e-12)
    assert f04.bend(depths, 3.0 * depths + [0, 0, 1, 0, 0]) == pytest.approx(0.8 / 24)  # the line is 0.2 higher
    assert f04.bend(depths, depths**2.0) == pytest.approx(8 / 128)  # residuals 8, -4, -8, -4, 8 of slope 16
    assert np.isnan(f04.bend(depths[:2], depths[:2]))


def test_f4_claims_hold_on_planted_runs():
    claims = f04.claims(planted_runs())
    assert passed(claims) == [True] * 7
    assert "10 to 24" in str(claims[0].measured)
    assert str(claims[1].measured).startswith(("2.0", "1.9"))
    assert passed(f04.own_rank(3, f04.ranges(planted_runs()))) == [True] * 2


@pytest.mark.parametrize(
    ("changes", "fails"),
    [
        ({"slopes": {2: 1.7}}, ["slope", "R0"]),
        ({"slopes": {2: 2.3}}, ["slope", "R0"]),
        ({"slopes": {3: 2.4}}, ["above"]),
        ({"slopes": {3: 3.5}}, ["above"]),
        ({"depths": (7, 8, 10, 12, 14, 16, 18, 20, 24, 100)}, ["above"]),  # two depths are no range
        ({"bent": lambda d: 0.15 * (d - 17) ** 2 * (9 < d < 25)}, ["line", "R0"]),
        ({"bent": lambda d: 5 * (d == 16)}, ["line", "R0"]),
        ({"bent": lambda d: 0.6 * (d % 4 == 2) * (9 < d < 25)}, ["R0"]),  # a small misfit, but in all runs
        ({"bent": lambda d: 150 / d}, ["slope", "line", "above"]),
        ({"bent": lambda d: (16 * d**0.5 - 2 * d) * (9 < d < 25)}, ["line", "R0"]),  # norm 16 sqrt(L) + 30
        ({"rank_of": lambda d: 0 if d == 100 else 2 if 10 <= d < 24 else 3}, ["rises"]),
        ({"rank_of": lambda d: 2 if d >= 10 else 3}, ["collapse"]),
        ({"rank_of": lambda d: 0 if d == 4 else 2 if d >= 10 else 3}, ["rises", "collapse"]),
        ({"rank_of": lambda d: 0 if d == 100 else 2}, ["above"]),
        ({"rank_of": lambda d: 3}, ["depths", "slope", "line", "R0", "collapse"]),
        ({"cost_of": lambda d: 0.5}, ["depths", "slope", "line", "R0", "above"]),
    ],
)
def test_f4_claims_fail_where_they_should(changes, fails):
    names = ["depths", "slope", "line", "R0", "above", "rises", "collapse"]
    verdicts = passed(f04.claims(planted_runs(**changes)))
    assert [name for name, verdict in zip(names, verdicts, strict=True) if not verdict] == fails


def test_f4_one_run_can_break_the_claims_on_all_runs():
    runs = planted_runs()
    runs.weight_singular_values[{"run": 51, "index": slice(0, 3)}] = 1.0  # second seed of depth 20, after rank 2
    assert f04.claims(runs)[5].measured == "at depths 20 after 18"
    runs = planted_runs()
    runs.weight_singular_values[{"run": 46, "index": 1}] = (
        0.0  # second seed of depth 18 has rank 1, all of depth 20 rank 2
    )
    assert f04.claims(runs)[5].measured == "at depths 20 after 18"
    runs = planted_runs()
    runs.weight_singular_values[{"run": 64, "index": 0}] = 1.0  # last seed of depth 100
    assert not f04.claims(runs)[6].passed


def test_f4_a_wide_interval_does_not_pass_whatever_the_slope():
    wide = [f04.Range(4, (8, 10, 12), 4.0, 3.7, 4.3, 0.01)]
    assert passed(f04.own_rank(4, wide)) == [True, False, True]
    assert passed(f04.own_rank(4, [f04.Range(4, (8, 10, 12), 4.1, 3.9, 4.3, 0.01)])) == [True, False, True]
    assert passed(f04.own_rank(4, [f04.Range(4, (8, 10, 12), 3.9, 3.7, 4.1, 0.01)])) == [True, False, True]
    assert f04.longest(4, [*wide, f04.Range(4, (16, 18), 4.0, 3.7, 4.3)]) is wide[0]
    assert passed(f04.own_rank(4, [f04.Range(4, (8, 10), 4.0, 3.9, 4.1)])) == [False, True, False]


def planted_history(ratio=0.05, first=0.3, start=2.302585, fall=True):
    """A loss that stays, falls and stays again; spectra with a given s_2 / s_1 after the fall."""
    steps = np.arange(60)
    drop = 0.5 / (1 + np.exp(-(steps - 30) / 2)) if fall else 0 * steps
    loss = np.tile(start - drop, (2, 1))
    values = np.ones((2, 60, 6, 3))
    values[:, 35:, :, 1:] = ratio
    values[:, 35:, 0, 1:] = first
    return xr.Dataset(
        {
            "loss": (("member", "step"), loss),
            "weight_singular_values": (("member", "step", "layer", "index"), values),
        },
        coords={"step": steps, "layer": np.arange(1, 7), "index": [1, 2, 3]},
    )


def test_f9_finds_the_end_of_the_first_fall():
    loss = planted_history().loss.values[0]
    row = f09.escape(loss)
    assert 35 <= row <= 42
    assert f09.escape(planted_history(fall=False).loss.values[0]) is None
    assert f09.escape(np.array([2.3])) is None


TINY = {
    "F1": {"rank": 2, "depth": 4, "width": 8, "members": 2, "steps": 6},
    "F4": {
        "depths": [2, 3],
        "others": [(3, [2])],
        "y_norm_squared": 1.0,
        "width": 6,
        "init": "he",
        "seeds": [5, 7],
        "steps": 4,
    },
    "F9": {
        "images": 40,
        "width": 6,
        "runs": (Descent(init=0.05, time=2.0, step=0.1, batch_size=10),),
        "scales": (0.02, 0.01),
        "deep": 4,
        "seeds": 2,
        "first_seed": 3,
        "fit_steps": 10,
    },
}


@pytest.mark.parametrize("name", ["F1", "F4", "F9"])
def test_a_tiny_run_goes_through_and_is_stored(name, tmp_path, monkeypatch):
    monkeypatch.setenv("BNRANK_DATA", str(tmp_path))
    figure = figures.find(name)
    assert set(TINY[name]) == set(vars(figure.settings["quick"]))
    outcome = figure.run("quick", tmp_path, progress=False, **TINY[name])
    assert outcome.error == ""
    assert outcome.claims
    stored = json.loads((tmp_path / figure.name / "claims.json").read_text())
    assert stored["settings"]["scale"] == "quick"
    assert [c["passed"] for c in stored["claims"]] == passed(outcome.claims)
    for picture in outcome.pictures:
        assert (tmp_path / figure.name / f"{picture}.png").stat().st_size > 5000


def test_a_figure_with_a_network_that_was_not_trained_has_failed(tmp_path, monkeypatch):
    def breaks(*args, **kwargs):
        assert kwargs["seeds"] == [5, 7]
        runs = sweep(*args, **kwargs)
        runs = runs.assign(status=runs.status.astype(object), error=runs.error.astype(object))
        runs["status"][{"depth": 1, "seed": 0}] = "failed"
        runs["error"][{"depth": 1, "seed": 0}] = "ValueError: damaged checkpoint"
        return runs

    sweep = f04.sweep
    monkeypatch.setattr(f04, "sweep", breaks)
    outcome = figures.find("F4").run("quick", tmp_path, progress=False, **TINY["F4"])
    assert "1 of 4 networks were not trained: ValueError: damaged checkpoint" in outcome.error


def test_reproduce_goes_on_past_a_failing_figure_and_writes_the_page(tmp_path, monkeypatch):
    def fails(settings, folder, progress):
        raise RuntimeError("no such luck")

    def works(settings, folder, progress):
        return Outcome("X2", (Claim("one is one", True, 1, "1"),))

    scales = {"quick": Settings(), "paper": Settings()}
    made = tuple(Figure(i, n, n, "source", "things", scales, f) for i, n, f in [("X1", "a", fails), ("X2", "b", works)])
    monkeypatch.setattr(figures, "FIGURES", made)
    first, second = figures.reproduce(["all"], tmp_path, progress=False)
    assert not first.passed
    assert "no such luck" in first.error
    assert second.passed
    page = (tmp_path / "quick" / "index.html").read_text()
    assert "no such luck" in page
    assert "one is one" in page


@pytest.mark.parametrize("name", ["F1", "f1", "bottleneck-spectra"])
def test_figures_are_found_by_id_and_name(name):
    assert figures.find(name).id == "F1"


def test_unknown_figure_and_scale_are_refused_with_a_suggestion(tmp_path):
    with pytest.raises(ValueError, match="did you mean 'norm-and-depth'"):
        figures.find("norm-and-dept")
    with pytest.raises(ValueError, match=r"scale.*'fast'.*'quick'"):
        figures.reproduce(["F1"], tmp_path, scale="fast")


def test_middle_is_the_middle_third():
    assert list(middle(12)) == [5, 6, 7, 8]
    assert list(middle(3)) == [2]


def test_demo_writes_a_row_per_network_and_a_page(tmp_path, monkeypatch):
    from bnrank.figures import demo

    monkeypatch.setenv("BNRANK_DATA", str(tmp_path))
    monkeypatch.setattr(demo, "DEPTHS", (2, 3))
    monkeypatch.setattr(demo, "ESCAPE_STEPS", 10)
    done = figures.run_demo(tmp_path / "demo", progress=False, steps=4, images=40)
    assert [(row["task"], row["depth"]) for row in done.rows[:4]] == [("low_rank_map", d) for d in (2, 2, 3, 3)]
    assert done.rows[4]["depth"] == 6
    assert done.digits in ("mnist", "digits")
    assert done.page.stat().st_size > 1_000_000
    again = figures.run_demo(tmp_path / "demo", progress=False, steps=4, images=40)
    assert again.rows == done.rows
    monkeypatch.setattr(demo, "QUICK_DEPTHS", (2,))
    quick = figures.run_demo(tmp_path / "demo", progress=False, steps=4, images=40, quick=True)
    assert [row["depth"] for row in quick.rows] == [2, 6]
    assert quick.rows[0] == done.rows[0]  # the first seed is the same network
    assert quick.page == done.page
