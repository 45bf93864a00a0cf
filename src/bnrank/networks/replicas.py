"""Replicas of modules, which are the library's own, and a sandbox to run them in, confined to its thread."""

from __future__ import annotations

import copy
import copyreg
import functools
import inspect
import math
import types
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

FULL_STATE = (
    "; where it is sharded, build it anew and load get_model_state_dict(net, options=StateDictOptions("
    "full_state_dict=True)) of torch.distributed.checkpoint.state_dict"
)
Copied = TypeVar("Copied", nn.Module, "tuple[nn.Module, ...]", Any)


def converted(tensor: Tensor, dtype: torch.dtype, device: torch.device | None = None, copy: bool = True) -> Tensor:
    """Return a copy of a tensor in a precision: floating-point and complex numbers are converted, others only copied.

    Examples
    --------
    >>> [converted(torch.ones(1, dtype=kind), torch.float64).dtype for kind in (torch.complex64, torch.int32)]
    [torch.complex128, torch.int32]
    """
    kind = dtype if tensor.is_floating_point() else tensor.dtype
    if tensor.is_complex():
        kind = torch.complex128 if dtype == torch.float64 else torch.complex64
    return tensor.to(device or tensor.device, kind, copy=copy)


def in_precision(net: nn.Module, dtype: torch.dtype, device: torch.device | None = None) -> nn.Module:
    """Return a module, changed in place to a precision, which complex numbers get, too: ``net.to(dtype)`` cuts them."""
    return net._apply(lambda tensor: converted(tensor, dtype, device, copy=False))


def copied(value: Copied, memo: dict[int, Any] | None = None) -> Copied:
    """Return a deep copy of a module or of anything else, whatever it holds.

    Unlike ``copy.deepcopy`` it follows functions: those whose closure, defaults or attributes reach something that is
    copied reach the copy, and so do bound methods and weak references to modules and tensors. Functions compiled by
    ``torch.compile`` come uncompiled. Tensors that are results of a computation, as the weight of a layer with
    ``torch.nn.utils.weight_norm``, come without their history. What cannot be copied, such as a lock, is shared.

    Parameters
    ----------
    value
        What is copied.
    memo : dict, optional
        The copies made so far, by the ids of what they are copies of.

    Raises
    ------
    CopyError
        If a module or a tensor in it cannot be copied.

    Examples
    --------
    >>> layer = nn.Linear(2, 2)
    >>> layer.result = layer.weight.sum()
    >>> torch.equal(copied(layer).result, layer.result)
    True
    """
    memo = {} if memo is None else memo
    if id(value) in memo or type(value) in _ATOMIC:
        return cast(Copied, memo.get(id(value), value))
    try:
        made = _COPIERS.get(type(value), _by_protocol)(value, memo)
    except (CopyError, RecursionError, MemoryError):
        raise
    except Exception as error:
        if isinstance(value, nn.Module | Tensor):
            raise CopyError(f"net: {type(value).__name__} cannot be copied: {error}") from error
        made = value
    memo[id(value)] = made  # for copies by copy.deepcopy, too
    memo.setdefault(id(memo), []).append(value)  # as copy.deepcopy does: the id stays its own
    return cast(Copied, made)


class CopyError(ValueError):
    """The error of a module or a tensor that cannot be copied."""


def _by_protocol(value: Any, memo: dict[int, Any]) -> Any:
    """Return a copy by the protocol of ``copy``, with :func:`copied` for what a value holds."""
    if isinstance(value, type) or hasattr(value, "__deepcopy__"):
        return _by_own_method(value, memo)
    reduce: Any = copyreg.dispatch_table.get(type(value))
    reduced = reduce(value) if reduce else value.__reduce_ex__(4)
    if isinstance(reduced, str) or (reduced[0] is _NEW and len(reduced[1]) == 1 and not any(reduced[2:])):
        return value  # a global, or nothing but an identity, as a mark of "not given" is
    return _STANDARD._reconstruct(value, memo, *reduced, deepcopy=copied)


