"""Settings of a flow, its network and its data."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bnrank._core import validation
from bnrank.networks.chain import as_mlp
from bnrank.networks.functional import Functional, check_finite, check_unshared, example, is_plain_mlp, unwrap
from bnrank.tasks.task import Task, as_task, signs
from bnrank.training.losses import LOSSES
from bnrank.training.options import Limits, Record, SkipPlateau, Solver
from bnrank.training.settings import Settings, check_batch_size, check_dtype, common

RTOL = {"heun": 1e-3}
MAX_GROWTH = {"rk45": 4.0, "dop853": 10.0, "heun": 1.5}
MEMORY = 1 << 30  # bytes of networks that are kept unless asked otherwise


@dataclass(frozen=True, kw_only=True)
class FlowSettings(Settings, Solver):
    """The settings of a flow: those of its solver, with ``rtol`` filled in, and of the skipped plateau."""

    rtol: float
    skip_plateau: bool
    handover_rtol: float
    max_growth: float
    max_networks: int

    @classmethod
    def create(
        cls, net: nn.Module, data: Any, solver: Solver, plateau: SkipPlateau | None, record: Record, limits: Limits
    ) -> FlowSettings:
        """Return the settings of a flow, with defaults filled in."""
        (x, y, loss), method, dtype = data, solver.method, next(net.parameters()).dtype
        precision = 10 * torch.finfo(dtype).eps
        rtol = solver.rtol or RTOL.get(method, 1e-6 if dtype == torch.float64 else 1e-4)
        if method != "euler" and not precision <= rtol < 1:
            raise ValueError(f"rtol: got {rtol:g}, expected a number from {precision:.2g} ({dtype}) up to 1")
        check_batch_size(solver.batch_size, len(x))
        shapes = [p.shape for p in net.parameters() if p.requires_grad]
        sides = [min(shape) for shape in shapes if len(shape) > 1]
        size = sum(math.prod(shape) for shape in shapes) * (8 if dtype == torch.float64 else 4)
        rows = record.rows(1, 10 if max(sides, default=0) > 128 else 1)
        skip = plateau or SkipPlateau()
        return cls(
            **common(net, (x, y), list(net.parameters()), dtype, str(x.device), rows),
            loss=loss if isinstance(loss, str) else f"function {getattr(loss, '__qualname__', type(loss).__name__)}",
            **asdict(solver) | {"rtol": rtol},
            top_k=record.top_k,
            skip_plateau=plateau is not None,
            handover_rtol=skip.handover_rtol,
            max_growth=skip.max_growth or MAX_GROWTH.get(method, 4.0),
            max_networks=limits.max_networks or max(2, min(64, MEMORY // size)),
        )


def network(net: nn.Module, dtype: torch.dtype, skip_plateau: bool) -> nn.Module:
    """Return a copy to integrate: an MLP where the module is one in effect; refuse what the theory cannot skip."""
    check_dtype(dtype)
    net = copy.deepcopy(unwrap(net)).cpu()
    check_finite(net)
    check_unshared(net)
    if not any(p.requires_grad for p in net.parameters()):
        raise ValueError("net: got a module without trainable parameters, expected at least one")
    trained = all(p.requires_grad for p in net.parameters())
    if skip_plateau:
        validation.expect(trained, "plateau", "parameters that are not trained", "all of them to be (T35)")
        try:
            chain = as_mlp(net)
        except TypeError as error:
            raise TypeError(f"plateau: expected linear layers with one activation between (T34): {error}") from None
        if chain.bias:
            raise ValueError("plateau: got a network with biases, which is not homogeneous (T34, T35)")
        if chain.depth < 2:
            raise ValueError("plateau: got a network of depth 1, whose cost has no saddle at the origin")
        net = chain
    elif trained and is_plain_mlp(net):
        net = as_mlp(net)
    return net.to(dtype)


def data(
    net: nn.Module, task: Task | tuple[Any, ...], dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor, str | Callable[..., Any]]:
    """Return x, y and the loss, checked against each other and the network's outputs, on the device."""
    if isinstance(task, Task):
        task = (task.x, task.y, task.loss)
    if not isinstance(task, tuple) or len(task) not in (2, 3):
        as_task(task)
    x, y, loss = task if len(task) == 3 else (*task, "mse")
    if not callable(loss):
        validation.choice(loss, "loss", list(LOSSES))
    x = example(net, x)
    x = x.to(dtype) if x.is_floating_point() else x
    if isinstance(y, np.ndarray) and y.dtype.kind in "iufb":
        y = torch.from_numpy(np.ascontiguousarray(y))
    if not isinstance(y, Tensor):
        raise TypeError(f"y: got {validation.describe(y)}, expected a torch.Tensor or numpy.ndarray")
    if y.ndim == 0 or len(y) != len(x):
        raise ValueError(f"y: got shape {tuple(y.shape)}, expected one entry per sample of x, {len(x)}")
    if y.is_floating_point() and not bool(torch.isfinite(y).all()):
        raise ValueError("y: got NaN or infinite entries, expected finite")
    with torch.no_grad():
        shape = (len(x), *Functional(net, dtype)(x[:2]).shape[1:])
    if len(shape) < 2:
        raise ValueError(f"net: gives outputs of shape {shape}, expected (N, d_out)")
    if loss == "mse" and y.shape != shape:
        raise ValueError(f"y: got shape {tuple(y.shape)}, expected the shape of the outputs, {shape}, for 'mse'")
    if loss == "cross_entropy":
        if y.is_floating_point() or y.dtype == torch.bool or y.ndim != 1:
            raise ValueError(f"y: got {validation.describe(y)}, expected class numbers (N,) for 'cross_entropy'")
        y = y.to(torch.int64)
        if int(y.min()) < 0 or int(y.max()) >= shape[-1]:
            raise ValueError(f"y: got classes {int(y.min())} to {int(y.max())}, expected 0 to {shape[-1] - 1}")
    elif loss == "logistic":
        if shape[1:] != (1,):
            raise ValueError(f"net: gives outputs of shape {shape[1:]}, expected (1,) for 'logistic'")
        y = signs(y, "y")
    y = y.to(dtype) if loss == "mse" or y.is_floating_point() else y
    return x.to(device).contiguous(), y.detach().to(device).contiguous(), loss
