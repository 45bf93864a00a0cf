"""A module as a pure function: any precision, eval mode, and no trace left on the module."""

from __future__ import annotations

import copy
import itertools
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any, Literal, TypeGuard, TypeVar, overload

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from bnrank._core import devices, validation
from bnrank._core.onlooker import only_looks_on
from bnrank._core.shared import Shared
from bnrank.networks.casting import cast_when_run, converted, large_weights, same
from bnrank.networks.inputs import OUTPUTS, Inputs, Samples, columns, main_output, several
from bnrank.networks.mlp import MLP, LinearNetwork

MAX_WHOLE = 2**22  # numbers in x for which an error tells whether the module runs on all samples
Returned = TypeVar("Returned")
Copied = TypeVar("Copied", nn.Module, "tuple[nn.Module, ...]", Any)


class ExplainedError(ValueError):
    """The error of a module that fails on x, with a reason that does not lie in x."""


class PrecisionError(ExplainedError):
    """The error of a module that fails on x in one precision, but runs in another one, ``dtype``.

    Its message ends with ``advice``, which is to give that precision.
    """

    def __init__(self, message: str, dtype: torch.dtype | None = None, advice: str = "") -> None:
        super().__init__(message)
        self.dtype, self.advice = dtype, advice


class Functional:
    """A module as a function of x in one precision; calls do not change the module.

    Parameters and buffers are copied and cast once. Every call runs in eval mode; modes and random generators are
    restored afterwards. Complex numbers are cast to those of the precision. Attributes that are neither parameters nor
    buffers are not cast. Of several outputs the main one counts, see :func:`~bnrank.networks.inputs.main_output`; one
    of shape (N,), or () for one sample, is returned as one feature, (N, 1).

    Parameters
    ----------
    module : torch.nn.Module
        Any module.
    dtype : torch.dtype
        Floating-point type to run in.
    lean : bool
        Whether large weights of plain layers are not copied, but cast whenever their layer runs, see
        :meth:`lean_on`: without gradients.
    whole : Tensor or Inputs, optional
        The samples that a user gave. Where the module fails on some of them, errors say whether it runs on all.

    Raises
    ------
    TypeError, ValueError
        If it is not a module, has lazy parameters without a shape, or is wrapped in DataParallel; when called, if the
        forward fails on x in this precision (:class:`PrecisionError` where it runs in another one) or does not return a
        tensor with an entry per sample.
    """

    def __init__(
        self,
        net: nn.Module,
        dtype: torch.dtype = torch.float64,
        lean: bool = False,
        whole: Samples | None = None,
    ) -> None:
        self.module, self.whole, self._explained = unwrap(net), whole, False
        self.dtype = validation.dtype(dtype)
        self._large = large_weights(self.module, dtype) if lean else {}
        named = self.module.named_parameters()
        self.parameters = {n: p.detach() if n in self._large else converted(p.detach(), self.dtype) for n, p in named}
        self.buffers = {n: converted(b.detach(), self.dtype) for n, b in self.module.named_buffers()}
        self._aliases = aliases(self.module)
        tensors = [*self.parameters.values(), *self.buffers.values()]
        self.device = tensors[0].device if tensors else torch.device("cpu")

    @classmethod
    def lean_on(cls, net: nn.Module, dtype: torch.dtype, x: Samples) -> Functional:
        """Return a function without gradients that copies no large weights, if it is the same bit by bit on x.

        Else, such as where other modules read a weight, one with a copy of all.
        """
        if large_weights(unwrap(net), dtype):
            with torch.no_grad():
                expected = cls(net, dtype)(x)
                lean = cls(net, dtype, lean=True)
                try:
                    if same(lean(x), expected):
                        return lean
                except ValueError:  # tensors of two precisions meet
                    pass
        return cls(net, dtype)

    def __call__(self, x: Samples) -> Tensor:
        """Return f(x); gradients flow to x and to ``parameters``."""
        return self.with_parameters(self.parameters, x)

    def with_parameters(self, parameters: dict[str, Tensor], x: Samples) -> Tensor:
        """Return f(x) with other parameters, in the same dtype and on the same device."""
        return columns(self._main(parameters, x))

    def main(self, x: Samples) -> Tensor:
        """Return f(x) in the shape that the module gives it, (N,) or (N, ...)."""
        return self._main(self.parameters, x)

    def is_plain(self, x: Samples) -> bool:
        """Return whether the module returns one tensor with a row for each sample: no other values, and no (N,)."""
        with torch.no_grad():
            returned = self._run(self.parameters, x)
        return isinstance(returned, Tensor) and returned.ndim > 1

    def twice(self, x: Samples) -> tuple[Tensor, Tensor]:
        """Return f(x) of two runs without gradients, which differ where the forward draws noise in eval mode, too."""
        with torch.no_grad(), devices.forked(self.device):
            first = self(x)
            for device in {torch.device("cpu"), self.device}:
                torch.rand(1, device=device)  # calls draw the same numbers from the same state
            return first, self(x)

    def is_random(self, x: Samples) -> bool:
        """Return whether f(x) differs from call to call by more than rounding."""
        first, again = self.twice(x)
        finite = first[first.isfinite()]
        largest = float(finite.abs().max()) if finite.numel() else 0.0
        rounding = (1e-6 if self.dtype == torch.float64 else 1e-3) * largest
        return not torch.allclose(first, again, rtol=0.0, atol=rounding, equal_nan=True)

    def _main(self, parameters: dict[str, Tensor], x: Samples) -> Tensor:
        """Return the main output, samples first."""
        return self._main_of(self._run(parameters, x), x)

    def _main_of(self, returned: Any, x: Samples) -> Tensor:
        """Return the main output among what the module returns for x, samples first."""
        kind, dim = type(self.module).__name__, x.dim if isinstance(x, Inputs) else 0
        out = main_output(returned)
        if not isinstance(out, Tensor):
            raise ValueError(
                f"net: {kind} returns {type(returned).__name__}, expected a tensor, a tuple, mapping or dataclass "
                f"that holds one, or an object with one in {', '.join(OUTPUTS)}; wrap it in a module that returns "
                "the tensor of interest"
            )
        dense = not out.is_nested and out.layout == torch.strided and not out.is_complex()
        if not dense:
            what = "complex numbers" if out.is_complex() else "a sparse or nested tensor"
            raise ValueError(f"net: {kind} returns {what}, expected a dense tensor of real numbers")
        if not out.is_floating_point():
            what = "truth values" if out.dtype == torch.bool else "integers"
            expected = "floating-point numbers, such as the scores before argmax; wrap it in a module that returns them"
            raise ValueError(f"net: {kind} returns {what} of dtype {out.dtype}, expected {expected}")
        if out.ndim == dim == 0 and len(x) == 1:  # squeezed
            out = out.reshape(1)
        if out.ndim <= dim or out.shape[dim] != len(x):
            expected = "(N, ...)" if dim == 0 else "(time, N, ...)"
            raise ValueError(f"net: the output has shape {tuple(out.shape)} for {len(x)} samples, expected {expected}")
        return out.movedim(dim, 0)

    def _run(self, parameters: dict[str, Tensor], x: Samples) -> Any:
        """Return what the module returns; raise ValueError, with the reason, where it fails."""
        try:
            return self._returned(parameters, x)
        except Exception as error:
            raise self._failure(parameters, x, error) from error

    def _returned(self, parameters: dict[str, Tensor], x: Samples) -> Any:
        """Return what the module returns."""
        # a copy: the module's first operation may work in place
        given = (x if isinstance(x, Inputs) else Inputs((x,))).to(self.device, self.dtype)
        held = {**parameters, **self.buffers}
        held |= {alias: held[name] for alias, name in self._aliases.items()}
        casting = cast_when_run(self._large.values(), self.dtype)
        with eval_mode(self.module), PLAIN_ATTENTION, devices.forked(self.device), casting:
            return torch.func.functional_call(self.module, held, given.positional, given.named, tie_weights=False)

    def _failure(self, parameters: dict[str, Tensor], x: Samples, error: Exception) -> ValueError:
        """Return the error for a module that fails on x: it names the inputs that it takes as real numbers only."""
        kind = type(self.module).__name__
        if "nference tensor" in str(error):
            where, advice = "its forward runs", "a forward without it: use torch.no_grad around the call of net"
            if torch.is_inference_mode_enabled():
                where, advice = "bnrank is called", "a call outside of it"
            return ValueError(f"net: {kind} cannot be followed, as {where} in inference mode, expected {advice}")
        for changed, wrong in _as_real(x, self.dtype):
            with suppress(Exception):
                self._returned(parameters, changed)
                name, dtype = wrong
                whole = "truth values" if dtype == torch.bool else "integers"
                what = "complex numbers" if dtype.is_complex else whole
                expected = f"floating point; {validation.conversion(dtype)}"
                return validation.DtypeError(
                    f"{name}: got {what} of dtype {dtype}, on which {kind} fails, expected {expected}"
                )
        if getattr(type(self.module), "forward", None) is nn.Module.forward and "forward" not in vars(self.module):
            return ValueError(f"net: {kind} has no forward, expected a module that runs on x")
        if not torch.is_grad_enabled() and "grad" in str(error):
            with suppress(Exception), torch.enable_grad():
                self._returned(parameters, x)
                where = "which is run without, expected one with torch.enable_grad() around the part that needs them"
                return ValueError(f"net: {kind} takes gradients in its forward, {where}")
        why = str(error).removesuffix(".")
        plain = ValueError(f"net: {kind} failed on x of shape {_shapes(x)} in {self.dtype}: {why}")
        if self._explained:  # trials cost time: not for every sample, where a caller goes on without
            return plain
        self._explained = True
        other = self._other_precision(x)
        if other is None:
            if isinstance(x, Tensor) and self._needs_integers(parameters, x):
                got = f"real numbers of dtype {x.dtype}, on which {kind} fails"
                return validation.DtypeError(f"x: got {got}, expected integers; convert it with .long()")
            return self._of_rows(x, why) or plain
        advice = f"pass dtype={other} to a function that has this argument, as bnrank.profile has"
        held = self._held_back(x)
        shown = ", ".join(held[:3]) + (f" and {len(held) - 3} more" if len(held) > 3 else "")
        why += f"; register as buffers the tensors that are plain attributes ({shown}), or " if held else "; "
        what = f"net: {kind} runs on x of shape {_shapes(x)} in {other}, but not in {self.dtype}"
        return PrecisionError(f"{what}: {why}{advice}", other, advice)

    def _of_rows(self, x: Samples, why: str) -> ExplainedError | None:
        """Return the error for a module that runs on all samples, but not on other numbers of them; else None."""
        whole, kind = self.whole, type(self.module).__name__
        if isinstance(x, Tensor) and x.requires_grad and self._succeeds(x.detach()):
            return None  # it is the gradient in x
        if whole is None or len(whole) == len(x) or whole.numel() > MAX_WHOLE or not self._succeeds(whole):
            return None
        remedy = "wrap net in a module that takes one graph per sample"
        if isinstance(whole, Tensor):
            shape = f"(N, {', '.join(map(str, whole.shape))})"
            remedy = f"{remedy}, x of shape {shape}"
            if self._succeeds(whole[None]):
                remedy = f"give one graph per sample, x of shape {shape}, such as x[None] for one"
        return ExplainedError(
            f"net: {kind} runs on the {len(whole)} rows of x together, but not on {len(x)} row{'s' * (len(x) != 1)}: "
            f"{why}; bnrank takes rows as independent samples, and runs the network on any number of them. If rows "
            f"belong together, as the nodes of a graph do, {remedy}; bnrank.profile(net) measures the weights without x"
        )

    def _succeeds(self, x: Samples) -> bool:
        try:
            self._main_of(self._returned(self.parameters, x), x)
        except Exception:
            return False
        return True

    def _other_precision(self, x: Samples) -> torch.dtype | None:
        """Return a precision in which the module runs on x: float32, its own or float64; None where there is none."""
        own = [p.dtype for p in self.module.parameters() if p.is_floating_point()]
        for dtype in dict.fromkeys([torch.float32, *own, torch.float64]):
            if dtype != self.dtype:
                with suppress(Exception):
                    function = Functional(self.module, dtype)
                    function._returned(function.parameters, x)
                    return dtype
        return None

    def _held_back(self, x: Samples) -> list[str]:
        """Return the names of tensors that are plain attributes, if the module runs on x when they are cast, too."""
        found: list[str] = []
        with suppress(Exception), eval_mode(self.module):
            for prefix, sub in self.module.named_modules():
                for name, value in list(vars(sub).items()):
                    changed = converted(value, self.dtype) if isinstance(value, Tensor) else value
                    if changed is not value and changed.dtype != value.dtype:
                        vars(sub)[name] = changed
                        found.append(f"{prefix}.{name}" if prefix else name)
            self._returned(self.parameters, x)
            return found
        return []

    def _needs_integers(self, parameters: dict[str, Tensor], x: Tensor) -> bool:
        """Return whether the module fails on zeros, but not if they are integers, as one of tokens does."""
        if not x.is_floating_point():
            return False
        with suppress(Exception):
            self._returned(parameters, torch.zeros_like(x))
            return False
        with suppress(Exception):
            self._returned(parameters, torch.zeros_like(x, dtype=torch.long))
            return True
        return False


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
    found = x if isinstance(x, Inputs) else several(net, x, name, minimum)
    if found is not None:
        how = "a tuple or mapping of tensors" if found.dim == 0 else "(time, N, features)"
        advice = "one tensor (N, ...): wrap net in a module that takes it and adds the rest"
        validation.expect(inputs, name, how, advice, TypeError)
        return found
    if isinstance(x, np.ndarray) and x.dtype.kind in "iu":
        x = validation.from_array(x, name)
    if isinstance(x, Tensor):
        x = validation.dense(x, name)
    if isinstance(x, Tensor) and not x.is_floating_point() and not x.is_complex() and x.dtype != torch.bool:
        fits = x.ndim > 0 and x.numel() > 0 and len(x) >= minimum
        validation.expect(fits, name, f"shape {tuple(x.shape)}", f"(N, ...) with at least {minimum} sample(s)")
        return x
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
    bad = [name for name, p in unwrap(net).named_parameters() if not bool(torch.isfinite(p.detach()).all())]
    if bad:
        shown = ", ".join(bad[:5]) + (f" and {len(bad) - 5} more" if len(bad) > 5 else "")
        raise ValueError(f"net: got NaN or infinite entries in {shown}, expected finite parameters")


