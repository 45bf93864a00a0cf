"""Identity of inputs and settings, so that a stored result is reused only for the call that produced it.

A value is described part by part, as a mapping from the name of a part to a text: the exact value if it is short, else
its SHA-256. Arrays and tensors count by dtype, shape and raw bytes; modules by their parts, attributes, buffers and
frozen parameters; functions, and the methods of classes outside torch and bnrank, by their bytecode, default arguments,
closure values and the globals they use.
"""

import collections
import contextlib
import dataclasses
import enum
import functools
import hashlib
import logging
import re
import types
import weakref
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx, nn
from torch.nn.parameter import is_lazy

from bnrank._core.functions import (
    PYTHON,
    FieldOfTuple,
    Missing,
    base_in_c,
    bytecode,
    depends_on_mode,
    full_name,
    has_code,
    is_builtin,
    is_own,
    is_own_hash,
    module_of,
    of_last_use,
    of_nn,
    short_name,
    slots_of,
    state_of,
    used_globals,
)
from bnrank._core.onlooker import only_looks_on

FORMAT = 2  # of stored results; a new number when the same call gives another result, or files another layout
UNKNOWN = "unidentified"  # first word of the text of a part that cannot be described
MOST = 1 << 20  # characters of a description, beyond which its SHA-256 stands for it
LONG = 100  # characters beyond which the SHA-256 stands for a text

Parts = dict[str, str]

_OF_MODULES = {*vars(nn.Module()), "_compiled_call_impl"}  # attributes of every module
_OF_OBJECTS = {"__dict__", "__weakref__"}  # in __slots__, but no attributes of their own
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_COMPUTES = ("name", "_tensor_name")  # in hooks of torch.nn.utils (weight_norm, prune): what they set at each call
_WITHOUT_EFFECT = {"__repr__", "__str__", "extra_repr", "__doc__", "__module__", "__dict__", "__weakref__"}
_WITHOUT_EFFECT |= {"__annotations__", "__qualname__", "__firstlineno__", "__static_attributes__", "__parameters__"}
_WITHOUT_EFFECT |= {"__orig_bases__", "__annotate__", "__annotate_func__", "__annotations_cache__", "__slotnames__"}


def describe(value: object, name: str, *, values: bool = True) -> Parts:
    """Return the parts of a value, from their names to texts; equal parts mean equal values.

    Parameters
    ----------
    value : object
        Plain values, arrays, tensors, modules, functions, dataclasses, objects of classes outside installed packages
        or with plain values alone, and containers of these. Parts that are none of these have a text that starts with
        `UNKNOWN`.
    name : str
        The name of the whole, with which the names of all parts start.
    values : bool
        Include the values of buffers and frozen parameters of modules; otherwise only shapes. Values of the trained
        parameters of a network (``name`` is "net") are never included.

    Examples
    --------
    >>> describe(nn.Sequential(nn.Linear(2, 1, bias=False), nn.ReLU()), "net")["net.1"]
    'ReLU'
    >>> describe(0.1, "ridge")
    {'ridge': '0.1'}
    """
    trained = {id(p) for p in value.parameters()} if isinstance(value, nn.Module) and name == "net" else set()
    walk = _Walk(name, values, trained)
    walk.add(value, name)
    if sum(len(key) + len(text) for key, text in walk.parts.items()) <= MOST:
        return walk.parts
    unknown = {key: text for key, text in walk.parts.items() if text.startswith(UNKNOWN)}
    return {name: f"{len(walk.parts)} parts, {_sha(_joined(walk.parts))}"} | unknown


def digest(*values: object) -> str:
    """Return the SHA-256 of the canonical bytes of values.

    Raises
    ------
    TypeError
        If a part of a value cannot be described.

    Examples
    --------
    >>> digest(torch.ones(2)) == digest(torch.ones(2)), digest(torch.ones(2)) == digest(torch.ones(2) + 1e-7)
    (True, False)
    """
    parts = describe(list(values), "value")
    require(parts)
    return hashlib.sha256(_joined(parts)).hexdigest()


def differences(
    stored: Mapping[str, str], now: Mapping[str, str], words: tuple[str, str] = ("stored", "now")
) -> list[str]:
    """Return the differences between two descriptions, each as "name: stored ..., now ...", in order.

    Examples
    --------
    >>> differences({"net.1": "ReLU"}, {"net.1": "Tanh"})
    ['net.1: stored ReLU, now Tanh']
    """
    names = [name for name in dict.fromkeys((*now, *stored)) if stored.get(name) != now.get(name)]
    names = [name for name in names if not name.endswith(".__slotnames__)")]  # that copies leave, in earlier files
    before, after = words
    shown = [f"{name}: {before} {stored.get(name, 'none')}, {after} {now.get(name, 'none')}" for name in names]
    return [re.sub(r"(SHA-256 \w{8})\w{56}", r"\1...", text) for text in shown]


