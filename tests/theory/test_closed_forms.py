import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bnrank.theory.cost.closed_forms import diagonal, linear, linear_corrections, remainder_bound
from helpers import normal

quick = settings(max_examples=25, deadline=None, derandomize=True)
seeds, depths = st.integers(0, 10**6), st.integers(1, 12)


def optimal_layers(a, depth):
    """W_l = U_l S^{1/L} U_{l-1}^T with random orthonormal U_l between."""
    u, s, vt = torch.linalg.svd(a, full_matrices=False)
    bases = [vt.T, *(torch.linalg.qr(normal(len(s) + 2, len(s), seed=i))[0] for i in range(depth - 1)), u]
    return [new @ torch.diag(s ** (1 / depth)) @ old.T for old, new in itertools.pairwise(bases)]


def product(layers):
    result = layers[0]
    for layer in layers[1:]:
        result = layer @ result
    return result


def squared(layers):
    return sum(float((w * w).sum()) for w in layers)


@quick
@given(seeds, st.integers(1, 4), st.integers(1, 4), depths)
def test_cost_is_the_schatten_norm_and_is_attained(seed, rows, columns, depth):
    a = normal(rows, columns, seed=seed)
    oracle = depth * sum(s ** (2 / depth) for s in np.linalg.svd(a.numpy(), compute_uv=False))
    assert linear(a, depth) == pytest.approx(oracle, rel=1e-12)
    layers = optimal_layers(a, depth)
    assert torch.allclose(product(layers), a, atol=1e-12)
    assert squared(layers) == pytest.approx(oracle, rel=1e-12)


@quick
@given(seeds, st.integers(2, 8), st.floats(-3, 3))
def test_no_factorization_costs_less(seed, depth, scale):
    layers = [math.exp(scale) * normal(3, 4, seed=seed), *(normal(3, 3, seed=seed + i) for i in range(1, depth))]
    assert linear(product(layers), depth) <= squared(layers)


def test_special_depths():
    a = normal(3, 5)
    assert linear(a, 1) == pytest.approx(float((a * a).sum()))
    assert linear(a, 2) == pytest.approx(2 * float(torch.linalg.matrix_norm(a, "nuc")))
    assert linear(a, 10**6) / 10**6 == pytest.approx(3, abs=1e-4)


def test_invariance_scaling_and_additivity():
    a, b, depth = normal(3, 4), normal(2, 5, seed=1), 7
    q = torch.linalg.qr(normal(3, 3, seed=2))[0]
    assert linear(q @ a, depth) == pytest.approx(linear(a, depth), rel=1e-12) == pytest.approx(linear(a.T, depth))
    assert linear(-5 * a, depth) == pytest.approx(5 ** (2 / depth) * linear(a, depth))
    assert linear(torch.block_diag(a, b), depth) == pytest.approx(linear(a, depth) + linear(b, depth))
    r0, r1, r2 = (np.array(linear_corrections(m)) for m in (a, b, torch.block_diag(a, b)))
    assert r0 + r1 == pytest.approx(r2)


@quick
@given(st.lists(st.floats(-100, 100).filter(lambda w: abs(w) > 1e-6), min_size=1, max_size=5), depths)
def test_diagonal_is_linear_of_the_diagonal_matrix(w, depth):
    assert diagonal(w, depth) == pytest.approx(linear(np.diag(w), depth), rel=1e-9)
    layers = [np.sign(w) * np.abs(w) ** (1 / depth), *[np.abs(w) ** (1 / depth)] * (depth - 1)]
    assert diagonal(w, depth) == pytest.approx(sum((v * v).sum() for v in layers))


def test_zeros_and_noise_cost_nothing():
    assert linear(torch.zeros(3, 2), 5) == diagonal(np.zeros(4), 100) == 0
    assert linear_corrections(np.zeros((2, 3))) == (0, 0.0, 0.0)
    assert remainder_bound(np.zeros((2, 3)), 4) == 0
    thin = normal(20, 2) @ normal(2, 20, seed=1)
    noisy = torch.linalg.svdvals(thin)
    assert 100 * float((noisy[2:] ** 0.02).sum()) > 500  # what rounding would add at L = 100
    assert linear(thin, 100) == pytest.approx(100 * float((noisy[:2] ** 0.02).sum()))
    assert linear_corrections(thin).R0 == 2
    assert linear_corrections(thin.float()).R0 == 2  # the tolerance is that of the precision of A
    assert linear_corrections(thin.float().double()).R0 == 20  # whose rounding in float32 has full rank
    assert linear_corrections(thin.float().double(), rtol=1e-5).R0 == 2
    assert linear([[1.0, 0.0], [0.0, 1e-9]], 2, rtol=0) == pytest.approx(2 + 2e-9, rel=1e-15)


