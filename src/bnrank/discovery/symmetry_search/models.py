"""The function whose symmetries are searched: a module, an estimator, a pipeline, or the mean of several."""

import copy
from collections.abc import Sequence

import numpy as np
import pandas as pd
import torch
from sklearn.pipeline import Pipeline
from torch import Tensor, nn

from bnrank._core import validation
from bnrank.networks.functional import Functional, unwrap

CHUNK_SIZE = 4096
QUANTILES = (0.0, 0.25, 0.5, 0.75, 1.0)  # of a column, at which the steps of a pipeline are probed
AFFINE = 1e-6  # of the variation of a column: the largest deviation of the steps of a pipeline from an affine map
ROUNDING = 1e-12  # of the largest terms of the map


class Mean(nn.Module):
    """The mean of the outputs of modules."""

    def __init__(self, members: Sequence[nn.Module]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)

    def forward(self, x: Tensor) -> Tensor:
        """Return the mean, of the shape of one output."""
        return _stacked([member(x.clone()) for member in self.members]).mean(0)


def _stacked(outputs: Sequence[Tensor]) -> Tensor:
    if len({output.shape for output in outputs}) > 1:
        shapes = ", ".join(str(tuple(output.shape)) for output in outputs)
        raise ValueError(f"net: got members with outputs of shapes {shapes}, expected one shape")
    return torch.stack(list(outputs))


def module_of(model: object, x: Tensor | None = None) -> nn.Module:
    """Return the module of raw x that a model computes: its own, an estimator's, a pipeline's, the mean of several.

    The steps of a fitted pipeline before the last have to be an affine map, which is determined and verified on ``x``
    (N, d).

    Raises
    ------
    TypeError
        If it is none of these.
    ValueError
        If the steps of a pipeline before the last are no affine map.

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

    The map is verified on the samples, and along every column of x with the others at their mean: a column of large
    values can hide that one of small values in the same sums is bent.
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
    layer = nn.Linear(*matrix.T.shape).double()
    layer.weight.data, layer.bias.data = torch.from_numpy(matrix), torch.from_numpy(center - matrix @ mean)
    return nn.Sequential(layer, copy.deepcopy(module_of(model.steps[-1][1])).double())


def _transformed(model: Pipeline, points: np.ndarray) -> np.ndarray:
    """Return points after all steps but the last, (N, d')."""
    known = getattr(model, "feature_names_in_", None)
    table = points if known is None else pd.DataFrame(points, columns=known)
    for _, step in model.steps[:-1]:
        if step is not None and step != "passthrough":
            table = step.transform(table)
    return np.asarray(table, dtype=np.float64)


class _Columns(nn.Module):
    """A module with outputs (N,), as (N, 1)."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.module = net

    def forward(self, x: Tensor) -> Tensor:
        return self.module(x)[:, None]


def with_columns(net: nn.Module, x: Tensor) -> nn.Module:
    """Return a module with outputs (N, d_out), for one that may return (N,)."""
    with torch.no_grad():
        return _Columns(net) if Functional(net)(x[:2]).ndim == 1 else net


def outputs_of(net: nn.Module, x: Tensor) -> Tensor:
    """Return f(x), (N, d_out), float64."""
    function = Functional(net)
    with torch.no_grad():
        return torch.cat([function(part).reshape(len(part), -1).double().cpu() for part in x.split(CHUNK_SIZE)])


def relative_error(net: nn.Module, x: Tensor, y: Tensor) -> float:
    """Return rms ||f(x_i) - y_i|| / rms ||y_i - mean y||.

    Raises
    ------
    ValueError
        If y is not of the shape of the outputs, or constant.
    """
    outputs, y = outputs_of(net, x), y.flatten(1).double()
    if outputs.shape != y.shape:
        raise ValueError(f"y: got shape {tuple(y.shape)}, expected that of the outputs, {tuple(outputs.shape)}")
    spread = float((y - y.mean(0)).square().sum())
    validation.expect(spread != 0, "y", "the same values for all samples", "some that vary")
    return (float((outputs - y).square().sum()) / spread) ** 0.5


def disagreement(net: Mean, x: Tensor) -> float:
    """Return the standard deviation of the members' outputs over that of their mean along x."""
    outputs = _stacked([outputs_of(member, x) for member in net.members])
    mean = outputs.mean(0)
    spread = float((mean - mean.mean(0)).square().sum())
    between = float((outputs - mean).square().sum()) / (len(outputs) - 1)
    return (between / spread) ** 0.5 if spread > 0 else float("inf")
