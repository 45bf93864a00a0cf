"""A module as a pure function of its samples, in any precision and in eval mode, on a replica of it."""

from __future__ import annotations

import copy
import inspect
import itertools
import math
import types
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Literal, TypeGuard, TypeVar, cast, overload

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from bnrank._core import validation
from bnrank._core.onlooker import only_looks_on
from bnrank.networks.casting import cast_when_run, converted, large_weights, same
from bnrank.networks.inputs import OUTPUTS, Inputs, Samples, columns, floating_outputs, main_output, several
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


# Replicas -------------------------------------------------------------------------------------------------------------


def copied(value: Copied, memo: dict[int, Any] | None = None) -> Copied:
    """Return a deep copy of a module or of several, also where tensors on it are results of a computation.

    Such is the weight of a layer with ``torch.nn.utils.weight_norm``, which ``copy.deepcopy`` refuses: it is copied
    without its history, and computed anew when the layer runs. Attributes that cannot be copied, such as locks, are
    shared. A function on a module that has parts of the module in its closure gets the copies of these.

    Examples
    --------
    >>> layer = nn.Linear(2, 2)
    >>> layer.result = layer.weight.sum()
    >>> torch.equal(copied(layer).result, layer.result)
    True
    """
    known: dict[int, Any] = {} if memo is None else memo
    modules = [sub for net in ([value] if isinstance(value, nn.Module) else value) for sub in net.modules()]
    for sub in modules:
        for held in vars(sub).values():
            if isinstance(held, Tensor) and not held.is_leaf:
                known.setdefault(id(held), held.detach().clone())
    try:
        made = copy.deepcopy(value, done := dict(known))
    except Exception:
        shared = {id(held): held for sub in modules for held in vars(sub).values() if not _is_copied(held, modules)}
        if not shared:
            raise
        made = copy.deepcopy(value, done := {**shared, **known})
    parts = {id(sub): done[id(sub)] for sub in modules if isinstance(done.get(id(sub)), nn.Module)}
    for twin in parts.values():
        for held in [vars(twin), *(hooks for name, hooks in vars(twin).items() if name.endswith("_hooks") and hooks)]:
            held.update({name: _rebound(function, parts) for name, function in held.items() if _closure(function)})
    return made


def _is_copied(held: object, modules: list[nn.Module]) -> bool:
    """Return whether an attribute of a module can be copied, apart from the modules in it."""
    try:
        copy.deepcopy(held, {id(part): None for part in modules})
    except Exception:
        return isinstance(held, Tensor | nn.Module | dict)
    return True


def _closure(function: object) -> list[Any]:
    """Return what the closure of a function holds."""
    cells = function.__closure__ if isinstance(function, types.FunctionType) else None
    contents = []
    for cell in cells or ():
        try:
            contents.append(cell.cell_contents)
        except ValueError:  # an empty cell
            contents.append(None)
    return contents


def _rebound(function: Any, parts: dict[int, nn.Module]) -> Any:
    """Return a function with other modules in its closure; itself where it has none of them."""
    contents = _closure(function)
    if not any(id(content) in parts for content in contents):
        return function
    closure = tuple(types.CellType(parts.get(id(content), content)) for content in contents)
    code, named = function.__code__, function.__globals__
    again = types.FunctionType(code, named, function.__name__, function.__defaults__, closure)
    again.__kwdefaults__ = function.__kwdefaults__
    return again


def replica(net: nn.Module, dtype: torch.dtype | None = None, kept: Iterable[Tensor] = ()) -> nn.Module:
    """Return a copy of a module that is the caller's own: in eval mode, uncompiled, its tensors in a precision.

    Hooks of the module come along and act on the copy; those of a watch do not. Plain tensors among the attributes are
    converted as parameters and buffers are. Tensors in ``kept`` are shared with the module.

    Raises
    ------
    ValueError
        If the module cannot be copied.

    Examples
    --------
    >>> net = nn.Sequential(nn.Linear(2, 3), nn.Dropout())
    >>> own = replica(net, torch.float64)
    >>> own[0].weight.dtype, own.training, net.training
    (torch.float64, False, True)
    """
    memo: dict[int, Any] = {id(tensor): tensor for tensor in kept}
    plain = [sub for sub in net.modules() if not isinstance(sub, torch.jit.ScriptModule)]
    for tensor in (tensor for sub in plain for tensor in _tensors(list(vars(sub).values()))):
        if id(tensor) not in memo:
            own = converted(tensor.detach(), dtype or tensor.dtype)
            memo[id(tensor)] = nn.Parameter(own, requires_grad=False) if isinstance(tensor, nn.Parameter) else own
    try:
        made = copied(net, memo)
    except Exception as error:
        advice = (
            "; where it is sharded, build it anew and load get_model_state_dict(net, options=StateDictOptions("
            "full_state_dict=True)) of torch.distributed.checkpoint.state_dict"
        )
        advice = advice if any(hasattr(p, "full_tensor") for p in net.parameters()) else ""
        raise ValueError(f"net: {type(net).__name__} cannot be copied: {error}{advice}") from error
    for sub in made.eval().modules():
        if isinstance(sub, torch.jit.ScriptModule):
            sub.to(dtype)
        elif "_orig_mod" in sub._modules:  # torch.compile
            sub.forward = cast(nn.Module, sub._modules["_orig_mod"]).forward
        elif type(sub).forward is nn.MultiheadAttention.forward and "forward" not in vars(sub):
            _with_products(cast(nn.MultiheadAttention, sub))
        for name, held in list(vars(sub).items()):
            if callable(held) and hasattr(held, "_torchdynamo_orig_callable"):
                vars(sub)[name] = held._torchdynamo_orig_callable
    return made