def check_real(net: nn.Module) -> None:
    """Raise ValueError, naming them, if parameters are complex numbers: gradients are those of real ones."""
    found = [name for name, p in unwrap(net).named_parameters() if p.is_complex()]
    if found:
        shown = ", ".join(found[:5]) + (f" and {len(found) - 5} more" if len(found) > 5 else "")
        raise ValueError(
            f"net: got parameters that are complex numbers ({shown}), expected real ones: keep torch.view_as_real of "
            "each as the parameter, and use torch.view_as_complex of it in the forward"
        )


def check_unshared(net: nn.Module) -> None:
    """Raise ValueError, naming them, if different parameters lie in the same memory.

    One parameter used in several places is allowed and counts once. Two parameters over the same memory (``p.data =
    q.data``) are ambiguous.
    """
    pairs = _overlapping(unwrap(net, values=False))
    if pairs:
        shown = ", ".join(f"{a} and {b}" for a, b in pairs[:5])
        raise ValueError(
            f"net: got different parameters in the same memory ({shown}), expected one parameter used twice, "
            "as in b.weight = a.weight, or separate ones"
        )


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
    """Return the module inside ``torch.compile``; refuse other objects, and parameters without a shape or values."""
    if not isinstance(net, nn.Module):
        raise TypeError(f"net: got {validation.describe(net)}, expected a torch.nn.Module")
    if isinstance(net, nn.DataParallel | nn.parallel.DistributedDataParallel):
        raise ValueError(f"net: got a {type(net).__name__} wrapper, expected the module inside it, .module")
    original = getattr(net, "_orig_mod", None)  # torch.compile
    net = original if isinstance(original, nn.Module) else net
    empty = [name for name, p in [*net.named_parameters(), *net.named_buffers()] if p.is_meta and not is_lazy(p)]
    if empty and values:
        raise ValueError(f"net: parameters on the meta device ({', '.join(empty[:5])}), expected some with values")
    lazy = [name for name, p in [*net.named_parameters(), *net.named_buffers()] if is_lazy(p)]
    if lazy:
        raise ValueError(f"net: parameters without a shape yet ({', '.join(lazy)}); run it once on data first")
    return net


