"""The arguments of `symmetries`: a function (a module, an estimator, a pipeline, a mean of several) and its samples."""

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from sklearn.pipeline import Pipeline
from torch import Tensor, nn

from bnrank._core import validation
from bnrank.discovery.columns import texts
from bnrank.discovery.storage import plain_array
from bnrank.discovery.symmetry_search.domain import Domain, read_domain
from bnrank.discovery.symmetry_search.fields import Coordinates, whitened
from bnrank.measures.jacobian import Jacobian
from bnrank.networks.functional import Functional, unwrap
from bnrank.networks.inputs import MainOutput
from bnrank.networks.mlp import linear

SHARE = 0.02  # largest fraction of the sum of squares of all Jacobians for a single sample
FAIR = 5.0  # the same limit for few samples, in multiples of 1 / n
CHUNK_SIZE = 4096
QUANTILES = (0.0, 0.25, 0.5, 0.75, 1.0)  # quantiles of a column at which the steps of a pipeline are probed
AFFINE = 1e-6  # largest deviation of a pipeline's steps from an affine map, relative to a column's variation
HELD_OUT = "held-out error"
ROUNDING = 1e-12  # relative to the largest terms of the map


@dataclass(frozen=True)
class Sample:
    """Samples and Jacobians in the coordinates of the fields.

    Attributes
    ----------
    x, z : Tensor
        (N, d) and (N, q).
    jacobian : Tensor
        J(x_i), or a matrix with the same J^T J, (N, m, q).
    """

    x: Tensor
    z: Tensor
    jacobian: Tensor

    def __len__(self) -> int:
        return len(self.x)

    def at(self, rows: Tensor | slice) -> "Sample":
        """Return some of the samples."""
        return Sample(self.x[rows], self.z[rows], self.jacobian[rows])

    def within(self, where: Coordinates, inner: Coordinates) -> "Sample":
        """Return the samples in the coordinates of a quotient."""
        return Sample(self.x, inner.of(self.x), self.jacobian @ (where.into @ inner.out))


@dataclass(frozen=True)
class Problem:
    """A function and samples of it, in coordinates.

    Attributes
    ----------
    net : nn.Module
        f.
    where : Coordinates
        Coordinates in which the samples have mean 0 and covariance 1.
    sample, held_out : Sample
        Samples with Jacobians; both are the same where none are held out.
    rtol : float or None
        Relative error of f, where known.
    names : tuple of str
        Names of the columns of x.
    resamples, seed : int
        Settings of the search.
    domain : Domain
        Range or values of every column.
    source : str
        Where ``rtol`` comes from, or an empty string.
    learned : bool
        Whether f is fitted to data, as far as known.
    """

    net: nn.Module
    where: Coordinates
    sample: Sample
    held_out: Sample
    rtol: float | None
    names: tuple[str, ...]
    resamples: int
    seed: int
    domain: Domain
    source: str = ""
    learned: bool = False


