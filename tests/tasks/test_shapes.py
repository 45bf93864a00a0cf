"""Shapes in the plane (F2, T40)."""

import math
import re

import numpy as np
import pytest
import torch
from scipy.optimize import linprog

from bnrank.tasks import circle, inverted_s, s_shapes


def test_classes_are_translates_of_one_curve():
    task = s_shapes(n=401, classes=5, noise=0.0, spacing=0.7)
    x = task.x.double()
    x[:, 0] -= 0.7 * (task.y.double() - 2)
    assert torch.allclose(x, inverted_s(x[:, 1]), atol=1e-6)
    assert torch.bincount(task.y).tolist() == [81, 80, 80, 80, 80]
    assert x[:, 1].min() < -0.95
    assert x[:, 1].max() > 0.95


def test_the_s_is_inverted():
    """An S bulges to the left above and to the right below; its mirror image the other way round."""
    upper, lower = inverted_s(torch.tensor([0.5, -0.5], dtype=torch.float64))
    assert upper.tolist() == [0.5, 0.5]
    assert lower.tolist() == [-0.5, -0.5]


def separating_line_exists(a, b):
    """Whether some w, c have w.a + c >= 1 and w.b + c <= -1 on all points."""
    rows = np.vstack([np.hstack([-a, -np.ones((len(a), 1))]), np.hstack([b, np.ones((len(b), 1))])])
    return linprog(np.zeros(3), A_ub=rows, b_ub=-np.ones(len(rows)), bounds=[(None, None)] * 3).status == 0


def test_no_straight_line_separates_neighbors_at_the_default_spacing():
    def neighbors(**arguments):
        task = s_shapes(n=2000, classes=2, n_test=0, **arguments)
        return [task.x[task.y == label].numpy() for label in (0, 1)]

    assert not separating_line_exists(*neighbors())
    assert not separating_line_exists(*neighbors(noise=0.0))
    assert separating_line_exists(*neighbors(noise=0.0, spacing=0.69))
    # but a curve does: the shape itself, halfway
    a, b = neighbors()
    assert (a[:, 0] < np.sin(np.pi * a[:, 1]) / 2).mean() > 0.99
    assert (b[:, 0] > np.sin(np.pi * b[:, 1]) / 2).mean() > 0.99


def test_noise_has_its_standard_deviation():
    clean, noisy = s_shapes(n=5000, noise=0.0), s_shapes(n=5000, noise=0.2)
    difference = noisy.x - clean.x
    assert difference.std(0).tolist() == pytest.approx([0.2, 0.2], rel=0.05)


def test_heights_are_uniform_or_normal():
    """Of 10,000 heights per class: standard deviation, and share beyond 1, the end of uniform ones."""
    for heights, deviation, beyond in (("uniform", 3**-0.5, 0.0), ("normal", 0.5, 0.0455)):
        task = s_shapes(n=20_000, classes=2, noise=0.0, heights=heights)
        x, t = task.x.double(), task.x[:, 1].double()
        assert torch.allclose(x[:, 0] - 0.6 * (task.y - 0.5), torch.sin(math.pi * t) / 2, atol=1e-5)
        assert t.std().item() == pytest.approx(deviation, rel=0.02)
        assert (t.abs() > 1).double().mean().item() == pytest.approx(beyond, abs=0.005)
    with pytest.raises(ValueError, match="heights: got 'even'"):
        s_shapes(heights="even")


