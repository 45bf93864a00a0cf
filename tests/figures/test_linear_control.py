"""F9L: the exact reduction, the closed law, and claims that can fail."""

import dataclasses
import itertools
import math

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from scipy.integrate import solve_ivp

from bnrank.figures.f09_linear_control import computation as linear
from bnrank.figures.f09_linear_control import figure as f9l
from bnrank.networks import LinearNetwork, from_layers

DEPTH, WIDTH, START, MODES = 4, 6, 0.15, 2
S = np.diag([2.0, 1.0, 0.3])


@pytest.fixture(autouse=True)
def _close_figures():
    yield
    plt.close("all")


def planted_task():
    x = math.sqrt(3) * torch.eye(3, dtype=torch.float64)
    return linear.Reduced(x, x @ torch.from_numpy(S).T, 0.0)


@pytest.fixture(scope="module")
def exact():
    return linear.staircase(linear.aligned_network(S, DEPTH, WIDTH, START), planted_task(), MODES, skip=False)


@pytest.fixture(scope="module")
def stairs():
    net = LinearNetwork([3, *[40] * (DEPTH - 1), 3], init=0.012, seed=1, dtype=torch.float64)
    return linear.staircase(net, planted_task(), MODES, skip=True)


def gradients(net, x, y):
    cost = (net(x) - y).square().sum() / len(x)
    return torch.autograd.grad(cost, list(net.parameters()))


@pytest.mark.parametrize("flat", [False, True])  # inputs that do not span: Sigma is singular
def test_the_reduction_has_the_gradients_of_all_samples(flat):
    g = torch.Generator().manual_seed(0)
    x, y = (torch.randn(40, d, dtype=torch.float64, generator=g) for d in (5, 3))
    if flat:
        x[:, 4] = x[:, 0] - x[:, 1]
    few = linear.reduced(x, y)
    net = LinearNetwork([5, 4, 4, 3], seed=1, dtype=torch.float64)
    assert len(few.x) == 5
    for whole, small in zip(gradients(net, x, y), gradients(net, few.x, few.y), strict=True):
        torch.testing.assert_close(small, whole, rtol=1e-10, atol=1e-12)
    net.requires_grad_(False)
    cost = [float((net(a) - b).square().sum() / len(a)) for a, b in ((x, y), (few.x, few.y))]
    assert cost[0] - cost[1] == pytest.approx(few.constant, rel=1e-10)
    np.testing.assert_allclose(few.correlation, (y.T @ x / 40).numpy(), atol=1e-12)


def test_drawing_is_whitened_and_its_targets_hold_what_labels_can_say():
    task, name = linear.drawing(300)
    assert "300 images" in name
    np.testing.assert_allclose(task.x.T @ task.x / len(task.x), np.eye(10), atol=1e-12)
    assert task.constant > 0
    s = np.linalg.svd(task.correlation, compute_uv=False)
    assert task.y.shape == (10, 9)  # class means less their mean
    assert s[-1] > 1e-3


def test_drawing_refuses_data_that_lack_a_digit():
    with pytest.raises(ValueError, match="images: got 5"):
        linear.drawing(5)


@pytest.mark.parametrize("depth", [2, 3, 6])
def test_the_law_is_what_a_balanced_network_does(depth):
    """Mode by mode against the flow of all weights, integrated by SciPy."""
    net = linear.aligned_network(S, depth, 5, 0.4, seed=3)
    shapes = [tuple(w.shape) for w in net.weights]
    cuts = np.cumsum([a * b for a, b in shapes])[:-1]

    def layers(theta):
        return [part.reshape(shape) for part, shape in zip(np.split(theta, cuts), shapes, strict=True)]

    def product(weights, size):
        result = np.eye(size)
        for w in weights:
            result = w @ result
        return result

    def velocity(_, theta):
        weights = layers(theta)
        error = 2 * (product(weights, 3) - S)
        parts = []
        for l in range(depth):  # noqa: E741
            above = product(weights[l + 1 :], len(weights[l]))
            below = product(weights[:l], 3)
            parts.append(-(above.T @ error @ below.T).ravel())
        return np.concatenate(parts)

    theta = np.concatenate([w.detach().numpy().ravel() for w in net.weights])
    times = np.linspace(0, 3, 7)
    found = solve_ivp(velocity, (0, 3), theta, t_eval=times, rtol=1e-9, atol=1e-12)
    for k in range(3):
        seen = [product(layers(column), 3)[k, k] for column in found.y.T]
        np.testing.assert_allclose(linear.law(0.4**depth, S[k, k], depth, times), seen, rtol=1e-5)


