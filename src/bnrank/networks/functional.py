"""A module as a pure function of its samples, in any precision and in eval mode, on a replica of it."""

from __future__ import annotations

import copy
import functools
import itertools
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any, Literal, TypeGuard, overload

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from bnrank._core import validation
from bnrank._core.onlooker import only_looks_on
from bnrank.networks.inputs import OUTPUTS, Inputs, Samples, columns, indices, main_output, several, time_first
from bnrank.networks.mlp import MLP, LinearNetwork
from bnrank.networks.replicas import ForeignTensorError, converted, replica, restored, sandbox

MAX_WHOLE = 2**22  # numbers in x for which an error tells whether the module runs on all samples


class ExplainedError(ValueError):
    """The error of a module that fails on x, with a reason that does not lie in x."""


class PrecisionError(ExplainedError):
    """The error of a module that fails on x in one precision, but runs in another one, ``dtype``."""

    def __init__(self, message: str, dtype: torch.dtype | None = None) -> None:
        super().__init__(message)
        self.dtype = dtype


class Functional:
    """A module as a function of x in one precision; calls do not change the module.

    It runs on a :func:`replica`, in a :func:`sandbox`; what a call sets on the replica is restored after it. Of several
    outputs the main one counts, see :func:`~bnrank.networks.inputs.main_output`; one of shape (N,), or () for one
    sample, is returned as one feature, (N, 1).

    Parameters
    ----------
    module : torch.nn.Module
        Any module.
    dtype : torch.dtype
        Floating-point type to run in.
    whole : Tensor or Inputs, optional
        The samples that a user gave. Where the module fails on some of them, errors say whether it runs on all.

    Attributes
    ----------
    net, module : torch.nn.Module
        The module, without wrappers, and the replica.
    parameters, buffers : dict of Tensor
        What it runs with.

    Raises
    ------
    TypeError, ValueError
        If it is not a module, has lazy parameters without a shape, or cannot be copied; when called, if the forward
        fails on x in this precision (:class:`PrecisionError` where it runs in another one) or does not return a tensor
        with an entry per sample.
    """

    def __init__(self, net: nn.Module, dtype: torch.dtype = torch.float64, whole: Samples | None = None) -> None:
        self.dtype, self.whole = validation.dtype(dtype), whole
        self._told: dict[str, ValueError] = {}
        self.net = unwrap(net)
        self.module = replica(self.net, self.dtype)
        self.parameters = {name: p.detach() for name, p in self.module.named_parameters()}
        self.buffers = dict(self.module.named_buffers())
        self._aliases = aliases(self.module)
        # a call replaces the parameters of the replica
        self._foreign = {id(p): p for p in (*self.net.parameters(), *self.net.buffers(), *self.module.parameters())}
        self._lock = threading.RLock()
        held = self.parameters | self.buffers
        self.device = next((tensor.device for tensor in held.values()), torch.device("cpu"))

    def __call__(self, x: Samples) -> Tensor:
        """Return f(x); gradients flow to x and to ``parameters``."""
        return columns(self.main(x))

    def with_parameters(self, parameters: dict[str, Tensor], x: Samples) -> Tensor:
        """Return f(x) with parameters of the caller, by the names of ``parameters``, in its dtype and on its device."""
        return columns(self._main_of(self._run(parameters, x), x))

    def main(self, x: Samples) -> Tensor:
        """Return f(x) in the shape that the module gives it, (N,) or (N, ...)."""
        return self._main_of(self._run(self.parameters, x), x)

    def is_plain(self, x: Samples) -> bool:
        """Return whether the module returns one tensor with a row for each sample: no other values, and no (N,)."""
        with torch.no_grad():
            returned = self._run(self.parameters, x)
        return isinstance(returned, Tensor) and returned.ndim > 1

    def twice(self, x: Samples) -> tuple[Tensor, Tensor]:
        """Return f(x) of two runs without gradients, which differ where the forward draws noise in eval mode, too."""
        with torch.no_grad():
            first, second = (self._main_of(self._returned(self.parameters, x, seed), x) for seed in (0, 1))
        return columns(first).detach(), columns(second).detach()

    def is_random(self, x: Samples) -> bool:
        """Return whether f(x) differs from call to call by more than rounding."""
        first, again = self.twice(x)
        finite = first[first.isfinite()]
        largest = float(finite.abs().max()) if finite.numel() else 0.0
        rounding = (1e-6 if self.dtype == torch.float64 else 1e-3) * largest
        return not torch.allclose(first, again, rtol=0.0, atol=rounding, equal_nan=True)

    def _main_of(self, returned: Any, x: Samples) -> Tensor:
        """Return the main output among what the module returns for x, samples first."""
        out, dim = main_output(returned), x.dim if isinstance(x, Inputs) else 0
        if not isinstance(out, Tensor) or not out.is_floating_point() or out.is_nested or out.layout != torch.strided:
            raise ValueError(f"net: {type(self.module).__name__} returns {_unfit(out)}")
        out = out.reshape(1) if out.ndim == dim == 0 and len(x) == 1 else out  # squeezed
        if out.ndim <= dim or out.shape[dim] != len(x):
            raise ValueError(_without_rows(out, len(x), dim))
        return out.movedim(dim, 0)

    def _run(self, parameters: dict[str, Tensor], x: Samples) -> Any:
        """Return what the module returns; raise ValueError, with the reason, where it fails."""
        try:
            return self._returned(parameters, x)
        except Exception as error:
            raise self._failure(parameters, x, error) from error

    def _returned(self, parameters: dict[str, Tensor], x: Samples, seed: int = 0) -> Any:
        """Return what the module returns."""
        if torch.compiler.is_compiling():
            return torch.compiler.disable(self._returned)(parameters, x, seed)
        to: Any = {"device": self.device, "dtype": self.dtype}  # a copy: the first operation may work in place
        given = x.to(**to) if isinstance(x, Inputs) else Inputs((converted(x, **to),))
        held = {**parameters, **{name: tensor.clone() for name, tensor in self.buffers.items()}}
        held |= {alias: held[name] for alias, name in self._aliases.items()}
        with self._lock, restored(self.module), sandbox(seed, self._foreign):
            return torch.func.functional_call(self.module, held, given.positional, given.named, tie_weights=False)

    def _failure(self, parameters: dict[str, Tensor], x: Samples, error: Exception) -> ValueError:
        """Return the error for a module that fails on x, with the reason where the module runs on something else."""
        kind, why = type(self.module).__name__, str(error).removesuffix(".")
        if getattr(type(self.module), "forward", None) is nn.Module.forward and "forward" not in vars(self.module):
            return ValueError(f"net: {kind} has no forward, expected a module that runs on x")
        if isinstance(error, ExplainedError):
            return error
        if isinstance(error, ForeignTensorError):
            return ExplainedError(f"net: {kind} cannot be run as a copy: {why}")
        plain = ValueError(f"net: {kind} failed on x of shape {_shapes(x)} in {self.dtype}: {why}")
        if not self._told:  # trials cost time: not for every sample, where a caller goes on without
            self._told[why] = plain
            for runs, explanation in self._explanations(parameters, x, why):
                with suppress(Exception):
                    runs()
                    self._told[why] = explanation
                    break
        return copy.copy(self._told.get(why, plain))

    def _explanations(
        self, parameters: dict[str, Tensor], x: Samples, why: str
    ) -> Iterator[tuple[Callable[[], object], ValueError]]:
        """Iterate over runs that differ in one respect, with the error to raise where one succeeds."""
        kind, shapes = type(self.module).__name__, _shapes(x)
        for changed, name, value in _as_real(x, self.dtype):
            got = f"{name}: got {_kind(value)} of dtype {value.dtype}, on which {kind} fails"
            expected = f"expected floating point; {validation.conversion(value.dtype)}"
            error: ValueError = validation.DtypeError(f"{got}, {expected}")
            yield functools.partial(self._returned, parameters, changed), error
        if not torch.is_grad_enabled() and "grad" in why:
            where = "which is run without, expected one with torch.enable_grad() around the part that needs them"
            error = ValueError(f"net: {kind} takes gradients in its forward, {where}")
            yield torch.enable_grad()(functools.partial(self._returned, parameters, x)), error
        own = [p.dtype for p in self.net.parameters() if p.is_floating_point()]
        for other in dict.fromkeys([torch.float32, *own, torch.float64]):
            if other != self.dtype:
                advice = f"pass dtype={other} to a function that has this argument, as bnrank.profile has"
                text = f"net: {kind} runs on x of shape {shapes} in {other}, but not in {self.dtype}: {why}; {advice}"
                function = Functional(self.net, other)
                yield functools.partial(function._returned, function.parameters, x), PrecisionError(text, other)
        if isinstance(x, Tensor) and x.is_floating_point():
            got = f"x: got real numbers of dtype {x.dtype}, on which {kind} fails"
            error = validation.DtypeError(f"{got}, expected integers; convert it with .long()")
            zeros = torch.zeros_like(x)
            yield functools.partial(self._runs_instead, parameters, zeros, zeros.long()), error
        whole = self.whole
        if whole is not None and len(whole) != len(x) and whole.numel() <= MAX_WHOLE:
            rows = f"the {len(whole)} rows of x together, but not on {len(x)} row{'s' * (len(x) != 1)}"
            shape = f", x of shape (N, {', '.join(map(str, whole.shape))})" if isinstance(whole, Tensor) else ""
            yield (
                functools.partial(self._runs_instead, self.parameters, x.detach(), whole),
                ExplainedError(
                    f"net: {kind} runs on {rows}: {why}; bnrank takes rows as independent samples, any number of them. "
                    "If rows belong together, as the nodes of a graph do, give one graph per sample"
                    f"{shape}, such as x[None] for one; if the network takes no batch of graphs, wrap it in a module "
                    "that takes one graph per sample. bnrank.profile(net) measures the weights without x"
                ),
            )

    def _runs_instead(self, parameters: dict[str, Tensor], fails: Samples, runs: Samples) -> None:
        """Raise unless the module fails on some samples, and runs on others."""
        try:
            self._main_of(self._returned(parameters, fails), fails)
        except Exception:
            self._main_of(self._returned(parameters, runs), runs)
        else:
            raise ValueError("it runs on both")