def _tensors(structure: Any) -> Iterator[Tensor]:
    """Iterate over the tensors in nested lists, tuples and dictionaries."""
    if isinstance(structure, Tensor):
        yield structure
    elif isinstance(structure, list | tuple | dict):
        for held in structure.values() if isinstance(structure, dict) else structure:
            yield from _tensors(held)


def _with_products(attention: nn.MultiheadAttention) -> None:
    """Let attention of a replica compute its weights, (N, heads, L, S), as products, and keep them as ``products``.

    Products can be differentiated twice, and tell what enters the output projection.
    """
    plain, signature = attention.forward, inspect.signature(attention.forward)

    def forward(*args: Any, **kwargs: Any) -> Any:
        call = signature.bind(*args, **kwargs)
        call.apply_defaults()
        output, weights = plain(**{**call.arguments, "need_weights": True, "average_attn_weights": False})
        attention.products = weights
        if not call.arguments["need_weights"]:
            return output, None
        return output, weights.mean(-3) if call.arguments["average_attn_weights"] else weights

    attention.forward = forward  # type: ignore[method-assign, assignment]


class _Products(TorchFunctionMode):
    """Attention as matrix products, in this thread: it is observed and differentiated as any other operation.

    Layers of transformers take no path of their own, which calls no hooks, while any such mode is on.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run a function of torch."""
        if func is nn.functional.scaled_dot_product_attention and not args[0].is_nested:
            return _attention(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Return scaled dot product attention, by its definition in torch."""
    if enable_gqa:
        groups = query.shape[-3] // key.shape[-3]
        key, value = key.repeat_interleave(groups, -3), value.repeat_interleave(groups, -3)
    scores = query @ key.mT * (query.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:
        attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    if attn_mask is not None:
        scores = scores.masked_fill(~attn_mask, -math.inf) if attn_mask.dtype == torch.bool else scores + attn_mask
    masked = (scores == -math.inf).all(-1, keepdim=True)  # rows that attend to nothing give 0
    weights = scores.masked_fill(masked, 0.0).softmax(-1).masked_fill(masked, 0.0)
    return (nn.functional.dropout(weights, dropout_p) if dropout_p else weights) @ value


class _Draws(TorchDispatchMode):
    """Random numbers from a generator of its own, in this thread: those of the process are not touched."""

    def __init__(self, seed: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # its base class in torch has no types
        self.seed, self.generators = seed, dict[torch.device, torch.Generator]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation, with the generator where it draws numbers."""
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded not in func.tags or kwargs.get("generator") is not None:
            return func(*args, **kwargs)
        device = next((t.device for t in _tensors(args)), torch.device(kwargs.get("device") or "cpu"))
        if device not in self.generators:
            self.generators[device] = torch.Generator(device).manual_seed(self.seed)
        drawn = {"generator": self.generators[device]}
        name = func.overloadpacket.__name__
        if name == "native_dropout":
            kept = torch.full_like(args[0], 1 - args[1]).bernoulli_(**drawn) if args[2] else torch.ones_like(args[0])
            return args[0] * kept / (1 - args[1]), kept.bool()
        if any(argument.name == "generator" for argument in func._schema.arguments):
            return func(*args, **{**kwargs, **drawn})
        if name.endswith("_like"):  # of the shape of a tensor
            like = torch.empty_like(args[0], **kwargs)
            fill = {"rand_like": like.uniform_, "randn_like": like.normal_, "randint_like": like.random_}[name]
            return fill(*([0, *args[1:]][-2:] if name == "randint_like" else []), **drawn)
        overload = {"default": "generator", "low": "low_generator"}.get(func._overloadname, "")
        known = overload in func.overloadpacket.overloads()
        return getattr(func.overloadpacket, overload)(*args, **kwargs, **drawn) if known else func(*args, **kwargs)


@contextmanager
def sandbox(seed: int = 0) -> Iterator[None]:
    """Run a replica so that nothing outside it is changed or depended on, in this thread alone.

    Random numbers come from an own generator; attention runs as matrix products.

    Examples
    --------
    >>> before = torch.get_rng_state()
    >>> with sandbox():
    ...     _ = nn.functional.dropout(torch.rand(3))
    >>> torch.equal(torch.get_rng_state(), before)
    True
    """
    with _Draws(seed), _Products():
        yield


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
    lean : bool
        Whether large weights of plain layers are not copied, but cast whenever their layer runs, see
        :meth:`lean_on`: without gradients.
    whole : Tensor or Inputs, optional
        The samples that a user gave. Where the module fails on some of them, errors say whether it runs on all.

    Attributes
    ----------
    module : torch.nn.Module
        The replica.
    parameters, buffers : dict of Tensor
        What it runs with.

    Raises
    ------
    TypeError, ValueError
        If it is not a module, has lazy parameters without a shape, or cannot be copied; when called, if the forward
        fails on x in this precision (:class:`PrecisionError` where it runs in another one) or does not return a tensor
        with an entry per sample.
    """

    def __init__(
        self,
        net: nn.Module,
        dtype: torch.dtype = torch.float64,
        lean: bool = False,
        whole: Samples | None = None,
    ) -> None:
        net, self.whole, self._explained = unwrap(net), whole, False
        self.dtype = validation.dtype(dtype)
        large = large_weights(net, dtype) if lean else {}
        self.module = replica(net, self.dtype, [part.weight for part in large.values()])
        self._large = [self.module.get_submodule(name.rpartition(".")[0]) for name in large]
        self.parameters = {name: p.detach() for name, p in self.module.named_parameters()}
        self.buffers = dict(self.module.named_buffers())
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
        with torch.no_grad():
            first, second = (self._main_of(self._returned(self.parameters, x, seed), x) for seed in (0, 1))
        return columns(first), columns(second)

    def outputs(self, x: Samples) -> dict[str, Tensor]:
        """Return every floating-point tensor that the module returns, by name; "" where it returns one tensor."""
        return floating_outputs(self._run(self.parameters, x))

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

    def _returned(self, parameters: dict[str, Tensor], x: Samples, seed: int = 0) -> Any:
        """Return what the module returns."""
        if torch.compiler.is_compiling():
            return torch.compiler.disable(self._returned)(parameters, x, seed)
        # a copy: the module's first operation may work in place
        given = (x if isinstance(x, Inputs) else Inputs((x,))).to(self.device, self.dtype)
        held = {**parameters, **self.buffers}
        held |= {alias: held[name] for alias, name in self._aliases.items()}
        with restored(self.module), sandbox(seed), cast_when_run(self._large, self.dtype):
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
        what = f"net: {kind} runs on x of shape {_shapes(x)} in {other}, but not in {self.dtype}"
        return PrecisionError(f"{what}: {why}; {advice}", other, advice)

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
    """Return the module inside ``torch.compile``, DataParallel or DistributedDataParallel.

    Other objects are refused, and so are parameters without a shape or values.
    """
    if not isinstance(net, nn.Module):
        raise TypeError(f"net: got {validation.describe(net)}, expected a torch.nn.Module")
    while True:
        parallel = isinstance(net, nn.DataParallel | nn.parallel.DistributedDataParallel)
        inner = net.module if parallel else getattr(net, "_orig_mod", None)
        if not isinstance(inner, nn.Module):
            break
        net = inner
    tensors = [*net.named_parameters(), *net.named_buffers()]
    empty = [name for name, p in tensors if p.is_meta and not is_lazy(p)]
    if empty and values:
        raise ValueError(f"net: parameters on the meta device ({', '.join(empty[:5])}), expected some with values")
    lazy = [name for name, p in tensors if is_lazy(p)]
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


@contextmanager
def restored(net: nn.Module) -> Iterator[None]:
    """Restore what hooks and forwards set on a module: attributes, hooks, tensors and submodules."""
    plain = [sub for sub in net.modules() if not isinstance(sub, torch.jit.ScriptModule)]
    before = [
        (held, held.copy())
        for sub in plain
        for held in (vars(sub), *map(vars(sub).get, _REGISTRIES))
        if held is not None
    ]
    try:
        yield
    finally:
        for held, content in before:
            held.clear()
            held.update(content)


_REGISTRIES = [name for name, value in vars(nn.Module()).items() if isinstance(value, dict | set)]


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


def uncompiled(function: Callable[[], Returned]) -> Callable[[], Returned]:
    """Return a function that runs uncompiled, also where it is called inside a compiled one."""
    return torch.compiler.disable(function) if torch.compiler.is_compiling() else function
