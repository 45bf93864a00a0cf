"""Replicas of modules, which are the library's own, and a sandbox to run them in, confined to its thread."""

from __future__ import annotations

import copy
import inspect
import math
import types
from collections.abc import Iterator
from contextlib import contextmanager
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
        done = dict(known)
        made = copy.deepcopy(value, done)
    except Exception:
        shared = {id(held): held for sub in modules for held in vars(sub).values() if not _is_copied(held, modules)}
        if not shared:
            raise
        done = {**shared, **known}
        made = copy.deepcopy(value, done)
    parts = {id(sub): done[id(sub)] for sub in modules if isinstance(done.get(id(sub)), nn.Module)}
    for part in parts.values():
        hooks: list[Any] = [registry for name, registry in vars(part).items() if name.endswith("_hooks") and registry]
        for functions in [vars(part), *hooks]:
            functions.update({key: _rebound(value, parts) for key, value in functions.items() if _closure(value)})
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
            memo[id(tensor)] = nn.Parameter(own, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else own
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
        vars(attention)["products"] = weights
        if not call.arguments["need_weights"]:
            return output, None
        return output, cast(Tensor, weights).mean(-3) if call.arguments["average_attn_weights"] else weights

    attention.forward = forward  # type: ignore[method-assign]


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