def _unfit(out: Any) -> str:
    """Return what a module returns in place of real numbers, and what is expected."""
    if not isinstance(out, Tensor):
        wrapped = f"object with one in {', '.join(OUTPUTS)}; wrap it in a module that returns the tensor of interest"
        return f"{type(out).__name__}, expected a tensor, a tuple, mapping or dataclass that holds one, or an {wrapped}"
    if out.is_complex() or out.is_nested or out.layout != torch.strided:
        what = "complex numbers" if out.is_complex() else "a sparse or nested tensor"
        return f"{what}, expected a dense tensor of real numbers"
    scores = "such as the scores before argmax; wrap it in a module that returns them"
    return f"{_kind(out)} of dtype {out.dtype}, expected floating-point numbers, {scores}"


def _without_rows(out: Tensor, samples: int, dim: int) -> str:
    """Return the error for an output that does not have an entry per sample along ``dim``."""
    expected = "(N, ...)" if dim == 0 else "(time, N, ...)"
    if dim == 0 < out.ndim and out.shape[0] % samples == 0:
        rows = f"{out.shape[0] // samples} rows for each sample"
        expected += f"; for {rows}, wrap net in a module that returns net(x).unflatten(0, (len(x), -1))"
    return f"net: the output has shape {tuple(out.shape)} for {samples} samples, expected {expected}"


