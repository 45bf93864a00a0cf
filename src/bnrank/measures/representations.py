"""Kernels of the representations at every layer, distances between them, and a planar embedding."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from bnrank._core import linalg, validation
from bnrank._core.validation import Data
from bnrank.measures.spectra import WHICH
from bnrank.networks.functional import example
from bnrank.networks.reading import capture, named, read

__all__ = ["METRICS", "Kernels", "Layout", "distance", "distances", "kernels", "layout"]

METRICS = ("bures", "affine-invariant", "log-euclidean", "angle", "centered-angle")
SAME_RANGE = 1e-6  # two ranges are equal up to this sine of the largest principal angle


@dataclass(frozen=True)
class Kernels:
    """Kernels of a network's representations at samples, stored as factors: K_l = F_l F_l^T.

    Attributes
    ----------
    names : tuple of str
        "input", then the names of the layers in order of execution.
    factors : tuple of Tensor
        F_0 = N^(-1/2) X and F_l = N^(-1/2) a~_l(X) (or a_l), (N, n_l), float64, with one row per sample.
    """

    names: tuple[str, ...]
    factors: tuple[Tensor, ...]

    def matrices(self) -> Tensor:
        """Return the kernels, (L + 1, N, N), whose entries are inner products divided by N."""
        return torch.stack([f @ f.T for f in self.factors])

    def singular_values(self) -> list[Tensor]:
        """Return the singular values of every factor, descending: square roots of the kernel's eigenvalues."""
        return [torch.linalg.svdvals(f) for f in self.factors]


def kernels(net: nn.Module, x: Data, *, which: str = "preactivations", chunk_size: int = 4096) -> Kernels:
    """Return the kernels K_l(x_i, x_j) = (1/N) <a~_l(x_i), a~_l(x_j)> of the input and of every layer.

    They are invariant under permutations and other orthogonal transformations of a layer's neurons, the symmetries
    that preserve the norm. Their traces are mean squared norms, and their non-zero eigenvalues are those of
    (1/N) sum_i a~_l(x_i) a~_l(x_i)^T. Representations are not centered.

    Parameters
    ----------
    net : torch.nn.Module
        Any module with linear or convolutional layers.
    x : Tensor or ndarray
        Samples, (N, ...). Representations with more dimensions are flattened to (N, features).
    which : "preactivations" or "activations"
        a~_l, the output of a layer, as in the source; or a_l, the input of the next layer.
    chunk_size : int
        Samples per forward pass.

    Returns
    -------
    Kernels
        As factors: the memory is proportional to N times the widths and not to N^2.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range, the network has no layer, or a value is not finite.

    Notes
    -----
    Source: T11; Jacot2023b, section 3.3.

    Examples
    --------
    >>> import torch
    >>> from bnrank.networks.constructions import linear
    >>> found = kernels(linear(torch.tensor([[16.0]], dtype=torch.float64), 4), torch.ones(3, 1))
    >>> [round(3 * float(k[0, 0]), 9) for k in found.matrices()]                       # 16^(2 l / 4)
    [1.0, 4.0, 16.0, 64.0, 256.0]
    """
    validation.choice(which, "which", WHICH)
    x = example(net, x)
    reading = read(net, x)
    parts = [getattr(part, which) for part in capture(net, x, reading, chunk_size)]
    found = [x, *(torch.cat(pieces) for pieces in zip(*parts, strict=True))]
    names = ("input", *(layer.name for layer in reading.layers))
    for number, value in enumerate(found[1:]):
        if not bool(torch.isfinite(value).all()):
            where = named(reading.layers, number, which)
            raise ValueError(f"net: {where}: got NaN or infinite entries, expected finite ones")
    scale = 1 / math.sqrt(len(x))
    return Kernels(names, tuple(scale * value.detach().flatten(1).to(torch.float64) for value in found))


