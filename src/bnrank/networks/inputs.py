"""What a module is called with and returns: several inputs or outputs, samples along another dimension."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from itertools import chain
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from bnrank._core import validation
from bnrank.networks.replicas import converted

OUTPUTS = ("logits", "last_hidden_state", "out", "prediction_logits", "pooler_output")  # the first that is there counts
_TIME_FIRST = (nn.RNNBase, nn.MultiheadAttention, nn.Transformer)
_LAYERS = (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)


class Inputs:
    """Samples for a module that takes several tensors, or one whose samples are not along the first dimension.

    Slices, lists of rows and :meth:`split` act on all tensors alike.

    Parameters
    ----------
    positional : tuple
        Arguments; tensors have the samples along ``dim``, other values are passed on.
    named : mapping
        Keyword arguments, likewise.
    dim : int
        The dimension of the samples.

    Examples
    --------
    >>> x = Inputs((torch.ones(4, 2),), {"mask": torch.ones(4, 3), "causal": True})
    >>> len(x), [tuple(part.named["mask"].shape) for part in x.split(3)]
    (4, [(3, 3), (1, 3)])
    """

    def __init__(self, positional: tuple[Any, ...], named: Mapping[str, Any] | None = None, dim: int = 0) -> None:
        self.positional, self.named, self.dim = tuple(positional), dict(named or {}), dim

    @property
    def tensors(self) -> list[Tensor]:
        """All tensors, in order."""
        return [value for value in [*self.positional, *self.named.values()] if isinstance(value, Tensor)]

    @property
    def shape(self) -> tuple[int, ...]:
        """(N, numbers per sample)."""
        return len(self), self.numel() // len(self)

    @property
    def device(self) -> torch.device:
        """The device of the first tensor."""
        return self.tensors[0].device

    def __len__(self) -> int:
        return self.tensors[0].shape[self.dim]

    def __getitem__(self, rows: Any) -> Inputs:
        rows = slice(rows, rows + 1) if isinstance(rows, int) else rows
        return self._map(lambda value: value[(slice(None),) * self.dim + (rows,)])

    def split(self, size: int) -> list[Inputs]:
        """Return blocks of at most ``size`` samples."""
        return [self[start : start + size] for start in range(0, len(self), size)]

    def numel(self) -> int:
        """Return the number of entries of all tensors."""
        return sum(tensor.numel() for tensor in self.tensors)

    def is_floating_point(self) -> bool:
        """Return False: f is not differentiated by several inputs at once."""
        return False

    def detach(self) -> Inputs:
        """Return the same samples outside of any graph."""
        return self._map(Tensor.detach)

    def clone(self) -> Inputs:
        """Return copies."""
        return self._map(Tensor.clone)

    def to(self, device: torch.device, dtype: torch.dtype) -> Inputs:
        """Return copies on a device, those of floating-point and complex numbers in a precision."""
        return self._map(lambda tensor: converted(tensor, dtype, device))

    def _map(self, change: Any) -> Inputs:
        values = [*self.positional, *self.named.values()]
        changed = [change(value) if isinstance(value, Tensor) else value for value in values]
        count = len(self.positional)
        return Inputs(tuple(changed[:count]), dict(zip(self.named, changed[count:], strict=True)), self.dim)


Samples = Tensor | Inputs
Example = Tensor | np.ndarray | Inputs | tuple[Any, ...] | Mapping[str, Any]  # what users give as x


def several(net: nn.Module, x: Any, name: str = "x", minimum: int = 1, *, allowed: bool = True) -> Inputs | None:
    """Return the samples of a tuple or mapping of tensors, or of a module with samples along dimension 1; else None.

    Raises
    ------
    TypeError, ValueError
        If there is no tensor, the tensors differ in the number of samples or are not finite, or it is not ``allowed``.

    Examples
    --------
    >>> several(nn.LSTM(3, 2), torch.ones(5, 4, 3)).dim, several(nn.LSTM(3, 2, batch_first=True), torch.ones(5, 4, 3))
    (1, None)
    """
    if isinstance(x, Inputs) and allowed:
        return x
    dim = int(time_first(net))
    if isinstance(x, Inputs):
        found = x
    elif isinstance(x, Mapping):
        named = {str(key): as_tensor(value, f"{name}[{key!r}]") for key, value in x.items()}
        found = Inputs((), named, dim)
    elif isinstance(x, tuple | list) and any(isinstance(value, Tensor | np.ndarray) for value in x):
        found = Inputs(tuple(as_tensor(value, f"{name}[{i}]") for i, value in enumerate(x)), {}, dim)
    elif dim and isinstance(x, Tensor | np.ndarray) and x.ndim == 3:
        found = Inputs((as_tensor(x, name),), {}, dim)
    else:
        return None
    expected = "tensors with one entry per sample" + " along dimension 1 (batch_first=False)" * dim
    counts = [t.shape[dim] if t.ndim > dim else 0 for t in found.tensors]
    same = bool(counts) and len(set(counts)) == 1 and counts[0] > 0
    if len(set(counts)) > 1:
        expected += (
            "; keep what all samples share, such as the edges of a graph, as a buffer of a module that wraps net and "
            "takes the rest; bnrank.profile(net) measures the weights without samples"
        )
    shapes = ", ".join(str(tuple(t.shape)) for t in found.tensors) or "no tensor"
    validation.expect(same, name, f"shapes {shapes}" if counts else shapes, expected)
    validation.expect(counts[0] >= minimum, name, f"{counts[0]} sample(s)", f"at least {minimum}")
    how = "a tuple or mapping of tensors" if found.dim == 0 else "(time, N, features)"
    advice = "one tensor (N, ...): wrap net in a module that takes it and adds the rest"
    validation.expect(allowed, name, how, advice, TypeError)
    return found


def entries(structure: Any) -> dict[Any, Any]:
    """Return what a value holds, by name or position; empty for tensors, modules, classes and plain values.

    Of a mapping its values, of a dataclass and a namedtuple its fields, of a tuple or list its entries, and of another
    object its attributes, those in ``__slots__``, too.

    Examples
    --------
    >>> entries({"a": 1}), entries((1, 2)), entries("text")
    ({'a': 1}, {0: 1, 1: 2}, {})
    """
    if isinstance(structure, Tensor | nn.Module | type):
        return {}
    if isinstance(structure, Mapping):
        return dict(structure)
    if isinstance(structure, tuple | list):
        return structure._asdict() if hasattr(structure, "_asdict") else dict(enumerate(structure))
    names = [field.name for field in fields(structure)] if is_dataclass(structure) else []
    for kind in reversed(type(structure).__mro__):
        slots = kind.__dict__.get("__slots__", ())
        names += [slots] if isinstance(slots, str) else slots
    held = {name: getattr(structure, name) for name in names if hasattr(structure, name)}
    return {name: value for name, value in held.items() if name != "__dict__"} | getattr(structure, "__dict__", {})


def main_output(out: Any) -> Any:
    """Return the tensor of interest among what a module returns; the value itself where there is none.

    Of a mapping, a dataclass, a namedtuple or an object with one of them: logits, last_hidden_state or out, else the
    first floating-point tensor. Of a tuple or list the first entry that is or holds one: the output of a recurrent
    layer or of attention.

    Examples
    --------
    >>> main_output({"loss": None, "last_hidden_state": torch.zeros(2, 3)}).shape
    torch.Size([2, 3])
    """
    return out if isinstance(out, Tensor | type | nn.utils.rnn.PackedSequence) else _main_of_several(out)


def _main_of_several(out: Any) -> Any:
    by_key = isinstance(out, Mapping)
    known = [out.get(name) if by_key else getattr(out, name, None) for name in OUTPUTS]
    named = by_key or is_dataclass(out) or any(isinstance(value, Tensor) for value in known)
    values: Iterator[Any] = iter(known)
    if isinstance(out, tuple | list):
        values = chain(known, (main_output(value) for value in out))
    elif named:
        values = chain(known, entries(out).values())
    return next((value for value in values if isinstance(value, Tensor) and value.is_floating_point()), out)


def floating_outputs(returned: Any, name: str = "") -> dict[str, Tensor]:
    """Return the floating-point tensors among what a module returns, by name: keys, fields and places.

    Examples
    --------
    >>> list(floating_outputs({"boxes": torch.ones(2, 4), "hidden": (torch.ones(2), torch.ones(2).int())}))
    ['boxes', 'hidden[0]']
    """
    if isinstance(returned, Tensor):
        return {name: returned} if returned.is_floating_point() else {}
    found: dict[str, Tensor] = {}
    for key, value in entries(returned).items() if _is_structure(returned) else ():
        own = f"[{key}]" if isinstance(key, int) else str(key)
        found |= floating_outputs(value, f"{name}{own}" if isinstance(key, int) or not name else f"{name}.{own}")
    return found


def _is_structure(value: Any) -> bool:
    return isinstance(value, Mapping | tuple | list) or (is_dataclass(value) and not isinstance(value, type))


def columns(out: Tensor) -> Tensor:
    """Return outputs or targets (N, ...); those of shape (N,) count as one feature, (N, 1).

    Examples
    --------
    >>> columns(torch.zeros(3)).shape, columns(torch.zeros(3, 2)).shape
    (torch.Size([3, 1]), torch.Size([3, 2]))
    """
    return out if out.ndim > 1 else out.reshape(-1, 1)


class MainOutput(nn.Module):
    """The main output among what a module returns, with one row for each sample: a last part of a ``nn.Sequential``.

    Examples
    --------
    >>> MainOutput()({"logits": torch.zeros(3), "loss": torch.ones(())}).shape
    torch.Size([3, 1])
    """

    def forward(self, returned: Any) -> Tensor:
        """Return the tensor, (N, ...)."""
        return columns(main_output(returned))


def time_first(net: nn.Module) -> bool:
    """Return whether a module of torch by itself takes (time, samples, features)."""
    is_stack = isinstance(net, nn.TransformerEncoder | nn.TransformerDecoder) and len(net.layers) > 0
    layer: Any = cast(Any, net).layers[0] if is_stack else net
    part = layer.self_attn if isinstance(layer, _LAYERS) else layer
    return isinstance(layer, _TIME_FIRST + _LAYERS) and not part.batch_first


def indices(value: Any, name: str, minimum: int = 1) -> Tensor:
    """Return integers as samples (N, ...), such as tokens for a module that embeds them."""
    x = validation.dense(validation.from_array(value, name) if isinstance(value, np.ndarray) else value, name)
    fits = x.ndim > 0 and x.numel() > 0 and len(x) >= minimum
    validation.expect(fits, name, f"shape {tuple(x.shape)}", f"(N, ...) with at least {minimum} sample(s)")
    return x


def as_tensor(value: Any, name: str) -> Any:
    """Return an array as a tensor; refuse sparse tensors, NaN and infinity; other values as they are."""
    if isinstance(value, np.ndarray):
        value = validation.from_array(value, name)
    if not isinstance(value, Tensor):
        return value
    value = validation.dense(value, name)
    return validation.finite(value, name) if value.is_floating_point() else value
