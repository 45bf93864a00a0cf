"""The search for escape directions against closed forms, the exact directions of T40, and the growth with depth."""

import itertools
import math

import numpy as np
import pytest
import torch

import bnrank
from bnrank.networks import LinearNetwork, from_layers
from bnrank.theory.escape.direction import deepen, measures, speed
from bnrank.theory.escape.polishing import grow, reduce
from bnrank.theory.escape.reading import output_gradient
from bnrank.theory.escape.search import Batch, Steps, find
from bnrank.theory.escape.stationarity import residual

RANK_ONE = math.sqrt(2) - 1


def circle():
    task = bnrank.tasks.circle(dtype=torch.float64)
    return task.x, -task.y


def exact():
    rows = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [0.0, -1.0]], dtype=torch.float64) / 2
    signs = torch.tensor([[1.0, -1.0, 1.0, -1.0]], dtype=torch.float64) / 2
    return from_layers([rows, signs, -torch.ones(1, 1, dtype=torch.float64)])


def normal(seed, n=7, d_in=3, d_out=2):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, d_in)), rng.normal(size=(n, d_out))


def layer_norms(net):
    return [float(w.detach().norm()) for w in net.weights]


@pytest.mark.parametrize("depth", range(3, 9))
def test_the_optimum_on_the_circle(depth):
    x, g = circle()
    found = find(x, g, depth, 16, starts=20, steps=2000)
    assert found.speed == pytest.approx(0.5, abs=1e-9)
    assert found.converged
    assert found.residual < 1e-9
    assert residual(found.network, x, g) < 1e-6  # of the whole network, with its parallel neurons
    assert speed(found.network, x, g) == pytest.approx(found.speed, abs=1e-14)
    assert layer_norms(found.network) == pytest.approx([1.0] * depth, abs=1e-12)
    assert found.speeds.max() <= found.speed + 1e-12
    assert found.network.widths == [2, *[16] * (depth - 1), 1]
    assert found.weight_rank_one[0] == pytest.approx(0.5, abs=1e-8)
    assert (found.weight_rank_one[2:] < 1e-8).all()


@pytest.mark.parametrize("depth", [2, 3, 6])
def test_rank_one_starts_stay_of_rank_one(depth):
    x, g = circle()
    found = find(x, g, depth, 16, starts=16, steps=2000, start="rank one")
    assert found.speed == pytest.approx(RANK_ONE, abs=1e-6)
    assert found.speeds.max() <= RANK_ONE + 1e-12
    assert found.converged
    assert (found.weight_rank_one < 1e-20).all()
    assert speed(found.network, x, g) == pytest.approx(RANK_ONE, abs=1e-12)
    assert all((w != 0).all() for w in found.network.weights[1:])


def test_rank_one_is_what_general_networks_with_such_starts_do():
    """The search with one neuron per layer against steps of the wide network."""
    x, g = normal(3)
    wide = find(
        x, g, 3, 5, starts=0, initial=[find(x, g, 3, 5, starts=8, start="rank one").network], steps=300, polish=False
    )
    chain = find(x, g, 3, 5, starts=8, start="rank one")
    assert wide.speed == pytest.approx(chain.speed, rel=1e-4)
    values = np.linspace(0, 2 * np.pi, 100_000)
    x, g = normal(4, d_in=2)
    rows = np.maximum(np.stack([np.cos(values), np.sin(values)], 1) @ x.T, 0)
    brute = np.linalg.norm(rows @ g, axis=1).max()
    found = find(x, g, 4, 6, start="rank one")
    assert brute <= found.speed <= brute * (1 + 1e-4)  # at a kink, between two angles


@pytest.mark.parametrize("outputs", [1, 3])
def test_depth_two_is_one_neuron(outputs):
    x, g = normal(outputs, d_in=2, d_out=outputs, n=9)
    values = np.linspace(0, 2 * np.pi, 200_000)
    rows = np.maximum(np.stack([np.cos(values), np.sin(values)], 1) @ x.T, 0)
    found = find(x, g, 2, 8)
    assert found.speed == pytest.approx(np.linalg.norm(rows @ g, axis=1).max(), rel=1e-8)
    assert found.converged


