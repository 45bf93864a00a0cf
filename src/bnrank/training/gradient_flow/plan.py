"""What a flow is made of, checked once and then fixed."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bnrank._core import validation
from bnrank.networks.chain import as_mlp
from bnrank.networks.functional import check_finite, check_unshared, example, is_plain_mlp, unwrap
from bnrank.networks.mlp import MLP
from bnrank.tasks.task import signs
from bnrank.training.gradient_flow.steppers import IMPLICIT, METHODS
from bnrank.training.settings import digest

__all__ = ["LOSSES", "Plan", "data", "network"]

LOSSES = ("mse", "cross_entropy", "logistic")
TIMES = ("t", "arc")
RTOL = {"heun": 1e-3}
GROWTH = {"rk45": 4.0, "dop853": 10.0, "heun": 1.5}
MOST_NEGLIGIBLE = 0.1  # of ||G||: a gradient that differs by more is not nearly G
MEMORY = 1 << 30  # bytes of networks that are kept unless asked otherwise


@dataclass(frozen=True)
class Plan:
    """Everything that decides what a flow computes; plain values, stored with its checkpoints."""

    network: str
    loss: str
    data: str
    start: str
    method: str
    rtol: float
    kinks: float
    step: float
    relative: float
    growth: float
    time: str
    skip_plateau: bool
    negligible: float
    batch_size: int | None
    seed: int
    dtype: str
    device: str
    record_every: int
    spectra_every: int
    top_k: int
    max_networks: int

    def differences(self, text: str) -> list[str]:
        """Name what keeps a flow with these settings from going on as one with others, given as JSON."""
        theirs = json.loads(text)
        hashes = {"data": "other data", "start": "other initial parameters"}
        return [
            hashes.get(key, f"{key}: {theirs.get(key)!r} there, {value!r} here")
            for key, value in asdict(self).items()
            if theirs.get(key) != value
        ]

    @classmethod
    def create(
        cls,
        net: nn.Module,
        loss: str | Callable[..., Any],
        x: Tensor,
        y: Tensor,
        *,
        method: str,
        rtol: float | None,
        kinks: float | None,
        step: float | None,
        relative: float | None,
        growth: float | None,
        time: str,
        skip_plateau: bool,
        negligible: float | None,
        batch_size: int | None,
        seed: int,
        dtype: torch.dtype,
        device: str,
        record_every: int,
        spectra_every: int | None,
        top_k: int,
        max_networks: int | None,
    ) -> Plan:
        """Check every argument and fill in what was left open."""
        method = validation.choice(method, "method", METHODS)
        time = validation.choice(time, "time", TIMES)
        precision = torch.finfo(dtype).eps
        if rtol is None:
            rtol = RTOL.get(method, 1e-6 if dtype == torch.float64 else 1e-4)
        rtol = validation.number(rtol, "rtol", 0.0, strict=True)
        if method != "euler" and not 10 * precision <= rtol < 1:
            raise ValueError(f"rtol: got {rtol:g}, expected a number from {10 * precision:.2g} ({dtype}) up to 1")
        if method == "euler":
            if step is None:
                raise ValueError("step: method 'euler' takes steps of a fixed length; give it, step=0.1 for instance")
            step = validation.number(step, "step", 0.0, strict=True)
        elif step is not None:
            raise ValueError(f"step: {method!r} chooses its own steps; leave it out or use method='euler'")
        if batch_size is not None:
            batch_size = validation.integer(batch_size, "batch_size")
            if method != "euler":
                raise ValueError(
                    f"batch_size: error control, as in method {method!r}, means nothing against the noise of "
                    "mini-batches; use method='euler' with a step"
                )
            if batch_size > len(x):
                raise ValueError(f"batch_size: got {batch_size}, expected at most the number of samples, {len(x)}")
        if time == "arc" and method in (*IMPLICIT, "euler"):
            raise ValueError(f"time: method {method!r} runs in 't', expected 'rk45', 'dop853' or 'heun' for 'arc'")
        _refuse_unused("kinks", kinks, method in ("rk45", "dop853"), "for 'rk45' and 'dop853'")
        _refuse_unused("relative", relative, method == "euler", "for 'euler'")
        _refuse_unused("growth", growth, skip_plateau, "with skip_plateau=True")
        _refuse_unused("negligible", negligible, skip_plateau, "with skip_plateau=True")
        growth = validation.number(GROWTH.get(method, 4.0) if growth is None else growth, "growth", 1.0, strict=True)
        negligible = validation.number(1e-4 if negligible is None else negligible, "negligible", 0.0, strict=True)
        if negligible > MOST_NEGLIGIBLE:
            raise ValueError(f"negligible: got {negligible:g}, expected at most {MOST_NEGLIGIBLE:g}")
        record_every = validation.integer(record_every, "record_every")
        shapes = [p.shape for p in net.parameters() if p.requires_grad]
        size = sum(math.prod(shape) for shape in shapes)
        if spectra_every is None:
            large = max(min(shape) for shape in shapes if len(shape) > 1) > 128 if any(map(_matrix, shapes)) else False
            spectra_every = record_every * (10 if large else 1)
        spectra_every = validation.integer(spectra_every, "spectra_every")
        if spectra_every % record_every:
            raise ValueError(f"spectra_every: got {spectra_every}, expected a multiple of record_every, {record_every}")
        if max_networks is None:
            max_networks = max(2, min(64, MEMORY // (size * (8 if dtype == torch.float64 else 4))))
        return cls(
            network=f"{type(net).__name__}({net.extra_repr()})",
            loss=loss
            if isinstance(loss, str)
            else f"the function {getattr(loss, '__qualname__', type(loss).__name__)}",
            data=digest(x, y),
            start=digest(*[p.detach() for p in net.parameters()]),
            method=method,
            rtol=rtol,
            kinks=validation.number(1e-4 if kinks is None else kinks, "kinks", 0.0),
            step=math.inf if step is None else step,
            relative=validation.number(0.05 if relative is None else relative, "relative", 0.0, strict=True),
            growth=growth,
            time=time,
            skip_plateau=bool(skip_plateau),
            negligible=negligible,
            batch_size=batch_size,
            seed=validation.integer(seed, "seed", 0),
            dtype=str(dtype).removeprefix("torch."),
            device=device,
            record_every=record_every,
            spectra_every=spectra_every,
            top_k=validation.integer(top_k, "top_k"),
            max_networks=validation.integer(max_networks, "max_networks", 2),
        )

    def to_json(self) -> str:
        """Return the settings as JSON text."""
        return json.dumps(asdict(self))


def _refuse_unused(name: str, value: float | None, used: bool, where: str) -> None:
    if value is not None and not used:
        raise ValueError(f"{name}: got {value:g}, which counts {where} only; leave it out")


def _matrix(shape: torch.Size) -> bool:
    return len(shape) > 1


def network(net: nn.Module, dtype: torch.dtype, skip_plateau: bool) -> nn.Module:
    """Return a copy to integrate: an MLP where the module is one in effect; refuse what the theory cannot skip."""
    if dtype not in (torch.float32, torch.float64):
        raise ValueError(f"dtype: got {dtype}, expected torch.float32 or torch.float64")
    try:
        net = unwrap(net)
    except (TypeError, ValueError) as error:
        raise type(error)(str(error).replace("module:", "net:", 1)) from None
    check_finite(net)
    check_unshared(net)
    if not any(p.requires_grad for p in net.parameters()):
        raise ValueError("net: got a module without trainable parameters, expected at least one")
    trained = all(p.requires_grad for p in net.parameters())
    if skip_plateau:
        if not trained:
            raise ValueError("skip_plateau: got parameters that are not trained, expected all of them to be (T35)")
        try:
            chain = as_mlp(net)
        except TypeError as error:
            raise TypeError(
                "skip_plateau: near the origin only a bias-free chain of linear layers with the same activation "
                f"between them is known to be homogeneous (T34): {str(error).replace('module:', 'net:', 1)}"
            ) from None
        if chain.bias:
            raise ValueError(
                "skip_plateau: got a network with biases, expected one without: with them the cost near the origin "
                "is not homogeneous, and direction and norm do not separate (T34, T35)"
            )
        if chain.depth < 2:
            raise ValueError("skip_plateau: got a network of depth 1, whose cost has no saddle at the origin")
        net = chain
    elif trained and is_plain_mlp(net):
        net = as_mlp(net)
    return net.to(dtype)


def data(
    net: nn.Module, loss: str | Callable[..., Any], x: object, y: object, dtype: torch.dtype, device: str
) -> tuple[Tensor, Tensor]:
    """Return x and y, checked against the loss and the network's outputs, on the device."""
    if not callable(loss):
        validation.choice(loss, "loss", LOSSES)
    inputs = example(net, x)
    inputs = inputs.to(dtype) if inputs.is_floating_point() else inputs
    if isinstance(y, np.ndarray) and y.dtype.kind in "iufb":
        y = torch.from_numpy(np.ascontiguousarray(y))
    if not isinstance(y, Tensor):
        raise TypeError(f"y: got {validation.describe(y)}, expected a torch.Tensor or numpy.ndarray")
    if y.ndim == 0 or len(y) != len(inputs):
        raise ValueError(f"y: got shape {tuple(y.shape)}, expected one entry per sample of x, {len(inputs)}")
    if y.is_floating_point() and not bool(torch.isfinite(y).all()):
        raise ValueError("y: got NaN or infinite entries, expected finite")
    width = _outputs(net, inputs)
    if loss == "mse":
        if y.shape != (len(inputs), *width):
            raise ValueError(
                f"y: got shape {tuple(y.shape)}, expected the shape of the outputs, {(len(inputs), *width)}, for 'mse'"
            )
        y = y.to(dtype)
    elif loss == "cross_entropy":
        if y.is_floating_point() or y.dtype == torch.bool or y.ndim != 1:
            raise ValueError(f"y: got {validation.describe(y)}, expected class numbers (N,) for 'cross_entropy'")
        y = y.to(torch.int64)
        if int(y.min()) < 0 or int(y.max()) >= width[-1]:
            raise ValueError(f"y: got classes {int(y.min())} to {int(y.max())}, expected 0 to {width[-1] - 1}")
    elif loss == "logistic":
        if width != (1,):
            raise ValueError(f"net: gives outputs of shape {width}, expected (1,) for 'logistic'")
        y = signs(y, "y").to(dtype)
    elif y.is_floating_point():
        y = y.to(dtype)
    try:
        return inputs.to(device).contiguous(), y.detach().to(device).contiguous()
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"device: cannot use {device!r}: {str(error).splitlines()[0]}") from error


def _outputs(net: nn.Module, x: Tensor) -> tuple[int, ...]:
    """Return the shape of one sample's output."""
    if isinstance(net, MLP):
        return (net.widths[-1],)
    from bnrank.networks.functional import Functional

    dtype = next(p.dtype for p in net.parameters())
    with torch.no_grad():
        try:
            output = Functional(net, dtype)(x[:2])
        except ValueError as error:
            raise ValueError(str(error).replace("module:", "net:", 1)) from None
    if output.ndim < 2:
        raise ValueError(f"net: gives outputs of shape {tuple(output.shape)}, expected (N, d_out)")
    return tuple(output.shape[1:])
