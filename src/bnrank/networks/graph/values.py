"""Values and operations of a traced module."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

SAMPLES = 2  # a module is traced on two samples, to detect operations that mix samples
NO_SAMPLES = -1  # the dimension of the samples of a tensor that has none
MIXES = "mixes samples, or has no dimension for them"
FOREIGN = "puts in numbers that do not come from the input"
RANDOM = "random numbers"  # the source of constants that are drawn


class UnreadError(Exception):
    """An operation that the theory does not cover; the message is the reason."""


class RefusedError(ValueError):
    """A module that has no graph."""


class RandomError(RefusedError):
    """A module whose graph depends on random numbers; the argument is what these decide."""

    def __init__(self, what: str) -> None:
        advice = "set the probability to 0, or draw once and keep the draw in a buffer"
        super().__init__(
            f"net: draws random numbers that decide {what}; expected the same graph in every call: {advice}"
        )


def expect(condition: object, reason: str) -> None:
    """Raise `UnreadError` with a reason unless the condition holds."""
    if not condition:
        raise UnreadError(reason)


@dataclass(eq=False)
class Value:
    """A tensor in a traced module.

    Attributes
    ----------
    tensor : Tensor
        Its value on the two samples.
    node : str
        The node that computed it; "" if it does not depend on the module's input.
    batch : int
        The sample dimension; NO_SAMPLES if there is none.
    merged : int
        Number of positions per sample merged into the sample dimension, as after ``x.reshape(-1, d)``.
    sources : frozenset of str
        The parameters from which it is computed, if it does not depend on the input.
    raw : bool
        Whether the forward did not create its memory: a parameter, a buffer, or a tensor from elsewhere.
    """

    tensor: Tensor
    node: str = ""
    batch: int = 0
    merged: int = 1
    sources: frozenset[str] = frozenset()
    raw: bool = False

    def __post_init__(self) -> None:
        """Keep what the tensor holds now: it may be changed in place."""
        self.version, self.function, self.content = self.tensor._version, self.tensor.grad_fn, self.tensor.detach()
        if not (self.raw or self.sources):
            self.content = self.content.clone()

    @property
    def layout(self) -> tuple[int, int]:
        """Where the samples are."""
        return self.batch, self.merged

    @property
    def canonical(self) -> Tensor:
        """Its content as (N, *shape)."""
        return samples_first(self.content, *self.layout)


@dataclass
class Call:
    """One operation of a module.

    Attributes
    ----------
    name : str
        Name of the function, without underscores at its ends, or class of the module, e.g. "relu", "conv2d", "Linear".
    args, kwargs
        Its arguments, with a `Value` in place of every tensor.
    run : callable
        Runs it on other arguments.
    module : torch.nn.Module or None
        The submodule that was called.
    place : str
        Name of this submodule.
    weights : mapping
        The module's parameters by name.
    result
        Its result, with tensors.
    emit : callable
        Adds a node (op, names of input nodes, tensor, batch, merged, **fields) and returns its value.
    reordered : callable
        Returns the values of the result from a function that takes the arguments with numbered entries.
    """

    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    run: Callable[..., Any]
    module: nn.Module | None
    place: str
    weights: Mapping[str, Tensor]
    result: Any = None
    emit: Callable[..., Value] = field(init=False)
    reordered: Callable[..., Any] = field(init=False)

    def __post_init__(self) -> None:
        """Sort the arguments."""
        self.taken: list[Value] = leaves((self.args, self.kwargs), Value)
        self.values = [v for v in self.taken if v.node]
        self.constants = [v for v in self.taken if not v.node]
        own = [] if self.module is None else [id(p) for p in self.module.parameters()]
        self.owned = [name for name, p in self.weights.items() if id(p) in own]

    def get(self, position: int, name: str, default: Any = None) -> Any:
        """Return an argument by position or name, or else the attribute of this name of the called submodule."""
        if position < len(self.args):
            return self.args[position]
        value = self.kwargs.get(name, getattr(self.module, name, default))
        if not isinstance(value, Tensor):
            return value
        return Value(value, sources=frozenset(n for n, p in self.weights.items() if p is value), raw=True)

    def again(self, content: Callable[[Value], Tensor]) -> Any:
        """Run it with other tensors in place of the values it takes."""
        args, kwargs = replace((self.args, self.kwargs), Value, content)
        return self.run(*args, **kwargs)

    def parameter(self, value: Any, what: str) -> tuple[str, Tensor, Tensor]:
        """Return a parameter's name, its tensor and the value as a view of all of it; raise if it is not one."""
        depends = isinstance(value, Value) and value.node
        expect(not depends, "product of two values")
        if not isinstance(value, Value) or not value.sources:
            raise UnreadError(f"its {what} is not a parameter")
        name, *others = sorted(value.sources)
        tensor = self.weights.get(name)
        whole = tensor is not None and same_memory(tensor, value.tensor) and tensor.numel() == value.tensor.numel()
        if others or tensor is None or not whole:
            raise UnreadError(f"its {what} is computed from {', '.join([name, *others])}")
        expect(value.tensor.requires_grad, f"no gradient flows to its {what} ({name})")
        return name, tensor, value.tensor


