"""The cross, maxima of affine maps and networks at other slopes (T19, T20)."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from bnrank import Jacobian
from bnrank.theory.constructions import cross, max_of_affine, with_slope
from helpers import norm, normal
from theory.constructed import QUICK, close, network, networks


def smaller(x):
    """m (sign x0, sign x1) with m = min(|x0|, |x1|)."""
    return x.abs().min(1, keepdim=True).values * x.sign()


def test_cross_is_the_function_and_has_its_norm():
    net = cross()
    grid = torch.arange(-8, 9, dtype=torch.float64) / 4
    x = torch.cartesian_prod(grid, grid)
    assert torch.equal(net(x), smaller(x))
    assert close(net(normal(1000, 2)), smaller(normal(1000, 2)), 1e-15)
    assert net.widths == [2, 4, 4, 2]
    assert not net.biases
    assert norm(net) == 19


def test_cross_is_the_identity_on_the_cross_and_of_jacobian_rank_one():
    t = normal(50, 1)
    x = torch.cat([torch.cat([t, t], 1), torch.cat([t, -t], 1)])
    assert torch.equal(cross()(x), x)
    inside = normal(2000, 2)
    values = Jacobian(cross(), inside).singular_values
    assert bool((values[:, 0] > 1).all())
    assert float(values[:, 1].max()) == 0


@st.composite
def maxima(draw):
    groups, d = draw(st.integers(1, 3)), draw(st.integers(1, 4))
    sizes = draw(st.lists(st.integers(1, 7), min_size=groups, max_size=groups))
    seed = draw(st.integers(0, 999))
    a = [normal(m, d, seed=seed + i) for i, m in enumerate(sizes)]
    b = [normal(m, seed=seed + 50 + i) for i, m in enumerate(sizes)] if draw(st.booleans()) else None
    return a, b, normal(draw(st.integers(1, 3)), groups, seed=seed + 99)


@QUICK
@given(maxima())
def test_signed_sums_of_maxima(case):
    a, b, signs = case
    net, x = max_of_affine(a, b, signs), 2 * normal(40, a[0].shape[1])
    shifts = b if b is not None else [torch.zeros(len(v)) for v in a]
    maxima = torch.stack([(x @ v.T + c).max(1).values for v, c in zip(a, shifts, strict=True)], 1)
    assert close(net(x), maxima @ signs.T, 1e-12)
    assert net.depth == math.ceil(math.log2(max(len(v) for v in a))) + 1
    assert bool(net.biases) == (b is not None)


@pytest.mark.parametrize("d", range(1, 10))
def test_depth_of_the_theory(d):
    """T20: maxima of d + 1 affine maps need ceil(log2(d + 1)) + 1 layers; integers come out exactly."""
    a, b = (4 * normal(d + 1, d)).round(), (4 * normal(d + 1, seed=1)).round()
    net, x = max_of_affine(a, b), (4 * normal(100, d, seed=2)).round()
    assert net.depth == math.ceil(math.log2(d + 1)) + 1
    assert torch.equal(net(x), (x @ a.T + b).max(1, keepdim=True).values)


@pytest.mark.parametrize("power", [1, 2, 3, 4])
@pytest.mark.parametrize("groups", [1, 3])
def test_norm_of_a_maximum(power, groups):
    m = 2**power
    a, b, signs = normal(groups, m, 5), normal(groups, m, seed=1), normal(2, groups, seed=2)
    maps = torch.cat([a, b[:, :, None]], 2)
    u, v = maps[:, 0::2], maps[:, 1::2]
    first = float(((u - v) ** 2).sum() + 2 * (v**2).sum())
    expected = first + 12 * groups * (m // 2 - 1) + 3 * float((signs**2).sum())
    assert norm(max_of_affine(a, b, signs)) == pytest.approx(expected, rel=1e-13)


@pytest.mark.parametrize("signs", [torch.tensor([1, -1]), np.array([1, -1], dtype=np.int8), [1, -1]])
def test_coefficients_may_be_integers(signs):
    a, x = normal(2, 3, 4), normal(20, 4, seed=1)
    expected = max_of_affine(a, signs=torch.tensor([1.0, -1.0], dtype=torch.float64))(x)
    assert close(max_of_affine(a, signs=signs)(x), expected, 1e-14)


def test_forms_of_maxima():
    a, b, x = normal(3, 2), normal(3, seed=1), normal(9, 2, seed=2)
    plain = max_of_affine(a, b)(x)
    assert torch.equal(max_of_affine(a[None], b[None])(x), plain)
    assert torch.equal(max_of_affine([a.numpy()], [b.numpy()])(x), plain)
    assert close(max_of_affine([a, a], [b, b], torch.tensor([2.0, -1.0]))(x), plain, 1e-15)
    assert max_of_affine(a.float()).weights[0].dtype == torch.float32
    assert max_of_affine(a.float(), b).weights[0].dtype == torch.float64
    assert max_of_affine(a[:1], b[:1]).depth == 1
    assert close(max_of_affine(a[:1], b[:1])(x), x @ a[:1].T + b[:1])


@QUICK
@given(networks(), st.sampled_from([0.0, 0.3, -0.5, 0.9]))
def test_the_function_is_the_same_at_another_slope(net, s):
    other, x = with_slope(net, s), 2 * normal(30, net.widths[0])
    assert other.slope == s
    assert close(other(x), net(x), 1e-10)
    if net.slope == s:
        assert other.widths == net.widths
        return
    assert other.widths == [net.widths[0], *[2 * n for n in net.widths[1:-1]], net.widths[-1]]
    r = net.slope
    q = ((1 - r * s) ** 2 + (s - r) ** 2) / (1 - s**2) ** 2
    last = net.depth - 1
    expected = sum(
        float((w.detach() ** 2).sum()) * (1 if i == last else 2) * (q if i else 1) for i, w in enumerate(net.weights)
    )
    expected += sum(float((b.detach() ** 2).sum()) * (1 if i == last else 2) for i, b in enumerate(net.biases))
    assert norm(other) == pytest.approx(expected, rel=1e-12)


def test_maxima_at_another_slope_have_twice_the_neurons():
    a, x = normal(4, 3), normal(50, 3, seed=1)
    net = with_slope(max_of_affine(a), 0.3)
    assert close(net(x), (x @ a.T).max(1, keepdim=True).values, 1e-13)
    assert net.widths == [3, 12, 6 * 1, 1]


def test_slopes_there_and_back():
    net, x = network([3, 5, 5, 2]), normal(20, 3)
    assert close(with_slope(with_slope(net, -0.5), 0.0)(x), net(x))
    leaky = nn.Sequential(nn.Linear(3, 4), nn.LeakyReLU(0.2), nn.Linear(4, 2))
    assert torch.allclose(with_slope(leaky, 0.0)(x.float()), leaky(x.float()), atol=1e-6)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: with_slope(cross(), 1.0), ValueError, "slope: got 1"),
        (lambda: with_slope(nn.GELU(), 0.3), TypeError, "net: got GELU"),
        (lambda: max_of_affine(torch.ones(3)), ValueError, r"a: got shape \(3,\), expected \(m, d\)"),
        (lambda: max_of_affine([]), TypeError, r"a: got \[\]"),
        (lambda: max_of_affine([torch.ones(3)]), ValueError, r"a\[0\]: got shape \(3,\)"),
        (lambda: max_of_affine([torch.ones(2, 3), torch.ones(2, 2)]), ValueError, "a: got groups of shapes"),
        (lambda: max_of_affine(torch.ones(3, 2), torch.ones(2)), ValueError, r"b: got shapes \[\(2,\)\]"),
        (lambda: max_of_affine(torch.ones(3, 2), torch.ones(1, 3, 1)), ValueError, "b: got shape"),
        (lambda: max_of_affine(torch.ones(3, 2), signs=torch.ones(2)), ValueError, r"signs: got shape \(1, 2\)"),
        (lambda: max_of_affine(np.array([["a"]])), TypeError, "a: got ndarray"),
        (lambda: max_of_affine(torch.tensor([[math.inf, 0]])), ValueError, "a: got NaN or infinite"),
    ],
)
def test_bad_arguments_are_named(call, error, words):
    with pytest.raises(error, match=words):
        call()
