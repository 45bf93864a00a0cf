"""Plain values: tables and results as arrays, tensors and JSON."""

import dataclasses
import inspect
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.utils import parametrize
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from bnrank._core import validation
from bnrank.discovery.attention import FactoredAttention
from bnrank.discovery.columns import index_of
from bnrank.discovery.gated import FactoredRecurrent
from bnrank.networks.files import blueprint, build
from bnrank.networks.functional import hooked
from bnrank.networks.mlp import MLP

MAX_TEXTS = 1 << 26  # bytes of an array of texts
MAX_LAYERS = 10_000
_FILES = "activation batchnorm channelshuffle conv dropout flatten fold instancenorm linear normalization padding"
_FILES += " pixelshuffle pooling sparse upsampling"
_OWN = (FactoredAttention, FactoredRecurrent)
_LAYERS: dict[str, Any] = {
    name: kind
    for name, kind in vars(nn).items()
    if inspect.isclass(kind)
    and kind.__module__ in {f"torch.nn.modules.{file}" for file in _FILES.split()}
    and not issubclass(kind, LazyModuleMixin)
} | {kind.__name__: kind for kind in _OWN}
_UNITWISE = (
    "ReLU LeakyReLU ReLU6 ELU CELU SELU GELU SiLU Mish Tanh Sigmoid Softplus Softsign Hardtanh Hardswish Hardsigmoid "
    "LogSigmoid"
)
ACTIVATIONS = tuple(_LAYERS[name] for name in _UNITWISE.split())
"""Elementwise activations without parameters."""
POOLING = tuple(_LAYERS[f"{kind}Pool{d}d"] for kind in ("Avg", "Max", "AdaptiveAvg", "AdaptiveMax") for d in (1, 2, 3))


def plain_array(value: Any, name: str) -> Any:
    """Return a numeric DataFrame or Series, or a read-only ndarray, as an ndarray, and anything else unchanged.

    Raises
    ------
    TypeError, ValueError
        If a column is not numeric, or entries are missing.

    Examples
    --------
    >>> plain_array(pd.DataFrame({"a": [1.0, 2.0], "b": [3, 4]}), "x").tolist()
    [[1.0, 3.0], [2.0, 4.0]]
    """
    if not isinstance(value, pd.DataFrame | pd.Series):
        read_only = isinstance(value, np.ndarray) and not value.flags.writeable  # as columns of a DataFrame are
        return value.copy() if read_only else value
    columns = value.to_frame() if isinstance(value, pd.Series) else value
    kind, types = type(value).__name__, pd.api.types
    kinds = {label: dtype for label, dtype in columns.dtypes.items()}
    bad = [f"{k} ({t})" for k, t in kinds.items() if not types.is_numeric_dtype(t) or types.is_bool_dtype(t)]
    if bad:
        raise TypeError(f"{name}: got a {kind} with columns that are no numbers: {validation.listed(bad, 3)}")
    validation.expect(not bool(columns.isna().any(axis=None)), name, f"a {kind} with missing entries", "numbers")
    whole = all(types.is_integer_dtype(dtype) for dtype in kinds.values())
    return np.array(value.to_numpy(dtype=np.int64 if whole else np.float64))


