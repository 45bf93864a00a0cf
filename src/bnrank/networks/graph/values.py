"""Values and operations of a module that is traced: tensors of two samples with their origin, and shared memory."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

SAMPLES = 2
"""Number of samples a module is traced on: two, to detect operations that mix samples."""

NO_SAMPLES = -1
"""The dimension of the samples of a tensor that has none."""


class UnreadError(Exception):
    """An operation that the theory does not cover; the message is the reason."""


@dataclass(eq=False)
class Value:
    """A tensor of a running module.

    Attributes
    ----------
    tensor : Tensor
        Its value on the two samples.
    node : str or None
        The node that gave it; None where it does not depend on the module's input.
    batch : int
        Which of its dimensions is the samples; NO_SAMPLES if none is.
    sources : frozenset of str
        The parameters that it is computed from, where it does not depend on the input.
    raw : bool
        Whether it is a tensor that the trace does not follow: a buffer, or one made by forward on its own.
    merged : int
        How many positions of a sample the dimension of the samples counts as well, as after ``x.reshape(-1, d)``.
    """

    tensor: Tensor
    node: str | None = None
    batch: int = 0
    sources: frozenset[str] = frozenset()
    raw: bool = False
    merged: int = 1

    @property
    def canonical(self) -> Tensor:
        """Its tensor as (N, *shape)."""
        return canonical(self.tensor, self.batch, self.merged)

    @property
    def layout(self) -> dict[str, int]:
        """Where the samples are."""
        return {"batch": self.batch, "merged": self.merged}

    def before(self) -> Value:
        """Return a copy that a later change in place does not reach."""
        with torch.enable_grad():  # a clone that gradients flow through as through the tensor
            return dataclasses.replace(self, tensor=self.tensor.clone())


@dataclass
class Call:
    """One operation of a module.

    Attributes
    ----------
    name : str
        "relu", "conv2d", "Linear": the function's name without what marks it as in place, or the class of a module.
    args, kwargs
        Its arguments before it ran, with a `Value` in place of every tensor.
    result
        Its result, with tensors.
    run : callable
        Runs it again on other arguments.
    module : torch.nn.Module or None
        The submodule that was called.
    weights : mapping
        The module's parameters by name.
    """

    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    result: Any
    run: Callable[..., Any]
    module: nn.Module | None = None
    weights: Mapping[str, Tensor] = field(default_factory=dict)

    def get(self, position: int, name: str, default: Any = None) -> Any:
        """Return an argument by position or name."""
        return self.args[position] if position < len(self.args) else self.kwargs.get(name, default)

    @property
    def values(self) -> list[Value]:
        """What it takes that depends on the module's input."""
        return [v for v in leaves((self.args, self.kwargs), Value) if v.node is not None]

    @property
    def constants(self) -> list[Value]:
        """What it takes that does not depend on the module's input."""
        return [v for v in leaves((self.args, self.kwargs), Value) if v.node is None]

    @property
    def owned(self) -> list[str]:
        """The parameters of the submodule that is called."""
        held = [] if self.module is None else [id(p) for p in self.module.parameters()]
        return [name for name, p in self.weights.items() if id(p) in held]

    @property
    def held(self) -> set[str]:
        """All parameters that it takes."""
        return {*self.owned, *(name for v in self.constants for name in v.sources)}

    def own(self, name: str) -> Value | None:
        """Return a parameter of the submodule that is called, or None."""
        tensor = None if self.module is None else self.module._parameters.get(name)
        if tensor is None:
            return None
        return Value(tensor, sources=frozenset(n for n, p in self.weights.items() if p is tensor))

    def parameter(self, value: Value | None, what: str) -> tuple[str, Tensor, Tensor]:
        """Return a parameter's name, its tensor, and the view of all of it that a value is; else refuse."""
        if not isinstance(value, Value) or not value.sources:
            raise UnreadError(f"its {what} is not a parameter")
        name, *others = sorted(value.sources)
        tensor = self.weights.get(name)
        whole = tensor is not None and same_memory(tensor, value.tensor) and tensor.numel() == value.tensor.numel()
        if others or tensor is None or not whole:
            raise UnreadError(f"its {what} is computed from {', '.join([name, *others])}")
        if not value.tensor.requires_grad:
            raise UnreadError(f"no gradient flows to its {what} ({name})")
        return name, tensor, value.tensor


Emit = Callable[..., Value]
"""Adds a node (op, inputs, tensor, batch, merged=1, **fields) to the graph and returns its value."""


