"""Dimensions of centered activations against planted covariances, dead units, and subnormal numbers."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bnrank.measures import usage

SHARES = (0.95, 0.99)
RANK = 10


def _planted(name: str, d: int) -> np.ndarray:
    """Return the eigenvalues of a covariance."""
    i = np.arange(1.0, d + 1)
    low = np.where(i <= RANK, 1.0, 0.0) / RANK
    return {
        "isotropic": np.ones(d),
        "rank 10 and 3 percent noise": 0.97 * low + 0.03 / d,
        "rank 10 and 20 percent noise": 0.8 * low + 0.2 / d,
        "1 / i": 1 / i,
        "1 / i^2": i**-2,
        "0.8^i": 0.8**i,
        "rank 10": low,
    }[name]


SPECTRA = ("isotropic", "rank 10 and 3 percent noise", "rank 10 and 20 percent noise", "1 / i", "1 / i^2", "0.8^i")


def _least(eigenvalues: np.ndarray, share: float) -> int:
    """Return the dimension by its definition."""
    eigenvalues = np.sort(eigenvalues)[::-1]
    for k in range(len(eigenvalues) + 1):
        if eigenvalues[:k].sum() >= share * eigenvalues.sum() * (1 - 1e-12):
            return k
    raise AssertionError


def _drawn(eigenvalues: np.ndarray, n: int, seed: int) -> np.ndarray:
    """Return Gaussian samples in rotated coordinates with a large mean."""
    generator = np.random.default_rng(seed)
    rotation = np.linalg.qr(generator.normal(size=(len(eigenvalues),) * 2))[0]
    return generator.normal(size=(n, len(eigenvalues))) * np.sqrt(eigenvalues) @ rotation + 5 * generator.normal()


@pytest.mark.parametrize("name", SPECTRA)
@pytest.mark.parametrize(("n", "d"), [(60, 120), (100, 60), (100, 200), (200, 200), (1000, 100)])
def test_the_corrected_dimension_is_that_of_the_distribution(name, n, d):
    truth = np.array([_least(_planted(name, d), q) for q in SHARES])
    found = np.array([usage.centered_dimension(_drawn(_planted(name, d), n, seed), SHARES) for seed in range(10, 15)])
    assert (abs(np.median(found, axis=0) - truth) <= np.maximum(2, 0.2 * truth)).all(), (found, truth)
    assert (abs(found - truth) <= np.maximum(2, 0.4 * truth)).all(), (found, truth)


def test_the_correction_is_needed():
    x = _drawn(_planted("isotropic", 200), 100, 0)
    assert usage.centered_dimension(x, corrected=False)[0] < 85 < 180 < usage.centered_dimension(x)[0]


@pytest.mark.parametrize(("n", "d"), [(7, 40), (40, 7), (30, 30)])
def test_without_correction_it_is_that_of_the_rows(n, d):
    x = np.random.default_rng(n).normal(size=(n, d)) ** 3 + 7
    eigenvalues = np.linalg.eigvalsh(np.cov(x.T))
    shares = (0.3, 0.95, 0.99, 1.0)
    assert usage.centered_dimension(x, shares[:3], corrected=False) == tuple(_least(eigenvalues, q) for q in shares[:3])
    assert usage.centered_dimension(x, shares, corrected=False)[3] <= min(n - 1, d)


def test_many_samples_need_no_correction():
    x = _drawn(_planted("1 / i^2", 50), 20000, 1)
    assert usage.centered_dimension(x) == usage.centered_dimension(x, corrected=False)


def test_exact_low_rank_is_kept_with_fewer_samples_than_dimensions():
    x = _drawn(_planted("rank 10", 400), 200, 2)
    assert usage.centered_dimension(x, (1.0,), corrected=False) in ((10,), (11,))
    assert usage.centered_dimension(x)[1] == 10


@settings(max_examples=30, deadline=None, derandomize=True)
@given(st.integers(2, 30), st.integers(1, 30), st.integers(0, 10**6), st.sampled_from([1e-30, 1.0, 1e30]))
def test_bounds_scale_and_order(n, d, seed, scale):
    x = np.random.default_rng(seed).normal(size=(n, d)) * np.arange(1, d + 1) ** -0.5
    plain, found = usage.centered_dimension(x, corrected=False), usage.centered_dimension(x)
    assert all(1 <= p <= min(n - 1, d) for p in plain)
    assert plain == usage.centered_dimension(x * scale, corrected=False)
    assert plain == usage.centered_dimension(torch.from_numpy(x).flip(0, 1), corrected=False)
    if n < 10 and n - 1 < d:
        assert np.isnan(found).all()
        return
    assert all(p <= f <= d for p, f in zip(plain, found, strict=True))
    assert found[0] <= found[1]


def test_few_samples_do_not_tell_how_many_dimensions_they_miss():
    """What the documentation says of the errors of Gaussian samples, on its worst spectra."""
    generator = torch.Generator().manual_seed(0)
    levels = {"gap": torch.cat([torch.ones(20), torch.full((180,), 1e-3)]), "1 / i^2": torch.arange(1.0, 201) ** -2}
    for name, spectrum in levels.items():
        truth = np.array([_least(spectrum.numpy(), q) for q in usage.SHARES])
        for n, least, most in ((10, 0.4, 11), (20, 0.5, 7), (30, 0.6, 2.5), (50, 0.7, 3)):
            rows = [torch.randn(n, 200, generator=generator) * spectrum.sqrt() for _ in range(10)]
            ratios = np.array([usage.centered_dimension(x) for x in rows]) / truth
            assert ratios.min() >= least, (name, n)
            assert ratios.max() <= most, (name, n)
    x = torch.randn(9, 50, generator=generator) * torch.logspace(0, -2, 50)
    assert all(np.isnan(usage.centered_dimension(x[:n])).all() for n in (2, 3, 5, 9))
    assert usage.centered_dimension(x, corrected=False)[1] <= 8
    assert usage.centered_dimension(x[:, :1]) == (1, 1)  # all of one dimension
    assert max(usage.centered_dimension(x[:, :2] @ torch.ones(2, 50))) == 1  # samples that vary in fewer


@pytest.mark.parametrize(("k", "n"), [(1, 10), (1, 20), (1, 50), (2, 20), (2, 50), (5, 50)])
def test_planted_dimensions_under_little_noise_are_not_rounded_up(k, n):
    generator = torch.Generator().manual_seed(0)
    sizes = torch.full((30,), 1e-3, dtype=torch.float64)
    sizes[:k] = 1.0
    found = [usage.centered_dimension(torch.randn(n, 30, generator=generator).double() * sizes) for _ in range(40)]
    assert np.median(found, 0).tolist() == [k, k]
    if k == 1:
        assert np.max(found) == 1


def test_the_corrected_dimension_grows_with_the_share():
    generator = torch.Generator().manual_seed(0)
    sizes = 1 / torch.arange(1.0, 6)
    shares = (0.99, 0.95, 0.98, 0.96, 0.97)  # in any order
    for _ in range(30):
        found = usage.centered_dimension(torch.randn(10, 5, generator=generator) * sizes, shares)
        assert [dimension for _, dimension in sorted(zip(shares, found, strict=True))] == sorted(found)


@pytest.mark.parametrize("n", [2, 3, 100])
def test_rows_without_variance_have_dimension_0(n):
    assert usage.centered_dimension(torch.full((n, 5), 0.1)) == (0, 0)
    assert usage.centered_dimension(torch.zeros(n, 5)) == (0, 0)


def test_a_constant_column_adds_no_dimension():
    x = _drawn(_planted("isotropic", 3), 500, 3)
    assert usage.centered_dimension(np.column_stack([x, np.full(500, 1e6 + 0.1)])) == (3, 3)


def test_samples_of_exact_rank_have_no_further_dimension():
    assert usage.centered_dimension(torch.eye(4).repeat(50, 1)) == (3, 3)
    x = _drawn(_planted("isotropic", 6), 100, 5) @ np.random.default_rng(0).normal(size=(6, 40))
    assert max(usage.centered_dimension(x.astype(np.float32))) <= 6


def test_a_covariance_gives_what_its_samples_give():
    x = _drawn(_planted("1 / i", 40), 80, 4)
    eigenvalues = np.linalg.eigvalsh(np.cov(x.T))
    assert usage.variance_dimension(eigenvalues.clip(0), 80, 40) == usage.centered_dimension(x)


def test_dimensions_refuse_what_has_none():
    with pytest.raises(ValueError, match="activations: got a single row"):
        usage.centered_dimension(torch.ones(1, 4))
    with pytest.raises(ValueError, match="NaN or infinite"):
        usage.centered_dimension(torch.full((3, 4), torch.nan))
    with pytest.raises(ValueError, match="shares"):
        usage.centered_dimension(torch.eye(4), (1.5,))
    with pytest.raises(ValueError, match="eigenvalues: got 3 positive numbers"):
        usage.variance_dimension([3.0, 2.0, 1.0], samples=3, features=5)
    with pytest.raises(TypeError, match="shares"):
        usage.centered_dimension(torch.eye(4), 0.95)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("flushed", [False, True])
def test_subnormals_are_counted_by_their_bits(dtype, flushed):
    info = torch.finfo(dtype)
    least = info.tiny * info.eps
    values = torch.tensor([0.0, -0.0, 1.0, info.tiny, -info.tiny, torch.inf, torch.nan, info.max], dtype=dtype)
    values = torch.cat([values, torch.tensor([least, -least, info.tiny / 2], dtype=dtype)])
    torch.set_flush_denormal(flushed)
    try:
        assert usage.subnormals(values) == 3
        assert usage.subnormals(values[::2]) == 2
    finally:
        torch.set_flush_denormal(False)
    assert usage.subnormals(torch.ones(3, dtype=torch.int64)) == 0
    assert usage.subnormals(np.array([1e-310, 1.0])) == 1
    assert usage.subnormals(torch.tensor([1e-40 + 1j, 2.0])) == 1
    for count in (usage.subnormals, usage.count_subnormals):
        assert count(torch.tensor([1e-40j]).conj().imag) == 1  # a view whose entries are negated
        assert count(torch.tensor([1e-40j]).conj().imag + 0j) == 1
    with pytest.raises(TypeError, match="tensor"):
        usage.subnormals(1.0)
