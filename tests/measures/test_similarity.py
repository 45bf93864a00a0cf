"""Linear CKA, canonical correlations and principal angles against slow definitions."""

import itertools
import math

import numpy as np
import pytest
import torch

from bnrank.measures.similarity import cca, cka, principal_angles


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def rotation(n, seed=9):
    return torch.linalg.qr(normal(n, n, seed=seed))[0]


def hsic(k, ell):
    """The biased estimator, tr(K H L H) / (N - 1)^2."""
    n = len(k)
    h = np.eye(n) - np.ones((n, n)) / n
    return np.trace(k @ h @ ell @ h) / (n - 1) ** 2


def unbiased(k, ell):
    """The mean of K_ij (L_ij + L_qr - 2 L_iq) over all ordered choices of four samples."""
    terms = [
        k[i, j] * (ell[i, j] + ell[q, r] - 2 * ell[i, q]) for i, j, q, r in itertools.permutations(range(len(k)), 4)
    ]
    return float(np.mean(terms))


@pytest.mark.parametrize(("n", "d", "e"), [(7, 3, 5), (6, 9, 2), (4, 4, 4)])
@pytest.mark.parametrize(("debiased", "estimate"), [(False, hsic), (True, unbiased)])
def test_cka_is_the_ratio_of_hsic(n, d, e, debiased, estimate):
    a, b = normal(n, d) + 3, normal(n, e, seed=1) / 2 - 2
    k, ell = (t.numpy() @ t.numpy().T for t in (a, b))
    expected = estimate(k, ell) / math.sqrt(estimate(k, k) * estimate(ell, ell))
    assert cka(a, b, debiased=debiased) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("debiased", [False, True])
@pytest.mark.parametrize("size", [1.0, 1e-200, 1e200])
def test_rotations_shifts_and_scalings_do_not_matter(debiased, size):
    a = normal(30, 6)
    b = size * (a @ rotation(6) + 1e3)
    assert cka(a, b, debiased=debiased) == pytest.approx(1, abs=1e-8)
    assert cca(a, b) == pytest.approx(1, abs=1e-8)


def test_with_few_samples_only_the_debiased_estimator_is_near_0_for_independent_representations():
    found = np.array(
        [
            [cka(normal(20, 500, seed=s), normal(20, 500, seed=100 + s), debiased=debiased) for s in range(30)]
            for debiased in (False, True)
        ]
    )
    assert found[0].min() > 0.9
    assert abs(found[1].mean()) < 3 * found[1].std() / math.sqrt(30)
    assert found[1].std() < 0.1


def test_invertible_maps_change_cka_but_not_canonical_correlations():
    a = normal(100, 4)
    b = a @ torch.diag(torch.tensor([1.0, 2.0, 4.0, 8.0], dtype=torch.float64)) @ rotation(4)
    assert cka(a, b) < 0.9
    assert cca(a, b, share=1.0) == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("share", [0.7, 0.99, 1.0])
def test_canonical_correlations_are_those_of_the_leading_components(share):
    a, b = normal(40, 6) * torch.arange(1, 7), normal(40, 5, seed=1)
    b[:, 0] += a[:, 5]
    bases = []
    for values in (a, b):
        centered = (values - values.mean(0)).numpy()
        u, s, _ = np.linalg.svd(centered, full_matrices=False)
        kept = next(k for k in range(1, 7) if (s[:k] ** 2).sum() >= share * (s**2).sum() * (1 - 1e-12))
        bases.append(u[:, :kept])
    expected = np.linalg.svd(bases[0].T @ bases[1], compute_uv=False).mean()
    assert cca(a, b, share=share) == pytest.approx(expected, abs=1e-9)


def test_forced_correlations_and_constant_representations_are_nan():
    assert math.isnan(cca(normal(6, 4), normal(6, 4, seed=1)))  # 4 + 4 dimensions in 5 always meet
    constant = torch.full((6, 3), 0.1)
    for measure in (cka, cca, lambda a, b: cka(a, b, debiased=True)):
        assert math.isnan(measure(constant, normal(6, 2)))
        assert math.isnan(measure(normal(6, 2), torch.zeros(6, 1)))


@pytest.mark.parametrize("angle", [1e-9, 1e-3, 0.7, math.pi / 2 - 1e-9])
def test_principal_angles_are_the_planted_ones(angle):
    q = rotation(7)
    a = q[:, :3] @ rotation(3, seed=1)
    turned = torch.stack([q[:, 0], q[:, 1], math.cos(angle) * q[:, 2] + math.sin(angle) * q[:, 5]], 1)
    found = principal_angles(5 * a, turned @ rotation(3, seed=2))
    assert found == pytest.approx([0, 0, angle], abs=1e-14, rel=1e-6)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: cka(normal(3, 2), normal(4, 2)), "b: got 4 rows, expected 3"),
        (lambda: cka(normal(3, 2), normal(3, 2), debiased=True), "a: got 3 rows, expected at least 4"),
        (lambda: cka(normal(1, 2), normal(1, 2)), "a: got 1 rows, expected at least 2"),
        (lambda: cka(torch.tensor([[1.0], [torch.nan]]), normal(2, 2)), "a: got NaN"),
        (lambda: cca(normal(3, 2), normal(3, 2), share=0), "share: got"),
        (lambda: principal_angles(torch.zeros(3, 1), normal(3, 1)), "a: got a matrix of zeros"),
    ],
)
def test_bad_arguments_are_named(call, text):
    with pytest.raises(ValueError, match="^" + text.replace("(", r"\(")):
        call()
