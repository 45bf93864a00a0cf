"""F13: its claims on planted courses and steps, what it computes against plain loops, and a tiny run."""

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from bnrank.figures.f13_low_rank_tails import computation as tails
from bnrank.figures.f13_low_rank_tails import figure as f13
from bnrank.figures.f13_low_rank_tails.computation import Course, Follow, Steps
from bnrank.tasks import Task, separable
from bnrank.theory.invariants import tail
from bnrank.theory.invariants.finding import find
from helpers import passed

TIMES = np.array([0.0, 1e2, 1e4, 1e6])
SIZES = np.array([0.2, 0.1, 0.05])


def rising(first, last):
    return np.linspace(first, last, len(TIMES))


def course(**changes):
    """Two ReLU layers, three linear ones."""
    planted = {
        "title": "fully connected; planted",
        "flow": SimpleNamespace(network=None),
        "tail": SimpleNamespace(factors=lambda network: (4, 2, 1)),
        "times": TIMES,
        "ratios": {"5": rising(0.2, 0.995), "6": rising(0.3, 0.996), "7": rising(1, 1)},
        "floors": {"5": rising(-9, 0.99), "6": rising(0.1, 0.99), "7": rising(1, 1)},
        "alignments": {"5, 6": rising(0.1, 0.999), "6, 7": rising(0.1, 0.9999)},
        "before": {"1.weight": rising(0.3, 0.97), "3.weight": rising(0.3, 0.6)},
        "since": TIMES,
        "drift": {"vertex 1 | 3": rising(0, 4e-7), "matrix 5 | 6": rising(0, 1e-9)},
    }
    for name, change in changes.items():
        planted[name] = {**planted[name], **change}
    return Course(**planted)


def one_off(values, row, value):
    return np.where(np.arange(len(values)) == row, value, values)


def test_rank_one_claims_hold_on_planted_courses():
    assert passed(f13.rank_one_claims([course(), course()])) == [True] * 6


@pytest.mark.parametrize(
    ("changes", "fails"),
    [
        ({"ratios": {"5": rising(0.2, 0.9899)}}, [0, 2]),
        ({"ratios": {"5": rising(0.2, np.nan)}}, [0, 2]),
        ({"ratios": {"7": rising(1, 0.98)}}, [0]),
        ({"alignments": {"6, 7": rising(0.1, 0.98)}}, [1]),
        ({"floors": {"6": one_off(rising(0.1, 0.99), 1, 0.6)}}, [2]),
        ({"floors": {"5": rising(-9, 0.97)}}, [3]),
        ({"before": {"3.weight": rising(0.3, 0.95)}}, [4]),
        ({"drift": {"matrix 5 | 6": one_off(rising(0, 0), 2, 2e-6)}}, [5]),
        ({"drift": {"vertex 1 | 3": one_off(rising(0, 0), 2, np.nan)}}, [5]),
    ],
)
@pytest.mark.parametrize("first", [True, False])
def test_rank_one_claims_fail_where_they_should(changes, fails, first):
    """In whichever of the courses it is seen."""
    both = [course(**changes), course()]
    result = passed(f13.rank_one_claims(both if first else both[::-1]))
    assert [i for i, ok in enumerate(result) if not ok] == fails


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, [True, True, True]),
        (
            {"ratios": {"5": one_off(rising(0.2, 0.995), 2, 0.1)}, "floors": {"5": rising(0.11, 0.24)}},
            [False, True, True],
        ),
        ({"floors": {"5": rising(-9, 0.12)}}, [True, False, True]),
        ({"floors": {"6": rising(0.1, 0.26)}}, [True, True, True]),
        ({"floors": {"6": rising(0.1, 0.24)}}, [True, False, True]),
        ({"drift": {"matrix 5 | 6": one_off(rising(0, 0), 2, 2e-6)}}, [True, True, False]),
        ({"floors": {"6": one_off(rising(0.1, 0.4), 2, np.nan)}}, [False, True, True]),
    ],
)
def test_bound_claims(changes, expected):
    """Factors are 4, 2, 1: at the end the bounds have to be above 1/8, 1/4 and 1/2."""
    assert passed(f13.bound_claims([course(**changes)])) == expected
    assert len(f13.bound_claims([course(), course()])) == 6