@pytest.mark.parametrize("depth", [2, 3, 6])
def test_linear_networks_take_the_top_singular_pair(depth):
    x, g = normal(depth)
    found = find(x, g, depth, [4] * (depth - 1), starts=8, steps=1500, slope=1)
    assert isinstance(found.network, LinearNetwork)
    assert found.speed == pytest.approx(np.linalg.norm(g.T @ x, 2), rel=1e-10)
    assert found.converged
    assert found.kinks == 0
    assert (found.weight_rank_one < 1e-12).all()
    assert (found.nonlinearity == 0).all()


@pytest.mark.parametrize("depth", [2, 4, 8])
def test_positive_data_are_smooth(depth):
    rng = np.random.default_rng(depth)
    x, g = rng.uniform(0.1, 1, (6, 3)), -rng.uniform(0.1, 1, (6, 2))
    found = find(x, g, depth, 8, starts=16, steps=2000)
    assert found.speed == pytest.approx(np.linalg.norm(g.T @ x, 2), rel=1e-10)
    assert found.converged
    assert found.steps < 4000


@pytest.mark.parametrize("seed", range(4))
def test_the_optimal_speed_does_not_fall_with_depth(seed):
    x, g = (circle()[0].numpy(), np.random.default_rng(0).normal(size=(8, 2))) if seed == 3 else normal(seed)
    before = find(x, g, 2, 8, starts=24, steps=1200)
    for depth in (3, 4):
        deep = deepen(before, depth)
        assert speed(deep, x, g) >= before.speed * (1 - 1e-12)
        found = find(x, g, depth, 8, starts=24, steps=1200, initial=[deep])
        assert found.speeds.shape == (25,)
        assert found.speeds[-1] >= before.speed * (1 - 1e-6)
        assert found.speed >= before.speed * (1 - 1e-9)
        drawn = find(x, g, depth, 8, starts=24, steps=1200)
        assert drawn.speed >= before.speed * (1 - 1e-3)
        before = found


def test_leaky_networks():
    x, g = normal(0)
    speeds = [find(x, g, 3, 8, starts=16, steps=1500, slope=slope).speed for slope in (0.0, 0.5, 1.0)]
    found = find(x, g, 3, 8, starts=16, steps=1500, slope=0.5)
    assert found.network.slope == 0.5
    assert found.converged
    assert speed(found.network, x, g) == pytest.approx(found.speed, rel=1e-12)
    assert len(set(np.round(speeds, 6))) == 3


@pytest.mark.parametrize("slope", [0.0, 0.3, -0.4, 1.0])
@pytest.mark.parametrize("depth", [2, 4])
def test_the_gradient_of_the_batch_is_that_of_autograd(slope, depth, monkeypatch):
    from bnrank.theory.escape import search

    rng = np.random.default_rng(1)
    x, g = normal(0, n=10)
    widths = [3, *[4] * (depth - 1), 2]
    weights = [rng.normal(size=(5, b, a)) for a, b in itertools.pairwise(widths)]
    for block in (search.BLOCK, 60):  # at once, and three samples or one at a time
        monkeypatch.setattr(search, "BLOCK", block)
        batch = Batch(weights, x, g, slope)
        speeds = batch.speeds()
        for member in range(5):
            net = from_layers([torch.from_numpy(w[member] / np.linalg.norm(w[member])) for w in weights], slope=slope)
            value = -(torch.from_numpy(g) * net(torch.from_numpy(x))).sum()
            grads = torch.autograd.grad(value, net.weights)
            assert speeds[member] == pytest.approx(value.item(), rel=1e-12)
            for ours, theirs in zip(batch.ascent, grads, strict=True):
                np.testing.assert_allclose(ours[member], theirs.numpy(), atol=1e-13)
        batch.step(0.1)
        assert all(np.linalg.norm(w[2]) == pytest.approx(1) for w in batch.weights)


def test_the_batch_leaves_what_came_as_it_was():
    x, g = normal(0, d_out=1)
    weights = [np.random.default_rng(0).normal(size=s) for s in ((5, 4, 3), (5, 1, 4))]
    kept = [w.copy() for w in weights]
    Batch(weights, x, g, 0.0).step(0.1)
    for w, before in zip(weights, kept, strict=True):
        np.testing.assert_array_equal(w, before)


