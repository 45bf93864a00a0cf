"""How much of its width a layer uses: dimension of centered activations, subnormal numbers, soft ranks."""

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bnrank._core import validation
from bnrank._core.linalg import Values, effective_rank, stable_rank
from bnrank._core.validation import Data

__all__ = ["centered_dimension", "effective_rank", "stable_rank", "subnormals", "variance_dimension"]

Array = NDArray[np.float64]

SHARES = (0.95, 0.99)
FEW = 50  # samples: with fewer, estimated dimensions can be several times too large
LEAST = 10  # samples: with fewer, the spectrum beyond the dimensions that they span cannot be estimated
RESOLUTION = 1e-3  # population eigenvalues below this, relative to their mean, are treated as 0
NOTHING = 1e-12  # eigenvalues below this, relative to the largest, are rounding errors, also of float32 samples
GRID, NEGATIVE, SEEN = 120, 40, 60  # population eigenvalues tried; points z on the negative axis and near eigenvalues
WITHIN = 0.5  # dimensions: the error of the correction; for data of one dimension, estimates are up to 1.4
CONSTRAINT = 30.0  # weight of the total variance and of the number of eigenvalues, which are known
_INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def centered_dimension(
    activations: Data, shares: Sequence[float] = SHARES, *, corrected: bool = True
) -> tuple[float, ...]:
    """Return the numbers of principal components of activations that hold given shares of their variance.

    The dimension at share q is the least k for which the k largest eigenvalues of the covariance of the units sum to at
    least q times its trace; see :func:`variance_dimension`, also for the correction for few samples. Activations are
    centered first: a large mean is no direction of variation.

    Parameters
    ----------
    activations : Tensor or ndarray
        (N, d), one sample per row, N at least 2. Rows are assumed independent: with repeated or similar rows, the
        correction is too small.
    shares : sequence of float
        Shares of the variance, each in (0, 1].
    corrected : bool
        Whether to estimate the dimension of the distribution; otherwise the dimension of these N rows, at most N - 1.

    Returns
    -------
    tuple of int or NaN
        One for each share, from 0 (all rows are equal) to d. NaN with fewer than 10 rows, where they span N - 1 < d
        dimensions and ``corrected``.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range, or an entry is NaN or infinite.

    Examples
    --------
    >>> noise = torch.randn(100, 200, generator=torch.Generator().manual_seed(0))
    >>> centered_dimension(noise, corrected=False), centered_dimension(noise)
    ((78, 92), (188, 196))
    """
    activations = validation.array(activations, "activations", "(N, d)", 2).to(torch.float64)
    n = len(activations)
    validation.expect(n > 1, "activations", "a single row", "at least 2 rows (N, d)")
    size = activations.abs().max()
    centered = activations / torch.where(size > 0, size, 1.0)  # squares of what is large or small overflow or vanish
    centered = centered - centered.mean(0)
    # units that do not vary are no dimensions; their mean can differ from them by rounding
    centered = centered[:, (activations != activations[:1]).any(0)]
    values = torch.linalg.svdvals(centered).square()
    return variance_dimension(values, n, max(1, centered.shape[1]), shares, corrected=corrected)