def aliases(net: nn.Module) -> dict[str, str]:
    """Return the further names of parameters and buffers that are registered in several places, with the first."""
    first: dict[int, str] = {}
    further = {}
    for prefix, sub in net.named_modules():  # one that is there twice comes once: torch does not undo the second
        for own, tensor in [*sub._parameters.items(), *sub._buffers.items()]:
            if tensor is None:
                continue
            name = f"{prefix}.{own}" if prefix else own
            if id(tensor) in first:
                further[name] = first[id(tensor)]
            first.setdefault(id(tensor), name)
    return further


def copied(value: Copied) -> Copied:
    """Return a deep copy of a module or of several, also where tensors on it are results of a computation.

    Such is the weight of a layer with ``torch.nn.utils.weight_norm``, which ``copy.deepcopy`` refuses: it is copied
    without its history, and computed anew when the layer runs.

    Examples
    --------
    >>> layer = nn.Linear(2, 2)
    >>> layer.result = layer.weight.sum()
    >>> torch.equal(copied(layer).result, layer.result)
    True
    """
    memo: dict[int, Any] = {}
    for net in [value] if isinstance(value, nn.Module) else value:
        for sub in net.modules():
            for held in vars(sub).values():
                if isinstance(held, Tensor) and not held.is_leaf:
                    memo[id(held)] = held.detach().clone()
    return copy.deepcopy(value, memo)


