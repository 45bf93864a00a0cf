"""Tests of the search with all kinks at once: its model against the loss, and its parts against slow oracles."""

import functools

import numpy as np
import pytest
import torch
from scipy import optimize

import bnrank
from bnrank.measures import subgradients
from bnrank.measures.second_order import Evaluation, Problem, join
from bnrank.training.finishing import bounded, corners, creases, pieces, quasi
from bnrank.training.finishing.kinks import of_smoothed


@pytest.mark.parametrize("off", [1.0, 1e-8, 1e-10])
@pytest.mark.parametrize("seed", range(12))
def test_minima_within_bounds_are_those_of_bounded_least_squares(seed, off):
    rng = np.random.default_rng(seed)
    size, rank = 12, int(rng.integers(5, 13))
    root = rng.normal(size=(rank, size))
    target = 3 * rng.normal(size=rank)
    low, high = rng.uniform(-1, 0, size), rng.uniform(0, 1, size)
    oracle = optimize.lsq_linear(root, target, (low, high), method="bvls", tol=1e-14)
    start = oracle.x + off * rng.uniform(-1, 1, size)
    found = bounded.minimum(root.T @ root, root.T @ target, low, high, start)
    assert ((found >= low) & (found <= high)).all()
    assert np.sum((root @ found - target) ** 2) == pytest.approx(2 * oracle.cost, rel=1e-9, abs=1e-12)
    gradient = root.T @ (root @ found - target)
    free = (found > low + 1e-9) & (found < high - 1e-9)
    assert np.abs(gradient[free]).max(initial=0) < 1e-9 * np.abs(root.T @ target).max()
    assert (gradient[found == low] > -1e-9).all()
    assert (gradient[found == high] < 1e-9).all()


def test_moves_onto_kinks_are_the_shortest():
    rng = np.random.default_rng(0)
    columns, values = rng.normal(size=(9, 4)), rng.normal(size=4)
    shortest = np.linalg.pinv(columns.T) @ values
    np.testing.assert_allclose(pieces._Metric(columns)(values), shortest, atol=1e-12)
    # one more that depends on them, and whose value is not the one that it would have then: it is given up
    wider = np.concatenate([columns, columns @ rng.normal(size=(4, 1))], axis=1)
    value = np.linalg.lstsq(columns, wider[:, 4], rcond=None)[0] @ values
    move = pieces._Metric(wider)(np.append(values, value + 1e-3))
    assert np.linalg.norm(move - shortest) < 0.1
    assert (np.abs(wider.T @ move - np.append(values, value + 1e-3)) < 1e-10).sum() == 4


@functools.cache
def smoothed(seed, slope=0.0, bias=True):
    """Return a problem, layers near a stationary point of its smoothed loss, and the kinks that these suggest."""
    task = bnrank.tasks.low_rank_map(n=40, d_in=4, d_out=4, latent=2, rank=2, width=10, seed=seed)
    net = bnrank.MLP([4, 6, 6, 6, 4], slope=slope, bias=bias)
    net = bnrank.train(net, task, ridge=3e-3, steps=300, seed=seed, progress=False).network(0)
    problem = Problem.of(net, task, 3e-3)
    layers = problem.layers(net)
    for eps in (3e-2, 1e-2, 3e-3, 1e-3):
        smooth = np.full(3, eps)
        layers = quasi.descend(problem, layers, smooth, 200, lambda: False)
    return problem, layers, of_smoothed(problem, layers, smooth)


def error(seed, slope, bias, damping):
    """Return the relative error of the decrease that the model predicts, from slopes far from the true ones."""
    problem, layers, kinks = smoothed(seed, slope, bias)
    crease = creases.Crease(problem, join(layers), [layer.shape for layer in layers], kinks)
    theta = creases.retracted(crease, crease.theta)
    crease = creases.Crease(problem, theta, crease.shapes, kinks)
    kinks = kinks.with_slopes(np.full(len(kinks), (1 + slope) / 2)).kept(crease.settled())
    assert len(np.unique(kinks.layers)) > 1
    model = pieces.Model(Evaluation(problem, crease.at.layers, (), kinks.places, kinks.slopes), kinks)
    model.factored(damping)
    step, predicted, held, _ = model.minimized()
    assert predicted < 0
    assert len(held) < len(kinks)
    return abs((model.evaluated(theta + step).loss - model.loss) / predicted - 1)