def require(parts: Mapping[str, str], remedy: str = 'tag="...", as in out=Save(folder, tag="v1")') -> None:
    """Raise unless every part is identified, or the caller named a version ("tag"), for which ``remedy`` says how.

    Raises
    ------
    TypeError
        If a part has no description; the message names it.
    """
    unknown = [name for name, text in parts.items() if text.startswith(UNKNOWN)]
    if unknown and "tag" not in parts:
        root = unknown[0].replace("[", ".").split(".")[0].split(" ")[0]
        raise TypeError(
            f"{root}: got {unknown[0]} = {parts[unknown[0]].removeprefix(UNKNOWN).strip()}, whose value cannot be "
            "identified, so that results stored for it could be taken for those of another; name a version of it with "
            f"{remedy}, and another one when it changes"
        )


def expect_same(stored: Mapping[str, str], net: nn.Module, source: object, *, values: bool = True) -> None:
    """Raise unless a network has the stored description; the values of trained parameters do not count.

    Raises
    ------
    ValueError
        If it has another one; the message names the first difference.
    """
    of_net = {name: text for name, text in stored.items() if name.startswith("net")}
    other = differences(of_net, describe(net, "net", values=values))
    if other:
        raise ValueError(f"net: got another network ({other[0]}), expected that of {source}")