def _by_own_method(value: Any, memo: dict[int, Any]) -> Any:
    """Return a copy as its class makes it; of a tensor that is the result of a computation, without its history."""
    if isinstance(value, Tensor) and not value.is_leaf:
        return value.detach().clone()
    if isinstance(value, nn.Module) and not isinstance(value, torch.jit.ScriptModule):
        copied(vars(value), memo)  # follows functions, and shares what cannot be copied
    return copy.deepcopy(value, memo)


def _copied_function(held: types.FunctionType, memo: dict[int, Any]) -> Any:
    """Return a function with copies of its closure, defaults and attributes; itself where nothing in them is copied."""
    if hasattr(held, "_torchdynamo_orig_callable"):
        return copied(held._torchdynamo_orig_callable, memo)
    cells = held.__closure__ or ()
    closure = tuple(memo.setdefault(id(cell), types.CellType()) for cell in cells)  # which functions can share
    made = types.FunctionType(held.__code__, held.__globals__, held.__name__, None, closure)
    memo[id(held)] = made  # a function can be in its own closure
    vars(made).update({key: copied(content, memo) for key, content in vars(held).items()})
    same = all(vars(made)[key] is content for key, content in vars(held).items())
    filled = [(old, new, "cell_contents") for old, new in zip(cells, closure, strict=True) if old != types.CellType()]
    for old, new, name in [*filled, (held, made, "__defaults__"), (held, made, "__kwdefaults__")]:
        content = getattr(old, name)
        setattr(new, name, copied(content, memo))
        same = same and getattr(new, name) is content
    if same:
        del memo[id(held)]
    return held if same else made


def _copied_method(held: types.MethodType, memo: dict[int, Any]) -> types.MethodType:
    return types.MethodType(copied(held.__func__, memo), copied(held.__self__, memo))


class _Reference(weakref.ref[Any]):
    """A weak reference that keeps its target: nothing else may hold a copy of it."""

    target: Any = None

    def __deepcopy__(self, memo: dict[int, Any]) -> _Reference:
        return _reference_to(copy.deepcopy(self.target, memo))


def _reference_to(made: Any) -> _Reference:
    reference = _Reference(made)
    reference.target = made
    return reference


def _copied_reference(held: weakref.ref[Any], memo: dict[int, Any]) -> weakref.ref[Any]:
    """Return a reference to the copy of a module or a tensor; other references as they are."""
    target = held()
    return _reference_to(copied(target, memo)) if isinstance(target, nn.Module | Tensor) else held


_STANDARD: Any = copy
_NEW = cast(Any, copyreg).__newobj__
_COPIERS: dict[type, Any] = {
    **{kind: functools.partial(_STANDARD._deepcopy_dispatch[kind], deepcopy=copied) for kind in (list, tuple, dict)},
    types.FunctionType: _copied_function,
    types.MethodType: _copied_method,
    weakref.ref: _copied_reference,
    _Reference: _copied_reference,
}
# What copy returns as it is, such as numbers and texts; in Python 3.14 a set, before a function of its table.
_ATOMIC = {kind for kind, copier in _STANDARD._deepcopy_dispatch.items() if copier.__name__ == "_deepcopy_atomic"}
_ATOMIC = (_ATOMIC | set(getattr(_STANDARD, "_atomic_types", ()))) - _COPIERS.keys()