def check_classified(function: Functional, x: Tensor) -> None:
    """Raise ValueError where one class per sample cannot fit, as a sample has outputs at several positions.

    Examples
    --------
    >>> check_classified(Functional(nn.Linear(4, 3)), torch.ones(5, 4))
    >>> check_classified(Functional(nn.Linear(4, 3)), torch.ones(5, 2, 4))
    Traceback (most recent call last):
    ...
    ValueError: y: got one class per sample for outputs of shape (5, 2, 3), expected outputs of shape (N, classes)
    """
    with torch.no_grad():
        shape = function(x[:2]).shape[1:]
    got = f"one class per sample for outputs of shape {(len(x), *shape)}"
    validation.expect(max(shape, default=1) == shape.numel(), "y", got, "outputs of shape (N, classes)")


@overload
def example(net: nn.Module, x: object, minimum: int = ..., name: str = ...) -> Tensor: ...
@overload
def example(net: nn.Module, x: object, minimum: int = ..., name: str = ..., *, inputs: Literal[True]) -> Samples: ...
def example(net: nn.Module, x: object, minimum: int = 1, name: str = "x", *, inputs: bool = False) -> Samples:
    """Return x as samples for ``net``: floating point (N, ...), finite, or integers for modules that embed them.

    With ``inputs`` also a tuple or mapping of tensors, and (time, N, features) for recurrent and attention modules of
    torch with ``batch_first=False``.
    """
    if isinstance(net, MLP):
        return validation.samples(x, name, features=net.widths[0], minimum=minimum)
    has_several = isinstance(x, Inputs | Mapping | tuple | list) or time_first(net)
    if has_several and (found := several(net, x, name, minimum, allowed=inputs)) is not None:
        return found
    is_index = isinstance(x, np.ndarray) and x.dtype.kind in "iu"
    if is_index or (isinstance(x, Tensor) and not (x.is_floating_point() or x.is_complex() or x.dtype == torch.bool)):
        return indices(x, name, minimum)
    return validation.samples(x, name, ndim=None, minimum=minimum)


