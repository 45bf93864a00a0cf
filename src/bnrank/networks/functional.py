"""A module as a pure function: any precision, eval mode, and no trace left on the module."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeGuard

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from bnrank import _validate
from bnrank.networks.mlp import MLP, LinearNetwork

__all__ = ["Functional", "check_finite", "example", "is_plain_mlp", "unwrap"]


class Functional:
    """A module as a function of x in one precision, with nothing of the module changed by calling it.

    Parameters and buffers are copied and cast once. Every call runs in eval mode, and modes and the state of the
    random generators are put back afterwards. Attributes that are neither parameters nor buffers are not cast.

    Parameters
    ----------
    module : torch.nn.Module
        Any module.
    dtype : torch.dtype
        Floating-point type to run in.

    Raises
    ------
    TypeError, ValueError
        If it is no module, has lazy parameters without a shape, or is wrapped in DataParallel; when called, if the
        forward fails on x in this precision or does not return one tensor.
    """

    def __init__(self, module: nn.Module, dtype: torch.dtype = torch.float64) -> None:
        self.module = unwrap(module)
        self.dtype = dtype
        self.parameters = {n: self._cast(p) for n, p in self.module.named_parameters()}
        self.buffers = {n: self._cast(b) for n, b in self.module.named_buffers()}
        tensors = [*self.parameters.values(), *self.buffers.values()]
        self.device = tensors[0].device if tensors else torch.device("cpu")

    def __call__(self, x: Tensor) -> Tensor:
        """Return f(x); gradients flow to x and to ``parameters``."""
        return self.with_parameters(self.parameters, x)

    def with_parameters(self, parameters: dict[str, Tensor], x: Tensor) -> Tensor:
        """Return f(x) with other parameters, in the same dtype and on the same device."""
        x = x.to(self.device, self.dtype) if x.is_floating_point() else x.to(self.device)
        devices = [self.device] if self.device.type == "cuda" else []
        with _eval_mode(self.module), torch.random.fork_rng(devices):
            try:
                out = torch.func.functional_call(self.module, (parameters, self.buffers), (x,))
            except Exception as error:
                raise ValueError(
                    f"module: {type(self.module).__name__} failed on x of shape {tuple(x.shape)} in {self.dtype}: "
                    f"{error}. If its forward holds tensors of another precision that are neither parameters nor "
                    "buffers, register them as buffers or pass dtype=torch.float32"
                ) from error
        if not isinstance(out, Tensor):
            raise ValueError(
                f"module: {type(self.module).__name__} returns {type(out).__name__}, expected one tensor; "
                "wrap it in a module that returns the tensor of interest"
            )
        if out.ndim == 0 or out.shape[0] != x.shape[0]:
            raise ValueError(
                f"module: the output has shape {tuple(out.shape)} for {x.shape[0]} samples, expected (N, ...)"
            )
        return out

    def _cast(self, tensor: Tensor) -> Tensor:
        tensor = tensor.detach()
        return tensor.to(self.dtype, copy=True) if tensor.is_floating_point() else tensor.clone()


def example(module: nn.Module, x: object, minimum: int = 1) -> Tensor:
    """Return x as samples for ``module``: floating point (N, ...), finite, or integers for modules that embed them."""
    if isinstance(module, MLP):
        return _validate.samples(x, "x", features=module.widths[0], minimum=minimum)
    if isinstance(x, np.ndarray) and x.dtype.kind in "iu":
        x = torch.from_numpy(x)
    if isinstance(x, Tensor) and not x.is_floating_point() and not x.is_complex() and x.dtype != torch.bool:
        if x.ndim == 0 or x.numel() == 0 or x.shape[0] < minimum:
            raise ValueError(f"x: got shape {tuple(x.shape)}, expected (N, ...) with at least {minimum} sample(s)")
        return x
    return _validate.samples(x, "x", ndim=None, minimum=minimum)


def is_plain_mlp(module: nn.Module) -> TypeGuard[MLP]:
    """Say whether a module is an MLP as it was made, so that closed forms hold: no subclass, no replaced layer."""
    if type(module) not in (MLP, LinearNetwork) or not isinstance(module, MLP):
        return False
    return all(type(layer) is nn.Linear for layer in module.layers)


def check_finite(module: nn.Module) -> None:
    """Raise ValueError, naming them, if parameters have NaN or infinite entries."""
    bad = [name for name, p in unwrap(module).named_parameters() if not bool(torch.isfinite(p).all())]
    if bad:
        shown = ", ".join(bad[:5]) + (f" and {len(bad) - 5} more" if len(bad) > 5 else "")
        raise ValueError(f"module: got NaN or infinite entries in {shown}, expected finite parameters")


def unwrap(module: nn.Module) -> nn.Module:
    """Return the module itself, out of ``torch.compile``; refuse what is no module or has no shapes yet."""
    if not isinstance(module, nn.Module):
        raise TypeError(f"module: got {_validate.describe(module)}, expected a torch.nn.Module")
    if isinstance(module, nn.DataParallel | nn.parallel.DistributedDataParallel):
        raise ValueError(f"module: got a {type(module).__name__} wrapper, expected the module inside it, .module")
    original = getattr(module, "_orig_mod", None)  # torch.compile
    module = original if isinstance(original, nn.Module) else module
    lazy = [name for name, p in [*module.named_parameters(), *module.named_buffers()] if is_lazy(p)]
    if lazy:
        raise ValueError(f"module: parameters without a shape yet ({', '.join(lazy)}); run it once on data first")
    return module


@contextmanager
def _eval_mode(module: nn.Module) -> Iterator[None]:
    modes = [(sub, sub.training) for sub in module.modules()]
    try:
        for sub, _ in modes:
            sub.training = False
        yield
    finally:
        for sub, mode in modes:
            sub.training = mode