class _Walk:
    """Collects the parts of a value."""

    def __init__(self, root: str, values: bool, trained: set[int]) -> None:
        self.root, self.values, self.trained = root, values, trained
        self.classes: dict[type, str] = {}  # the label of each
        self.described: set[type] = set()
        self.parts: Parts = {}
        self.reached: dict[int, tuple[str, object]] = {}  # id -> name, and the object, so that the id stays its own

    def add(self, value: Any, name: str) -> None:
        """Add a value under a name; one whose own methods raise anything on the way is not identified."""
        try:
            self.kinds(value, name)
        except (MemoryError, torch.OutOfMemoryError):
            raise
        except Exception as error:
            kind = f"{type(value).__module__}.{type(value).__qualname__}"
            self.parts[name] = f"{UNKNOWN} {kind}, which raises {type(error).__name__} where it is read"

    def kinds(self, value: Any, name: str) -> None:
        """Add a value by its kind."""
        text = plain(value)
        if text is not None:
            self.parts[name] = short(text)
            return
        if id(value) in self.reached:
            self.parts[name] = f"same as {self.reached[id(value)][0]}"
            return
        self.reached[id(value)] = name, value
        if isinstance(value, Tensor):
            self.parts[name] = tensor(value)
        elif isinstance(value, np.ma.MaskedArray):
            self.parts[name] = "masked array"
            self.add(np.asarray(value.data), f"{name}.data")
            self.add(np.ma.getmaskarray(value), f"{name}.mask")
        elif type(value) in (np.ndarray, np.memmap) and not value.dtype.hasobject:
            self.parts[name] = array(value)
        elif isinstance(value, torch.jit.ScriptModule):
            self.parts[name] = f"{UNKNOWN} a scripted module"
        elif isinstance(value, nn.Module):
            self.module(value, name)
        elif isinstance(value, types.FunctionType):
            self.function(value, name)
        elif isinstance(value, types.MethodType):
            self.parts[name] = f"method {short_name(value.__func__)}"
            self.add(value.__func__, f"{name}.__func__")
            self.add(value.__self__, f"{name}.__self__")
        elif isinstance(value, functools.partial) and not is_own(type(value)):
            self.parts[name] = "partial"
            self.add([value.func, value.args, value.keywords], f"{name}.partial")
        elif isinstance(value, contextlib._GeneratorContextManager):  # as a decorator it is made again for every call
            self.parts[name] = "context"
            self.add([value.func, value.args, value.kwds], f"{name}.context")
        elif isinstance(value, weakref.ref):
            self.add(value(), name)
        elif isinstance(value, functools._lru_cache_wrapper):
            self.add(value.__wrapped__, name)
        elif isinstance(value, types.ModuleType) and is_own(value):
            self.parts[name] = full_name(value)
            for key, entry in vars(value).items():
                if not key.startswith("__"):
                    self.add(entry, f"{name}.{key}")
        elif isinstance(value, types.ModuleType) or is_builtin(value):
            self.parts[name] = full_name(value)
        elif isinstance(value, np.ufunc):
            known = getattr(np, value.__name__, None) is value
            self.parts[name] = f"numpy.{value.__name__}" if known else f"{UNKNOWN} function {value.__name__}"
        elif isinstance(value, re.Pattern):
            self.parts[name] = f"pattern {value.pattern!r}, {value.flags}"
        elif isinstance(value, type):
            self.parts[name] = f"class {self.label(value)}"
            self.code_of(value)
            if issubclass(value, nn.Module) and isinstance(vars(value).get("__init__"), types.FunctionType):
                self.code(vars(value)["__init__"], f"{name}.__init__")
        else:
            self.container(value, name)

    def container(self, value: Any, name: str) -> None:
        """Add a container, a dataclass, or an object of a class outside installed packages."""
        kind = type(value)
        slots = {key: getattr(value, key) for key in slots_of(kind) if hasattr(value, key)}
        own = module_of(kind) != "builtins" and (hasattr(value, "__dict__") or not slots.keys() <= _OF_OBJECTS)
        base: Any
        if isinstance(value, Mapping):
            base = next((base for base in (collections.OrderedDict, dict) if issubclass(kind, base)), None)
            items = list(value.items() if base is None else base.items(value))  # a subclass may hide them
            self.parts[name] = f"{self.label(kind)} of {len(items)}"
            if isinstance(value, collections.defaultdict) and value.default_factory is not None:
                self.add(value.default_factory, f"{name}.default_factory")
            for i, (key, entry) in enumerate(items):
                text = plain(key)
                self.add(entry, f"{name}[{i if text is None else text}]")
                if text is None:
                    self.parts[f"{name} (keys)"] = f"{UNKNOWN} keys"
        elif isinstance(value, list | tuple) or (type(value) is np.ndarray and value.ndim):
            base = next((base for base in (list, tuple) if isinstance(value, base)), np.ndarray)
            entries = list(base.__iter__(value))
            self.parts[name] = f"{self.label(kind)} of {len(entries)}"
            for i, entry in enumerate(entries):
                self.add(entry, f"{name}[{i}]")
        elif isinstance(value, int | float | complex | str | bytes) and is_own(kind):
            base = next(base for base in (int, float, complex, str, bytes) if isinstance(value, base))
            self.parts[name] = f"{self.label(kind)} {short(base.__repr__(value))}"
        elif isinstance(value, set | frozenset) and is_own(kind) and (text := plain(set(value))) is not None:
            self.parts[name] = f"{self.label(kind)} {short(text)}"
        elif isinstance(value, np.ndarray) and is_own(kind) and not value.dtype.hasobject:
            self.parts[name] = f"{self.label(kind)} {array(np.ndarray.view(value, np.ndarray))}"
        elif isinstance(value, torch.Generator):
            self.parts[name] = tensor(value.get_state())
        elif isinstance(value, logging.Logger):
            self.parts[name] = f"logger {value.name}"
            own = False
        elif base_in_c(kind) is object and (
            dataclasses.is_dataclass(value) or ((is_own(kind) or of_nn(kind)) and hasattr(value, "__dict__"))
        ):
            self.parts[name] = self.label(kind)
            self.code_of(kind)
            own = False
            for key, entry in {**getattr(value, "__dict__", {}), **slots}.items():
                if not of_last_use(kind, key):
                    self.add(entry, f"{name}.{key}")
                elif isinstance(value, torch.no_grad):  # as before it is entered, which stored descriptions hold
                    self.add(False, f"{name}.{key}")
        elif (fields := plain_fields(value)) is not None:
            self.parts[name] = full_name(kind)
            self.code_of(kind)
            own = False
            for key, text in fields.items():
                self.parts[f"{name}.{key}"] = short(text)
        else:
            self.parts[name] = f"{UNKNOWN} {kind.__module__}.{kind.__qualname__}"
            own = False
        if own:  # a subclass of a container or number
            self.code_of(kind)
            for key, entry in {**getattr(value, "__dict__", {}), **slots}.items():
                if key not in _OF_OBJECTS:
                    self.add(entry, f"{name}.{key}")

    def label(self, kind: type) -> str:
        """Return the name of a class, with a number if another class has the same."""
        if kind not in self.classes:
            name = short_name(kind)
            same = sum(short_name(other) == name for other in self.classes)
            self.classes[kind] = name if not same else f"{name} #{same + 1}"
        return self.classes[kind]

    def module(self, net: nn.Module, name: str) -> None:
        """Add a module: class, attributes, hooks, parameters, buffers and submodules."""
        kind = type(net)
        self.parts[name] = self.label(kind) if not isinstance(net, fx.GraphModule) else "GraphModule"
        if self.values and depends_on_mode(kind):  # type: ignore[arg-type]
            self.parts[f"{name}.training"] = str(net.training)
        for key, parameter in net._parameters.items():
            self.held(parameter, f"{name}.{key}", "trained")
        for key, buffer in net._buffers.items():
            self.held(buffer, f"{name}.{key}", "constant" if key in net._non_persistent_buffers_set else "buffer")
        for key, part in net._modules.items():
            self.add(part, f"{name}.{key}")
        orders = {
            "modules": list(net._modules),
            "parameters": list(net._parameters) if has_code(kind) else [],
        }
        for what, names in orders.items():
            if len(names) > 1 and names != [str(i) for i in range(len(names))]:
                self.parts[f"{name} (order of {what})"] = short(", ".join(names))
        if isinstance(net, fx.GraphModule):
            self.parts[f"{name} (code)"] = _sha(str(net.code).encode())
        else:
            ignored = _OF_MODULES | set(getattr(kind, "_without_effect", ()))
            hooks = [h for h in net._forward_pre_hooks.values() if type(h).__module__.startswith("torch.nn.utils.")]
            computed = {getattr(hook, key, None) for hook in hooks for key in _COMPUTES}
            for key, value in vars(net).items():  # after the parameters, to which attributes can refer
                if isinstance(value, Tensor) and key in computed:
                    self.parts[f"{name}.{key}"] = f"computed, of shape {tuple(value.shape)}"
                elif key not in ignored:
                    self.add(value, f"{name}.{key}")
            self.code_of(kind)
        for key in _HOOKS:
            acting = [hook for hook in getattr(net, key, {}).values() if not only_looks_on(hook)]
            for i, hook in enumerate(acting):
                self.add(hook, f"{name}.{key}[{i}]")

    def held(self, value: Tensor | None, name: str, kind: str) -> None:
        """Add a parameter or buffer of a module."""
        if value is None or id(value) in self.reached:
            self.add(value, name)
            return
        self.reached[id(value)] = name, value
        frozen = kind == "trained" and not (value.requires_grad and id(value) in self.trained)
        known = id(value) in self.trained or kind in ("buffer", "constant")
        loaded = kind != "constant" and known and not self.values  # its value comes from the file
        kind = "parameter" if kind == "trained" and loaded else "frozen" if frozen else kind
        if is_lazy(value):
            self.parts[name] = "uninitialized"
        elif loaded or kind == "trained":
            self.parts[name] = f"{kind} of shape {tuple(value.shape)}"
        else:
            self.parts[name] = f"{kind} {tensor(value)}"

    def function(self, function: types.FunctionType, name: str) -> None:
        """Add a function: its name; outside installed packages also code, defaults, closure and globals."""
        if is_own(function):
            self.parts[name] = f"function {short_name(function)}"
            self.code(function, name)
        else:
            self.parts[name] = f"function {full_name(function)}"
            if "<locals>" in function.__qualname__ or function.__closure__:
                self.bound(function, name)

    def code(self, function: types.FunctionType, name: str) -> None:
        """Add the code of a function, its defaults, its closure, and what it uses of its module."""
        code = function.__code__
        digest_of_code = bytecode(code, plain, function.__doc__).hex()
        self.parts[f"{name} (code)"] = f"SHA-256 {digest_of_code} (Python {PYTHON})"
        self.bound(function, name)
        for key, value in used_globals(code, function.__globals__):
            label = f"{name} ({key})"
            if value is Missing:
                self.parts[label] = f"{UNKNOWN} a module that is not imported yet"
            elif isinstance(value, type) and not is_own(value):
                self.parts[label] = full_name(value)
            elif label not in self.parts:
                self.add(value, label)

    def bound(self, function: types.FunctionType, name: str) -> None:
        """Add the default arguments, the closure and the attributes of a function."""
        defaults = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).items()]
        if defaults:
            self.add(defaults, f"{name} (defaults)")
        for key, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            try:
                self.add(cell.cell_contents, f"{name} ({key})")
            except ValueError:  # an empty cell
                self.parts[f"{name} ({key})"] = "empty"
        for key, value in vars(function).items():
            if key != "__wrapped__":  # in the closure
                self.add(value, f"{name}.{key}")

    def code_of(self, kind: type) -> None:
        """Add the methods and class attributes of a class, and of its bases, outside torch and bnrank."""
        for base in kind.__mro__:
            if base in self.described or not has_code(base):
                continue
            self.described.add(base)
            for key, value in vars(base).items():
                label = f"{self.root} ({self.label(base)}.{key})"
                descriptor = isinstance(value, types.MemberDescriptorType | types.GetSetDescriptorType | FieldOfTuple)
                if key in _WITHOUT_EFFECT or descriptor or (key == "__init__" and issubclass(base, nn.Module)):
                    continue
                if isinstance(value, staticmethod | classmethod):
                    value = value.__func__
                if isinstance(value, property | functools.cached_property):
                    value = value.fget if isinstance(value, property) else value.func
                if isinstance(value, types.FunctionType):
                    self.code(value, label)
                elif not key.startswith(("__dataclass", "__abstract", "_abc")):
                    self.add(value, label)