PROBLEMS = [(0, 0.0, True), (1, 0.0, True), (2, 0.1, True), (3, 0.0, False)]


@pytest.mark.parametrize("problem", PROBLEMS)
def test_the_model_predicts_the_loss_where_several_kinks_leave_their_creases(problem):
    assert error(*problem, 1e2) < 0.05
    assert error(*problem, 1e4) < 2e-3
    assert error(*problem, 1e6) < 2e-5


def test_without_rounds_for_the_slopes_the_model_of_some_problem_is_wrong_for_short_steps(monkeypatch):
    monkeypatch.setattr(pieces, "SLOPES", 0)
    assert max(error(*problem, 1e6) for problem in PROBLEMS) > 1e-3


def test_a_step_over_more_kinks_than_are_looked_for_is_not_taken_blindly(monkeypatch):
    problem, layers, kinks = smoothed(0)
    monkeypatch.setattr(pieces, "CROSSINGS", 1)
    corner = pieces.search(problem, layers, kinks, 1e-9, 30)
    assert Evaluation(problem, corner.layers).loss <= Evaluation(problem, layers).loss


@pytest.mark.parametrize(
    ("seed", "slope", "bias"),
    [(0, 0.0, True), (1, 0.0, True), (3, 0.0, True), (2, 0.1, True), (3, 0.0, False), (0, -0.5, True)],
)
def test_it_ends_at_a_stationary_point_below_its_start(seed, slope, bias):
    problem, layers, kinks = smoothed(seed, slope, bias)
    seen = []
    corner = pieces.search(problem, layers, kinks, 1e-9, 300, note=lambda layers, kinks: seen.append(layers))
    assert corner.reason == "stationary"
    assert len(np.unique(corner.kinks.layers)) > 1
    assert ((corner.kinks.slopes >= slope) & (corner.kinks.slopes <= 1)).all()
    assert subgradients.least(problem, corner.layers).best.relative_gradient <= 2e-9
    losses = [Evaluation(problem, layers).loss for layers in [*seen, corner.layers]]
    assert (np.diff(losses) <= 1e-14).all()
    assert losses[-1] < Evaluation(problem, layers).loss


def test_it_ends_where_the_search_with_one_kink_at_a_time_does():
    problem, layers, kinks = smoothed(0)
    ends = [search.search(problem, layers, kinks, 1e-9, 300) for search in (pieces, corners)]
    assert [end.reason for end in ends] == ["stationary"] * 2
    losses = [Evaluation(problem, end.layers).loss for end in ends]
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)


def test_it_stops_when_the_time_is_over():
    problem, layers, kinks = smoothed(0)
    corner = pieces.search(problem, layers, kinks, 1e-9, 100, out_of_time=lambda: True)
    assert corner.reason == "out of time"


def test_a_kink_that_no_weight_can_move_is_no_obstacle():
    """The second layer is 0 on samples that the first one shuts off: their preactivations have no derivative."""
    x = torch.tensor([[-1.0], [-2.0], [1.0]], dtype=torch.float64)
    task = bnrank.Task(x, torch.tensor([[-1.0], [-1.0], [1.0]], dtype=torch.float64))
    problem = Problem.of(bnrank.MLP([1, 1, 1, 1], bias=False, dtype=torch.float64), task, 1e-3)
    layers = [np.ones((1, 1))] * 3
    kinks = pieces.Kinks(*(np.array(v) for v in ([1, 1], [0, 0], [0, 1])), np.array([0.5, 0.5]))
    corner = pieces.search(problem, layers, kinks, 1e-9, 50)
    assert corner.reason == "stationary"
    assert corner.residual <= 1e-9
    assert subgradients.least(problem, corner.layers).best.relative_gradient <= 2e-9
