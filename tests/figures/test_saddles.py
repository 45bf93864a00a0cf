"""F9 and F10: what is read off flows past their saddles, on planted histories and on small saddles."""

import itertools
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import xarray as xr
from scipy.special import logsumexp

from bnrank.figures.f09_first_escape import fits, joins, saddles
from bnrank.figures.f10_depth_four import figure as f10
from bnrank.networks import from_layers
from bnrank.reporting import plots
from bnrank.tasks import digits
from bnrank.training.plateaus import Plateau

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


def concentration(loss, before=1.0):
    """The Gini coefficient of a loss with as many steps as rows."""
    times = np.linspace(-before, 50, len(loss))[None]
    dims = ("member", "step")
    data = {"loss": (dims, loss[None]), "time_since_handover": (dims, times)}
    return saddles.concentration(xr.Dataset(data, coords={"step": 7 * np.arange(len(loss))}))


def test_concentration_of_a_line_and_of_stairs():
    times = np.linspace(-1, 50, 4000)
    assert concentration(2.3 - 2.2 * np.maximum(times, 0) / 50) == pytest.approx(0, abs=0.02)
    # two levels of the loss take all the time but a few steps
    sharp = concentration(staircase(times, levels=(2.3, 1.2, 0.1), at=(10, 40), width=0.05))
    blunt = concentration(staircase(times, levels=(2.3, 1.2, 0.1), at=(10, 40), width=5.0))
    assert 0.9 < sharp < 1
    assert blunt < sharp - 0.2
    stuck = concentration(staircase(times, levels=(2.3, 1.2, 0.1), at=(10, 60), width=0.05))
    assert stuck > 0.9  # a plateau that is not left counts, too
    assert math.isnan(concentration(np.full(100, 2.3)))


def test_concentration_is_the_gini_coefficient_of_the_steps_per_drop():
    """A loss that falls by 1 percent of its range per 1, 2, 3, ... steps, against the definition."""
    taken = np.arange(1, 101)
    at = np.concatenate([[0], np.cumsum(taken)])
    steps = np.arange(at[-1] + 1)
    loss = np.interp(steps, at, np.linspace(0.95, 0.1, 101))
    loss = np.concatenate([[1.0], loss])  # the first 5 percent do not count
    pairs = np.abs(taken[:, None] - taken).sum() / (2 * 100**2 * taken.mean())
    assert concentration(loss, before=0) == pytest.approx(pairs, abs=1e-3)
    shuffled = np.random.default_rng(0).permutation(taken)
    at = np.concatenate([[0], np.cumsum(shuffled)])
    loss = np.concatenate([[1.0], np.interp(steps, at, np.linspace(0.95, 0.1, 101))])
    assert concentration(loss, before=0) == pytest.approx(pairs, abs=1e-3)
    noisy = loss + 0.002 * np.random.default_rng(1).standard_normal(len(loss))
    assert concentration(noisy, before=0) == pytest.approx(pairs, abs=0.1)


def test_the_longest_stay_is_a_share_of_the_steps():
    """0.05 on a line; on stairs with a lower and a longer upper step, the share of the longer one."""
    dims, times = ("member", "step"), np.linspace(0, 50, 4000)

    def stay(loss):
        data = {"loss": (dims, loss[None]), "time_since_handover": (dims, times[None])}
        return saddles.longest_stay(xr.Dataset(data, coords={"step": 7 * np.arange(len(loss))}))

    assert stay(2.3 - 2.2 * times / 50) == pytest.approx(0.05, abs=0.002)
    # after the first fall at t = 10, 30 of 40 units of time on one level
    assert stay(staircase(times, levels=(2.3, 1.2, 0.1), at=(10, 40), width=0.05)) == pytest.approx(0.75, abs=0.02)
    assert stay(staircase(times, levels=(2.3, 1.2, 0.1), at=(10, 40), width=5.0)) < 0.5
    assert math.isnan(stay(np.full(4000, 2.3)))


def test_f10_claims():
    low, high = [0.5, 0.6, 0.55, 0.52, 0.58], [0.7, 0.72, 0.8, 0.71, 0.9]

    def passed(shallow, deep):
        both = f10.claims({f10.GINI: {4: shallow, 6: deep}, f10.STAY: {4: low, 6: high}})
        other = f10.claims({f10.GINI: {4: low, 6: high}, f10.STAY: {4: shallow, 6: deep}})
        assert (both[1].passed, other[0].passed) == (True, True)
        assert both[0].passed == other[1].passed
        return both[0].passed

    first = f10.claims({f10.GINI: {4: low, 6: high}})[0]
    assert first.measured == pytest.approx(1 / math.comb(10, 5))  # of all orders, the only one as extreme
    assert passed(low, high)
    assert not passed(high, low)
    assert not passed([0.5, 0.6, 0.55, 0.52, 0.75], high)  # three of 25 pairs the other way round: 4/252
    assert not passed(low[:3], high[:3])  # three seeds cannot reach the level
    assert not passed(low, [math.nan, *high[1:]])


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
        history=history,
        steps=400,
        seconds=2.0,
        handover=SimpleNamespace(time=4e6, skipped_steps=7e5),
        status="finished",
    )
    part = saddles.Part("digits", flow, saddles.stages(history))
    assert isinstance(part.found[0], Plateau)
    section = part.section()
    assert "up to t = 4e+06, which would take 700,000 steps" in section.text
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
        "first_seed": 3,
    }
    assert set(tiny) == set(vars(f10.FIGURE.settings["quick"]))
    outcome = f10.FIGURE.run("quick", tmp_path, progress=False, **tiny)
    assert outcome.error == ""
    assert [c.name.split()[0] for c in outcome.claims] == ["plateaus", "plateaus"]
    assert set(outcome.pictures) == {"depth-4-init-0.3", "depth-6-init-0.3", "depth-4-init-0.1"}