def distance(a: Data, b: Data, metric: str = "bures", *, rtol: float = 1e-8) -> float:
    """Return the distance between two positive semi-definite kernels, A = F F^T and B = G G^T, given F and G.

    Every metric is a function of the kernels, hence invariant under orthogonal transformations of the columns
    (neurons) of F and G, and under a common permutation of the samples.

    ==================  ============================================================================================
    "bures"             min over orthogonal Q of ||F Q - G||_F (the narrower factor padded with zero columns), the
                        Bures-Wasserstein distance; its square is tr A + tr B - 2 tr (A^(1/2) B A^(1/2))^(1/2).
                        A metric on all kernels, in the units of the representations: F, G -> cF, cG multiplies it by c.
    "affine-invariant"  ||log(A^(-1/2) B A^(-1/2))||_F on the common range of A and B, infinite if the ranges differ.
                        Invariant under A, B -> M A M^T, M B M^T with M invertible (linear transformations of the data)
                        and under inversion of both.
    "log-euclidean"     ||log A - log B||_F on the common range, infinite if the ranges differ. Equal to
                        "affine-invariant" if A and B commute, otherwise at most as large.
    "angle"             arccos(<A, B>_F / (||A||_F ||B||_F)), in radians: a scale-free metric on rays of kernels.
    "centered-angle"    the angle after centering the columns of F and G; its cosine is linear CKA.
    ==================  ============================================================================================

    Parameters
    ----------
    a, b : Tensor or ndarray
        F, (N, n), and G, (N, m), for the same N samples, with or without the factor N^(-1/2).
    metric : str
        A metric of the table above.
    rtol : float
        "affine-invariant" and "log-euclidean": singular values of a factor up to ``rtol`` times the largest are
        treated as 0. The default is the square root of the machine precision: logarithms of the remaining values have
        errors of about 1e-8. Two ranges are equal up to an angle of 1e-6. Both metrics require float64: rounding to
        float32 separates common ranges of fewer than N dimensions, and the distance is infinite. Convert networks and
        data first.

    Returns
    -------
    float
        The distance, non-negative, computed in float64 without N x N matrices if N exceeds the total width.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range, the numbers of samples differ, or the angle is undefined: for a kernel that is
        0 or, with "centered-angle", a representation that is constant up to rounding.

    Notes
    -----
    Source: F14; T8 uses "affine-invariant". Bhatia, Jain and Lim, On the Bures-Wasserstein distance
    between positive definite matrices (2019); Arsigny et al. (2007) for "log-euclidean"; Kornblith et al. (2019) for
    CKA.

    Examples
    --------
    >>> import torch
    >>> f = torch.tensor([[1.0, 0.0], [0.0, 2.0]])
    >>> distance(f, f[:, [1, 0]] * -1) < 1e-15, round(distance(f, 3 * f, "bures"), 6)          # 2 ||F||_F
    (True, 4.472136)
    >>> round(distance(f, 3 * f, "affine-invariant") / math.log(9), 6)                        # sqrt(2)
    1.414214
    >>> round(distance(f[:, :1], f[:, 1:], "angle"), 6)
    1.570796
    """
    metric = validation.choice(metric, "metric", METRICS)
    rtol = validation.rtol(rtol)
    f, g = (validation.samples(value, name).detach().to(torch.float64) for name, value in (("a", a), ("b", b)))
    validation.expect(len(f) == len(g), "b", f"{len(g)} samples", f"{len(f)}, as many as a has")
    if metric == "bures":
        return _bures(f, g)
    if metric in ("affine-invariant", "log-euclidean"):
        return _logarithmic(f, g, metric, rtol)
    if metric == "centered-angle":
        f, g = _centered(f, "a"), _centered(g, "b")
    return _angle(f, g)


def distances(factors: Kernels | Sequence[Data], metric: str = "bures", *, rtol: float = 1e-8) -> np.ndarray:
    """Return the symmetric matrix of the distances between all kernels, (K, K).

    Parameters
    ----------
    factors : Kernels or sequence of Tensor
        The result of :func:`kernels`, or the factors, (N, n_l) each.
    metric, rtol
        As in :func:`distance`.

    Raises
    ------
    TypeError, ValueError
        As :func:`distance`.

    Examples
    --------
    >>> import torch
    >>> distances([torch.ones(1, 1) * 2.0**l for l in range(3)], "bures")[0].round(6).tolist()
    [0.0, 1.0, 3.0]
    """
    held = factors.factors if isinstance(factors, Kernels) else tuple(factors)
    validation.expect(held, "factors", "an empty sequence", "at least one factor (N, n)")
    found = np.zeros((len(held), len(held)))
    for i, j in itertools.combinations(range(len(held)), 2):
        found[i, j] = found[j, i] = distance(held[i], held[j], metric, rtol=rtol)
    return found


@dataclass(frozen=True)
class Layout:
    """Points whose Euclidean distances approximate given distances.

    Attributes
    ----------
    points : ndarray
        (K, dims), with mean 0; in every coordinate the entry of largest absolute value is positive.
    eigenvalues : ndarray
        All K eigenvalues of the doubly centered matrix, descending. If some are negative, the distances are not
        Euclidean in any number of dimensions.
    share : float
        Sum of the eigenvalues of the embedding over the sum of all absolute values: 1 for an exact embedding.
    """

    points: np.ndarray
    eigenvalues: np.ndarray
    share: float


