"""Tensors in another precision: copies of them, and large weights only while their layer runs."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from bnrank._core import heap

PLAIN = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
LARGE, TOGETHER = 2**18, 2**21  # entries of a weight that is not copied, and of all those of a module


def converted(tensor: Tensor, dtype: torch.dtype, device: torch.device | None = None, copy: bool = True) -> Tensor:
    """Return a copy of a tensor in a precision: floating-point and complex numbers are converted, others only copied.

    Without ``copy``, a tensor that needs no change is returned itself.

    Examples
    --------
    >>> [converted(torch.ones(1, dtype=kind), torch.float64).dtype for kind in (torch.complex64, torch.int32)]
    [torch.complex128, torch.int32]
    """
    if tensor.is_complex():
        kind = torch.complex128 if dtype == torch.float64 else torch.complex64
    else:
        kind = dtype if tensor.is_floating_point() else tensor.dtype
    return tensor.to(device or tensor.device, kind, copy=copy)


def in_precision(net: nn.Module, dtype: torch.dtype, device: torch.device | None = None) -> nn.Module:
    """Return a module, changed in place to a precision, which complex numbers get, too: ``net.to(dtype)`` cuts them.

    Examples
    --------
    >>> net = nn.ParameterList([torch.ones(1), torch.ones(1, dtype=torch.complex64)])
    >>> [p.dtype for p in in_precision(net, torch.float64).parameters()]
    [torch.float64, torch.complex128]
    """
    return net._apply(lambda tensor: converted(tensor, dtype, device, copy=False))


def large_weights(net: nn.Module, dtype: torch.dtype) -> dict[str, nn.Module]:
    """Return plain layers by the name of their weight, where these are large and in another precision.

    Empty where they are few. A weight that is registered in several places is not among them.

    Examples
    --------
    >>> net = nn.Sequential(nn.Linear(2000, 2000), nn.Linear(2000, 3))
    >>> list(large_weights(net, torch.float64)), list(large_weights(net, torch.float32))
    (['0.weight'], [])
    """
    holders: dict[int, list[tuple[str, nn.Module]]] = {}
    for name, part in net.named_modules(remove_duplicate=False):
        for own, tensor in part._parameters.items():
            if tensor is not None:
                holders.setdefault(id(tensor), []).append((f"{name}.{own}" if name else own, part))
    found: dict[str, nn.Module] = {}
    entries = 0
    for (name, part), *others in holders.values():
        if type(part) not in PLAIN or name.rpartition(".")[2] != "weight" or others:
            continue
        weight: Any = part._parameters["weight"]
        if weight.is_floating_point() and weight.dtype != dtype and weight.numel() >= LARGE:
            found[name] = part
            entries += weight.numel()
    return found if entries >= TOGETHER else {}


@contextmanager
def cast_when_run(layers: Collection[nn.Module], dtype: torch.dtype) -> Iterator[None]:
    """Run layers with their weight in another precision, in memory that they share; after each its own is back."""
    room: dict[torch.device, Tensor] = {}
    own: dict[nn.Module, Any] = {}

    def before(layer: nn.Module, _: object) -> None:
        weight: Any = layer._parameters["weight"]
        if weight.device not in room:
            sizes = (part._parameters["weight"] for part in layers)
            most = max(w.numel() for w in sizes if w is not None and w.device == weight.device)
            room[weight.device] = torch.empty(most, dtype=dtype, device=weight.device)
        own[layer] = weight
        cast: Any = room[weight.device][: weight.numel()].view(weight.shape)
        layer._parameters["weight"] = cast.copy_(weight)

    def after(layer: nn.Module, *_: object) -> None:
        if layer in own:
            layer._parameters["weight"] = own.pop(layer)

    with ExitStack() as stack:
        for layer in layers:
            stack.callback(layer.register_forward_pre_hook(before).remove)
            stack.callback(layer.register_forward_hook(after, always_call=True).remove)
        yield


def same(a: Tensor, b: Tensor) -> bool:
    """Return whether tensors are equal bit by bit, and give free memory back."""
    heap.give_back()
    return a.shape == b.shape and torch.equal(a, b)