def leaves(tree: Any, kind: type) -> list[Any]:
    """Return all leaves of a type in tuples, lists, dictionaries and slices, in order."""
    found: list[Any] = []
    replace(tree, lambda leaf: found.append(leaf) if isinstance(leaf, kind) else None)
    return found


def replace(tree: Any, function: Callable[[Any], Any]) -> Any:
    """Return the same tuples, lists, dictionaries and slices with the function applied to what they hold."""
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*(replace(item, function) for item in tree))
    if isinstance(tree, list):
        return [replace(item, function) for item in tree]
    if isinstance(tree, tuple) and not isinstance(tree, torch.Size):
        return tuple(replace(item, function) for item in tree)
    if isinstance(tree, dict):
        return {key: replace(item, function) for key, item in tree.items()}
    if isinstance(tree, slice):
        return slice(*(replace(item, function) for item in (tree.start, tree.stop, tree.step)))
    return function(tree)


def canonical(tensor: Tensor, batch: int, merged: int = 1) -> Tensor:
    """Return a tensor as (N, *shape): the samples first, then positions that were merged with them."""
    if batch == NO_SAMPLES:
        return tensor
    if merged > 1:
        tensor = tensor.unflatten(batch, (SAMPLES, merged))
    return tensor.movedim(batch, 0)


def agree(a: Tensor, b: Tensor) -> bool:
    """Return whether two tensors are the same up to rounding, relative to the largest entry."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    largest = float(b.abs().nan_to_num(0, 0, 0).max()) if b.numel() else 0.0
    coarse = torch.finfo(b.dtype).eps > 1e-9 if b.is_floating_point() else False  # a module that casts
    rtol, atol = (16 * torch.finfo(b.dtype).eps, 1e-3 * torch.finfo(b.dtype).eps) if coarse else (1e-9, 1e-12)
    return torch.allclose(a, b, rtol=rtol, atol=atol * (1 + largest), equal_nan=True)


def function_name(function: Any) -> str:
    """Return the name of a function or method of torch, without underscores and the i of operators in place."""
    if getattr(function, "__name__", "") == "__get__":  # of an attribute
        return str(function.__self__.__name__)
    return str(getattr(function, "__name__", type(function).__name__)).strip("_")


def same_memory(a: Tensor, b: Tensor) -> bool:
    """Return whether two tensors are views of the same memory."""
    return bool(a.numel() and b.numel()) and a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()


def same_place(a: Tensor, b: Tensor) -> bool:
    """Return whether two tensors are the same view of the same memory."""
    return same_memory(a, b) and a.storage_offset() == b.storage_offset() and same_order(a, b)


def same_order(a: Tensor, b: Tensor) -> bool:
    """Return whether two tensors of the same beginning lay out their entries alike."""
    if a.shape != b.shape or a.data_ptr() != b.data_ptr():
        return False
    return all(x == y or n == 1 for x, y, n in zip(a.stride(), b.stride(), a.shape, strict=True))


def addresses(tensor: Tensor) -> NDArray[np.int64]:
    """Return where in its memory every entry of a tensor lies."""
    found = np.full(tuple(tensor.shape), tensor.storage_offset(), dtype=np.int64)
    for d, (size, stride) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
        found += (np.arange(size) * stride).reshape([-1 if i == d else 1 for i in range(tensor.ndim)])
    return found


def written(shown: Tensor, by: Tensor) -> Callable[[Sequence[Tensor]], Tensor]:
    """Return what gives, of the entries of two tensors over the same memory, ``shown`` once ``by`` is written."""
    places = [torch.from_numpy(addresses(tensor)) for tensor in (shown, by)]

    def seen(entries: Sequence[Tensor]) -> Tensor:
        memory = torch.zeros(1 + max(int(place.max()) for place in places), dtype=torch.float64)
        for place, numbers in zip(places, entries, strict=True):
            memory[place.flatten()] = numbers.flatten()
        return memory[places[0]]

    return seen


@contextmanager
def generators(seed: int | None = None) -> Iterator[None]:
    """Put the random generators of torch, NumPy and Python back afterwards; within, start them at a seed if given."""
    numpy, python = np.random.get_state(), random.getstate()  # noqa: NPY002  (what forward may draw from)
    try:
        with torch.random.fork_rng([]):
            if seed is not None:
                torch.manual_seed(seed)
                np.random.seed(seed)  # noqa: NPY002
                random.seed(seed)
            yield
    finally:
        np.random.set_state(numpy)  # noqa: NPY002
        random.setstate(python)
