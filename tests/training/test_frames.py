"""Tests of L-BFGS in frames that turn with the neurons."""

import numpy as np
import pytest
import torch

import bnrank
from bnrank.measures.second_order import Evaluation, Problem, join, split
from bnrank.training.finishing import frames, orbits, quasi


def problem(widths=(3, 6, 5, 2), constant=0.0, seed=0):
    """Return a problem and layers; with a large constant, their neurons are active on all samples."""
    generator = torch.Generator().manual_seed(seed)
    x, low, high = (torch.randn(*s, generator=generator, dtype=torch.float64) for s in ((25, 3), (3, 4), (4, 2)))
    net = bnrank.MLP(widths, seed=seed, dtype=torch.float64)
    p = Problem.of(net, bnrank.Task(x, torch.relu(x @ low) @ high), 3e-3)
    layers = p.layers(net)
    for layer in layers[:-1]:
        layer[:, -1] += constant
    return p, layers


def linear():
    """Return a problem and layers whose neurons are active on all samples."""
    p, layers = problem(constant=20.0)
    layers[1][:, :-1] = np.abs(layers[1][:, :-1])
    return p, layers


def turned(p, layers, smooth, seed=0):
    """Return layers in frames that have been turned by some steps, and the groups of alike neurons."""
    generator = np.random.default_rng(seed)
    point = frames.Framed.of(p, layers, smooth)
    alike = orbits.groups(point.at.first)
    for _ in range(3):
        step = 0.01 * generator.normal(size=join(layers).shape)
        point, _ = point.moved(step, alike)
    return point, alike


@pytest.mark.parametrize("make", [problem, linear])
def test_the_gradient_is_that_with_respect_to_the_bodies(make):
    p, layers = make()
    smooth = np.full(2, 0.05)
    point, _ = turned(p, layers, smooth)
    if make is linear:
        assert all(np.abs(turn - np.eye(len(turn))).max() > 1e-3 for turn in point.turns)
    gradient, shapes = point.gradient, [body.shape for body in point.bodies]
    for seed in range(5):
        step = 1e-5 * np.random.default_rng(seed).normal(size=gradient.shape)
        ends = []
        for sign in (1, -1):
            bodies = [body + sign * part for body, part in zip(point.bodies, split(step, shapes), strict=True)]
            ends.append(frames.Framed(p, bodies, point.turns, smooth).at.loss)
        assert (ends[0] - ends[1]) / 2 == pytest.approx(gradient @ step, rel=1e-6, abs=1e-12)


def test_a_step_that_only_turns_linear_neurons_changes_the_frames_and_not_the_loss():
    p, layers = linear()
    smooth = np.full(2, 1e-9)
    point, alike = turned(p, layers, smooth)
    assert [len(group) for found in alike for group in found] == [6, 5]
    generator = np.random.default_rng(1)
    phi = generator.normal(size=(6, 6))
    phi = 0.02 * (phi - phi.T)
    steps = [np.zeros_like(body) for body in point.bodies]
    steps[0], steps[1][:, :6] = phi @ point.bodies[0], -point.bodies[1][:, :6] @ phi
    new, step = point.moved(join(steps), alike)
    np.testing.assert_array_equal(step, join(steps))
    assert np.abs(new.turns[0] - point.turns[0]).max() > 0.01
    assert new.at.loss == pytest.approx(point.at.loss, rel=1e-9)
    for before, after in zip(point.bodies, new.bodies, strict=True):
        np.testing.assert_allclose(after, before, atol=1e-12)
    np.testing.assert_allclose(new.gradient, point.gradient, atol=1e-6)  # that of the weights has turned
    assert np.abs(new.at.gradient - point.at.gradient).max() > 1e-2


def test_long_turns_are_shortened_with_their_step():
    p, layers = linear()
    point, alike = turned(p, layers, np.full(2, 0.05))
    step = 50 * np.random.default_rng(1).normal(size=join(layers).shape)
    new, less = point.moved(step, alike)
    share = less[0] / step[0]
    assert 0 < share < 1
    np.testing.assert_allclose(less, share * step)
    for layer, other in zip(point.moved(0.99 * less, alike)[0].bodies, new.bodies, strict=True):
        np.testing.assert_allclose(layer, other, atol=0.02 * np.abs(other).max())
    generators = [old.T @ turn for old, turn in zip(point.turns, new.turns, strict=True)]
    angles = [np.abs(np.angle(np.linalg.eigvals(turn))).max() for turn in generators]
    assert max(angles) <= orbits.LARGEST


def test_products_with_the_inverse_are_those_of_the_convex_hessian():
    p, layers = problem()
    at = Evaluation(p, layers, np.full(2, 0.05))
    inverse = frames.Inverse(at, 1e-4)
    assert inverse.damping >= 1e-4
    matrix = at.hessian("convex") + inverse.damping * np.eye(len(at.gradient))
    vector = 1e-30 * np.random.default_rng(0).normal(size=len(at.gradient))  # single precision has no such numbers
    np.testing.assert_allclose(matrix @ inverse(vector), vector, atol=1e-3 * np.abs(vector).max())
    assert not inverse(np.zeros(3)).any()


def test_most_starts_reach_a_stationary_point_of_the_smoothed_loss():
    """Rounding decides which of the starts keep to a flat valley until their factors are used up."""
    smooth, reached = np.full(3, 0.05), 0
    for seed in range(8):
        p, layers = problem((3, 8, 8, 8, 2), seed=seed)
        layers = quasi.descend(p, layers, smooth, 100, lambda: False)
        found, damping = frames.descend(p, layers, smooth, 1e-7)
        assert damping > 0
        at = Evaluation(p, found, smooth)
        assert at.loss <= Evaluation(p, layers, smooth).loss
        reached += at.relative_gradient <= 1e-7
    assert reached >= 5


def test_it_stops_when_the_time_is_over():
    p, layers = problem()
    noted = []
    found, _ = frames.descend(p, layers, np.full(2, 0.05), 1e-9, 0.0, lambda: True, lambda *at: noted.append(at))
    assert not noted  # no Hessian
    assert all(np.array_equal(a, b) for a, b in zip(found, layers, strict=True))


def test_large_networks_have_few_factors_and_many_steps_with_each(monkeypatch):
    p, layers = problem()
    monkeypatch.setattr(frames, "FEW", 2)
    monkeypatch.setattr(frames, "MANY", 3)
    numbers = []
    for large in (0, 10**6):
        monkeypatch.setattr(frames, "LARGE", large)
        noted = []
        frames.descend(p, layers, np.full(2, 0.05), 1e-9, note=lambda *at, noted=noted: noted.append(at))
        numbers.append(len(noted))
    assert numbers[0] == 2
    assert numbers[1] > 2


def test_the_damping_grows_where_no_step_lowers_the_loss(monkeypatch):
    p, layers = problem()
    monkeypatch.setattr(frames, "_stepped", lambda *_: None)
    noted = []
    found, _ = frames.descend(p, layers, np.full(2, 0.05), 1e-9, note=lambda _, damping: noted.append(damping))
    assert 8 < len(noted) < frames.FACTORS  # until it is too large
    assert noted[1] > 0
    np.testing.assert_allclose(np.diff(np.log10(noted[1:])), 1, atol=1e-9)
    assert all(np.array_equal(a, b) for a, b in zip(found, layers, strict=True))