def steps(once=2.0, over=1.0, off_once=1e-9, off_over=0.01, **changes):
    names = ("vertex 1 | 3", "matrix 5 | 6")
    planted = {
        "sizes": SIZES,
        "time": 10.0,
        "once": {names[0]: 3 * SIZES**2, names[1]: SIZES**once},
        "over": {names[0]: 2 * SIZES, names[1]: SIZES**over},
        "square": dict.fromkeys(names, 1.0),
        "integral": dict.fromkeys(names, 1.0),
        "off_once": {names[0]: off_once * SIZES, names[1]: off_once * SIZES},
        "off_over": {names[0]: 5 * SIZES, names[1]: off_over * SIZES / SIZES[-1]},
    }
    return Steps(**{**planted, **changes})


@pytest.mark.parametrize(
    ("planted", "fails"),
    [
        (steps(), []),
        (steps(once=2.15, over=0.85), []),
        (steps(once=2.25), [0]),
        (steps(once=1.75), [0]),
        (steps(off_once=1e-3), [1]),
        (steps(over=1.25), [2]),
        (steps(over=2.0), [2]),
        (steps(off_over=0.03), [3]),
        (steps(off_over=np.nan), [3]),
        (steps(once=np.nan), [0]),
    ],
)
def test_step_claims(planted, fails):
    with np.errstate(invalid="ignore"):
        result = passed(f13.step_claims(planted))
    assert [i for i, ok in enumerate(result) if not ok] == fails


@pytest.mark.parametrize(
    ("architecture", "kinds", "factors"),
    [
        ("fully connected", ["linear"] * 3, (1, 1, 1)),
        ("free residual blocks", ["sum", "free block", "free block", "linear", "linear"], (4, 2, 1, 1, 1)),
        ("convolutions", ["conv", "conv", "linear", "linear"], (16, 4, 1, 1)),
        ("convolution and free block", ["conv", "free block", "linear", "linear"], (8, 1, 1, 1)),
    ],
)
def test_tails_of_the_architectures(architecture, kinds, factors):
    net = tails.network(architecture, (1, 7, 7), 6, 0.5, 0)
    x = torch.ones(2, 1, 7, 7, dtype=torch.float64)
    found = tail(net, x)
    assert [layer.kind for layer in found.layers] == kinds
    assert found.factors(net) == factors
    assert net(x).shape == (2, 1)
    twice = tails.network(architecture, (1, 7, 7), 6, 1.0, 0)
    assert all(torch.equal(2 * p, q) for p, q in zip(net.parameters(), twice.parameters(), strict=True))


def test_images_are_averaged_centered_and_scaled(monkeypatch):
    x = torch.arange(2 * 784.0).reshape(2, 784)
    task = Task(x, torch.tensor([-1, 1]), loss="logistic", name="large")
    monkeypatch.setattr(tails, "two_digits", lambda *_, **__: task)
    small = tails.images((0, 1), None, 0)
    assert small.x.shape == (2, 1, 7, 7)
    assert small.x[0, 0, 1, 2] == pytest.approx(float(x[0].reshape(28, 28)[4:8, 8:12].mean()))
    centered = tails.centered(small, 3.0)
    assert float(centered.x.flatten(1).norm(dim=1).mean()) == pytest.approx(3, rel=1e-6)
    apart = small.x - small.x.mean(0)
    torch.testing.assert_close(centered.x, apart * (3 / apart[0].norm()))
    assert torch.equal(centered.y, small.y)


def test_drift_and_integral_of_planted_rows():
    net = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)).double()
    (q,) = (q for q in find(net, torch.ones(1, 1)) if q.kind == "vertex" or q.kind == "matrix")
    watched = tails.Watched([q])
    for time, a, b, slope in ((0.0, 2.0, 1.0, 1.0), (1.0, 3.0, 2.0, 2.0), (4.0, 4.0, 3.0, 0.0)):
        parameters = {"0.weight": torch.tensor([[a]]), "1.weight": torch.tensor([[b]])}
        gradient = {"0.weight": torch.tensor([[slope]]), "1.weight": torch.tensor([[0.0]])}
        watched.observe(time=time, parameters=parameters, gradient=gradient, step=0, lr=None, ridge=0.0, member=0)
    np.testing.assert_allclose(watched.drift()[q.name], [0, 2 / 13, 4 / 25])  # a^2 - b^2 = 3, 5, 7
    assert watched.integral()[q.name].item() == pytest.approx(1 * (1 + 4) / 2 + 3 * (4 + 0) / 2)