def leaves(tree: Any, kind: type) -> list[Any]:
    """Return all leaves of a type in tuples, lists, dictionaries and slices, in order."""
    result: list[Any] = []
    replace(tree, kind, result.append)
    return result


def replace(tree: Any, kind: type, function: Callable[[Any], Any]) -> Any:
    """Return the same tuples, lists, dictionaries and slices with the function applied to the leaves of a type."""
    if isinstance(tree, list | tuple) and not isinstance(tree, torch.Size):
        items = [replace(item, kind, function) for item in tree]
        return type(tree)(*items) if hasattr(tree, "_fields") else items if isinstance(tree, list) else tuple(items)
    if isinstance(tree, dict):
        return {key: replace(item, kind, function) for key, item in tree.items()}
    if isinstance(tree, slice):
        return slice(*(replace(item, kind, function) for item in (tree.start, tree.stop, tree.step)))
    return function(tree) if isinstance(tree, kind) else tree


def samples_first(tensor: Tensor, batch: int, merged: int = 1) -> Tensor:
    """Return a tensor as (N, *shape): the samples first, then positions that were merged with them."""
    if batch == NO_SAMPLES:
        return tensor
    if merged > 1:
        tensor = tensor.unflatten(batch, (SAMPLES, merged))
    return tensor.movedim(batch, 0)


def samples_of(sample: Tensor) -> tuple[int, int]:
    """Return where the samples are in a tensor with the sample of every entry (-1: of none): batch and merged."""
    for merged_too in (False, True):
        for batch, size in enumerate(sample.shape):
            if size % SAMPLES == 0 and (size == SAMPLES or merged_too):
                rows = samples_first(sample, batch, size // SAMPLES).reshape(SAMPLES, -1)
                if all(bool(((row == i) | (row == -1)).all()) for i, row in enumerate(rows)):
                    return batch, size // SAMPLES
    raise UnreadError(MIXES)


def agree(a: Tensor, b: Tensor) -> bool:
    """Return whether two tensors are the same up to rounding, relative to the largest entry."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    largest = float(b.abs().nan_to_num(0, 0, 0).max()) if b.numel() else 0.0
    eps = torch.finfo(b.dtype).eps if b.is_floating_point() else 0.0
    rtol, atol = (16 * eps, 1e-3 * eps) if eps > 1e-9 else (1e-9, 1e-12)  # larger in a module that casts
    return torch.allclose(a, b, rtol=rtol, atol=atol * (1 + largest), equal_nan=True)


def same_memory(a: Tensor, b: Tensor) -> bool:
    """Return whether two tensors are views of the same memory."""
    return bool(a.numel() and b.numel()) and a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()


def same_order(a: Tensor, b: Tensor) -> bool:
    """Return whether two tensors of the same beginning lay out their entries alike."""
    if a.shape != b.shape or a.data_ptr() != b.data_ptr():
        return False
    return all(x == y or n == 1 for x, y, n in zip(a.stride(), b.stride(), a.shape, strict=True))


def places(tensor: Tensor) -> Tensor:
    """Return the place of every entry of a tensor in its memory."""
    memory = torch.arange(tensor.untyped_storage().nbytes() // tensor.element_size())
    return memory.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