def pack(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    """Return a value as JSON, with arrays and parameters added to ``tensors`` under names that start with ``name``.

    Arrays, sequences, dataclasses, names of columns, MLPs and sequences of known layers are supported.

    Raises
    ------
    TypeError
        If the value has no plain form.

    Examples
    --------
    >>> tensors = {}
    >>> pack((1, np.ones(2)), "pair", tensors), list(tensors)
    ({'tuple': [1, {'array': 'pair.1'}]}, ['pair.1'])
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        if value.dtype.kind in "OUS":
            return {"strings": value.tolist(), "dtype": value.dtype.str}
        tensors[name] = torch.from_numpy(np.ascontiguousarray(value))
        return {"array": name}
    if isinstance(value, pd.Index):
        return {"columns": pack(value.tolist(), name, tensors), "names": pack(list(value.names), name, tensors)}
    if isinstance(value, MLP):
        tensors.update({f"{name}/{key}": tensor for key, tensor in value.state_dict().items()})
        return {"network": blueprint(value), "name": name}
    if isinstance(value, nn.Sequential) and (layers := describe(list(value))) is not None:
        tensors.update({f"{name}/{key}": tensor for key, tensor in value.state_dict().items()})
        return {"layers": layers, "name": name}
    if isinstance(value, tuple | list):
        items = [pack(item, f"{name}.{i}", tensors) for i, item in enumerate(value)]
        return {"tuple": items} if isinstance(value, tuple) else {"list": items}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {key: pack(entry, f"{name}.{key}", tensors) for key, entry in vars(value).items()}
        return {"record": type(value).__name__, "fields": fields}
    raise TypeError(f"{name}: got {validation.describe(value)}, expected a value that can be written to a file")


def unpack(value: Any, tensors: Mapping[str, Tensor], records: Mapping[str, Any]) -> Any:
    """Return the value that :func:`pack` packed; ``records`` maps the names of dataclasses to the classes."""
    if not isinstance(value, dict):
        return value
    if "array" in value:
        return tensors[value["array"]].numpy()
    if "strings" in value:
        dtype, texts = np.dtype(value["dtype"]), np.array(value["strings"], dtype=object)
        known = dtype.kind in "OUS" and dtype.str == value["dtype"]  # NumPy 1 takes sizes modulo 2^32
        fits = known and dtype.itemsize * texts.size <= MAX_TEXTS
        validation.expect(fits, "strings", f"{texts.size} of dtype {dtype}", f"texts of at most {MAX_TEXTS} bytes")
        return np.array(value["strings"], dtype=dtype)
    if "columns" in value:
        labels, names = (unpack(value[part], tensors, records) for part in ("columns", "names"))
        return index_of(labels, names)
    if "network" in value or "layers" in value:
        prefix = f"{value['name']}/"
        own = {key.removeprefix(prefix): t for key, t in tensors.items() if key.startswith(prefix)}
        precision = next((tensor.dtype for tensor in own.values() if tensor.is_floating_point()), torch.float32)
        known = "network" in value
        net = build(value["network"], precision, own) if known else rebuild(value["layers"], own).to(precision)
        net.load_state_dict(own)
        return net
    if "record" in value:
        return records[value["record"]](**{k: unpack(v, tensors, records) for k, v in value["fields"].items()})
    kind = tuple if "tuple" in value else list
    return kind(unpack(item, tensors, records) for item in value[kind.__name__])


def describe(parts: Sequence[nn.Module]) -> list[dict[str, Any]] | None:
    """Return the name and arguments of each layer as plain values; None if one has an :func:`obstacle`.

    Examples
    --------
    >>> describe([nn.Linear(3, 2, bias=False), nn.LeakyReLU(0.1)])[1]
    {'type': 'LeakyReLU', 'arguments': {'negative_slope': 0.1, 'inplace': False}}
    """
    return None if any(map(obstacle, parts)) else [_description(part) for part in parts]


def obstacle(part: nn.Module) -> str:
    """Return why a layer has no description, and what to do about it; empty where it has one.

    It is made anew from its description, to see that nothing is missing.

    Examples
    --------
    >>> obstacle(nn.Threshold(0.1, 0.0)), obstacle(nn.Sequential())[:40]
    ('', 'is not a layer of torch that runs by its')
    """
    outside = "in the forward of a module around the Sequential, which bnrank.load then takes as net"
    other = f"call it {outside}, or keep the network with torch.save(network, path)"
    if any(map(parametrize.is_parametrized, part.modules())):
        return "is parametrized: torch.nn.utils.parametrize.remove_parametrizations makes it plain before compress"
    hooks = [hook for module in part.modules() for hook in module._forward_pre_hooks.values()]
    for kind, name in ((WeightNorm, "weight"), (SpectralNorm, "spectral")):
        if any(isinstance(hook, kind) for hook in hooks):
            return f"has {name} normalization: torch.nn.utils.remove_{name}_norm makes it plain before compress"
    if any("forward" in vars(module) for module in part.modules()):
        return f"has a forward that its class does not have: {other}"
    if any(map(hooked, part.modules())):
        return f"has forward hooks: remove them before compress, or do what they do {outside}"
    if _LAYERS.get(type(part).__name__) is not type(part):
        return f"is not a layer of torch that runs by itself: {other}"
    try:
        made = _made(_description(part))
    except Exception as error:
        return f"has arguments that are no plain values ({error}): {other}"
    if _shapes(made.state_dict()) == _shapes(part.state_dict()) and (type(part) in _OWN or _alike(made, part)):
        return ""
    return f"was changed since it was made, beyond its parameters: {other}"


def _description(part: nn.Module) -> dict[str, Any]:
    given = {key: getattr(part, key) for key in inspect.signature(type(part)).parameters if hasattr(part, key)}
    arguments = {key: _plain(value) for key, value in given.items() if key not in ("device", "dtype")}
    if "bias" in arguments:
        arguments["bias"] = given["bias"] is not None and given["bias"] is not False
    return {"type": type(part).__name__, "arguments": arguments}


def _plain(value: Any) -> Any:
    return [_plain(entry) for entry in value] if isinstance(value, tuple | list) else value


def _made(layer: Mapping[str, Any]) -> nn.Module:
    """Return a layer of a description, without memory for its parameters."""
    arguments = {key: tuple(v) if isinstance(v, list) else v for key, v in layer["arguments"].items()}
    json.dumps(arguments)
    validation.expect(not {"device", "dtype"} & arguments.keys(), "arguments", arguments, "no device or dtype")
    with torch.device("meta"):
        made: nn.Module = _LAYERS[layer["type"]](**arguments)
    return made


def _alike(made: nn.Module, part: nn.Module) -> bool:
    """Return whether all attributes that a layer has when it is made are those of another."""
    own = vars(made).keys() - vars(nn.Module()).keys()
    return all(_plain(vars(part).get(key)) == _plain(vars(made)[key]) for key in own)


def _shapes(tensors: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def rebuild(layers: Sequence[Mapping[str, Any]], tensors: Mapping[str, Tensor]) -> nn.Sequential:
    """Return the layers of a description in sequence, with parameters not yet set, of the shapes of given tensors.

    Raises
    ------
    ValueError
        If the description is invalid, or of layers with other parameters; nothing is then allocated.

    Examples
    --------
    >>> net = nn.Sequential(nn.Linear(3, 2), nn.ReLU())
    >>> again = rebuild(describe(net), net.state_dict())
    >>> again.load_state_dict(net.state_dict())
    <All keys matched successfully>
    """
    parts = []
    validation.expect(len(layers) <= MAX_LAYERS, "layers", f"{len(layers)}", f"at most {MAX_LAYERS}")
    for layer in layers:
        try:
            parts.append(_made(layer))
        except Exception as error:
            wrong = f"layers: got {validation.describe(layer)}, expected a layer of torch: {error!r}"
            raise ValueError(wrong) from error
    result = nn.Sequential(*parts)
    shapes, stored = _shapes(result.state_dict()), _shapes(tensors)
    other = next((name for name in (*shapes, *stored) if shapes.get(name) != stored.get(name)), None)
    if other is not None:
        raise ValueError(f"layers: got {other} of shape {shapes.get(other)}, expected that stored, {stored.get(other)}")
    return result.to_empty(device="cpu")