def is_plain_mlp(net: nn.Module) -> TypeGuard[MLP]:
    """Return whether a module is an unchanged MLP, so that closed forms hold.

    It is not a subclass, has no replaced layer or forward, no hooks that could change an output, and exactly its
    weights and biases as parameters, none used twice or sharing memory with another.
    """
    if type(net) not in (MLP, LinearNetwork) or not isinstance(net, MLP):
        return False
    expected: dict[str, tuple[int, ...]] = {}
    for i, (n_in, n_out) in enumerate(itertools.pairwise(net.widths)):
        expected |= {f"layers.{i}.weight": (n_out, n_in)} | ({f"layers.{i}.bias": (n_out,)} if net.bias else {})
    held = {name: tuple(p.shape) for name, p in net.named_parameters()}
    linear = all(type(layer) is nn.Linear for layer in net.layers)
    return linear and held == expected and not any(map(hooked, net.modules())) and not _overlapping(net)


def hooked(net: nn.Module) -> bool:
    """Return whether a module's call does something other than its class's forward."""
    hooks = [*net._forward_hooks.values(), *net._forward_pre_hooks.values()]
    return not all(map(only_looks_on, hooks)) or "forward" in vars(net)


def check_finite(net: nn.Module) -> None:
    """Raise ValueError, naming them, if parameters have NaN or infinite entries."""
    values = {name: p.detach() for name, p in unwrap(net).named_parameters()}
    bad = [name for name, p in values.items() if not bool((p.float() if p.element_size() == 1 else p).isfinite().all())]
    if bad:
        raise ValueError(f"net: got NaN or infinite entries in {validation.listed(bad)}, expected finite parameters")


def check_real(net: nn.Module) -> None:
    """Raise ValueError, naming them, if parameters are complex numbers: gradients are those of real ones."""
    found = [name for name, p in unwrap(net).named_parameters() if p.is_complex()]
    advice = "keep torch.view_as_real of each as the parameter, and use torch.view_as_complex of it in the forward"
    got = f"parameters that are complex numbers ({validation.listed(found)})"
    validation.expect(not found, "net", got, f"real ones: {advice}")


def check_unshared(net: nn.Module) -> None:
    """Raise ValueError, naming them, if different parameters lie in the same memory.

    One parameter used in several places is allowed and counts once. Two parameters over the same memory (``p.data =
    q.data``) are ambiguous.
    """
    pairs = [f"{a} and {b}" for a, b in _overlapping(unwrap(net, values=False))]
    got = f"different parameters in the same memory ({validation.listed(pairs)})"
    validation.expect(not pairs, "net", got, "one parameter used twice, as in b.weight = a.weight, or separate ones")


