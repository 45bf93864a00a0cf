"""What symmetries are looked for of: modules, estimators, and several networks at once."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from bnrank import _validate
from bnrank.networks.functional import Functional, unwrap

__all__ = ["Mean", "disagreement", "module_of", "outputs_of", "relative_error"]

CHUNK = 4096


class Mean(nn.Module):
    """The mean of the outputs of modules."""

    def __init__(self, members: Sequence[nn.Module]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)

    def forward(self, x: Tensor) -> Tensor:
        """Return the mean, of the shape of one output."""
        return torch.stack([member(x.clone()) for member in self.members]).mean(0)


def module_of(model: object) -> nn.Module:
    """Return the function of raw x that a model computes: a module, an estimator's, or the mean of several.

    Raises
    ------
    TypeError
        If it is none of these.

    Examples
    --------
    >>> import torch
    >>> module_of([torch.nn.Linear(2, 1), torch.nn.Linear(2, 1)])(torch.zeros(3, 2)).shape
    torch.Size([3, 1])
    """
    if isinstance(model, nn.Module):
        return unwrap(model)
    if isinstance(model, list | tuple) and model:
        return Mean([module_of(member) for member in model])
    convert = getattr(model, "as_module", None)
    if callable(convert):
        module = convert()
        if isinstance(module, nn.Module):
            return unwrap(module)
        raise TypeError(f"model: as_module() of {type(model).__name__} returned {type(module).__name__}, no nn.Module")
    raise TypeError(
        f"model: got {_validate.describe(model)}, expected a torch.nn.Module, a fitted estimator with as_module(), or "
        "a list of such"
    )


def outputs_of(module: nn.Module, x: Tensor) -> Tensor:
    """Return f(x), (N, d_out), float64, in pieces of 4096 samples."""
    function = Functional(module)
    with torch.no_grad():
        return torch.cat([function(part).flatten(1).double().cpu() for part in x.split(CHUNK)])


def relative_error(module: nn.Module, x: Tensor, y: Tensor) -> float:
    """Return rms ||f(x_i) - y_i|| / rms ||y_i - mean y||.

    Raises
    ------
    ValueError
        If y is not of the shape of the outputs, or constant.
    """
    outputs, y = outputs_of(module, x), y.flatten(1).double()
    if outputs.shape != y.shape:
        raise ValueError(f"y: got shape {tuple(y.shape)}, expected that of the outputs, {tuple(outputs.shape)}")
    spread = float((y - y.mean(0)).square().sum())
    if spread == 0:
        raise ValueError("y: got the same values for all samples, expected some that vary")
    return (float((outputs - y).square().sum()) / spread) ** 0.5


def disagreement(module: Mean, x: Tensor) -> float:
    """Return the standard deviation of the members' outputs, over that of their mean along x."""
    outputs = torch.stack([outputs_of(member, x) for member in module.members])
    mean = outputs.mean(0)
    spread = float((mean - mean.mean(0)).square().sum())
    between = float((outputs - mean).square().sum()) / (len(outputs) - 1)
    return (between / spread) ** 0.5 if spread > 0 else float("inf")