def test_descent_is_that_of_a_plain_loop():
    task = separable(10, 3, seed=1)
    found = tails.descend("fully connected", task, Follow(width=3, init=0.8, time=1.0), (0.25, 0.125), seed=2)
    net = tails.network("fully connected", (3,), 3, 0.8, 2)
    x, y = task.x.double(), task.y.double()

    def form(tensors):
        return tensors[2] @ tensors[2].T - tensors[3].T @ tensors[3]

    weights = [p.detach().clone().requires_grad_() for p in net.parameters()]
    start, changes = form(weights), []
    for _ in range(8):
        w = weights
        outputs = (((x @ w[0].T).relu() @ w[1].T).relu() @ w[2].T @ w[3].T @ w[4].T) * y
        gradients = torch.autograd.grad(torch.log1p(torch.exp(-outputs)).mean(), w)
        if not changes:
            square = form(gradients)
        weights = [(p - 0.125 * g).detach().requires_grad_() for p, g in zip(w, gradients, strict=True)]
        changes.append(form(weights) - start)
    (name,) = (name for name in found.once if name.startswith("matrix 5"))
    assert found.once[name][1] == pytest.approx(float(changes[0].norm().detach()), rel=1e-6)
    assert found.over[name][1] == pytest.approx(float(changes[-1].norm().detach()), rel=1e-6)
    assert found.square[name] == pytest.approx(float(square.norm()), rel=1e-9)
    assert max(found.off_once[name]) < 1e-6
    assert found.off_over[name][1] < 0.6 * found.off_over[name][0]


def test_signs_that_change_are_counted_entry_by_entry():
    """An entry counts at a time if it takes another sign then or later; zero is a sign."""
    values = torch.randint(-1, 2, (6, 40), generator=torch.Generator().manual_seed(0)).double()
    values[:, :20] = values[0, :20]
    values[4:, 30:] = values[3, 30:]
    found = tails._later_changes(1e-200 * values)
    for row in range(6):
        moved = [any(values[i, j] != values[i - 1, j] for i in range(max(row, 1), 6)) for j in range(40)]
        assert found[row] == np.mean(moved)
    assert 0 < found[-1] < found[0] < 0.6


@pytest.mark.parametrize("seed", range(5))
def test_a_direction_inside_the_ball_of_t43_has_the_signs_of_the_last_one(seed):
    """Entries of the limit are at least 0.05 of the largest one; the norm grows."""
    g = np.random.default_rng(seed)
    limit = g.choice([-1, 1], 12) * g.uniform(0.05, 1, 12)
    rows = np.array([np.exp(t) * (limit + 3 * np.exp(-t) * g.normal(size=12)) for t in range(12)])
    networks = [nn.Linear(4, 3, bias=False).double() for _ in rows]
    for network, row in zip(networks, rows, strict=True):
        network.weight.data = torch.from_numpy(row).reshape(3, 4)
    planted = dataclasses.replace(course(), flow=SimpleNamespace(networks=networks), times=np.arange(12.0))
    distances, smallest = planted.convergence()
    units = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    np.testing.assert_allclose(distances, np.linalg.norm(units - units[-1], axis=1), atol=1e-15)
    assert smallest == pytest.approx(np.abs(units[-1]).min())
    since = np.flatnonzero(distances >= smallest)[-1] + 1
    assert since < 11
    assert f13._sign_row(planted)["in the ball of T43 since"] == str(since)
    assert planted.signs()["weight"][since + 1] == 0


TINY = {
    "samples": 8,
    "dimension": 3,
    "margin": 0.5,
    "digits": (0, 1),
    "images": 8,
    "follow": Follow(width=3, init=0.3, time=30.0, kink_rtol=1e-4),
    "seeds": (0, 1),
    "images_small": 8,
    "follow_small": Follow(width=3, init=0.5, time=10.0, kink_rtol=1e-4),
    "descent_time": 1.0,
    "descent_init": 0.8,
    "sizes": (0.2, 0.1),
}


def test_a_tiny_run(tmp_path, monkeypatch):
    monkeypatch.setenv("BNRANK_DATA", str(tmp_path))
    assert set(TINY) == set(vars(f13.FIGURE.settings["quick"]))
    outcome = f13.FIGURE.run("quick", tmp_path, progress=False, **TINY)
    assert outcome.error == ""
    assert len(outcome.claims) == 19
    by_bound = [c for c in outcome.claims if "bound, all along" in c.name or "with the constants" in c.name]
    assert len(by_bound) == 4
    assert all(c.passed for c in by_bound)  # a theorem, at any size
    assert set(outcome.pictures) == {"rank-one", "bounds", "invariants", "signs"}
    assert len(outcome.sections[0].rows) == 2 + 1 + 3
    assert [row["status"] for row in outcome.sections[0].rows] == ["finished"] * 6
    assert dataclasses.asdict(outcome.claims[0])["name"].startswith("linear last layers")