@pytest.mark.parametrize("shares", [[0.5, 0.5], [0.2, 0.3, 0.5], [1, 1, 1, 1]])
def test_the_least_loss_of_one_neuron(shares):
    """Against a search over v and the best z of every class: a lower bound, reached where v has distant entries."""
    p = np.array(shares) / np.sum(shares)
    bound = fits.one_neuron(shares)
    if len(p) == 2:
        assert bound == pytest.approx(math.log(2) * p.min(), rel=1e-12)
    z = np.concatenate([[0], np.geomspace(1e-3, 1e4, 600)])

    def least(v):
        logits = z[:, None] * v
        return p @ (logsumexp(logits, axis=1)[:, None] - logits).min(0)

    draw = np.random.default_rng(0)
    directions = [*draw.standard_normal((300, len(p))), *(-np.random.default_rng(1).exponential(1, (300, len(p))))]
    found = min(map(least, directions))
    assert bound <= found
    orders = itertools.permutations(np.asarray(shares, dtype=float) / np.sum(shares))
    assert bound == pytest.approx(min(order @ np.log(np.arange(1, len(p) + 1)) for order in orders), rel=1e-12)
    assert bound < 0.9 * math.log(len(p))


def test_networks_with_one_last_neuron_do_not_beat_the_bound():
    task = digits(100, n_test=0)
    shares = np.bincount(task.y.numpy(), minlength=10)
    reached = fits.narrow(task, 1, width=20, steps=300)
    assert fits.one_neuron(shares) - 1e-4 <= reached < 2.25
    assert fits.narrow(task, 2, width=20, steps=300) < reached


def stage(name, loss, lower, upper):
    return fits.Stage(name, loss, lower, upper)


def test_rank_claims():
    fitted = fits.Fits((2.3, 1.69, 0.0), (2.3, 1.75, 0.4))
    assert fitted.smallest(2.31) == (0, 0.0)
    assert fitted.smallest(1.82) == (1, 1.0)
    assert fitted.smallest(1.7) == (1, 2.0)  # in between nothing was found with one neuron
    assert fitted.smallest(0.1) == (2, math.inf)

    def passed(*networks):
        return [c.passed for c in fits.claims(networks, fitted)]

    first, second, third = stage("plateau 1", 2.31, 3, 3), stage("plateau 2", 1.82, 1, 1), stage("plateau 3", 0.9, 2, 2)
    end = stage("end", 0.6, 3, 8)
    good = [first, second, third, end]
    assert passed(good, good) == [True] * 5
    assert passed(good, [first, second, end]) == [True] * 5
    assert passed([second, end]) == [True, True, False, True, True]  # no third plateau at all
    assert passed(good, [first, third, end]) == [False, False, True, True, True]  # one has no second plateau
    assert passed([second, third, stage("end", 1.8, 1, 4)]) == [True, True, True, False, False]
    assert passed([stage("plateau 2", 1.5, 1, 1), third, end]) == [True, False, True, True, True]
    assert passed([stage("plateau 2", 1.82, 1, 2), third, end]) == [False, True, True, True, True]
    assert passed(good, [second, stage("plateau 3", 0.9, 2, 3), end]) == [True, True, False, True, True]
    rows = fits.section({0: [first, second, end, stage("end", 0.1, 2, 2)]}, fitted).rows
    assert [row["smallest rank with this loss"] for row in rows] == ["0 to 0", "1 to 1", "2 to 2", "at least 2"]


def test_stages_are_networks_on_the_plateaus():
    """A chain of rank one stands on the second plateau, the network of a later row is not taken for it."""
    task = digits(60, n_test=0)
    one = from_layers([torch.rand(5, 64), torch.rand(1, 5), torch.rand(5, 1), torch.rand(10, 5)], slope=0.0)
    full = from_layers([torch.randn(12, 64), torch.randn(12, 12), torch.randn(10, 12)], slope=0.0)
    flow = SimpleNamespace(networks=[one, full], network_rows=[20, 90])
    plateau = {"start": 0.0, "end": 9.0, "row": 0, "time": 1.0, "loss": 1.0}
    found = [Plateau(1, begin_row=0, end_row=9, **plateau), Plateau(2, begin_row=10, end_row=40, **plateau)]
    first, last = fits.stages(flow, found, task)
    assert (first.name, first.lower, first.upper) == ("plateau 2", 1, 1)
    assert last.name == "end"
    assert last.lower > 2
    expected = torch.nn.functional.cross_entropy(one(task.x.double()), task.y).item()
    assert first.loss == pytest.approx(expected, rel=1e-5)