def test_vectors_numbers_lists_and_integers():
    assert linear([3.0, 4.0], 3) == pytest.approx(3 * 5 ** (2 / 3)) == pytest.approx(linear([[3, 4]], 3))
    assert linear(2.0, 4) == pytest.approx(4 * 2**0.5) == pytest.approx(linear(torch.tensor(-2), 4))
    assert linear(np.eye(2, dtype=int), 9) == pytest.approx(18)
    assert linear(torch.nn.Parameter(torch.eye(3)), 2) == pytest.approx(6)


def test_corrections_by_definition():
    a = normal(4, 4) @ normal(4, 3, seed=1) @ normal(3, 4, seed=2)
    r0, r1, r2 = linear_corrections(a)
    eigenvalues, vectors = torch.linalg.eigh(a.T @ a)
    kept = eigenvalues > 1e-10
    log_plus = vectors[:, kept] @ torch.diag(eigenvalues[kept].log()) @ vectors[:, kept].T
    assert r0 == 3 == int(torch.linalg.matrix_rank(a))
    assert r1 == pytest.approx(float(eigenvalues[kept].log().sum()))
    assert r2 == pytest.approx(float((log_plus * log_plus).sum()) / 2)


@quick
@given(seeds, st.integers(1, 200), st.floats(-4, 4))
def test_remainder_is_within_its_bound(seed, depth, scale):
    a = math.exp(scale) * normal(3, 4, seed=seed)
    r0, r1, r2 = linear_corrections(a)
    remainder = linear(a, depth) - (depth * r0 + r1 + r2 / depth)
    assert abs(remainder) <= remainder_bound(a, depth) + 1e-12 * linear(a, depth)


def test_remainder_is_of_second_order_and_its_bound_sharp():
    a = 5 * normal(3, 3)
    u = 2 * torch.linalg.svdvals(a).log()
    r0, r1, r2 = linear_corrections(a)
    scaled = [depth**2 * (linear(a, depth) - depth * r0 - r1 - r2 / depth) for depth in (100, 200, 400)]
    limit = float((u**3).sum()) / 6
    gaps = [abs(s - limit) for s in scaled]
    assert gaps[1] < 0.6 * gaps[0]
    assert gaps[2] < 0.6 * gaps[1]
    one = [[math.e**2]]
    assert remainder_bound(one, 1000) * 1000**2 == pytest.approx(64 / 6, rel=1e-2)
    assert linear(one, 1000) - (1000 + 4 + 8 / 1000) == pytest.approx(64 / 6e6, rel=1e-2)


@pytest.mark.parametrize(
    ("value", "error", "match"),
    [
        ([[1.0, float("nan")]], ValueError, "a: got NaN or infinite"),
        (torch.tensor([[math.inf]]), ValueError, "a: got NaN or infinite"),
        (np.zeros((2, 0)), ValueError, "a: got an empty array"),
        (np.zeros((2, 2, 2)), ValueError, "a: got shape"),
        ("ab", TypeError, "a: got 'ab'"),
        ([[1.0], [1.0, 2.0]], TypeError, "a: got"),
        ([1j], TypeError, "a: got .*real"),
        (None, TypeError, "a: got None"),
        ([True], TypeError, "a: got"),
    ],
)
def test_bad_matrices_are_refused(value, error, match):
    for function in (lambda a: linear(a, 2), linear_corrections, lambda a: remainder_bound(a, 2)):
        with pytest.raises(error, match=match):
            function(value)


def test_other_bad_arguments_are_refused():
    for depth, error in ((0, ValueError), (2.5, TypeError), (True, TypeError)):
        with pytest.raises(error, match="depth"):
            linear([[1.0]], depth)
        with pytest.raises(error, match="depth"):
            diagonal([1.0], depth)
    with pytest.raises(ValueError, match="w: got shape"):
        diagonal([[1.0]], 2)
    with pytest.raises(ValueError, match="w: got NaN"):
        diagonal([float("nan")], 2)
    with pytest.raises(ValueError, match="rtol"):
        linear([[1.0]], 2, rtol=1.5)