def variance_dimension(
    eigenvalues: Values, samples: int, features: int, shares: Sequence[float] = SHARES, *, corrected: bool = True
) -> tuple[float, ...]:
    r"""Return the numbers of principal components that hold given shares of the variance, from covariance eigenvalues.

    The dimension at share q is the least k with l_1 + ... + l_k >= q (l_1 + ... + l_d), l_i the descending eigenvalues
    of the covariance matrix. With few samples, the eigenvalues of the sample covariance are spread more widely than
    those of the distribution, and at most N - 1 of them are not 0. For isotropic noise in 200 dimensions, 190
    components hold 95 percent of the variance; of 100 samples, about 77 do.

    The correction inverts the Marchenko-Pastur equation. For independent samples, the mean v(z) of 1 / (l - z) over the
    n = N - 1 eigenvalues of the centered Gram matrix determines the distribution of the population eigenvalues t,

        1 + z v(z) = (d / n) mean_t[t v(z) / (1 + t v(z))]  for n, d -> infinity.

    Non-negative weights on a grid of t are fitted by least squares to this equation, for z on the negative axis and
    near the eigenvalues, with the total variance given. The estimate is rounded up; where it is at most half a
    dimension above the uncorrected one, which its own error can reach, the uncorrected one is returned. The result at
    a share is at least that at a smaller one of ``shares``. Where the samples span fewer than min(N - 1, d) dimensions,
    so does the distribution, and d is replaced by their number.

    Parameters
    ----------
    eigenvalues : array of shape (K,)
        Of the covariance matrix of the samples, or of the Gram matrix of the centered samples: those that are not 0,
        in any order and on any scale.
    samples : int
        N, the number of samples that were centered, at least 2.
    features : int
        d, the dimension of the samples.
    shares : sequence of float
        Shares of the variance, each in (0, 1].
    corrected : bool
        Whether to correct for a finite number of samples.

    Returns
    -------
    tuple of int or NaN
        One for each share, from 0 (no variance) to d. NaN with fewer than 10 samples, where they span N - 1 < d
        dimensions and ``corrected``: the samples do not tell how many more there are.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range.

    Notes
    -----
    After El Karoui, *Spectrum estimation for large dimensional covariance matrices using random matrix theory*, Annals
    of Statistics 36 (2008). Use at least 50 samples, and d / 2. With fewer, small eigenvalues are known by little more
    than their sum, and the estimate can be several times too large. For Gaussian samples with four spectra (isotropic,
    1 / i, 1 / i^2, geometric) in 5, 20, 50 and 200 dimensions, it is 0.35 to 13 times the dimension at 95 or 99 percent
    with 10 samples, 0.5 to 5.4 times with 20, 0.6 to 2.6 times with 30, and 0.6 to 1.6 times with 50 (the extremes of
    60 draws each; ``python -m benchmarks.few_samples``). Where the share is passed in the flat tail after a gap, the
    dimension is ill-conditioned, and 0.07 to 2.6 times the right one.

    Examples
    --------
    >>> variance_dimension([1.0, 1.0, 0.1], samples=1000, features=3)
    (2, 3)
    """
    values = validation.real(eigenvalues, "eigenvalues").to(torch.float64).cpu()
    usable = values.ndim == 1 and not bool((values < 0).any())
    validation.expect(usable, "eigenvalues", values, "(K,), all non-negative")
    samples, features = validation.integer(samples, "samples", 2), validation.integer(features, "features")
    shares = [validation.number(q, "shares", 0.0, strict=True) for q in validation.sequence(shares, "shares")]
    for q in shares:
        validation.expect(q <= 1, "shares", q, "numbers in (0, 1]")
    corrected, most = validation.flag(corrected, "corrected"), min(samples - 1, features)
    more = int((values > 1e-9 * values.max()).sum()) - most if values.numel() else 0
    expected = f"at most min(samples - 1, features) = {most} that are not 0"
    validation.expect(more <= 0, "eigenvalues", f"{most + more} positive numbers", expected)
    if corrected:
        return dimensions(values, samples, features, shares)
    return uncorrected(values.sort(descending=True).values.numpy()[:most], shares)


def dimensions(values: Tensor, samples: int, features: int, shares: Sequence[float] = SHARES) -> tuple[float, ...]:
    """Return what :func:`variance_dimension` does, corrected, without checks of its arguments."""
    most = min(samples - 1, features)
    spectrum: Array = values.cpu().sort(descending=True).values.numpy()[:most]
    plain = uncorrected(spectrum, shares)
    if not any(plain):
        return plain
    spectrum = spectrum / spectrum[0]
    rank = int((spectrum > NOTHING).sum())
    if rank < most:  # of independent samples, only if the distribution has this rank
        spectrum, features = spectrum[:rank], rank
    elif samples < LEAST and most < features:
        return (math.nan,) * len(shares)
    levels, masses = _population(spectrum, samples - 1, features)
    sums, counts = (np.concatenate([[0.0], np.cumsum(part)]) for part in (levels * masses, masses))
    estimates = np.interp(np.array(shares) * sums[-1], sums, counts * features)
    rounded = np.where(estimates <= np.array(plain) + WITHIN, plain, np.ceil(estimates - 1e-6).clip(max=features))
    return tuple(int(rounded[np.array(shares) <= q].max()) for q in shares)