@contextmanager
def eval_mode(net: nn.Module) -> Iterator[None]:
    """Run in eval mode, without compiled code, and restore modes and what hooks or forwards set.

    This is attributes, hooks, tensors and submodules.
    """
    before = [(sub, sub.training, dict(vars(sub)), _registered(sub)) for sub in net.modules()]
    try:
        for sub, *_ in before:
            sub.training = False
        with UNCOMPILED:
            yield
    finally:
        for sub, mode, attributes, registered in before:
            sub.training = mode  # of a scripted module no entry of its dictionary
            for name in vars(sub).keys() - attributes.keys():
                del vars(sub)[name]
            vars(sub).update(attributes)
            for held, content in registered:
                if held or content:  # most are empty
                    held.clear()
                    held.update(content)


_REGISTRIES = [name for name, value in vars(nn.Module()).items() if isinstance(value, dict | set)]


def _registered(sub: nn.Module) -> list[tuple[Any, Any]]:
    """Return where a module registers hooks, tensors and submodules, with copies of what is there."""
    if isinstance(sub, torch.jit.ScriptModule):
        return []
    found = map(vars(sub).get, _REGISTRIES)  # None where a module is of an older torch
    return [(held, held.copy() if held else ()) for held in found]


@contextmanager
def unchanged(net: nn.Module) -> Iterator[None]:
    """Run in eval mode on copies of the buffers, and restore buffers, modes and attributes."""
    own = [sub._buffers for sub in net.modules() if not isinstance(sub, torch.jit.ScriptModule)]
    buffers = {id(held): held for some in own for held in some.values() if held is not None}
    copies = {key: held.detach().clone() for key, held in buffers.items()}  # one of a buffer in two places
    with eval_mode(net):
        for some in own:
            some.update({name: copies.get(id(held)) for name, held in some.items()})
        yield