def plain(value: Any, within: tuple[int, ...] = ()) -> str | None:
    """Return the exact text of a plain value, or a container of plain values; None for any other.

    Examples
    --------
    >>> plain({"b": [1, 1.0], "a": True})
    "{'b': [1, 1.0], 'a': True}"
    """
    if id(value) in within or len(within) > 100:
        return None
    inner = (*within, id(value))
    if value is None or value is ... or type(value) in (bool, int, float, complex, str, bytes):
        return repr(value)
    if type(value) in (np.float64, np.bool_, np.int64):
        return repr(value.item())
    if isinstance(value, np.generic) and not is_own(type(value)):
        return f"{value.dtype.str}({value.item()!r})"
    if isinstance(value, torch.dtype | torch.device | torch.layout | torch.Size | range | slice):
        return str(value)
    if isinstance(value, PurePath):
        return repr(value)
    if isinstance(value, enum.Enum):
        held = plain(value.value, inner)
        return None if held is None else f"{short_name(type(value))}.{value.name} = {held}"
    if type(value) is dict:
        pairs = [(plain(key, inner), plain(entry, inner)) for key, entry in value.items()]
        texts = [f"{key}: {entry}" for key, entry in pairs if key is not None and entry is not None]
        return "{" + ", ".join(texts) + "}" if len(texts) == len(pairs) else None
    if type(value) in (list, tuple, set, frozenset):
        entries = [plain(entry, inner) for entry in value]
        texts = [entry for entry in entries if entry is not None]
        if len(texts) < len(entries):
            return None
        if isinstance(value, list):
            return f"[{', '.join(texts)}]"
        return f"({', '.join(texts)},)" if isinstance(value, tuple) else "{" + ", ".join(sorted(texts)) + "}"
    return None