def layout(distances: np.ndarray, dims: int = 2) -> Layout:
    """Return points in ``dims`` dimensions that approximate given distances, by classical multidimensional scaling.

    With J = I - 11^T / K, the matrix -J D^2 J / 2 has the inner products of centered points with distances D, if such
    points exist. The coordinates are its leading eigenvectors times the square roots of the eigenvalues.

    Parameters
    ----------
    distances : ndarray
        D, (K, K), symmetric, finite, non-negative, 0 on the diagonal.
    dims : int
        Number of coordinates, at most K; those of negative eigenvalues are 0.

    Raises
    ------
    TypeError, ValueError
        If the matrix does not have these properties, or ``dims`` is out of range.

    Examples
    --------
    >>> import numpy as np
    >>> line = layout(np.abs(np.subtract.outer([0.0, 1.0, 5.0], [0.0, 1.0, 5.0])))
    >>> (line.points[:, 0] + 3).round(9).tolist(), round(line.share, 9)
    ([1.0, 2.0, 6.0], 1.0)
    """
    d = np.asarray(distances, dtype=np.float64)
    dims = validation.integer(dims, "dims")
    usable = d.ndim == 2 and d.shape[0] == d.shape[1] and d.size > 0 and np.isfinite(d).all() and (d >= 0).all()
    validation.expect(usable, "distances", d, "(K, K), finite and non-negative")
    if np.abs(d - d.T).max() > 1e-9 * d.max() or np.abs(np.diag(d)).max() > 1e-9 * d.max():
        raise ValueError("distances: got a matrix that is not symmetric with 0 on the diagonal")
    validation.expect(dims <= len(d), "dims", f"{dims}", f"at most the number of points, {len(d)}")
    centering = np.eye(len(d)) - 1 / len(d)
    values, vectors = np.linalg.eigh(-0.5 * centering @ d**2 @ centering)
    values, vectors = values[::-1], vectors[:, ::-1]
    points = vectors[:, :dims] * np.sqrt(np.maximum(values[:dims], 0))
    largest = points[np.abs(points).argmax(0), np.arange(dims)]
    total = np.abs(values).sum()
    share = float(np.maximum(values[:dims], 0).sum() / total) if total > 0 else 1.0
    return Layout(points * np.where(largest < 0, -1.0, 1.0), values, share)


def _centered(f: Tensor, name: str) -> Tensor:
    centered = f - f.mean(0)
    if float(centered.norm()) <= 10 * torch.finfo(torch.float64).eps * float(f.norm()):
        raise ValueError(f"{name}: got a representation that is constant, whose centered kernel is 0 and has no angle")
    return centered


def _bures(f: Tensor, g: Tensor) -> float:
    """Return ||F Q - G||_F for the optimal Q: the difference of traces would lose half of the digits."""
    width = max(f.shape[1], g.shape[1])
    f, g = (torch.nn.functional.pad(t, (0, width - t.shape[1])) for t in _together(f, g))
    u, _, vh = torch.linalg.svd(f.T @ g)
    return float((f @ (u @ vh) - g).norm())


def _angle(f: Tensor, g: Tensor) -> float:
    f, g = _together(f, g)
    one, other = f @ f.T, g @ g.T
    sizes = float(one.norm()), float(other.norm())
    for name, size in zip("ab", sizes, strict=True):
        validation.expect(size != 0, name, "a kernel that is 0", "one that has an angle with others")
    one, other = one / sizes[0], other / sizes[1]
    return 2 * math.atan2(float((one - other).norm()), float((one + other).norm()))  # accurate for small angles


def _logarithmic(f: Tensor, g: Tensor, metric: str, rtol: float) -> float:
    (u, s), (v, t) = (_range(factor, rtol) for factor in _together(f, g))
    if len(s) != len(t):
        return math.inf
    if len(s) == 0:
        return 0.0
    across = u.T @ v
    if float(torch.linalg.matrix_norm(v - u @ across, 2)) > SAME_RANGE:
        return math.inf
    if metric == "log-euclidean":
        return 2 * float((torch.diag(s.log()) - (across * t.log()) @ across.T).norm())
    return 2 * float(torch.linalg.svdvals((across * t) / s[:, None]).log().norm())


def _range(factor: Tensor, rtol: float) -> tuple[Tensor, Tensor]:
    u, s, _ = torch.linalg.svd(factor, full_matrices=False)
    k = int(linalg.rank(s, rtol))
    return u[:, :k], s[:k]


def _together(f: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    """Return both factors in an orthonormal basis of the sum of their ranges, if its dimension is smaller than N."""
    if len(f) <= f.shape[1] + g.shape[1]:
        return f, g
    both = torch.linalg.qr(torch.cat([f, g], 1), mode="r")[1]
    return both[:, : f.shape[1]], both[:, f.shape[1] :]
