"""Targets on the torus with prescribed decay of the Fourier coefficients, which kernels learn at a known rate."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from bnrank._core import validation
from bnrank.tasks.task import Task, Truth, streams, uniform

CUTOFFS = {1: 8192, 2: 256, 3: 40, 4: 16}  # defaults: about half a million coefficients
CHUNK = 1 << 22  # entries of the largest intermediate product
RESOLVED = 1e-13  # smallest difference from 1 that is accurate to a few percent in float64
NEAREST = 120  # powers above: points that are not nearest to 0 have a share below 1e-15 of the lattice sum


def on_torus(angles: Tensor) -> Tensor:
    """Return the points (cos t_1, ..., cos t_d, sin t_1, ..., sin t_d), (N, 2 d), at angles (N, d).

    Distances there are ||x - x'||^2 = sum_j 4 sin^2((t_j - t'_j) / 2), so that every kernel k(||x - x'||) is invariant
    under translations of the torus and the Fourier modes are its eigenfunctions under uniform angles.

    Examples
    --------
    >>> import torch
    >>> on_torus(torch.tensor([[0.0, torch.pi]])).round().tolist()
    [[1.0, -1.0, 0.0, -0.0]]
    """
    angles = validation.dense(validation.kind(angles, "angles", Tensor), "angles")
    validation.expect(angles.is_floating_point(), "angles", angles, "floating-point numbers", TypeError)
    validation.expect(angles.ndim == 2, "angles", f"shape {tuple(angles.shape)}", "(N, d)")
    return torch.cat([angles.cos(), angles.sin()], 1)


def lattice_sum(d: int, power: float) -> float:
    """Return the sum of ||m||^{-power} over the integer points m != 0 in d dimensions, for power > d.

    Epstein's zeta function Z at s = power / 2, by Riemann's splitting: pi^{-s} Gamma(s) Z = 1/(s - d/2) - 1/s +
    int_1^inf (theta(t)^d - 1) (t^{s-1} + t^{d/2-s-1}) dt with theta(t) = sum_n e^{-pi n^2 t}. For powers above 120 only
    the 2 d points nearest to 0 count in float64.

    Raises
    ------
    TypeError, ValueError
        If ``d`` is not a positive integer or the sum does not converge.

    Examples
    --------
    >>> abs(lattice_sum(1, 2.0) - torch.pi**2 / 3) < 1e-12
    True
    """
    from scipy.integrate import quad
    from scipy.special import gamma

    d = validation.integer(d, "d")
    s = validation.number(power, "power", d, strict=True) / 2
    if power > NEAREST:
        return 2.0 * d
    n = np.arange(1, 8)

    def integrand(t: float) -> float:
        above = np.expm1(d * np.log1p(2 * np.exp(-math.pi * n**2 * t).sum()))
        return float(above * (t ** (s - 1) + t ** (d / 2 - s - 1)))

    integral = quad(integrand, 1, 20 + 2 * s, epsabs=0, epsrel=1e-12, limit=200)[0]  # e^{-pi t} t^s is 0 beyond
    return float((1 / (s - d / 2) - 1 / s + integral) * math.pi**s / gamma(s))


@dataclass(frozen=True, eq=False)
class TorusTarget:
    """A random real function f(t) = sum_{m != 0} beta_m e^{i m.t} on the torus, |beta_m|^2 = ||m||^{-alpha-d} / Z.

    m runs over the integer points of the cube max_j |m_j| <= cutoff, beta_{-m} is the conjugate of beta_m, phases are
    uniform, ||m|| is Euclidean and Z the sum over *all* m != 0: without cutoff the mean of f^2 would be 1. Computes in
    float64 and returns the dtype it is given.

    Attributes
    ----------
    d, cutoff : int
        Dimension of the torus and largest |m_j|.
    alpha : float
        Decay, > 0.
    coefficients : Tensor
        beta_m, complex128, (cutoff + 1, 2 cutoff + 1, ..., 2 cutoff + 1), for m_1 from 0 and the others from -cutoff;
        of m and -m, only the one whose first non-zero entry is positive is used; the other is stored as 0.

    Examples
    --------
    >>> import torch, bnrank
    >>> one = torch.tensor([0.0, 0.5], dtype=torch.complex128)                  # beta_1 = beta_{-1} = 1/2
    >>> target = bnrank.tasks.TorusTarget(d=1, alpha=2.0, cutoff=1, coefficients=one)
    >>> target(torch.tensor([[0.0], [torch.pi]])).tolist()                      # the cosine
    [1.0, -1.0]
    """

    d: int
    alpha: float
    cutoff: int
    coefficients: Tensor

    def __call__(self, angles: Tensor) -> Tensor:
        """Return the values, (N,), at angles (N, d)."""
        shape = tuple(angles.shape)
        validation.expect(shape[1:] == (self.d,), "angles", f"shape {shape}", f"(N, {self.d})")
        rows = 2 * self.cutoff + 1
        modes = torch.arange(-self.cutoff, self.cutoff + 1, dtype=torch.float64)
        values = []
        for piece in angles.double().split(max(1, CHUNK // max(self.coefficients[0].numel(), rows))):
            sums = _waves(piece[:, 0], modes[self.cutoff :]) @ self.coefficients.reshape(self.cutoff + 1, -1)
            for angle in piece[:, 1:].T:
                sums = (_waves(angle, modes)[:, None] @ sums.reshape(len(piece), rows, -1))[:, 0]
            values.append(2 * sums[:, 0].real)
        return torch.cat(values).to(angles.dtype)

    def beyond(self, n: int) -> float:
        """Return the sum of |beta_m|^2 over all but the n largest, as if there were no cutoff.

        This is the smallest mean squared error of a combination of n modes. The part beyond the cutoff is computed as a
        difference from 1, up to 1e-15.

        Raises
        ------
        ValueError
            If the n largest are not all within the cutoff, or the sum is below 1e-13, where round-off dominates.
        """
        n = validation.integer(n, "n", 0)
        squares = (self.coefficients.abs() ** 2).ravel().numpy()
        sizes = np.repeat(np.sort(squares[squares > 0])[::-1], 2)
        largest = sizes[:n]
        power = self.alpha + self.d
        if n and (len(largest) < n or largest[-1] < (self.cutoff + 1) ** -power / lattice_sum(self.d, power)):
            raise ValueError(f"n: got {n}, of which some lie beyond the cutoff {self.cutoff}; expected fewer")
        result = float(sizes[n:].sum() + max(0.0, 1 - sizes.sum()))
        found = f"{n}, beyond which less than {RESOLVED:g} is left, lost in rounding"
        validation.expect(result >= RESOLVED, "n", found, "fewer")
        return result

    @property
    def missing(self) -> float:
        """Sum of |beta_m|^2 beyond the cutoff: the missing part of the mean of f^2; NaN below 1e-13."""
        result = float(1 - 2 * (self.coefficients.abs() ** 2).sum())
        return result if result >= RESOLVED else math.nan


def _waves(angle: Tensor, modes: Tensor) -> Tensor:
    """Return e^{i m t}, (N, modes), complex128."""
    return torch.polar(torch.ones(1, dtype=torch.float64), angle[:, None] * modes)


def torus_map(
    n: int = 512,
    d: int = 2,
    alphas: Sequence[float] = (2.0,),
    seed: int = 0,
    *,
    n_test: int = 1000,
    cutoff: int | None = None,
) -> Task:
    """Return functions on the d-dimensional torus with coefficients |beta_m|^2 ~ ||m||^{-alpha-d}, one per alpha (F7).

    Sums of n modes leave a mean squared error of about n^{-alpha/d}. The source (Jacot2023c, slides on kernel methods)
    prints monomials and leaves the distribution of the inputs open; Fourier modes are orthonormal under uniform
    angles, and on the torus embedded by :func:`on_torus` they are the eigenfunctions of every radial kernel.

    Parameters
    ----------
    n, n_test : int
        Number of training and of test samples; ``n_test`` may be 0.
    d : int
        Dimension of the torus.
    alphas : sequence of float
        One output for each, all > 0. All outputs have the same phases.
    seed : int
        Phases, training and test inputs come from separate streams of it. The first samples of a larger task are those
        of a smaller one.
    cutoff : int, optional
        Largest |m_j|; by default 8192, 256, 40, 16 in 1 to 4 dimensions. Costs (2 cutoff + 1)^d / 2 numbers, and as
        many operations per sample.

    Returns
    -------
    Task
        x (n, 2 d), points of :func:`on_torus` at uniform angles, y (n, len(alphas)), float64, loss "mse".
        ``truth.latents`` are the angles; ``truth.rank`` is d.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range; the message names it.

    Examples
    --------
    >>> import bnrank
    >>> task = bnrank.tasks.torus_map(n=100, d=2, alphas=(2, 4), cutoff=50)
    >>> task.x.shape, task.y.shape, task.truth.latents.shape
    (torch.Size([100, 4]), torch.Size([100, 2]), torch.Size([100, 2]))
    """
    n, d, n_test = validation.integer(n, "n"), validation.integer(d, "d"), validation.integer(n_test, "n_test", 0)
    if isinstance(alphas, str) or not isinstance(alphas, Sequence) or not alphas:
        raise TypeError(f"alphas: got {validation.describe(alphas)}, expected a sequence of numbers > 0")
    decays = [validation.number(alpha, f"alphas[{i}]", 0.0, strict=True) for i, alpha in enumerate(alphas)]
    if cutoff is None:
        validation.expect(d in CUTOFFS, "cutoff", "None", f"an integer for d = {d}; there are defaults for d = 1 to 4")
        cutoff = CUTOFFS[d]
    cutoff = validation.integer(cutoff, "cutoff")
    validation.expect(d <= 20, "d", f"{d}", "at most 20")
    validation.allocation(len(decays) * 4 * (2 * cutoff + 1) ** d, "cutoff", cutoff)
    validation.largest_fits(6 * (n + n_test) * d, {"n": n, "n_test": n_test})
    for_phases, train, test = streams(seed, 3)
    targets = torus_targets(d, decays, cutoff, for_phases)

    def values(angles: Tensor) -> Tensor:
        return torch.stack([target(angles) for target in targets], 1)

    angles, angles_test = (2 * math.pi * uniform(stream, count, d) for count, stream in ((n, train), (n_test, test)))
    settings = {"n": n, "d": d, "alphas": tuple(decays), "seed": seed, "n_test": n_test, "cutoff": cutoff}
    return Truth(d, angles, angles_test, on_torus, values).task("torus_map", settings)


def torus_targets(d: int, alphas: Sequence[float], cutoff: int, generator: torch.Generator) -> list[TorusTarget]:
    """Return one target per alpha, all with the same phases."""
    first = torch.arange(cutoff + 1, dtype=torch.float64)
    other = torch.arange(-cutoff, cutoff + 1, dtype=torch.float64)
    squared = torch.stack(torch.meshgrid(first, *[other] * (d - 1), indexing="ij")).square().sum(0)
    order = torch.arange(squared.numel()).reshape(squared.shape)  # the lexicographic one of m
    positive = order > (2 * cutoff + 1) ** (d - 1) // 2  # the place of m = 0
    phases = 2 * math.pi * uniform(generator, *squared.shape)
    result = []
    for alpha in alphas:
        sizes = torch.where(positive, squared.clamp(min=1) ** (-(alpha + d) / 4), 0.0)
        sizes = sizes / math.sqrt(lattice_sum(d, alpha + d))
        result.append(TorusTarget(d, alpha, cutoff, torch.polar(sizes, phases)))
    return result