def read_problem(
    model: Any,
    data: tuple[Any, Any, Any],
    rtol: float | None,
    names: Sequence[str] | None,
    settings: tuple[int, int, int],
) -> Problem:
    """Return the problem of a model, (x, y, held_out), rtol, names and (max_samples, resamples, seed).

    Raises
    ------
    TypeError, ValueError
        If one of them is out of range or does not fit, or f is constant on x.
    """
    max_samples, resamples, seed = settings
    x, y, held_out = data
    x_test, y_test = held_out if isinstance(held_out, tuple) and len(held_out) == 2 else (held_out, None)
    points = validation.samples(_array(x, "x"), "x", minimum=4).detach()
    found = module_of(model, points)
    net = _with_columns(found, points)
    scale = _scale(model, outputs_of(net, points[:1]).shape[1])
    resamples, seed = validation.integer(resamples, "resamples", 0), validation.seed(seed)
    limit = validation.integer(max_samples, "max_samples", 4)
    labels = _names(names, model, x, points.shape[1])
    held = None
    validation.expect(x_test is not None or y_test is None, "held_out", "targets without samples", "both")
    if x_test is not None:
        name = "held_out" if y_test is None else "held_out[0]"
        held = validation.samples(_array(x_test, name), name, features=points.shape[1], minimum=2).detach()
    source = ""
    if rtol is not None:
        rtol, source = validation.number(rtol, "rtol", 0.0), "given error"
    elif held is not None and y_test is not None:
        rtol, source = relative_error(net, held, _targets(y_test, "held_out[1]", len(held)), scale), HELD_OUT
    elif y is not None:
        rtol, source = relative_error(net, points, _targets(y, "y", len(points)), scale), "error on the rows of y"
    elif isinstance(found, Mean) and len(found.members) > 1:
        rtol, source = disagreement(found, points if held is None else held, scale), "disagreement of the networks"
    elif (known := _own_error(model)) is not None:
        rtol, source = known, HELD_OUT
    if bool((scale != 1).any()):
        net = nn.Sequential(net, Scaled(scale))
    domain = read_domain(points.double().cpu())
    if len(points) > limit:
        points = points[torch.randperm(len(points), generator=torch.Generator().manual_seed(seed))[:limit]]
    where = whitened(points.double().cpu())
    validation.expect(where.dimension, "x", f"{len(points)} samples that are all the same", "some that vary")
    sample = _sample(net, points, where)
    constant = "a function that is constant near x, which every transformation leaves alone"
    expected = "one that varies (an estimator that found no function predicts the mean)"
    validation.expect(float(sample.jacobian.square().sum()) > 0, "net", constant, expected)
    tested = sample if held is None else _sample(net, held[:limit], where)
    learned = bool(rtol) or not isinstance(model, nn.Module)
    return Problem(net, where, sample, tested, rtol, labels, resamples, seed, domain, source, learned)


def _own_error(model: Any) -> float | None:
    """Return the relative error of a fitted regressor of bnrank on the held-out rows of its folds; None without one."""
    last = _last(model)
    losses, count = getattr(last, "held_out_", None), getattr(last, "n_components_", 0)
    if losses is None or hasattr(last, "classes_") or not 0 <= count < len(losses):  # of classes: no squared errors
        return None
    error = (float(losses[count]) / float(losses[0])) ** 0.5 if float(losses[0]) > 0 else math.nan
    return error if math.isfinite(error) else None


def _array(value: Any, name: str) -> Any:
    """Return the values of a DataFrame or Series as floats, anything else unchanged."""
    array = plain_array(value, name)
    return array.astype(np.float64) if hasattr(value, "to_numpy") else array


def _names(names: Sequence[str] | None, model: object, x: object, d: int) -> tuple[str, ...]:
    if names is None:
        fitted = getattr(model, "input_columns_", getattr(model, "feature_names_in_", None))
        known = getattr(x, "columns", fitted)
        if known is not None and len(known) == d:
            return tuple(texts(pd.Index(known), "x"))
        first = 0 if hasattr(model, "predict") else 1  # as in scikit-learn and summaries, names start at x0
        return tuple(f"x{i + first}" for i in range(d))
    names = validation.sequence(names, "names", "a sequence of strings")
    if not all(isinstance(name, str) for name in names):
        raise TypeError(f"names: got {validation.describe(names)}, expected a sequence of strings")
    validation.expect(len(names) == d, "names", f"{len(names)}", f"one per column, {d}")
    validation.expect(len(set(names)) >= d, "names", list(names), "a different one for every column")
    return tuple(names)


def _targets(value: Any, name: str, n: int) -> Tensor:
    value = _array(value, name)
    if isinstance(value, Tensor | np.ndarray) and value.ndim == 1:
        value = value[:, None]
    y = validation.samples(value, name, ndim=None).detach().cpu()
    validation.expect(len(y) == n, name, f"{len(y)} rows", f"one per sample, {n}")
    return y