def test_more_starts_extend_fewer_and_seeds_decide():
    x, g = circle()
    state = np.random.get_state()[1].copy()  # noqa: NPY002
    few, more = (find(x, g, 3, 8, starts=n, seed=5, steps=200, polish=False) for n in (3, 6))
    np.testing.assert_allclose(few.speeds, more.speeds[:3], rtol=1e-6)
    assert not np.allclose(few.speeds, find(x, g, 3, 8, starts=3, seed=6, steps=200, polish=False).speeds)
    np.testing.assert_array_equal(state, np.random.get_state()[1])  # noqa: NPY002


def test_units_scale_the_speed_alone():
    x, g = normal(1)
    one = find(x, g, 3, 6, starts=4, steps=400)
    other = find(x * 1e-30, g * 1e40, 3, 6, starts=4, steps=400)
    assert other.speed == pytest.approx(one.speed * 1e10, rel=1e-9)
    for unit in (1e-200, 1e160):
        assert find(x * unit, g, 3, 6, starts=4, steps=400).speed == pytest.approx(one.speed * unit, rel=1e-9)
    with pytest.raises(OverflowError, match="x, g: got largest entries"):
        find(x * 1e200, g * 1e200, 3, 6, starts=4, steps=400)


def test_a_smooth_point_that_is_not_stationary_does_not_count_as_one():
    """The speed is cos + sin of the turn there; a derivative for each of the opposite samples would hide that."""
    x, g = np.array([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0]]), np.array([[1.0], [-1.0], [-1.0]])
    net = from_layers([torch.tensor([[0.0, 1.0]]), torch.ones(1, 1)])
    held = find(x, g, 2, 1, starts=0, initial=[net], polish=False)
    assert (held.speed, held.converged) == (pytest.approx(1), False)
    assert held.residual == pytest.approx(math.sqrt(0.5))
    polished = find(x, g, 2, 1, starts=0, initial=[net])
    assert polished.speed == pytest.approx(math.sqrt(2))
    assert polished.converged


def test_dead_starts_are_drawn_again():
    """With one hidden neuron and one sample, half of all starts are dead."""
    found = find(np.array([[1.0]]), np.array([[-1.0]]), 3, 1, starts=30, steps=100)
    assert found.speed == pytest.approx(1)
    assert (found.speeds == 1).sum() >= 10  # all but those whose output has the wrong sign and which die on the way


def test_no_direction_out_is_said_and_is_speed_zero():
    x, g = np.array([[1.0, 2.0], [1.0, 2.0]]), np.array([[1.0], [-1.0]])  # the loss does not see such outputs
    with pytest.warns(UserWarning, match="the speed is 0"):
        found = find(x, g, 3, 4, starts=4, steps=50)
    assert found.speed == 0
    assert not found.converged
    assert found.residual == math.inf
    assert "speed 0" in str(found)


def test_what_the_result_says():
    x, g = circle()
    found = find(x, g, 3, 16, starts=16, steps=2000)
    text = str(found)
    assert "speed 0.5" in text
    assert "converged" in text
    assert len(text.splitlines()) == 6
    assert torch.equal(found.x, x)
    assert torch.equal(found.g, g)
    measured = measures([w.detach().numpy() for w in exact().weights], x.numpy(), 0.0)
    np.testing.assert_allclose(measured["weight_rank_one"], [0.5, 0, 0], atol=1e-15)
    np.testing.assert_allclose(found.weight_rank_one, measured["weight_rank_one"], atol=1e-8)


def test_measures_are_those_of_the_definitions():
    x, _ = normal(0)
    weights = [np.random.default_rng(1).normal(size=s) for s in ((4, 3), (5, 4), (2, 5))]
    measured = measures(weights, x, 0.2)
    a = x.T
    for layer, w in enumerate(weights):
        values = np.linalg.svd(w, compute_uv=False) ** 2
        assert measured["weight_rank_one"][layer] == pytest.approx(values[1:].sum() / values.sum())
        if layer < 2:
            z = w @ a
            a = np.where(z > 0, z, 0.2 * z)
            values = np.linalg.svd(a, compute_uv=False) ** 2
            assert measured["activation_rank_one"][layer] == pytest.approx(values[1:].sum() / values.sum())
            assert measured["nonlinearity"][layer] == pytest.approx(((a - z) ** 2).sum() / (z**2).sum())