def _overlapping(net: nn.Module) -> list[tuple[str, str]]:
    """Return the names of parameters whose memory overlaps, in pairs."""
    spans = []
    for name, p in net.named_parameters():
        if p.layout is torch.strided and p.device.type != "meta" and p.numel() and not is_lazy(p):
            extent = 1 + sum((size - 1) * stride for size, stride in zip(p.shape, p.stride(), strict=True))
            spans.append((str(p.device), p.data_ptr(), p.data_ptr() + extent * p.element_size(), name))
    spans.sort()
    return [(a[3], b[3]) for a, b in itertools.pairwise(spans) if a[0] == b[0] and b[1] < a[2]]


def unwrap(net: nn.Module, values: bool = True) -> nn.Module:
    """Return the module inside ``torch.compile``, DataParallel or DistributedDataParallel.

    Other objects are refused, and so are parameters without a shape or values.
    """
    if not isinstance(net, nn.Module):
        raise TypeError(f"net: got {validation.describe(net)}, expected a torch.nn.Module")
    parallel = (nn.DataParallel, nn.parallel.DistributedDataParallel)
    while (inner := dict(net.named_children()).get("module" if isinstance(net, parallel) else "_orig_mod")) is not None:
        net = inner
    tensors = [*net.named_parameters(), *net.named_buffers()]
    if lazy := [name for name, p in tensors if is_lazy(p)]:
        raise ValueError(f"net: parameters without a shape yet ({validation.listed(lazy)}); run it once on data first")
    if values and (empty := [name for name, p in tensors if p.is_meta]):
        raise ValueError(f"net: parameters on the meta device ({validation.listed(empty)}), expected some with values")
    return net


def aliases(net: nn.Module) -> dict[str, str]:
    """Return the further names of parameters and buffers that are registered in several places, with the first."""
    places: dict[str, Tensor | None] = {}
    for place, sub in net.named_modules():  # one that is there twice comes once: torch does not undo the second
        held = {**sub._parameters, **sub._buffers}
        places |= {f"{place}.{key}".lstrip("."): tensor for key, tensor in held.items() if tensor is not None}
    first = {id(tensor): name for name, tensor in reversed(places.items())}
    return {name: first[id(tensor)] for name, tensor in places.items() if first[id(tensor)] != name}


def _as_real(x: Samples, dtype: torch.dtype) -> Iterator[tuple[Inputs, str, Tensor]]:
    """Iterate over samples with one tensor as floating-point numbers, the name of this tensor, and itself.

    Examples
    --------
    >>> [name for _, name, _ in _as_real(Inputs((torch.ones(1), torch.ones(1).int())), torch.float64)]
    ['x[1]']
    """
    given = x if isinstance(x, Inputs) else Inputs((x,))
    for key, value in [*enumerate(given.positional), *given.named.items()]:
        if isinstance(value, Tensor) and not value.is_floating_point():
            real = (value.real if value.is_complex() else value).to(dtype)
            positional = tuple(real if place == key else other for place, other in enumerate(given.positional))
            named = {name: real if name == key else other for name, other in given.named.items()}
            alone = len(given.tensors) == 1 and not named
            yield Inputs(positional, named, given.dim), "x" if alone else f"x[{key!r}]", value


def _kind(values: Tensor) -> str:
    return "complex numbers" if values.is_complex() else "truth values" if values.dtype == torch.bool else "integers"


def _shapes(x: Samples) -> str:
    """Return the shapes of samples, of whatever number: these can be a few of those that a user gave.

    Examples
    --------
    >>> _shapes(torch.ones(2, 4)), _shapes(Inputs((torch.ones(5, 2, 4),), {"mask": torch.ones(5, 2)}, dim=1))
    ('(N, 4)', '(5, N, 4), (5, N)')
    """
    tensors, dim = ([x], 0) if isinstance(x, Tensor) else (x.tensors, x.dim)
    sizes = [["N" if i == dim else str(size) for i, size in enumerate(tensor.shape)] for tensor in tensors]
    return ", ".join(f"({', '.join(some)}{',' * (len(some) == 1)})" for some in sizes)
