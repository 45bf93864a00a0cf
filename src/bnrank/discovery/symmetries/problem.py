"""The arguments of `symmetries`, read: a function, samples of it, and what is known of its error."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bnrank._core import validation
from bnrank.discovery.symmetries.coordinates import Coordinates, whitened
from bnrank.discovery.symmetries.finding import Sample
from bnrank.discovery.symmetries.models import Mean, disagreement, module_of, relative_error, with_columns
from bnrank.measures.jacobian import Jacobian

__all__ = ["Problem", "read"]

SHARE = 0.02  # of the sum of squares of all Jacobians: no single sample holds more
FAIR = 5.0  # times its equal part, where there are few samples


@dataclass(frozen=True)
class Problem:
    """A function and samples of it, in coordinates.

    Attributes
    ----------
    module : nn.Module
        f.
    where : Coordinates
        In which the samples have mean 0 and covariance 1.
    sample, held_out : Sample
        Samples with Jacobians; the same where none are held out.
    error : float or None
        Relative error of f, where known.
    names : tuple of str
        Of the columns of x.
    resamples, seed : int
        Settings of the search.
    """

    module: nn.Module
    where: Coordinates
    sample: Sample
    held_out: Sample
    error: float | None
    names: tuple[str, ...]
    resamples: int
    seed: int


def read(
    model: Any,
    x: Any,
    targets: tuple[Any, Any, Any],
    error: float | None,
    names: Sequence[str] | None,
    settings: tuple[int, int, int],
) -> Problem:
    """Read model, x, (y, x_test, y_test), error, names and (max_samples, resamples, seed).

    Raises
    ------
    TypeError, ValueError
        If one of them is out of range or does not fit, or f is constant on x.
    """
    max_samples, resamples, seed = settings
    y, x_test, y_test = (_array(value, name) for value, name in zip(targets, ("y", "x_test", "y_test"), strict=True))
    points = validation.samples(_array(x, "x"), "x", minimum=4).detach()
    module = with_columns(module_of(model, points), points)
    resamples, seed = validation.integer(resamples, "resamples", 0), validation.integer(seed, "seed", 0)
    limit = validation.integer(max_samples, "max_samples", 4)
    labels = _names(names, model, x, points.shape[1])
    held = (
        None if x_test is None else validation.samples(x_test, "x_test", features=points.shape[1], minimum=2).detach()
    )
    error = _error(module, points, y, held, y_test, error)
    if len(points) > limit:
        points = points[torch.randperm(len(points), generator=torch.Generator().manual_seed(seed))[:limit]]
    where = whitened(points.double().cpu())
    if not where.dimension:
        raise ValueError(f"x: got {len(points)} samples that are all the same, expected some that vary")
    sample = _sample(module, points, where)
    if float(sample.jacobian.square().sum()) == 0:
        raise ValueError(
            "model: got a function that is constant near x, which every transformation leaves alone, expected one that "
            "varies (an estimator that found no function predicts the mean)"
        )
    held_out = sample if held is None else _sample(module, held[:limit], where)
    return Problem(module, where, sample, held_out, error, labels, resamples, seed)


def _array(value: Any, name: str) -> Any:
    """Return the values of a DataFrame or Series as numbers, anything else as it is."""
    if not hasattr(value, "to_numpy"):
        return value
    try:
        return np.asarray(value.to_numpy(), dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{name}: got columns that are no numbers ({error}), expected numbers") from error


def _names(names: Sequence[str] | None, model: object, x: object, d: int) -> tuple[str, ...]:
    if names is None:
        known = getattr(x, "columns", getattr(model, "feature_names_in_", None))
        if known is not None and len(known) == d:
            return tuple(str(name) for name in known)
        first = 0 if hasattr(model, "predict") else 1  # scikit-learn's names, which summaries have too, begin with x0
        return tuple(f"x{i + first}" for i in range(d))
    if isinstance(names, str) or not all(isinstance(name, str) for name in names):
        raise TypeError(f"names: got {validation.describe(names)}, expected a sequence of strings")
    if len(names) != d:
        raise ValueError(f"names: got {len(names)}, expected one per column, {d}")
    if len(set(names)) < d:
        raise ValueError(f"names: got {validation.describe(list(names))}, expected a different one for every column")
    return tuple(names)


def _error(
    net: nn.Module, x: Tensor, y: object, x_test: Tensor | None, y_test: object, error: float | None
) -> float | None:
    if error is not None:
        return validation.number(error, "error", 0.0)
    if y_test is not None:
        if x_test is None:
            raise ValueError("y_test: got values without x_test, expected both")
        return relative_error(net, x_test, _targets(y_test, "y_test", len(x_test)))
    if y is not None:
        return relative_error(net, x, _targets(y, "y", len(x)))
    if isinstance(net, Mean) and len(net.members) > 1:
        return disagreement(net, x if x_test is None else x_test)
    return None


def _targets(value: object, name: str, n: int) -> Tensor:
    if isinstance(value, Tensor | np.ndarray) and value.ndim == 1:
        value = value[:, None]
    y = validation.samples(value, name, ndim=None).detach().cpu()
    if len(y) != n:
        raise ValueError(f"{name}: got {len(y)} rows, expected one per sample, {n}")
    return y


def _sample(net: nn.Module, x: Tensor, where: Coordinates) -> Sample:
    parts = []
    for part in Jacobian(net, x, kink_rtol=None).chunks():
        inside = part.cpu() @ where.out
        if not bool(torch.isfinite(inside).all()):
            raise validation.RangeError("model: its Jacobian has NaN or infinite entries, expected finite ones")
        parts.append(torch.linalg.qr(inside)[1] if inside.shape[1] > inside.shape[2] else inside)
    points = x.double().cpu()
    return Sample(points, where.of(points), _shortened(torch.cat(parts)))


def _shortened(jacobians: Tensor) -> Tensor:
    """Return Jacobians (N, m, q), the longest cut to the largest length c at which none holds too much of the whole.

    c^2 <= share sum_i min(||J_i||, c)^2, with a share of 2 percent, or 5 / n if fewer than 250 of them, n, are not 0.
    With the m longest cut, c^2 = share sum_{i > m} ||J_i||^2 / (1 - share m). A function that is steep in few places
    keeps what it does there; a sample beside a pole does not decide alone.
    """
    lengths = jacobians.flatten(1).norm(dim=1)
    size = lengths.max()
    if not float(size):
        return jacobians
    squares = (lengths / size).square().sort(descending=True).values
    share = max(SHARE, FAIR / int((squares > 0).sum()))
    left = squares.flip(0).cumsum(0).flip(0)
    for m in range(min(len(squares), math.ceil(1 / share))):
        cap = share * float(left[m]) / (1 - share * m)
        if float(squares[m]) <= cap:
            break
    longest = size * math.sqrt(cap) if m else size
    return jacobians * (longest / lengths.clamp(min=longest))[:, None, None]