def _sample(net: nn.Module, x: Tensor, where: Coordinates) -> Sample:
    parts = []
    for part in Jacobian(net, x, kink_rtol=None).chunks():
        inside = part.cpu() @ where.out
        if not bool(torch.isfinite(inside).all()):
            raise validation.RangeError("net: its Jacobian has NaN or infinite entries, expected finite ones")
        parts.append(torch.linalg.qr(inside)[1] if inside.shape[1] > inside.shape[2] else inside)
    points = x.double().cpu()
    return Sample(points, where.of(points), shortened(torch.cat(parts)))


def shortened(jacobians: Tensor) -> Tensor:
    """Return Jacobians (N, m, q) with norms clipped at the largest c for which no sample dominates.

    c^2 <= share sum_i min(||J_i||, c)^2, with a share of 2 percent, or 5 / n if fewer than 250 of them, n, are not 0.
    With the m largest clipped, c^2 = share sum_{i > m} ||J_i||^2 / (1 - share m). Steep parts of a function retain
    their influence, but a single sample near a pole does not determine the result.
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


def _scale(model: Any, outputs: int) -> Tensor:
    """Return what a fitted estimator of bnrank multiplied its outputs by, relative to the largest, (d_out,); else 1.

    Outputs in different units are not comparable otherwise: the largest would hide the others.
    """
    factors = getattr(_last(model), "output_scale_", None)
    if factors is None or len(factors) != outputs or not np.max(factors) > 0:
        return torch.ones(outputs, dtype=torch.float64)
    return torch.as_tensor(factors / np.max(factors), dtype=torch.float64)


def _last(model: Any) -> Any:
    return model.steps[-1][1] if isinstance(model, Pipeline) else model


class Scaled(nn.Module):
    """Outputs times constants."""

    scale: Tensor

    def __init__(self, scale: Tensor) -> None:
        super().__init__()
        self.register_buffer("scale", scale)

    def forward(self, outputs: Tensor) -> Tensor:
        """Return the products, of the shape of the outputs."""
        return outputs * self.scale.to(outputs).reshape(outputs.shape[1:])


class Mean(nn.Module):
    """The mean of the outputs of modules."""

    def __init__(self, members: Sequence[nn.Module]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)

    def forward(self, x: Tensor) -> Tensor:
        """Return the mean, of the shape of one output."""
        return _stacked([member(x.clone()) for member in self.members]).mean(0)


def _stacked(outputs: Sequence[Tensor]) -> Tensor:
    shapes = [tuple(output.shape) for output in outputs]
    got = f"members with outputs of shapes {', '.join(map(str, shapes))}"
    validation.expect(len(set(shapes)) == 1, "net", got, "one shape")
    return torch.stack(list(outputs))


def module_of(model: object, x: Tensor | None = None) -> nn.Module:
    """Return the module that maps raw x to the model's outputs: for a module, an estimator, a pipeline, or several.

    Several models are averaged. The steps of a fitted pipeline before the last must form an affine map, which is
    determined and verified on ``x`` (N, d).

    Raises
    ------
    TypeError
        If it is none of these.
    ValueError
        If the steps of a pipeline before the last do not form an affine map.

    Examples
    --------
    >>> module_of([torch.nn.Linear(2, 1), torch.nn.Linear(2, 1)])(torch.zeros(3, 2)).shape
    torch.Size([3, 1])
    """
    if isinstance(model, nn.Module):
        return unwrap(model)
    if isinstance(model, list | tuple) and model:
        return Mean([module_of(member, x) for member in model])
    if isinstance(model, Pipeline) and x is not None:
        return _pipeline(model, x)
    convert = getattr(model, "as_module", None)
    if callable(convert):
        module = convert()
        if isinstance(module, nn.Module):
            return unwrap(module)
        raise TypeError(f"net: as_module() of {type(model).__name__} returned {type(module).__name__}, no nn.Module")
    raise TypeError(
        f"net: got {validation.describe(model)}, expected a torch.nn.Module, a fitted estimator with as_module(), a "
        "Pipeline that ends in one, or a list of such"
    )


def _pipeline(model: Pipeline, x: Tensor) -> nn.Module:
    """Return the last step's module after the affine map of the steps before it.

    The map is verified on the samples, and along every column of x with the others at their mean: otherwise a column of
    large values can hide the nonlinearity of a column of small values in the same sums.
    """
    points = x.detach().double().cpu().numpy()
    d, mean = points.shape[1], points.mean(0)
    spread = np.where(points.std(0) > 0, points.std(0), 1.0)
    probes = _transformed(model, np.concatenate([mean[None], mean + np.diag(spread)]))
    center, matrix = probes[0], (probes[1:] - probes[0]).T / spread
    rounding = ROUNDING * (np.abs(center) + np.abs(matrix) @ np.abs(points).max(0))
    quantiles = np.quantile(points, QUANTILES, axis=0)
    for some in (points, *(np.where(np.arange(d) == column, quantiles, mean) for column in range(d))):
        found = _transformed(model, some)
        deviation = np.abs(center + (some - mean) @ matrix.T - found).max(0)
        if (deviation > AFFINE * np.abs(found - found.mean(0)).max(0) + rounding).any():
            steps = ", ".join(name for name, _ in model.steps[:-1])
            raise ValueError(
                f"net: got a Pipeline whose steps before the last ({steps}) are no affine map of x, expected scalings "
                "and the like; pass the last step with x as it receives it"
            )
    layer = linear(matrix.shape[1], matrix.shape[0], True, torch.float64)
    layer.weight.data, layer.bias.data = torch.from_numpy(matrix), torch.from_numpy(center - matrix @ mean)
    return nn.Sequential(layer, copy.deepcopy(module_of(model.steps[-1][1])).double())


def _transformed(model: Pipeline, points: np.ndarray) -> np.ndarray:
    """Return points after all steps but the last, (N, d')."""
    known = getattr(model, "feature_names_in_", None)
    table = points if known is None else pd.DataFrame(points, columns=known)
    for _, step in model.steps[:-1]:  # scikit-learn rejects model[:-1] where its last step is stateless
        if step is not None and step != "passthrough":
            table = step.transform(table)
    return np.asarray(table, dtype=np.float64)


def _with_columns(net: nn.Module, x: Tensor) -> nn.Module:
    """Return a module with outputs (N, d_out), for one that may return (N,) or several values."""
    return net if Functional(net).is_plain(x[:2]) else nn.Sequential(net, MainOutput())


def outputs_of(net: nn.Module, x: Tensor) -> Tensor:
    """Return f(x), (N, d_out), float64."""
    function = Functional(net)
    with torch.no_grad():
        return torch.cat([function(part).reshape(len(part), -1).double().cpu() for part in x.split(CHUNK_SIZE)])


def relative_error(net: nn.Module, x: Tensor, y: Tensor, scale: Tensor) -> float:
    """Return rms ||f(x_i) - y_i|| / rms ||y_i - mean y||, with outputs times constants (d_out,).

    Raises
    ------
    ValueError
        If y is not of the shape of the outputs, or constant.
    """
    outputs, y = outputs_of(net, x), y.flatten(1).double()
    expected = f"that of the outputs, {tuple(outputs.shape)}"
    validation.expect(outputs.shape == y.shape, "y", f"shape {tuple(y.shape)}", expected)
    outputs, y = outputs * scale, y * scale
    spread = float((y - y.mean(0)).square().sum())
    validation.expect(spread != 0, "y", "the same values for all samples", "some that vary")
    return (float((outputs - y).square().sum()) / spread) ** 0.5


def disagreement(net: Mean, x: Tensor, scale: Tensor) -> float:
    """Return the standard deviation of the members' outputs, times constants, over that of their mean along x."""
    outputs = scale * _stacked([outputs_of(member, x) for member in net.members])
    mean = outputs.mean(0)
    spread = float((mean - mean.mean(0)).square().sum())
    between = float((outputs - mean).square().sum()) / (len(outputs) - 1)
    return (between / spread) ** 0.5 if spread > 0 else math.inf
