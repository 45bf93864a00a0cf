"""F9 and F10: what is read off flows past their saddles, on planted histories and on small saddles."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import xarray as xr

from bnrank.figures.f09_first_escape import joins, saddles
from bnrank.figures.f10_depth_four import figure as f10
from bnrank.measures.plateaus import Plateau
from bnrank.networks import from_layers
from bnrank.reporting import plots
from bnrank.tasks import digits

ROWS = 400


def staircase(times, levels=(2.3, 1.8, 0.9), at=(5.0, 30.0), width=0.3):
    """A loss that goes down by steps."""
    loss = np.full(len(times), levels[0])
    for before, after, when in zip(levels, levels[1:], at, strict=False):
        loss -= (before - after) / (1 + np.exp(-(times - when) / width))
    return loss


def planted(second=1.6, third=0.1, deep=0.1, first=0.5, later=30.0, last=0.3):
    """Depth 6: s_1 grows at t = 5, s_2 at ``later``; s_2 / s_1 in between is ``deep``, in layer 1 ``first``."""
    times = np.linspace(0, 50, ROWS)
    one, two = (1 / (1 + np.exp(-(times - when) / 0.3)) for when in (5.0, later))
    values = np.zeros((ROWS, 6, 3))
    values[:, :, 0] = 0.1 + 1.9 * one[:, None]
    values[:, :, 1] = 0.1 + (2 * deep - 0.1) * one[:, None] + (second - 2 * deep) * two[:, None]
    values[:, 0, 1] = 0.1 + (2 * first - 0.1) * one
    values[:, 5, 1] = 0.1 + last * two
    values[:, :, 2] = 0.1 + (third - 0.1) * two[:, None]
    loss = staircase(times)
    return xr.Dataset(
        {
            "loss": (("member", "step"), loss[None]),
            "gradient_norm": (("member", "step"), np.abs(np.gradient(loss, times))[None]),
            "time_since_handover": (("member", "step"), times[None]),
            "weight_singular_values": (("member", "step", "layer", "index"), values[None]),
        },
        coords={"member": [0], "step": np.arange(ROWS), "layer": np.arange(1, 7), "index": [1, 2, 3]},
    )


def verdicts(history, **options):
    return [c.passed for c in saddles.claims(history, saddles.stages(history), **options)]


def test_stages_ranks_and_second_exit_of_a_planted_staircase():
    history = planted()
    found = saddles.stages(history)
    assert len(found) == 3
    assert found[0].end == pytest.approx(5, abs=1.5)
    assert found[1].end == pytest.approx(30, abs=1.5)
    between = int(np.searchsorted(history.time_since_handover.values[0], 20))
    assert saddles.grown(history, 0) == (0,) * 6
    assert saddles.grown(history, between) == (2, 1, 1, 1, 1, 1)
    assert saddles.ratio(history, between) == pytest.approx([0.5, 0.1, 0.1, 0.1, 0.1, 0.05])
    out = saddles.second_exit(history, between)
    # s_2 = 0.2 + 1.4 two is first above s_1 / 2 = 1 where two = 0.8 / 1.4
    assert history.time_since_handover.values[0, out] == pytest.approx(30 + 0.3 * math.log(0.8 / 0.6), abs=0.15)
    assert saddles.second_exit(history, ROWS) is None


def test_rows_without_singular_values_are_passed_over():
    history = planted()
    sparse = history.copy(deep=True)
    sparse.weight_singular_values[0, 1::2] = np.nan
    between = 161  # has none; 160 and 162 do
    assert saddles.grown(sparse, between) == saddles.grown(history, between)
    out = saddles.second_exit(history, between)
    assert saddles.second_exit(sparse, between) == out + out % 2


def test_claims_hold_on_a_planted_staircase():
    assert verdicts(planted()) == [True] * 6
    assert verdicts(planted(), second=False) == [True] * 3
    short = planted().isel(step=slice(0, 52))  # ends in the first fall
    assert len(saddles.stages(short)) == 1
    assert verdicts(short, second=False) == [True] * 3
    assert verdicts(short) == [False]


@pytest.mark.parametrize(
    ("changes", "fails"),
    [
        ({"deep": 0.14}, [0]),
        ({"deep": 0.35, "first": 0.6}, [0, 1]),
        ({"first": 0.05}, [2]),
        ({"third": 1.0}, [3, 4]),
        ({"later": 15.0}, [0, 1, 2, 5]),
        ({"later": 45.0}, [5]),
    ],
)
def test_claims_fail_where_they_should(changes, fails):
    result = verdicts(planted(**changes))
    assert [i for i, passed in enumerate(result) if not passed] == fails


def test_claims_fail_without_an_escape():
    never = planted(second=0.3)
    assert verdicts(never) == [True, True, True, False]
    still = never.copy(deep=True)
    still["loss"][:] = 2.3
    assert verdicts(still) == [False]


def test_clearness_of_a_straight_descent_and_of_stairs():
    def of(loss):
        times = np.linspace(0, 50, len(loss))[None]
        dims = ("member", "step")
        return saddles.clearness(xr.Dataset({"loss": (dims, loss[None]), "time_since_handover": (dims, times)}))

    times = np.linspace(0, 50, 2000)
    assert of(2.3 - 2.2 * times / 50) == pytest.approx(0, abs=0.05)
    sharp = of(staircase(times, levels=(2.3, 1.2, 0.1), at=(10, 40), width=0.2))
    blunt = of(staircase(times, levels=(2.3, 1.2, 0.1), at=(10, 40), width=2.0))
    assert sharp > blunt + 0.3
    assert sharp > 2
    stuck = of(staircase(times, levels=(2.3, 1.2, 0.1), at=(10, 60), width=0.2))
    assert stuck == pytest.approx(sharp, abs=0.3)  # a plateau that is not left counts, too
    assert math.isnan(of(np.full(100, 2.3)))


def test_f10_claims():
    assert [c.passed for c in f10.claims({4: [0.5, 0.6], 6: [1.2, 0.9]})] == [True, True]
    assert [c.passed for c in f10.claims({4: [0.5, 1.0], 6: [1.2, 0.9]})] == [False, True]
    assert [c.passed for c in f10.claims({4: [0.1], 6: [0.4]})] == [True, False]
    assert [c.passed for c in f10.claims({4: [0.1], 6: [math.nan]})] == [False, False]


@pytest.fixture(scope="module")
def saddle():
    return joins.chain(digits(300, n_test=0), 4)


def test_the_chain_is_a_saddle(saddle):
    weights = [w.clone().requires_grad_() for w in saddle.weights]
    a = saddle.x
    for w in weights[:-1]:
        a = (a @ w.T).relu()
    cost = (a @ weights[-1].T - saddle.y).square().sum() / len(saddle.x)
    assert cost.item() == pytest.approx(saddle.cost, rel=1e-10)
    assert cost.item() < 0.97 * float(saddle.y.square().sum()) / len(saddle.x)
    assert max(g.abs().max().item() for g in torch.autograd.grad(cost, weights)) < 1e-6
    norms = [float(w.detach().norm()) for w in weights]
    assert norms == pytest.approx([norms[0]] * 4)


def test_small_weights_around_a_chain(saddle):
    net = joins.surrounded(saddle, 1e-9, width=7)
    assert [tuple(w.shape) for w in net.weights] == [(7, 10), (7, 7), (7, 7), (10, 7)]
    alone = from_layers(saddle.weights, slope=0.0)
    torch.testing.assert_close(net(saddle.x), alone(saddle.x), atol=1e-7, rtol=0)
    larger = joins.surrounded(saddle, 2e-9, width=7)
    torch.testing.assert_close(larger.weights[1][1:], 2 * net.weights[1][1:])


def test_joins_are_timed_by_kappa():
    exits = joins.measure(digits(300, n_test=0), 3, (1e-3, 1e-5))
    assert exits.slope * exits.kappa == pytest.approx(1, abs=0.1)
    assert exits.rates[-1] / exits.kappa == pytest.approx(1, abs=0.1)
    assert all(c.passed for c in joins.claims(exits))


def test_join_claims_fail_where_they_should():
    def result(slope=1.0, rate=1.0, deeper=1.0):
        scales = (1e-3, 1e-5)
        times = tuple(slope * math.log(1 / s) / 0.1 for s in scales)
        exits = joins.Exits(0.1, scales, times, (0.1, 0.1 * rate), [], deeper)
        return [c.passed for c in joins.claims(exits)]

    assert result() == [True, True, True]
    assert result(slope=0.8) == [False, True, True]
    assert result(slope=math.inf) == [False, True, True]
    assert result(rate=1.2) == [True, False, True]
    assert result(deeper=5) == [True, True, False]


def test_the_picture_marks_plateaus_and_escapes():
    history = planted()
    found = saddles.stages(history)
    axes = plots.plateaus(history, found=found, marks={"first escape": found[0].end_row})
    assert len(axes) == 7
    assert [t.get_text() for t in axes[0].texts] == ["1", "plateau 2", "plateau 3"]
    assert all(len(ax.patches) == 3 for ax in axes)
    line = axes[0].lines[-1]
    assert line.get_xdata()[0] == history.step.values[found[0].end_row]
    with pytest.raises(ValueError, match=r"too far.*got row 400, expected a row of the history, 0 to 399"):
        plots.plateaus(history, marks={"too far": ROWS})


def test_a_part_tells_what_was_skipped():
    history = planted()
    flow = SimpleNamespace(
        history=history, steps=400, seconds=2.0, handover=SimpleNamespace(time=4e6), status="finished"
    )
    part = saddles.Part("digits", flow, saddles.stages(history))
    assert isinstance(part.found[0], Plateau)
    section = part.section()
    assert "4e+06" in section.text
    assert [row["what"] for row in section.rows] == ["plateau 1", "plateau 2", "plateau 3", "s_2 is half of s_1"]
    assert part.picture().axes[0].get_title() == "digits"


def test_a_tiny_f10_goes_through(tmp_path, monkeypatch):
    monkeypatch.setenv("BNRANK_DATA", str(tmp_path))
    tiny = {
        "images": 40,
        "width": 6,
        "descent": saddles.Descent(init=0.3, time=2.0, step=0.1, batch_size=10),
        "smaller": 0.1,
        "seeds": 1,
    }
    assert set(tiny) == set(vars(f10.FIGURE.settings["quick"]))
    outcome = f10.FIGURE.run("quick", tmp_path, progress=False, **tiny)
    assert outcome.error == ""
    assert [c.name.split()[0] for c in outcome.claims] == ["plateaus", "mean"]
    assert set(outcome.pictures) == {"depth-4-init-0.3", "depth-6-init-0.3", "depth-4-init-0.1"}