def test_s_shapes_seed():
    torch_state, numpy_state = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    a, b, c = s_shapes(seed=1), s_shapes(seed=1), s_shapes(seed=2)
    assert torch.equal(a.x, b.x)
    assert torch.equal(a.x_test, b.x_test)
    assert not torch.equal(a.x, c.x)
    assert not torch.equal(a.x, a.x_test)
    assert torch.equal(s_shapes(seed=1, n_test=0).x, a.x)
    assert torch.equal(s_shapes(seed=1, n=50).x_test, a.x_test)
    assert s_shapes(n_test=0).x_test is None
    assert torch.equal(torch.get_rng_state(), torch_state)
    assert (np.random.get_state()[1] == numpy_state).all()  # noqa: NPY002
    assert torch.equal(s_shapes(**a.settings).x, a.x)
    assert (a.x.dtype, a.y.dtype, a.loss, a.classes) == (torch.float32, torch.int64, "cross_entropy", 4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_circle_is_exact(dtype):
    task = circle(dtype=dtype)
    half = math.sqrt(0.5)
    expected = torch.tensor(
        [[0, 1], [half, half], [1, 0], [half, -half], [0, -1], [-half, -half], [-1, 0], [-half, half]],
        dtype=torch.float64,
    )
    assert task.x.dtype == dtype
    assert torch.equal(task.x[::2].double(), expected[::2])  # 0 and 1 are exact
    assert torch.allclose(task.x.double(), expected, rtol=torch.finfo(dtype).eps, atol=0)  # sines differ by processor
    assert task.y.flatten().tolist() == [-1, 1, -1, 1, -1, 1, -1, 1]
    assert not torch.signbit(task.x[task.x == 0]).any()
    assert (task.x.dtype, task.y.shape, task.loss) == (dtype, (8, 1), "mse")


@pytest.mark.parametrize("points", [2, 4, 6, 8, 10, 12, 24, 100])
def test_circle_matches_the_formula_and_is_symmetric_to_the_bit(points):
    task = circle(points, dtype=torch.float64)
    angles = [2 * math.pi * j / points for j in range(points)]
    expected = torch.tensor([[math.sin(a), math.cos(a)] for a in angles], dtype=torch.float64)
    assert torch.allclose(task.x, expected, rtol=0, atol=1e-14)
    assert (-task.y).flatten().tolist() == [(-1) ** j for j in range(points)]
    rows = {tuple(row) for row in task.x.tolist()}
    assert len(rows) == points
    assert rows == {(-a, b) for a, b in rows}
    if points % 4 == 0:
        assert rows == {(b, a) for a, b in rows}


def test_circle_gives_the_speeds_of_t40():
    """T40's rank-two network at G = -y: L0 = -1/2 with no rounding, since its kinks pass through the points."""
    for dtype in (torch.float32, torch.float64):
        task = circle(dtype=dtype)
        w1 = torch.tensor([[1, 0], [0, 1], [-1, 0], [0, -1]], dtype=dtype) / 2
        w2 = torch.tensor([[1, -1, 1, -1]], dtype=dtype) / 2
        output = -torch.relu(torch.relu(task.x @ w1.T) @ w2.T)
        g = -task.y
        assert (g * output).sum().item() == -0.5
        # the gradient of the mean square at zero output is (2 / N) G
        zero = torch.zeros_like(task.y, requires_grad=True)
        ((zero - task.y).square().sum() / task.n).backward()
        assert torch.equal(zero.grad, 2 / task.n * g)
    angles = torch.linspace(0, 2 * math.pi, 16 * 25 + 1, dtype=torch.float64)
    neurons = torch.relu(task.x @ torch.stack([angles.cos(), angles.sin()]))
    assert (g.T @ neurons).abs().max().item() == pytest.approx(math.sqrt(2) - 1, abs=1e-12)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: circle(7), ValueError, "points: got 7, expected an even number"),
        (lambda: circle(0), ValueError, "points: got 0"),
        (lambda: circle(8, torch.int64), TypeError, "dtype: got torch.int64"),
        (lambda: s_shapes(classes=1), ValueError, "classes: got 1"),
        (lambda: s_shapes(n=3), ValueError, "n: got 3, expected an integer of at least 4"),
        (lambda: s_shapes(noise=-1), ValueError, "noise: got -1"),
        (lambda: s_shapes(spacing=0), ValueError, "spacing: got 0"),
        (lambda: inverted_s([0.0]), TypeError, "t: got [0.0] (list)"),
    ],
)
def test_errors_name_the_argument(call, error, message):
    with pytest.raises(error, match=re.escape(message)):
        call()