def _as_real(x: Samples, dtype: torch.dtype) -> Iterator[tuple[Samples, tuple[str, torch.dtype]]]:
    """Iterate over samples with one tensor, or all of them, as floating-point numbers, and the name and dtype of one.

    Examples
    --------
    >>> [name for _, name in _as_real(Inputs((torch.ones(1), torch.ones(1).int())), torch.float64)]
    [('x[1]', torch.int32)]
    """

    def real(tensor: Tensor) -> Tensor:
        return (tensor.real if tensor.is_complex() else tensor).to(dtype)

    if isinstance(x, Tensor):
        if not x.is_floating_point():
            yield real(x), ("x", x.dtype)
        return
    alone = len(x.tensors) == 1 and not x.named
    places: list[tuple[str, Any, Any]] = [
        ("x" if alone else f"x[{i}]", i, value) for i, value in enumerate(x.positional)
    ]
    places += [(f"x[{key!r}]", key, value) for key, value in x.named.items()]
    places = [place for place in places if isinstance(place[2], Tensor) and not place[2].is_floating_point()]
    for chosen in [*([place] for place in places), places] if len(places) > 1 else [[place] for place in places]:
        positional, named = list(x.positional), dict(x.named)
        for _, key, tensor in chosen:
            (named if isinstance(key, str) else positional)[key] = real(tensor)
        yield Inputs(tuple(positional), named, x.dim), (chosen[0][0], chosen[0][2].dtype)


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


@contextmanager
def _plain_attention() -> Iterator[None]:
    """Run the layers of transformers operation by operation: their fast path calls no submodule and no hook."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


PLAIN_ATTENTION = Shared(_plain_attention)


def uncompiled(function: Callable[[], Returned]) -> Callable[[], Returned]:
    """Return a function that runs uncompiled, also where it is called inside a compiled one."""
    return torch.compiler.disable(function) if torch.compiler.is_compiling() else function


def _uncompiled() -> AbstractContextManager[object]:
    """Run what is in torch.compile as it is written: compiled code calls no hooks and cannot be followed.

    Inside a compiled function this cannot be changed.
    """
    loaded = "torch._dynamo" in sys.modules  # else nothing was compiled, and loading it takes seconds
    if loaded and not torch.compiler.is_compiling():
        with suppress(RuntimeError):  # of a compiled function that runs uncompiled pieces
            return torch.compiler.set_stance("force_eager")
    return nullcontext()


UNCOMPILED = Shared(_uncompiled)
