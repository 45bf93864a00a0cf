"""Compressed networks on disk, without pickles: what their layers are, as plain values, and their tensors."""

from __future__ import annotations

import copy
import inspect
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import safetensors
import torch
from safetensors.torch import save as to_bytes
from torch import nn

from bnrank._core import files, validation
from bnrank._version import __version__

__all__ = ["describe", "load", "rebuild", "replace", "save"]

_KEY = "bnrank-compressed"
_NAMES = (
    "Linear Conv1d Conv2d Conv3d Flatten Unflatten ReLU LeakyReLU ReLU6 ELU CELU SELU GELU SiLU Mish Tanh Sigmoid",
    "Softplus Softsign Hardtanh Hardswish Hardsigmoid LogSigmoid Softmax LogSoftmax PReLU LayerNorm GroupNorm",
    "AvgPool1d AvgPool2d AvgPool3d MaxPool1d MaxPool2d MaxPool3d AdaptiveAvgPool1d AdaptiveAvgPool2d AdaptiveAvgPool3d",
    "AdaptiveMaxPool1d AdaptiveMaxPool2d AdaptiveMaxPool3d BatchNorm1d BatchNorm2d BatchNorm3d",
)
_KNOWN = {name: getattr(nn, name) for line in _NAMES for name in line.split()}


def describe(parts: Sequence[nn.Module]) -> list[dict[str, Any]] | None:
    """Return the layers as plain values, name and arguments of each; None where one is no known layer of torch.

    Examples
    --------
    >>> describe([nn.Linear(3, 2, bias=False), nn.LeakyReLU(0.1)])[1]
    {'type': 'LeakyReLU', 'arguments': {'negative_slope': 0.1, 'inplace': False}}
    """
    layers = []
    for part in parts:
        name = type(part).__name__
        if _KNOWN.get(name) is not type(part):
            return None
        arguments = {}
        for key in inspect.signature(type(part)).parameters:
            if key not in ("device", "dtype") and hasattr(part, key):
                value = getattr(part, key)
                arguments[key] = value is not None and value is not False if key == "bias" else _plain(value)
        layers.append({"type": name, "arguments": arguments})
    return layers


def _plain(value: Any) -> Any:
    return [_plain(entry) for entry in value] if isinstance(value, tuple | list) else value


def rebuild(layers: Sequence[Mapping[str, Any]]) -> nn.Sequential:
    """Return layers of the given description one after another, with parameters that are not yet set.

    Raises
    ------
    ValueError
        If the description is damaged.

    Examples
    --------
    >>> net = nn.Sequential(nn.Linear(3, 2), nn.ReLU())
    >>> again = rebuild(describe(net))
    >>> again.load_state_dict(net.state_dict())
    <All keys matched successfully>
    """
    parts = []
    for layer in layers:
        try:
            kind, arguments = _KNOWN[layer["type"]], dict(layer["arguments"])
            parts.append(kind(**{key: tuple(v) if isinstance(v, list) else v for key, v in arguments.items()}))
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            raise ValueError(
                f"layers: got {validation.describe(layer)}, expected a layer of torch: {error!r}"
            ) from error
    return nn.Sequential(*parts)


def replace(net: nn.Module, name: str, segment: nn.Module) -> nn.Module:
    """Return the module with a submodule replaced, in place; the segment itself for the name ""."""
    if not name:
        return segment
    parent, _, own = name.rpartition(".")
    setattr(net.get_submodule(parent), own, segment)
    return net


def save(network: nn.Module, plan: Mapping[str, Any], path: str | os.PathLike[str]) -> Path:
    """Write a compressed network; see :meth:`Compressed.save`."""
    path = Path(path)
    if path.suffix != ".safetensors":
        raise ValueError(f"path: got {path.name!r}, expected a name ending in .safetensors")
    if not path.parent.is_dir():
        raise ValueError(f"path: got {str(path)!r}, expected a path in a folder that exists")
    if not plan:
        raise ValueError(
            "network: nothing was compressed, expected a network with replaced segments; save the module itself"
        )
    unknown = [name or "the module" for name, layers in plan.items() if layers is None]
    if unknown:
        raise TypeError(
            f"network: {', '.join(unknown)} has parts that cannot be built from plain values; save its state_dict"
        )
    tensors = {name: t.detach().cpu().contiguous().clone() for name, t in network.state_dict().items()}
    metadata = {"format": "pt", _KEY: json.dumps({"plan": dict(plan), "version": __version__})}
    files.write_atomically(path, to_bytes(tensors, metadata))
    return path


def load(path: str | os.PathLike[str], net: nn.Module | None = None) -> nn.Module:
    """Load a network that :meth:`Compressed.save` wrote.

    Parameters
    ----------
    path : path
        A safetensors file.
    net : torch.nn.Module, optional
        A module of the architecture that was compressed, needed where only segments of it were replaced; it is copied.

    Returns
    -------
    torch.nn.Module
        In the precision of the file.

    Raises
    ------
    ValueError
        If the file is missing, damaged or none of :meth:`Compressed.save`, or ``net`` is missing or does not fit.
    """
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"path: got {str(path)!r}, expected a file that exists")
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (not a dict)
            metadata = file.metadata() or {}
            plan = json.loads(metadata[_KEY])["plan"] if _KEY in metadata else None
    except (safetensors.SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"path: {path} is no complete file of a compressed network: {error!r}") from error
    if plan is None:
        raise ValueError(f"path: {path} holds tensors, but no compressed network that Compressed.save wrote")
    if "" not in plan and net is None:
        raise ValueError(f"net: got none, but {path} holds segments {', '.join(plan)} of a larger module")
    network = copy.deepcopy(net) if net is not None else nn.Module()
    try:
        for name, layers in plan.items():
            network = replace(network, name, rebuild(layers))
        floating = next((t.dtype for t in tensors.values() if t.is_floating_point()), torch.float32)
        network = network.to(floating)
        network.load_state_dict(tensors)
    except (AttributeError, RuntimeError) as error:
        raise ValueError(f"path: {path} does not fit the module: {error}") from error
    return network.eval()
