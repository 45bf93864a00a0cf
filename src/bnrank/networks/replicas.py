"""Replicas of modules, which are the library's own, and a sandbox to run them in, confined to its thread."""

from __future__ import annotations

import copy
import functools
import inspect
import math
import types
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

Copied = TypeVar("Copied", nn.Module, "tuple[nn.Module, ...]", Any)


def converted(tensor: Tensor, dtype: torch.dtype, device: torch.device | None = None, copy: bool = True) -> Tensor:
    """Return a copy of a tensor in a precision: floating-point and complex numbers are converted, others only copied.

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
    """Return a module, changed in place to a precision, which complex numbers get, too: ``net.to(dtype)`` cuts them."""
    return net._apply(lambda tensor: converted(tensor, dtype, device, copy=False))


def copied(value: Copied, memo: dict[int, Any] | None = None) -> Copied:
    """Return a deep copy of a module or of several, also where tensors on it are results of a computation.

    Such is the weight of a layer with ``torch.nn.utils.weight_norm``, which ``copy.deepcopy`` refuses: it is copied
    without its history, and computed anew when the layer runs. Attributes that cannot be copied, such as locks, are
    shared. Functions on a module that reach parts of it by their closure or defaults get the copies of these.

    Examples
    --------
    >>> layer = nn.Linear(2, 2)
    >>> layer.result = layer.weight.sum()
    >>> torch.equal(copied(layer).result, layer.result)
    True
    """
    known: dict[int, Any] = {} if memo is None else memo
    given: list[nn.Module] = [value] if isinstance(value, nn.Module) else list(value)
    modules = [sub for net in given for sub in net.modules()]
    for sub in modules:
        for held in vars(sub).values():
            if isinstance(held, Tensor) and not held.is_leaf:
                known.setdefault(id(held), held.detach().clone())
    try:
        done = dict(known)
        made = copy.deepcopy(value, done)
    except Exception:
        without = {**known, **dict.fromkeys(map(id, modules))}
        held_by = [held for sub in modules for held in vars(sub).values()]
        shared = {id(each): each for held in held_by for each in _uncopied(held, without, set())}
        if not shared:
            raise
        done = {**shared, **known}
        made = copy.deepcopy(value, done)
    for part in [done[id(sub)] for sub in modules if isinstance(done.get(id(sub)), nn.Module)]:
        hooks: list[Any] = [registry for name, registry in vars(part).items() if name.endswith("_hooks") and registry]
        for functions in (vars(part), *hooks):
            functions.update({key: _rebound(content, done) for key, content in functions.items()})
    return made


def _uncopied(held: Any, without: dict[int, Any], seen: set[int]) -> list[Any]:
    """Return the smallest objects in an attribute of a module that cannot be copied, apart from the modules in it."""
    if isinstance(held, Tensor | nn.Module) or id(held) in seen or _is_copied(held, without):
        return []
    seen.add(id(held))
    found = [each for content in _contents(held) for each in _uncopied(content, without, seen)]
    if _is_copied(held, {**without, **{id(each): each for each in found}}):
        return found
    return found if isinstance(held, dict) else [held]


def _is_copied(held: Any, memo: dict[int, Any]) -> bool:
    try:
        copy.deepcopy(held, dict(memo))
    except Exception:
        return False
    return True


def _contents(held: Any) -> list[Any]:
    """Return what a collection, a bound method or another object holds."""
    if isinstance(held, types.MethodType):
        return [held.__self__]
    if isinstance(held, list | tuple | dict):
        return list(iter(held.values() if isinstance(held, dict) else held))  # asks no subclass for its length
    return list(getattr(held, "__dict__", {}).values())


def _rebound(held: Any, done: dict[int, Any]) -> Any:
    """Return a function, or a collection with some, that refers to the copies of what has been copied.

    ``copy.deepcopy`` leaves functions and weak references as they are.
    """
    if id(held) in done:
        return done[id(held)]
    done[id(held)] = held
    done.setdefault(id(done), []).append(held)  # as copy.deepcopy does: the id stays its own
    made: Any = held
    if isinstance(held, weakref.ref):
        target = held()
        made = weakref.ref(done[id(target)]) if target is not None and id(target) in done else held
    elif isinstance(held, types.MethodType):
        made = types.MethodType(held.__func__, _rebound(held.__self__, done))
    elif isinstance(held, functools.partial):
        args, named = _rebound(held.args, done), _rebound(held.keywords, done)
        made = functools.partial(_rebound(held.func, done), *args, **named)
    elif isinstance(held, types.FunctionType):
        made = _function(held, done)
    elif type(held) in (list, tuple):
        made = type(held)(_rebound(content, done) for content in held)
    elif type(held) is dict:
        made = {key: _rebound(content, done) for key, content in held.items()}
    if type(held) in (list, tuple, dict):  # one that refers to nothing copied is shared as before
        pairs = zip(_contents(made), _contents(held), strict=True)
        made = held if all(new is old for new, old in pairs) else made
    done[id(held)] = made
    return made


def _function(held: types.FunctionType, done: dict[int, Any]) -> types.FunctionType:
    """Return a function whose closure, defaults and attributes refer to copies; itself where none does."""
    cells = held.__closure__ or ()
    closure = tuple(types.CellType() for _ in cells)
    made = types.FunctionType(held.__code__, held.__globals__, held.__name__, None, closure)
    done[id(held)] = made  # a function can be in its own closure
    pairs: list[tuple[Any, Any]] = []
    for cell, own in zip(cells, closure, strict=True):
        with suppress(ValueError):  # an empty cell
            own.cell_contents = _rebound(cell.cell_contents, done)
            pairs.append((own.cell_contents, cell.cell_contents))
    for name in ("__defaults__", "__kwdefaults__"):
        setattr(made, name, _rebound(getattr(held, name), done))
        pairs.append((getattr(made, name), getattr(held, name)))
    vars(made).update({key: _rebound(content, done) for key, content in vars(held).items()})
    pairs += [(vars(made)[key], content) for key, content in vars(held).items()]
    return held if all(new is old for new, old in pairs) else made


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
    plain = [sub for sub in net.modules() if not isinstance(sub, torch.jit.ScriptModule)]
    for tensor in (tensor for sub in plain for tensor in _tensors(list(vars(sub).values()))):
        if id(tensor) not in memo:
            own = converted(tensor.detach(), dtype or tensor.dtype)
            own = nn.Parameter(own, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else own
            if type(own) is type(tensor) and type(tensor) in (Tensor, nn.Parameter):  # others hold their numbers there
                vars(own).update(vars(tensor))
            memo[id(tensor)] = own
    try:
        made = copied(net, memo)
    except Exception as error:
        advice = (
            "; where it is sharded, build it anew and load get_model_state_dict(net, options=StateDictOptions("
            "full_state_dict=True)) of torch.distributed.checkpoint.state_dict"
        )
        advice = advice if any(hasattr(p, "full_tensor") for p in net.parameters()) else ""
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
        for name, held in list(vars(sub).items()):
            if callable(held) and hasattr(held, "_torchdynamo_orig_callable"):
                vars(sub)[name] = held._torchdynamo_orig_callable
    return made


def _tensors(structure: Any) -> Iterator[Tensor]:
    """Iterate over the tensors in nested lists, tuples and dictionaries."""
    waiting, seen = [structure], set[int]()
    while waiting:
        held = waiting.pop()
        if isinstance(held, Tensor):
            yield held
        elif isinstance(held, list | tuple | dict) and id(held) not in seen:
            seen.add(id(held))
            waiting.extend(reversed(_contents(held)))


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
        foreign = bool(self.foreign) and any(id(tensor) in self.foreign for tensor in _tensors([args, kwargs]))
        if func is nn.functional.scaled_dot_product_attention:
            query = args[0] if args else kwargs["query"]
            if not query.is_nested and not foreign:
                return _attention(*args, **kwargs)
        asked = getattr(func, "__name__", "") == "__get__"  # for its shape, say
        result: Any = None if foreign and not asked else func(*args, **kwargs)
        if foreign and (not asked or isinstance(result, Tensor)):
            raise ForeignTensorError(
                "it computes with tensors that are not those of the copy's modules: a global variable, a list or a "
                "closure keeps them; let forward and hooks get at parameters and buffers as attributes of modules"
            )
        return result


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
    if enable_gqa:
        groups = query.shape[-3] // key.shape[-3]
        key, value = key.repeat_interleave(groups, -3), value.repeat_interleave(groups, -3)
    scores = query @ key.mT * (query.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:
        attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    if attn_mask is not None:
        no_score = attn_mask.dtype == torch.bool
        scores = scores.masked_fill(~attn_mask, -math.inf) if no_score else scores + attn_mask.to(scores.dtype)
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