def plain_fields(value: object) -> dict[str, str] | None:
    """Return the exact texts of the fields of an object that consists of plain values alone; None for any other.

    Examples
    --------
    >>> plain_fields(torch.distributions.constraints.interval(0, 1))
    {'lower_bound': '0', 'upper_bound': '1'}
    """
    held = state_of(value)
    passing = {key for key, entry in (held or {}).items() if is_own_hash(value, key, entry)}  # of a process or a use
    passing |= {key for key in held or {} if of_last_use(type(value), key)}
    texts = {key: plain(entry) for key, entry in (held or {}).items() if key not in passing}
    known = {key: text for key, text in texts.items() if text is not None}
    return known if held is not None and len(known) == len(texts) else None


def short(text: str) -> str:
    """Return a text, or its SHA-256 if it is long."""
    return text if len(text) <= LONG else f"{text[:20]}..., {_sha(text.encode())}"


def tensor(value: Tensor) -> str:
    """Return dtype, shape and SHA-256 of the raw bytes of a tensor."""
    value = value.detach()
    if type(value) not in (Tensor, nn.Parameter, nn.Buffer) and not is_lazy(value):
        return f"{UNKNOWN} {type(value).__module__}.{type(value).__qualname__}"
    if value.layout != torch.strided or value.is_meta or value.is_quantized or value.is_nested:
        return f"{UNKNOWN} a tensor of layout {value.layout} on {value.device}"
    raw = value.cpu().resolve_conj().resolve_neg().contiguous().flatten().view(torch.uint8).numpy()
    return f"{str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}, {_sha(raw.data)}"


def _joined(parts: Parts) -> bytes:
    return "".join(f"{len(key)} {len(text)} {key} {text}" for key, text in parts.items()).encode()


def array(value: np.ndarray) -> str:
    """Return dtype, shape and SHA-256 of the raw bytes of an array."""
    kind = value.dtype.name if value.dtype.isnative and value.dtype.kind in "biufc" else value.dtype.str
    kind = str(value.dtype.descr) if value.dtype.kind == "V" else kind
    return f"{kind} {value.shape}, {_sha(np.ascontiguousarray(value).tobytes())}"


def _sha(content: Any) -> str:
    return f"SHA-256 {hashlib.sha256(content).hexdigest()}"