def replica(net: nn.Module, dtype: torch.dtype | None = None) -> nn.Module:
    """Return a copy of a module that is the caller's own: in eval mode, uncompiled, its tensors in a precision.

    Hooks of the module come along and act on the copy; those of a watch do not. Plain tensors among the attributes are
    converted as parameters and buffers are.

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
    memo: dict[int, Any] = {}
    for tensor in _held(_attributes(net)):
        if isinstance(tensor, Tensor) and id(tensor) not in memo:
            own = converted(tensor.detach(), dtype or tensor.dtype)
            own = nn.Parameter(own, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else own
            if type(own) is type(tensor) and type(tensor) in (Tensor, nn.Parameter):  # others hold their numbers there
                vars(own).update(vars(tensor))
            memo[id(tensor)] = own
    try:
        made = copied(net, memo)
    except Exception as error:
        advice = FULL_STATE if any(hasattr(p, "full_tensor") for p in net.parameters()) else ""
        raise ValueError(f"net: {type(net).__name__} cannot be copied: {error}{advice}") from error
    if not {id(sub) for sub in made.modules()}.isdisjoint(map(id, net.modules())):
        got = f"{type(net).__name__} with a part that copy.deepcopy does not copy"
        raise ValueError(f"net: got {got}, expected modules without a __deepcopy__ that returns themselves")
    for sub in made.eval().modules():
        if isinstance(sub, torch.jit.ScriptModule):
            sub.to(dtype)
        elif "_orig_mod" in sub._modules:  # torch.compile
            sub.forward = functools.partial(nn.Module.__call__, sub._modules["_orig_mod"])
        elif type(sub).forward is nn.MultiheadAttention.forward and "forward" not in vars(sub):
            _with_products(cast(nn.MultiheadAttention, sub))
    return made


def _attributes(net: nn.Module) -> list[dict[str, Any]]:
    """Return what is set on a module and its submodules, of those that are not scripted."""
    return [vars(sub) for sub in net.modules() if not isinstance(sub, torch.jit.ScriptModule)]


def _held(structure: Any) -> Iterator[Any]:
    """Iterate over a structure and what it holds in lists, tuples, sets and dictionaries, numbers and texts aside."""
    waiting, seen = [structure], set[int]()
    while waiting:
        held = waiting.pop()
        yield held
        if isinstance(held, list | tuple | set | dict) and id(held) not in seen:
            seen.add(id(held))
            entries = held.values() if isinstance(held, dict) else held
            waiting += reversed([entry for entry in entries if type(entry) not in _ATOMIC])


def _with_products(attention: nn.MultiheadAttention) -> None:
    """Let attention of a replica compute its weights, (N, heads, L, S), as products, and keep them as ``products``.

    Products can be differentiated twice, and tell what enters the output projection.
    """
    plain = nn.MultiheadAttention.forward
    signature = inspect.signature(plain)

    def forward(*args: Any, **kwargs: Any) -> Any:
        call = signature.bind(attention, *args, **kwargs)
        call.apply_defaults()
        further = attention.bias_k is not None or attention.add_zero_attn
        if further and call.arguments["is_causal"] and not call.arguments["need_weights"]:
            text = "is_causal with add_bias_kv or add_zero_attn, whose mask torch applies to other keys with weights"
            raise ValueError(f"MultiheadAttention: got {text}, expected a mask without is_causal")
        output, weights = plain(**{**call.arguments, "need_weights": True, "average_attn_weights": False})
        vars(attention)["products"] = weights
        if not call.arguments["need_weights"]:
            return output, None
        return output, cast(Tensor, weights).mean(-3) if call.arguments["average_attn_weights"] else weights

    attention.forward = forward  # type: ignore[method-assign]


class _Products(TorchFunctionMode):
    """Attention as matrix products, in this thread: it is observed and differentiated as any other operation.

    Layers of transformers take no path of their own, which calls no hooks, while any such mode is on. A function of one
    of the tensors in ``foreign``, by their ids, is refused.
    """

    def __init__(self, foreign: Mapping[int, Tensor] | None = None) -> None:
        super().__init__()
        self.foreign = foreign or {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run a function of torch."""
        kwargs = kwargs or {}
        if self.foreign and any(id(held) in self.foreign for held in _held([args, kwargs])):
            return _property(func, args, kwargs)
        if func is nn.functional.scaled_dot_product_attention and not (args[0] if args else kwargs["query"]).is_nested:
            return _attention(*args, **kwargs)
        return func(*args, **kwargs)