def test_merging_parallel_neurons_changes_nothing():
    rng = np.random.default_rng(0)
    small = [rng.normal(size=s) for s in ((3, 2), (2, 3), (1, 2))]
    small = [w / np.linalg.norm(w) for w in small]
    factors = [np.eye(2), np.zeros((7, 3)), np.zeros((4, 2)), np.eye(1)]
    for factor, groups in ((factors[1], [0, 1, 2, 0, 1, 2]), (factors[2], [1, 0, 1])):  # and a dead one each
        for i, group in enumerate(groups):
            factor[i, group] = rng.uniform(0.5, 1)
        factor /= np.linalg.norm(factor, axis=0)
    big = grow(small, factors)
    merged, back = reduce(big)
    assert sorted(w.shape for w in merged) == sorted(w.shape for w in small)
    for w, again in zip(big, grow(merged, back), strict=True):
        np.testing.assert_allclose(w, again, atol=1e-14)
    x = rng.normal(size=(9, 2))
    outputs = [from_layers([torch.from_numpy(w) for w in ws])(torch.from_numpy(x)) for ws in (small, big, merged)]
    assert torch.allclose(outputs[0], outputs[1])
    assert torch.allclose(outputs[0], outputs[2])


@pytest.mark.parametrize("depth", [3, 4, 9])
@pytest.mark.parametrize("data", [True, False])
def test_deepening_keeps_the_speed(depth, data):
    x, g = circle()
    deep = deepen(exact(), depth, x, g) if data else deepen(exact(), depth)
    assert speed(deep, x, g) == pytest.approx(0.5, abs=1e-12)
    assert -(g * deep(x)).sum().item() == pytest.approx(0.5, abs=1e-12)
    assert sum(n**2 for n in layer_norms(deep)) == pytest.approx(depth, rel=1e-14)
    for weight in deep.weights[1:]:
        assert (torch.linalg.svdvals(weight.detach())[1:] == 0).all()


def test_deepening_a_found_direction():
    x, g = normal(0)
    found = find(x, g, 3, 8, starts=16, steps=2000)
    assert found.converged
    for deep in (deepen(found, 6), deepen(found.network, 6)):
        assert speed(deep, x, g) == pytest.approx(found.speed, rel=1e-10)
        assert deep.widths == [3, 8, 1, 1, 1, 1, 2]
        assert sum(n**2 for n in layer_norms(deep)) == pytest.approx(6, rel=1e-13)


def test_deepening_refuses_what_it_cannot_do():
    with pytest.raises(ValueError, match="biases: True"):
        deepen(bnrank.MLP([2, 3, 1], dtype=torch.float64), 4)
    with pytest.raises(ValueError, match=r"slope 0\.5"):
        deepen(bnrank.MLP([2, 3, 1], slope=0.5, bias=False), 4)
    with pytest.raises(ValueError, match="depth: got 2"):
        deepen(exact(), 2)
    with pytest.raises(ValueError, match="both or neither"):
        deepen(exact(), 4, circle()[0])


def test_the_speed_is_that_on_the_sphere():
    x, g = normal(2)
    net = bnrank.MLP([3, 5, 5, 2], bias=False, seed=3, dtype=torch.float64)
    norm = math.sqrt(sum(n**2 for n in layer_norms(net)))
    by_hand = -(torch.from_numpy(g) * net(torch.from_numpy(x))).sum().item() * (math.sqrt(3) / norm) ** 3
    assert speed(net, x, g) == pytest.approx(by_hand, rel=1e-12)
    with torch.no_grad():
        for w in net.weights:
            w *= 1e-130
    assert speed(net, x, g) == pytest.approx(by_hand, rel=1e-12)


