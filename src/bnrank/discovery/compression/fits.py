"""Affine maps of low rank between two representations, and layers that compute them."""

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from bnrank._core import linalg
from bnrank.discovery.compression.parts import CONVOLUTIONS, Parts, pads_of, reach_of
from bnrank.networks.mlp import linear
from bnrank.networks.replicas import copied

RIDGES = 10.0 ** torch.arange(-12, 1, 2, dtype=torch.float64)  # relative to the squared largest singular value
SMALL = 1e-10  # eigenvalues of a Gram matrix below, relative to the largest, are not regressed on
ROUNDING = 1e-10  # singular values below, relative to the largest, are not regressed on


@dataclass(frozen=True)
class AffineFit:
    """Affine maps mean2 + B A (Z1 - mean1) that approximate Z2, one of every rank k.

    Attributes
    ----------
    reading : Tensor
        Rows of A, (r, n1), most important first; the coordinates A (Z1 - mean1) have variance 1 on the data.
    writing : Tensor
        Columns of B, (n2, r).
    mean1, mean2 : Tensor
        (n1,), (n2,).
    tails : Tensor
        (r + 1,): root mean square over the samples of what truncation to rank k = 0..r removes, in the metric.
    """

    reading: Tensor
    writing: Tensor
    mean1: Tensor
    mean2: Tensor
    tails: Tensor

    def at(self, k: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return A (k, n1), B (n2, k) and c (n2,) such that c + B A Z1 approximates Z2."""
        a, b = self.reading[:k], self.writing[:, :k]
        return a, b, self.mean2 - b @ (a @ self.mean1)


def fit(z1: Tensor, z2: Tensor, metric: Tensor | None = None, ridge: float | None = None) -> AffineFit:
    r"""Return affine maps of every rank, by ridge regression and a singular value decomposition.

    Ridge regression of Z2 on Z1, both centered, gives the prediction F; the first k principal coordinates of F M^{1/2}
    are kept, and Z2 is expressed in them. The ridge is the largest whose leave-one-out error (in closed form) is within
    one standard error of the smallest, which prevents extrapolation along directions in which the samples hardly vary.

    Parameters
    ----------
    z1, z2 : Tensor
        (N, n1) and (N, n2).
    metric : Tensor, optional
        M^{1/2}, (n2, m), the effect of a change of Z2 on the output; default: the identity.
    ridge : float, optional
        Relative to the squared largest singular value of Z1, instead of the automatic choice.

    Returns
    -------
    AffineFit
        Maps of ranks 0 to at most min(N - 1, n1, n2).

    Examples
    --------
    >>> generator = torch.Generator().manual_seed(0)
    >>> z1 = torch.randn(50, 6, generator=generator, dtype=torch.float64)
    >>> m = torch.randn(4, 2, generator=generator, dtype=torch.float64) @ torch.ones(2, 6, dtype=torch.float64)
    >>> a, b, c = fit(z1, z1 @ m.T + 3).at(1)
    >>> torch.allclose(b @ a, m, atol=1e-6), torch.allclose(c, torch.full((4,), 3.0).double(), atol=1e-6)
    (True, True)
    """
    mean1, mean2 = z1.mean(0), z2.mean(0)
    centered, y = z1 - mean1, z2 - mean2
    u, s, vt = _svd(centered)
    keep = (s > ROUNDING * s[:1]) & (s.square() > 0)
    u, s, vt = u[:, keep], s[keep], vt[keep]
    if not len(s):
        empty = z1.new_zeros
        return AffineFit(empty(0, z1.shape[1]), empty(z2.shape[1], 0), mean1, mean2, empty(1))
    if ridge is None:
        ridge = _best_ridge(u, s, y, metric)
    shrunk = s.square() / (s.square() + ridge * s[0].square())
    prediction = shrunk[:, None] * (u.T @ y)  # of F, in the basis u
    seen = prediction if metric is None else prediction @ metric
    p, values, _ = torch.linalg.svd(seen, full_matrices=False)
    some = values > 1e-14 * values[:1]
    p, values = p[:, some], values[some]
    scale = math.sqrt(len(z1))
    tails = linalg.tails(values).sqrt() / scale
    return AffineFit(scale * (p / s[:, None]).T @ vt, prediction.T @ p / scale, mean1, mean2, tails)


def gram_fit(z1: Tensor, z2: Tensor, metric: Tensor | None = None) -> AffineFit:
    """Return affine maps of every rank as :func:`fit` does, by Gram matrices and without a ridge.

    For a layer's original output z2 from its present one z1, which are nearly equal. Faster than :func:`fit` where
    there are many rows; blind to singular values below 1e-5 of the largest. Where z1 is z2 and without a metric,
    these are projections onto the principal axes. Where z1 does not vary, the only map is the mean of z2, as one of
    rank 1.

    Parameters
    ----------
    z1, z2 : Tensor
        (N, n1) and (N, n2).
    metric : Tensor, optional
        M^{1/2}, (n2, n2), symmetric.
    """
    mean1, mean2 = z1.mean(0), z2.mean(0)
    a, b = z1 - mean1, z2 - mean2
    gram = a.T @ a / len(a)
    values, basis = torch.linalg.eigh(gram)
    kept = values > SMALL * values[-1]
    values, basis = values[kept], basis[:, kept]
    if not len(values):
        zero = z1.new_zeros
        return AffineFit(zero(1, z1.shape[1]), zero(z2.shape[1], 1), mean1, mean2, zero(2))
    regression = (b.T @ a / len(a)) @ (basis / values @ basis.T)  # (n2, n1)
    predicted = regression @ gram @ regression.T
    seen = predicted if metric is None else metric @ predicted @ metric
    squares, axes = torch.linalg.eigh((seen + seen.T) / 2)
    squares, axes = squares.flip(0).clamp(min=0), axes.flip(1)
    some = squares > 1e-20 * squares[:1]
    squares, axes = squares[some], axes[:, some]
    along = axes if metric is None else metric @ axes
    sizes = squares.sqrt()
    writing = predicted @ along / sizes
    tails = torch.cat([squares.flip(0).cumsum(0).flip(0), squares.new_zeros(1)]).sqrt()
    return AffineFit((regression.T @ along / sizes).T, writing, mean1, mean2, tails)


def _svd(matrix: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    if len(matrix) <= 2 * matrix.shape[1]:
        u, s, vt = torch.linalg.svd(matrix, full_matrices=False)
        return u, s, vt
    q, r = torch.linalg.qr(matrix)
    u, s, vt = torch.linalg.svd(r, full_matrices=False)
    return q @ u, s, vt


def _best_ridge(u: Tensor, s: Tensor, y: Tensor, metric: Tensor | None) -> float:
    """Return the ridge by the one-standard-error rule."""
    seen = y if metric is None else y @ metric
    projected = u.T @ seen
    errors = []
    for ridge in RIDGES:
        shrunk = s.square() / (s.square() + ridge * s[0].square())
        leverage = (u.square() @ shrunk + 1 / len(u)).clamp(max=1 - 1e-9)
        errors.append(((seen - u @ (shrunk[:, None] * projected)) / (1 - leverage)[:, None]).square().sum(1))
    table = torch.stack(errors)
    means = table.mean(1)
    best = int(means.argmin())
    limit = means[best] + table[best].std() / math.sqrt(len(u)) if len(u) > 1 else means[best]
    return float(RIDGES[(means <= limit).cpu()].max())


def linear_layer(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    """Return a Linear with copies of these parameters."""
    layer = linear(weight.shape[1], weight.shape[0], bias is not None, weight.dtype)
    layer.weight = nn.Parameter(weight.detach().clone(memory_format=torch.contiguous_format))
    if bias is not None:
        layer.bias = nn.Parameter(bias.detach().clone(memory_format=torch.contiguous_format))
    return layer


def dense(part: Any, rows: Tensor, shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Return rows @ J and rows @ b of an affine part a -> J a + b, on flattened inputs of a given shape.

    Parameters
    ----------
    part : torch.nn.Module
        Linear or a convolution.
    rows : Tensor
        (k, n), n the number of entries of an output.
    shape : tuple of int
        Shape of one input.
    """
    part = copied(part).double()
    if isinstance(part, nn.Linear) and len(shape) == 1:
        bias = part.bias if part.bias is not None else part.weight.new_zeros(len(part.weight))
        return (rows @ part.weight).detach(), (rows @ bias).detach()
    zero = rows.new_zeros((len(rows), *shape)).requires_grad_(True)
    with torch.enable_grad():
        out = part(zero)
        pulled = torch.autograd.grad(out, zero, rows.reshape(out.shape))[0]
    return pulled.flatten(1), (rows * out.detach().flatten(1)).sum(1)


def pair(first: Any, shape: tuple[int, ...], shape_out: tuple[int, ...], fitted: AffineFit, k: int) -> Parts:
    """Return parts that compute c + B A first(x), for inputs and outputs of the given shapes.

    ``first`` is absorbed into A. The result is two Linear, or one where that is smaller, enclosed by Flatten and
    Unflatten where inputs or outputs are not vectors.
    """
    a, b, c = fitted.at(k)
    a, shift = dense(first, a, shape)
    c = c + b @ shift
    two = 0 < len(a) * (a.shape[1] + len(b)) < a.shape[1] * len(b)
    own = first.weight.dtype
    factors = [(a, None), (b, c)] if two else [(b @ a, c)]
    layers = [linear_layer(weight.to(own), None if bias is None else bias.to(own)) for weight, bias in factors]
    before = [nn.Flatten()] if len(shape) > 1 else []
    after = [nn.Unflatten(1, shape_out)] if len(shape_out) > 1 else []
    return (*before, *layers, *after)


def pointwise_pair(first: Any, fitted: AffineFit, k: int) -> Parts:
    """Return a Linear or convolution with k outputs, and a pointwise layer that computes all outputs from them."""
    a, b, c = fitted.at(k)
    weight = first.weight.detach().double().flatten(1)
    c = c if first.bias is None else c + b @ (a @ first.bias.detach().double())
    with torch.device("meta"):  # draws nothing
        pointwise = first if isinstance(first, nn.Linear) else type(first)(1, 1, 1)
    return with_weight(first, a @ weight, None), with_weight(pointwise, b, c, first.weight.dtype)


def with_weight(layer: Any, weight: Tensor, bias: Tensor | None, dtype: torch.dtype | None = None) -> Any:
    """Return a copy of a Linear or convolution with other parameters, possibly with other numbers of units.

    The weight has one row per output, in the layer's order; its other dimensions are reshaped to those of the kernel.
    The precision is that of the layer, if no other is given.
    """
    dtype = layer.weight.dtype if dtype is None else dtype
    weight, bias = weight.to(dtype), None if bias is None else bias.to(dtype)
    if isinstance(layer, nn.Linear):
        return linear_layer(weight.flatten(1), bias)
    found, weight = copy.deepcopy(layer), weight.reshape(len(weight), -1, *layer.kernel_size)
    found.out_channels, found.in_channels = weight.shape[:2]
    found.weight = nn.Parameter(weight.detach().clone(memory_format=torch.contiguous_format))
    found.bias = None if bias is None else nn.Parameter(bias.detach().clone())
    return found


RIDGE = 1e-8  # relative to the largest power at a frequency; avoids division by round-off


def equivariant_fit(parts: Sequence[nn.Module], z1: Tensor, z2: Tensor) -> AffineFit | None:
    """Return a translation-equivariant map between images, with its frequencies ordered by power.

    At each frequency w the coefficients of z2 are regressed on those of z1: c_out x c_in parameters from N samples, far
    fewer than for a map between all pixels. The principal components of its values are pairs of a cosine and a sine at
    one frequency (a single one where w = -w), in decreasing order of power.

    Parameters
    ----------
    parts : sequence of torch.nn.Module
        From the layer with output z1 to the one with output z2, both included.
    z1, z2 : Tensor
        (N, c1, *n), (N, c2, *n), at least two samples.

    Returns
    -------
    AffineFit or None
        The map on flattened images; in ``tails`` each component of a pair has half its power. None where a part does
        not commute with translations (a convolution that does not wrap around or has a stride, anything but
        activations), or the images have different sizes.

    Examples
    --------
    >>> generator = torch.Generator().manual_seed(0)
    >>> z1 = torch.randn(20, 1, 6, generator=generator, dtype=torch.float64)
    >>> mean = nn.Conv1d(1, 1, 3, padding=1, padding_mode="circular")
    >>> found = equivariant_fit([mean], z1, z1.mean(2, keepdim=True).expand(-1, -1, 6))     # one frequency, 0
    >>> a, b, c = found.at(1)
    >>> a.shape, bool((b @ a @ z1[0].flatten() + c - z1[0].mean()).abs().max() < 1e-6)
    (torch.Size([1, 6]), True)
    """
    if z1.shape[2:] != z2.shape[2:] or z1.ndim < 3 or not all(map(_equivariant, parts)):
        return None
    image = tuple(z1.shape[2:])
    axes = tuple(range(2, z1.ndim))
    mean1, mean2 = (z.mean((0, *axes), keepdim=True) for z in (z1, z2))
    f1, f2 = (torch.fft.fftn(z - m, dim=axes, norm="ortho").flatten(2) for z, m in ((z1, mean1), (z2, mean2)))
    basis = torch.eye(math.prod(image), dtype=torch.float64).reshape(-1, *image)
    waves = torch.fft.fftn(basis.to(z1.device), dim=tuple(range(1, basis.ndim)), norm="ortho").flatten(1)
    n, scale, root = len(z1), math.sqrt(len(z1)), math.sqrt(2)
    largest = float(f1.abs().square().sum(0).max())
    found: list[tuple[float, Tensor, Tensor]] = []  # power, row and column
    for w, mirror in _half(image):
        a, b = f1[:, :, w], f2[:, :, w]
        if w == mirror:
            a, b = a.real, b.real
        gram = a.mH @ a
        gram.diagonal().add_(RIDGE * largest + torch.finfo(torch.float64).tiny)
        m = torch.linalg.solve(gram, a.mH @ b)  # b near a @ m, (c1, c2)
        _, s, vh = torch.linalg.svd(a @ m, full_matrices=False)
        wave = waves[:, w]
        for i in range(len(s)):
            if s[i] <= 1e-12 * math.sqrt(largest):
                continue
            reading = m @ vh[i].conj() / s[i] * scale  # t = a @ reading has mean square 1
            writing = vh[i] * s[i] / scale
            row = torch.kron(reading, wave)
            column = torch.kron(writing, wave.conj())
            power = float(s[i] ** 2)
            if w == mirror:
                found.append((power, row.real, column.real))
            else:  # with its conjugate at -w
                found.append((power, root * row.real, root * column.real))
                found.append((power, root * row.imag, -root * column.imag))
    if not found:
        return None
    powers, rows, columns = zip(*sorted(found, key=lambda one: -one[0]), strict=True)
    return AffineFit(
        torch.stack(rows),
        torch.stack(columns, 1),
        mean1.expand(1, -1, *image).flatten(),
        mean2.expand(1, -1, *image).flatten(),
        (linalg.tails(torch.tensor(powers, dtype=torch.float64).sqrt()) / n).sqrt(),
    )


def _half(image: tuple[int, ...]) -> list[tuple[int, int]]:
    """Return every pair of frequencies w and -w, as indices of the flattened spectrum."""
    axes = tuple(range(len(image)))
    mirror = torch.arange(math.prod(image)).reshape(image).flip(axes).roll([1] * len(axes), axes)
    return [(w, m) for w, m in enumerate(mirror.flatten().tolist()) if w <= m]


def _equivariant(part: Any) -> bool:
    if not isinstance(part, CONVOLUTIONS):
        return isinstance(part, nn.ReLU | nn.LeakyReLU | nn.Tanh | nn.GELU | nn.SiLU | nn.ELU | nn.Sigmoid)
    wraps = part.padding_mode == "circular" or all(k == 1 for k in part.kernel_size)
    return all(s == 1 for s in part.stride) and wraps and pads_of(part) == reach_of(part)
