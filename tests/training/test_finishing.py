"""Tests of finish: stationary points with certificates that are checked independently."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch

import bnrank
from bnrank.measures.second_order import Evaluation, Problem
from bnrank.training.finishing import (
    corners,
    creases,
    frames,
    orbits,
    pieces,
    quasi,
    search,
    shrinking,
    steps,
    tangents,
)
from bnrank.training.finishing.kinks import Kinks, at_zero, of_smoothed


def small(seed=0, slope=0.0, loss="mse", bias=True):
    """Return a trained network, its task and its ridge."""
    if loss == "mse":
        task = bnrank.tasks.low_rank_map(n=30, d_in=3, d_out=3, latent=2, rank=1, width=10, seed=seed)
    else:
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(40, 2, generator=generator, dtype=torch.float64)
        inside = (x.square().sum(1) + torch.randn(40, generator=generator)) < 1.5
        y = inside.long() if loss == "cross_entropy" else torch.where(inside, 1.0, -1.0).double()[:, None]
        task = bnrank.Task(x, y, loss=loss)
    d_out = 1 if loss == "logistic" else task.d_out
    net = bnrank.MLP([task.d_in, 5, 5, d_out], slope=slope, bias=bias)
    run = bnrank.train(net, task, ridge=5e-3, steps=300, seed=seed, progress=False)
    return run.network(0), task, 5e-3


def loss_of(net, task, ridge):
    p = Problem.of(net, task, ridge)
    return Evaluation(p, p.layers(net)).loss


@pytest.mark.parametrize(
    ("seed", "slope", "loss", "bias"),
    [
        (0, 0.0, "mse", True),
        (1, 0.2, "mse", True),
        (2, 0.0, "mse", False),
        (3, 0.0, "cross_entropy", True),
        (4, 0.0, "logistic", True),
    ],
)
def test_the_result_is_stationary_and_nothing_near_is_lower(seed, slope, loss, bias):
    net, task, ridge = small(seed, slope, loss, bias)
    before = [p.clone() for p in net.parameters()]
    done = bnrank.finish(net, task, ridge, progress=False)
    assert all(torch.equal(p, q) for p, q in zip(net.parameters(), before, strict=True))
    assert done.stationarity.residual <= 1e-8, done
    assert done.loss <= done.loss_before
    assert done.network.widths == net.widths
    assert loss_of(done.network, task, ridge) == pytest.approx(done.loss, rel=1e-14)
    # Independent of all derivatives: no random direction lowers the loss by more than rounding. Zero neurons are left
    # as they are: a new one may lower it, which the certificate says.
    generator = torch.Generator().manual_seed(0)
    live = [p != 0 for p in done.network.parameters()]
    lower = 0
    for size in (1e-3, 1e-4, 1e-5):
        for _ in range(40):
            moved = bnrank.MLP(net.widths, slope=slope, bias=bias, dtype=torch.float64)
            with torch.no_grad():
                for p, q, mask in zip(moved.parameters(), done.network.parameters(), live, strict=True):
                    step = torch.randn(p.shape, generator=generator, dtype=torch.float64) * mask
                    p.copy_(q + size * step)
            lower += loss_of(moved, task, ridge) < done.loss - 1e-13
    assert lower == 0


def test_neurons_are_balanced_where_t14_applies():
    net, task, ridge = small(0)
    done = bnrank.finish(net, task, ridge, births=False, progress=False)
    for low, bias, high in zip(done.network.weights, done.network.biases, done.network.weights[1:], strict=False):
        into = low.square().sum(1) + bias.square()
        torch.testing.assert_close(into, high.square().sum(0), rtol=1e-6, atol=1e-9)


def test_a_random_network_without_training_is_finished_too():
    task = bnrank.tasks.low_rank_map(n=20, d_in=2, d_out=2, latent=1, rank=1, width=10, seed=5)
    done = bnrank.finish(bnrank.MLP([2, 5, 5, 2], seed=1), task, 0.02, progress=False)
    assert done.stationarity.residual <= 1e-8


@pytest.mark.parametrize("seed", [0, 2])
def test_a_finished_network_is_left_as_it_is(seed):
    net, task, ridge = small(seed)
    done = bnrank.finish(net, task, ridge, progress=False)
    again = bnrank.finish(done.network, task, ridge, progress=False)
    assert again.reason == done.reason == "stationary"
    assert again.loss == again.loss_before == pytest.approx(done.loss, rel=1e-14)
    assert all(torch.equal(p, q) for p, q in zip(again.network.parameters(), done.network.parameters(), strict=True))


def test_neurons_left_out_are_added_to_a_finished_network():
    net, task, ridge = small(0)
    stationary = bnrank.finish(net, task, ridge, births=False, progress=False)
    at = bnrank.cost.stationarity(stationary.network, task, ridge)
    assert max(birth.lower for birth in at.births) > 1 + 1e-6
    done = bnrank.finish(stationary.network, task, ridge, progress=False)
    assert done.stationarity.residual <= 1e-8
    assert done.born > 0
    assert done.loss < stationary.loss


def test_a_new_neuron_of_no_useful_size_is_not_called_one_that_lowers_the_loss():
    torch.manual_seed(202)
    x = torch.randn(10, 2, dtype=torch.float64)
    y = torch.relu(x @ torch.randn(2, 2).double()) + 0.3 * torch.randn(10, 2).double()
    net = bnrank.MLP([2, 4, 4, 2], bias=False, dtype=torch.float64)
    done = bnrank.finish(net, (x, y), 2e-2, progress=False)
    assert done.stationarity.residual <= 1e-8
    assert done.born == 0
    assert done.reason == "stationary; by its derivative a new neuron lowers the loss, but no size that was tried does"


def test_reasons_of_births_that_failed_agree_with_the_loss():
    reason = search._unused(0.1, "stationary")
    assert reason.endswith("ended at a stationary point that is no lower")
    assert "(out of time; the loss is lower)" in search._unused(-0.1, "out of time")
    assert "(out of steps; the loss is not lower)" in search._unused(0.0, "out of steps")


def test_pure_noise_with_a_large_ridge_ends_at_zero():
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(20, 3, generator=generator), torch.randn(20, 2, generator=generator)
    done = bnrank.finish(bnrank.MLP([3, 5, 5, 2], seed=1), (x, y - y.mean(0)), 10.0, progress=False)
    assert done.stationarity.residual <= 1e-8
    assert done.loss == pytest.approx(float((y - y.mean(0)).square().sum() / 20), rel=1e-6)


@pytest.mark.parametrize("widths", [[3, 5, 2], [3, 5, 5, 5, 2]])
def test_neurons_are_born_in_a_network_of_zeros(widths):
    x = torch.randn(20, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    net = bnrank.MLP(widths, dtype=torch.float64)
    with torch.no_grad():
        for p in net.parameters():
            p.zero_()
    done = bnrank.finish(net, (x, x[:, :2] + 3), 0.01, progress=False)
    assert done.stationarity.residual <= 1e-8, done
    assert done.born > 0
    assert done.loss < done.loss_before / 10


def test_weights_without_any_use_end_at_zero():
    y = torch.randn(20, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    done = bnrank.finish(bnrank.MLP([3, 5, 5, 2], bias=False), (torch.zeros(20, 3), y), 0.01, progress=False)
    assert done.loss == pytest.approx(float(y.square().sum() / 20), rel=1e-12)
    assert done.stationarity.residual <= 1e-8
    assert done.reason == "stationary"


def test_one_sample():
    done = bnrank.finish(bnrank.MLP([2, 4, 4, 1], seed=0), (torch.ones(1, 2), torch.ones(1, 1)), 0.01, progress=False)
    assert done.stationarity.residual <= 1e-8


def test_the_time_limit_is_kept_and_said():
    net, task, ridge = small(0)
    done = bnrank.finish(net, task, ridge, max_minutes=1e-6, progress=False)
    assert done.reason == "out of time"
    assert done.loss <= done.loss_before


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"ridge": 0.0}, "ridge"),
        ({"rtol": 0.0}, "rtol"),
        ({"max_minutes": 0.0}, "max_minutes"),
        ({"net": bnrank.LinearNetwork([3, 4, 3])}, "linear network"),
        ({"task": (torch.ones(4, 2), torch.ones(4, 3))}, "task: got 2 inputs"),
    ],
)
def test_bad_input_is_named(change, match):
    given = {"net": bnrank.MLP([3, 4, 3]), "task": (torch.ones(4, 3), torch.ones(4, 3)), "ridge": 0.1} | change
    with pytest.raises(ValueError, match=match):
        bnrank.finish(given.pop("net"), given.pop("task"), given.pop("ridge"), progress=False, **given)


def test_the_page_on_minima_runs(capsys):
    text = (Path(__file__).parents[2] / "docs" / "minima.md").read_text(encoding="utf-8")
    names = {}
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(block, names)
    printed = capsys.readouterr().out
    assert "not stationary" in printed
    assert names["done"].stationarity.residual <= 1e-8


# Parts -----------------------------------------------------------------------------------------------------------


def problem(seed=0, widths=(3, 6, 6, 2), n=25):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, widths[0], generator=generator, dtype=torch.float64)
    task = bnrank.Task(x, torch.randn(n, widths[-1], generator=generator, dtype=torch.float64))
    net = bnrank.MLP(widths, seed=seed, dtype=torch.float64)
    p = Problem.of(net, task, 1e-2)
    return p, p.layers(net)


def outputs(p, layers):
    return Evaluation(p, layers).z[-1]


def test_balancing_keeps_the_function_and_lowers_the_norm():
    p, layers = problem()
    even = shrinking.balanced(layers)
    np.testing.assert_allclose(outputs(p, even), outputs(p, layers), atol=1e-12)
    assert sum((w * w).sum() for w in even) <= sum((w * w).sum() for w in layers)


def test_copies_of_neurons_are_merged_and_weak_ones_removed():
    p, layers = problem()
    low = np.concatenate([layers[0], 2 * layers[0][:1], 1e-9 * layers[0][1:2]])
    high = np.concatenate([layers[1][:, :6], 0.3 * layers[1][:, :1], layers[1][:, 1:2], layers[1][:, 6:]], axis=1)
    wide = [low, high, layers[2]]
    less = shrinking.tidy(wide)
    assert [len(w) for w in less] == [6, 6, 2]
    np.testing.assert_allclose(outputs(p, less), outputs(p, wide), atol=1e-6)
    assert Evaluation(p, less).loss <= Evaluation(p, wide).loss


def test_neurons_that_others_replace_are_removed():
    # Six linear neurons (large biases) that carry a map of rank 2: at most 3 (with the constant) are needed.
    generator = np.random.default_rng(0)
    p, _ = problem(widths=(2, 6, 2))
    low = np.concatenate([generator.normal(size=(6, 2)), np.full((6, 1), 9.0)], axis=1)
    layers = [low, generator.normal(size=(2, 7)) / 9]
    less = shrinking.thinned(p, layers, np.array([1e-6]), change=1e-3)
    assert len(less[0]) < 6
    assert Evaluation(p, less).loss <= Evaluation(p, layers).loss * 1.01


def test_rotations_leave_the_function_of_linear_neurons():
    p, layers = problem(widths=(3, 4, 2))
    layers[0][:, -1] = 30.0  # active on all samples
    assert [len(g) for g in orbits.groups(Evaluation(p, layers).first)[0]] == [4]
    generator = np.random.default_rng(1)
    phi = generator.normal(size=(4, 4))
    phi = 0.05 * (phi - phi.T)
    v = layers[1][:, :4]
    steps = [phi @ layers[0], np.concatenate([-v @ phi, np.zeros((2, 1))], axis=1)]
    turned = orbits.moved(layers, steps, orbits.groups(Evaluation(p, layers).first))
    np.testing.assert_allclose(outputs(p, turned), outputs(p, layers), atol=1e-10)
    assert np.abs(turned[0] - layers[0]).max() > 0.1
    straight = [layer + step for layer, step in zip(layers, steps, strict=True)]
    assert np.abs(outputs(p, straight) - outputs(p, layers)).max() > 1e-3


def test_coordinates_of_l_bfgs_are_exact_changes_of_variables():
    p, layers = problem()
    at = Evaluation(p, layers, np.full(2, 0.05))
    c = quasi.Coordinates(at)
    theta = np.concatenate([w.ravel() for w in layers])
    u = c.to(theta)
    np.testing.assert_allclose(c.back(u), theta, atol=1e-12)
    step = np.random.default_rng(0).normal(size=u.shape)
    assert c.gradient(at.gradient) @ step == pytest.approx(at.gradient @ (c.back(u + step) - theta), rel=1e-9)


def test_tangents_agree_with_the_pseudoinverse():
    generator = np.random.default_rng(0)
    rows = generator.normal(size=(5, 9))
    rows[3] = rows[0] - 2 * rows[1]  # dependent
    sizes, gradient = generator.uniform(0.5, 2, 5), generator.normal(size=9)
    step_by_step = tangents.Tangents(rows[:2]).extended(rows[2]).extended(rows[3]).extended(rows[4])
    for found in (tangents.Tangents(rows), step_by_step):
        assert len(found.chosen) == 4
        np.testing.assert_allclose(found.basis @ found.basis.T, np.linalg.pinv(rows) @ rows, atol=1e-12)
        values = rows @ generator.normal(size=9)
        np.testing.assert_allclose(found.onto(values), np.linalg.pinv(rows) @ values, atol=1e-12)
        expected = sizes * (np.linalg.pinv(rows.T * sizes) @ gradient)  # of least ||m / sizes||
        np.testing.assert_allclose(found.multipliers(gradient, sizes), expected, atol=1e-12)
        one = int(found.chosen[0])
        away = np.linalg.pinv(rows[found.chosen])[:, 0]
        rates = found.rates(np.ones(5))
        assert rates[one] == pytest.approx(1 / np.linalg.norm(away))
        assert (rates == 0).sum() == 1


def test_smaller_smoothing_is_followed_by_the_kinks():
    p, layers = problem()
    layers = quasi.descend(p, layers, np.full(2, 3e-2), 300, lambda: False)
    for eps in (1e-2, 3e-3, 1e-3, 3e-4):
        smooth = np.full(2, eps)
        layers, _ = frames.descend(p, shrinking.tidy(layers), smooth, 1e-5)
    assert Evaluation(p, layers, smooth).relative_gradient <= 1e-5
    assert len(of_smoothed(p, layers, smooth)) > 3
    left = Evaluation(p, layers, 0.1 * smooth).relative_gradient
    followed = Evaluation(p, creases.nearer(p, layers, smooth, 0.1), 0.1 * smooth).relative_gradient
    assert followed < 0.2 * left


def test_neurons_with_one_preactivation_on_several_samples_are_held_and_released_together():
    # Two hidden layers; the first is 0 on samples 0 to 2, so that the second has its bias there.
    x = torch.tensor([[-1.0], [-2.0], [-3.0], [1.0], [2.0]], dtype=torch.float64)
    task = bnrank.Task(x, torch.tensor([[0.1], [0.2], [-0.1], [1.0], [2.0]], dtype=torch.float64))
    p = Problem.of(bnrank.MLP([1, 1, 1, 1], dtype=torch.float64), task, 1e-3)
    layers = [np.array([[1.0, 0.0]]), np.array([[1.0, 1e-9]]), np.array([[1.0, 0.0]])]
    kinks = Kinks(*(np.array(v) for v in ([1], [0], [1])), np.array([0.5]))
    corner = corners.search(p, layers, kinks, 1e-9, 0)
    assert sorted(corner.kinks.samples[corner.kinks.layers == 1]) == [0, 1, 2]
    done = corners.search(p, layers, kinks, 1e-9, 100)
    assert done.reason == "stationary"
    assert done.residual <= 1e-9
    held = done.kinks.samples[done.kinks.layers == 1]
    assert len(held) in (0, 3)


def test_neurons_grow_until_none_lowers_the_loss():
    task = bnrank.tasks.low_rank_map(n=54, d_in=2, d_out=2, latent=1, rank=1, width=20, seed=106, noise=0.1)
    net = bnrank.MLP([2, 8, 8, 2])
    run = bnrank.train(net, task, ridge=2e-3, steps=300, seed=0, progress=False)
    done = bnrank.finish(run.network(0), task, 2e-3, progress=False)
    assert done.reason.startswith("stationary"), done
    assert done.stationarity.residual <= 1e-8
    assert max((birth.lower for birth in done.stationarity.births), default=0) <= 1 + 1e-4


def test_points_are_moved_onto_kinks():
    p, layers = problem()
    kinks = Kinks(*(np.array(v) for v in ([0, 1, 1], [2, 0, 3], [4, 7, 7])), np.full(3, 0.5))
    there = creases.onto(p, layers, kinks)
    values = kinks.select(Evaluation(p, there).z)
    assert np.abs(values).max() < 1e-13
    assert len(at_zero(p, there, 1e-9)) == 3


@pytest.mark.parametrize("rows", [np.zeros((0, 3)), np.zeros((2, 3))], ids=["none", "zeros"])
def test_systems_without_unknowns_are_not_given_to_scipy(rows, monkeypatch):
    solve = tangents.scipy.linalg.solve_triangular

    def old(upper, *args, **options):
        if not len(upper):
            raise ValueError("expected square matrix")  # as before SciPy 1.13
        return solve(upper, *args, **options)

    monkeypatch.setattr(tangents.scipy.linalg, "solve_triangular", old)
    found, number = tangents.Tangents(rows), len(rows)
    assert not found.onto(np.ones(number)).any()
    assert not found.rates(np.ones(number)).any()
    assert not found.multipliers(np.ones(3), np.ones(number)).any()


def test_kinks_of_the_first_layer_are_factored_neuron_by_neuron():
    generator = np.random.default_rng(0)
    rows = np.zeros((9, 12))
    rows[:3, 2:5], rows[3:6, 6:9], rows[6:] = (generator.normal(size=(3, n)) for n in (3, 3, 12))
    rows[2] = rows[0] + rows[1]  # dependent within a block
    rows[8] = rows[6] - rows[1] + rows[4]  # and outside
    order = generator.permutation(9)
    rows = rows[order]
    parts = (([0, 1, 2], slice(2, 5)), ([3, 4, 5], slice(6, 9)))
    blocks = [(np.flatnonzero(np.isin(order, which)), columns) for which, columns in parts]
    found, gradient, sizes = tangents.Tangents(rows, blocks), generator.normal(size=12), generator.uniform(0.5, 2, 9)
    assert len(found.chosen) == 7
    assert found.blocked == 5
    np.testing.assert_allclose(found.basis @ found.basis.T, np.linalg.pinv(rows) @ rows, atol=1e-12)
    values = rows @ generator.normal(size=12)
    np.testing.assert_allclose(found.onto(values), np.linalg.pinv(rows) @ values, atol=1e-12)
    expected = sizes * (np.linalg.pinv(rows.T * sizes) @ gradient)
    np.testing.assert_allclose(found.multipliers(gradient, sizes), expected, atol=1e-10)
    (columns, free), _ = found.free
    np.testing.assert_allclose(rows[:, columns][blocks[0][0]] @ free, 0, atol=1e-12)


@pytest.mark.parametrize("many", [1, 100], ids=["blocks", "whole"])
def test_steps_solve_the_equations_of_newton_along_kinks(many, monkeypatch):
    monkeypatch.setattr(tangents, "MANY", many)
    p, layers = problem()
    held = Kinks(*(np.array(v) for v in ([0, 0, 0, 1], [2, 2, 4, 3], [4, 6, 6, 7])), np.full(4, 0.5))
    theta, shapes = np.concatenate([w.ravel() for w in layers]), [w.shape for w in layers]
    crease = creases.Crease(p, theta, shapes, held)
    found = steps.Steps(crease, 50.0)  # large enough for a positive definite matrix
    assert found.damping == 50.0
    rows, matrix, gradient = crease.at.preactivation_gradients(*held.places), crease.at.hessian(), crease.at.gradient
    row = crease.at.preactivation_gradients(*(np.array([v]) for v in (1, 1, 2)))[0]
    for one, held_rows in ((found, rows), (found.extended(crease.tangents.extended(row)), np.vstack([rows, row]))):
        count = len(held_rows)
        full = np.block([[matrix + 50.0 * np.eye(len(theta)), held_rows.T], [held_rows, np.zeros((count, count))]])
        expected = np.linalg.solve(full, np.concatenate([-gradient, np.zeros(count)]))[: len(theta)]
        np.testing.assert_allclose(one(gradient), expected, atol=1e-10)


def test_large_networks_have_few_factors_and_tangents_in_blocks(monkeypatch):
    net, task, ridge = small(1, 0.2)
    monkeypatch.setattr(frames, "LARGE", 0)
    for module in (corners, creases, tangents):
        monkeypatch.setattr(module, "MANY", 1)
    done = bnrank.finish(net, task, ridge, births=False, progress=False)
    assert done.stationarity.residual <= 1e-8
    assert done.loss <= done.loss_before


PATH = 0.9  # the smoothed path, in units of the layers at the start


def ended(monkeypatch, corner, singly):
    """Return what the search ends at with given ends of the searches with kinks, by smoothing, and their levels."""
    p, layers = problem()
    found, levels = search.Search(p, 1e-8, None, 0, False, [6, 6], lambda *_: None), []

    def lowered(at, eps, *_, **__):
        levels.append(eps)
        at["layers"] = scaled(layers, PATH)

    monkeypatch.setattr(found, "lowered", lowered)
    monkeypatch.setattr(found, "cornered", lambda *_: corner(layers, levels[-1]))
    monkeypatch.setattr(found, "singly", lambda best: singly(layers, best))
    return layers, found.followed(layers, 1e-2, shrink=False), levels


def scaled(layers, factor):
    return [factor * layer for layer in layers]


def loss_at(factor):
    p, layers = problem()
    return Evaluation(p, scaled(layers, factor)).loss


def test_a_stationary_point_above_the_smoothed_path_is_the_last_choice(monkeypatch):
    assert loss_at(PATH) < loss_at(0.93) < loss_at(0.96) < loss_at(1)

    def corner(layers, eps):
        return pieces.Corner(scaled(layers, 0.93 if eps == search.TRIED else 0.96), None, 0.0, "stationary")

    layers, (found, reason), levels = ended(monkeypatch, corner, None)
    assert levels == list(search.SMOOTHING)
    assert reason == "stationary"
    assert np.array_equal(found[0], 0.93 * layers[0])


def test_a_stationary_point_above_the_start_is_no_choice(monkeypatch):
    def corner(layers, eps):
        return pieces.Corner(scaled(layers, 3.0), None, 0.0, "stationary")

    def singly(layers, best):
        return pieces.Corner(scaled(layers, 2.0), None, 1.0, "no further decrease")

    layers, (found, reason), _ = ended(monkeypatch, corner, singly)
    assert reason == "no further decrease"
    assert np.array_equal(found[0], PATH * layers[0])


def test_the_lowest_point_is_kept_for_the_search_with_one_kink_at_a_time(monkeypatch):
    assert loss_at(0.8) < loss_at(PATH)

    def corner(layers, eps):
        return pieces.Corner(scaled(layers, 0.8 if eps == search.TRIED else 3.0), None, 1.0, "no further decrease")

    def singly(layers, best):
        assert np.array_equal(best[0], 0.8 * layers[0])
        return pieces.Corner(best, None, 0.0, "stationary")

    layers, (found, reason), levels = ended(monkeypatch, corner, singly)
    assert levels == list(search.SMOOTHING)
    assert reason == "stationary"
    assert np.array_equal(found[0], 0.8 * layers[0])


def test_a_point_whose_loss_no_step_lowers_is_stationary_if_its_gradient_is_zero(monkeypatch):
    p, layers = problem()
    zero = [np.zeros_like(layer) for layer in layers]
    zero[-1][:, -1] = np.asarray(p.y).mean(0) / (1 + p.ridge)  # only the biases of the outputs
    places = np.array([0, 0, 1]), np.array([0, 1, 0]), np.array([3, 4, 5])
    kinks = Kinks(*places, np.full(3, 0.5))
    monkeypatch.setattr(pieces.Model, "moved", lambda self: None)
    monkeypatch.setattr(creases.Crease, "forces", np.full(3, -1.0))
    monkeypatch.setattr(creases.Crease, "sizes", np.full(3, 1.0))
    corner = pieces.search(p, zero, kinks, 1e-9, 5)
    assert corner.residual <= 1e-9
    assert corner.reason == "stationary"


def test_samples_that_share_a_preactivation_in_a_bottleneck_are_no_obstacle():
    """Width one in the middle, and zero there on several samples: their kinks in later layers are held together."""
    ridge = 0.04 / 8
    task = bnrank.tasks.low_rank_map(n=30, d_in=3, d_out=3, latent=2, rank=2, width=10, seed=0)
    run = bnrank.train(bnrank.MLP([3, *[6] * 7, 3]), task, ridge=ridge, steps=1000, seed=0, progress=False)
    done = bnrank.finish(run.network(0), task, ridge, births=False, progress=False)
    assert done.stationarity.residual <= 1e-8, done