def test_the_time_of_a_mode_inverts_the_law():
    took = linear.time_of_mode(0.01, 0.7, 1.0, 5)
    assert linear.law(0.01, 1.0, 5, np.array([0.0, took]))[-1] == pytest.approx(0.7, rel=1e-6)


def test_aligned_networks_are_balanced_and_point_along_the_singular_vectors():
    s = np.random.default_rng(0).normal(size=(4, 3))
    net = linear.aligned_network(s, 5, 7, 0.2)
    weights = [w.detach().numpy() for w in net.weights]
    for a, b in itertools.pairwise(weights):
        np.testing.assert_allclose(b.T @ b, a @ a.T, atol=1e-15)
    u, _, vt = np.linalg.svd(s, full_matrices=False)
    np.testing.assert_allclose(np.linalg.multi_dot(weights[::-1]), 0.2**5 * u @ vt, atol=1e-15)


def test_width_does_not_matter_to_aligned_networks(exact):
    wide = linear.staircase(linear.aligned_network(S, DEPTH, 5 * WIDTH, START), planted_task(), MODES, skip=False)
    np.testing.assert_allclose(wide.escapes[:MODES], exact.escapes[:MODES], rtol=1e-6)


def test_all_claims_hold_on_planted_data(stairs, exact):
    seen = f9l.claims(stairs, exact, planted_task(), MODES, START)
    assert [claim.name for claim in seen if not claim.passed] == []
    assert linear.rank_table(stairs).tolist()[:MODES] == [[k] * DEPTH for k in (1, 2)]
    assert stairs.escapes[0] < stairs.escapes[1] < math.inf
    assert stairs.escapes[2] == math.inf


def changed(stairs, exact, what):
    task, found = planted_task(), list(stairs.found)
    if what == "rank":
        found[2] = dataclasses.replace(found[2], ranks=(2, 2, 1, 2))
    elif what == "missing":
        del found[2]
    elif what == "loss":
        found[1] = dataclasses.replace(found[1], loss=1.02 * found[1].loss)
    elif what == "vectors":
        turned = np.diag([2.0, 1.0, 0.3])
        c, s = math.cos(0.2), math.sin(0.2)
        turned = np.array([[c, -s, 0], [s, c, 0], [0, 0, 1]]) @ turned
        task = linear.Reduced(task.x, task.x @ torch.from_numpy(turned).T, 0.0)
    elif what == "aligned":
        exact = dataclasses.replace(exact, escapes=1.02 * exact.escapes)
    elif what == "late":
        stairs = dataclasses.replace(stairs, times=1.1 * stairs.times, escapes=1.1 * stairs.escapes)
    return dataclasses.replace(stairs, found=tuple(found)), exact, task


@pytest.mark.parametrize(
    ("what", "which"),
    [
        ("rank", [0]),
        ("missing", [0, 1, 2, 4]),
        ("loss", [2]),
        ("vectors", [1]),
        ("aligned", [5]),
        ("late", [6]),
    ],
)
def test_claims_fail_where_they_should(stairs, exact, what, which):
    run, other, task = changed(stairs, exact, what)
    seen = f9l.claims(run, other, task, MODES, START)
    assert [i for i, claim in enumerate(seen) if not claim.passed] == which


def test_a_drift_and_a_layer_of_its_own_size_are_noticed(stairs, exact):
    nets = [from_layers([w.detach() for w in net.weights], slope=1.0) for net in stairs.flow.networks]
    for net in nets[len(nets) // 4 :]:
        net.weights[1].data.mul_(1.1)
    path = dataclasses.replace(stairs.flow, networks=nets)
    seen = f9l.claims(dataclasses.replace(stairs, flow=path), exact, planted_task(), MODES, START)
    assert not seen[3].passed
    assert not seen[4].passed


def test_a_small_figure_goes_through(tmp_path):
    small = {"images": 300, "depth": 3, "width": 20, "init": 0.01, "start": 0.1, "modes": 2, "others": [(15, 3)]}
    outcome = f9l.FIGURE.run("quick", tmp_path, progress=False, **small)
    assert outcome.error == ""
    assert len(outcome.claims) == 7
    assert (tmp_path / "first-escape-linear" / "linear-staircase.png").exists()
    assert [row["width"] for row in outcome.sections[0].rows] == [20, 15]