def _property(func: Any, args: Any, kwargs: Any) -> Any:
    """Return a property of a foreign tensor, such as its shape, that is no tensor; refuse any other function of it."""
    if getattr(func, "__name__", "") == "__get__" and not isinstance(shape := func(*args, **kwargs), Tensor):
        return shape
    raise ForeignTensorError(
        "it computes with tensors that are not those of the copy's modules: a global variable, a list or a closure "
        "keeps them; let forward and hooks get at parameters and buffers as attributes of modules"
    )


class ForeignTensorError(ValueError):
    """The error of a replica that computes with tensors that a call cannot replace."""


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
    if attn_mask is not None and is_causal:  # the definition takes one of them
        causal = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool, device=query.device).tril()
        is_bool, is_causal = attn_mask.dtype == torch.bool, False
        attn_mask = attn_mask & causal if is_bool else attn_mask.masked_fill(~causal, -math.inf)
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        attn_mask = torch.zeros_like(attn_mask, dtype=query.dtype).masked_fill(~attn_mask, -math.inf)
    products = torch.ops.aten._scaled_dot_product_attention_math
    options = {"scale": scale, "enable_gqa": enable_gqa}
    return cast(Tensor, products(query, key, value, attn_mask, dropout_p, is_causal, **options)[0])


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
        return self._drawn(func, args, kwargs)

    def _drawn(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        devices = (held.device for held in _held(args) if isinstance(held, Tensor))
        device = next(devices, torch.device(kwargs.get("device") or "cpu"))
        if device.type == "meta":  # draws nothing
            return func(*args, **kwargs)
        if device not in self.generators:
            self.generators[device] = torch.Generator(device).manual_seed(self.seed)
        drawn: dict[str, Any] = {"generator": self.generators[device]}
        name = func.overloadpacket.__name__
        if name == "native_dropout":
            kept = torch.full_like(args[0], 1 - args[1]).bernoulli_(**drawn) if args[2] else torch.ones_like(args[0])
            return args[0] * kept / (1 - args[1]), kept.bool()
        names = [argument.name for argument in func._schema.arguments]
        if "generator" in names:
            return func(*args[: names.index("generator")], **{**kwargs, **drawn})
        if name.endswith("_like"):  # of the shape of a tensor
            like = torch.empty_like(args[0], **kwargs)
            fill: Any = {"rand_like": like.uniform_, "randn_like": like.normal_, "randint_like": like.random_}[name]
            return fill(*([0, *args[1:]][-2:] if name == "randint_like" else []), **drawn)
        with_generator = {"default": "generator", "low": "low_generator", "out": "generator_out"}
        overload = {**with_generator, "low_out": "low_generator_out"}.get(func._overloadname, "")
        known = overload in func.overloadpacket.overloads()
        return getattr(func.overloadpacket, overload)(*args, **kwargs, **drawn) if known else func(*args, **kwargs)


@contextmanager
def sandbox(seed: int = 0, foreign: Mapping[int, Tensor] | None = None) -> Iterator[None]:
    """Run a replica so that nothing outside it is changed or depended on, in this thread alone.

    Random numbers come from an own generator; attention runs as matrix products. A function of one of the tensors in
    ``foreign``, by their ids, is refused with :class:`ForeignTensorError`.

    Examples
    --------
    >>> before = torch.get_rng_state()
    >>> with sandbox():
    ...     _ = nn.functional.dropout(torch.rand(3))
    >>> torch.equal(torch.get_rng_state(), before)
    True
    """
    with _Draws(seed), _Products(foreign):
        yield


@contextmanager
def restored(net: nn.Module) -> Iterator[None]:
    """Restore what hooks and forwards set on a module: attributes, hooks, tensors and submodules."""
    before = [(held, copy.copy(held)) for held in _held(_attributes(net)) if isinstance(held, list | dict | set)]
    try:
        yield
    finally:
        for held, content in before:
            held.clear()
            (held.extend if isinstance(held, list) else held.update)(content)