def uncorrected(values: Array, shares: Sequence[float] = SHARES) -> tuple[int, ...]:
    """Return the numbers of the largest of descending values that hold shares of their sum; 0 where all are 0.

    Of sums within rounding, the smaller counts.
    """
    if not len(values) or values[0] <= 0:
        return (0,) * len(shares)
    sums = np.cumsum(values / values[0])
    return tuple(int(np.searchsorted(sums, q * sums[-1] * (1 - 1e-12))) + 1 for q in shares)


def _population(values: Array, n: int, d: int) -> tuple[Array, Array]:
    """Return a distribution of population eigenvalues, descending levels and masses, from n d-dimensional samples."""
    from scipy.optimize import nnls

    total, top = float(values.sum()), float(values[0])
    low = RESOLUTION * total / d
    seen = values[values > low]
    near = seen if len(seen) <= SEEN else np.quantile(seen, np.linspace(0, 1, SEEN))
    z = np.concatenate([-np.geomspace(low, 10 * top, NEGATIVE), near * (1 + 0.1j), near * (1 + 0.5j)])
    v = ((1 / (values - z[:, None])).sum(1) - (n - len(values)) / z) / n
    levels = np.concatenate([[0.0], np.geomspace(low, top, GRID)])
    products = levels * v[:, None]
    terms, sides = d / n * products / (1 + products), 1 + z * v
    known = CONSTRAINT * np.stack([levels * d / total, np.ones_like(levels)])
    matrix = np.concatenate([terms.real, terms.imag, known])
    masses, _ = nnls(matrix, np.concatenate([sides.real, sides.imag, np.full(2, CONSTRAINT)]), maxiter=50 * GRID)
    return levels[::-1], (masses / masses.sum())[::-1]


def subnormals(tensor: Data) -> int:
    """Return the number of subnormal entries: not 0, but smaller than the least normal number of the dtype.

    That number is 1.2e-38 for float32 and 2.2e-308 for float64. Arithmetic with subnormal numbers is many times slower
    on most processors; ``torch.set_flush_denormal(True)`` makes them 0. They are counted by their bits, also where
    arithmetic treats them as 0.

    Parameters
    ----------
    tensor : Tensor or ndarray
        Floating-point or complex numbers of any shape. NaN, infinite and integer entries are not subnormal.

    Raises
    ------
    TypeError
        If it is neither a tensor nor an array of numbers.

    Examples
    --------
    >>> subnormals(torch.tensor([0.0, 1.0, 1e-40, -1e-42]))
    2
    """
    expected = "a tensor or array of numbers"
    given = isinstance(tensor, Tensor | np.ndarray)
    validation.expect(given, "tensor", tensor, expected, TypeError)
    tensor = validation.from_array(tensor, "tensor") if isinstance(tensor, np.ndarray) else tensor
    tensor = validation.dense(tensor, "tensor").detach()
    return count_subnormals(tensor) if tensor.is_floating_point() or tensor.is_complex() else 0


def count_subnormals(tensor: Tensor) -> int:
    """Return what :func:`subnormals` does of floating-point or complex numbers, without checks of its argument."""
    tensor = torch.view_as_real(tensor.resolve_neg().resolve_conj()) if tensor.is_complex() else tensor.resolve_neg()
    integers = _INTEGERS[tensor.element_size()]
    bits = tensor.contiguous().view(integers) & torch.iinfo(integers).max  # without the sign
    normal = int(torch.tensor(torch.finfo(tensor.dtype).tiny, dtype=tensor.dtype).view(integers))
    return int(((bits > 0) & (bits < normal)).sum())