def test_output_gradients():
    rng = np.random.default_rng(0)
    y, labels = rng.normal(size=(5, 3)), np.array([0, 2, 1, 1, 0])
    np.testing.assert_allclose(output_gradient("mse", y), -2 * y / 5)
    expected = (np.full((5, 4), 0.25) - np.eye(4)[labels]) / 5
    np.testing.assert_allclose(output_gradient("cross_entropy", labels, 4), expected)
    np.testing.assert_allclose(output_gradient(torch.nn.functional.cross_entropy, labels, 4), expected)
    huber = output_gradient(lambda f, y: torch.nn.functional.huber_loss(f, y), torch.from_numpy(y))
    np.testing.assert_allclose(huber, -np.clip(y, -1, 1) / 15)
    assert output_gradient("mse", y.astype(np.float32)).dtype == torch.float64
    np.testing.assert_allclose(output_gradient("mse", y[::-1]), -2 * y[::-1] / 5)
    np.testing.assert_allclose(output_gradient("cross_entropy", labels[::-1], 4), expected[::-1])


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        (("mse", np.zeros(3)), ValueError, "y: got shape"),
        (("mse", np.zeros((3, 2)), 4), ValueError, "outputs: got 4, expected 2"),
        (("cross_entropy", np.zeros(3)), TypeError, "class indices"),
        (("cross_entropy", np.array([0, 5]), 3), ValueError, "0 to 2"),
        (("cross_entropy", np.array([0, -1])), ValueError, "from -1"),
        (("crossentropy", np.array([0, 1])), ValueError, "did you mean 'cross_entropy'"),
        ((np.zeros(3), np.array([0, 1])), ValueError, "loss: got ndarray"),
        ((lambda f, y: f, np.zeros((3, 1))), TypeError, "scalar tensor"),
        ((lambda f, y: f.sqrt().sum(), np.zeros((3, 1))), ValueError, "not finite"),
        (("mse", [1.0]), TypeError, "y: got"),
    ],
)
def test_bad_labels_are_refused(arguments, error, match):
    with pytest.raises(error, match=match):
        output_gradient(*arguments)


GOOD = {"x": np.eye(2), "g": -np.ones((2, 1)), "depth": 3, "width": 4, "starts": 2, "steps": 10}


@pytest.mark.parametrize(
    ("changes", "error", "match"),
    [
        ({"depth": 1}, ValueError, "no saddle to escape from"),
        ({"depth": np.int64(1)}, ValueError, "no saddle to escape from"),
        ({"depth": 0}, ValueError, "depth: got 0"),
        ({"depth": 2.0}, TypeError, "depth"),
        ({"g": np.zeros((2, 1))}, ValueError, "g: got zeros only"),
        ({"x": np.zeros((2, 2))}, ValueError, "x: got zeros only"),
        ({"g": np.ones((3, 1))}, ValueError, "g: got 3 samples"),
        ({"width": [4]}, ValueError, "width: got 1 widths.*2"),
        ({"width": 0}, ValueError, "width"),
        ({"starts": 0}, ValueError, "starts: got 0"),
        ({"slope": 2}, ValueError, "slope"),
        ({"start": "rankone"}, ValueError, "did you mean 'rank one'"),
        ({"steps": -1}, ValueError, "steps: got -1"),
        ({"seed": -1}, ValueError, "seed"),
        ({"initial": [bnrank.MLP([2, 4, 4, 1])]}, ValueError, r"initial\[0\].*biases"),
        ({"initial": [bnrank.MLP([2, 5, 4, 1], bias=False)]}, ValueError, r"initial\[0\]: got widths"),
        ({"initial": [bnrank.MLP([2, 4, 1], bias=False)]}, ValueError, r"initial\[0\]: got widths"),
        ({"initial": [bnrank.MLP([2, 4, 4, 1], bias=False)], "start": "rank one"}, ValueError, "rank one"),
    ],
)
def test_bad_arguments_are_refused(changes, error, match):
    with pytest.raises(error, match=match):
        find(**{**GOOD, **changes})


@pytest.mark.parametrize("lengths", [{"first": 0.0}, {"last": 0.0}])
def test_steps_have_positive_lengths(lengths):
    with pytest.raises(ValueError, match=next(iter(lengths))):
        Steps(10, **lengths)
