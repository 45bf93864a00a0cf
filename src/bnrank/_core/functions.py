"""What functions and classes do, and where they are defined: bytecode, the globals they use, their own module."""

import collections
import dis
import functools
import hashlib
import importlib.util
import os
import sys
import sysconfig
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

_LIBRARIES = tuple(os.path.realpath(sysconfig.get_path(kind)) for kind in ("purelib", "platlib", "stdlib"))
PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"
"""The version on which bytecode depends."""
FieldOfTuple = type(vars(collections.namedtuple("FieldOfTuple", "a"))["a"])
"""The descriptor of a field of a named tuple, which holds nothing but the field's place."""


def bytecode(code: types.CodeType, plain: Callable[[object], str | None], doc: str | None = None) -> bytes:
    """Return what a code object does, with constants as texts; files, line numbers and the docstring do not count."""
    constants: Sequence[Any] = code.co_consts
    if doc is not None and constants and constants[0] == doc:
        constants = (None, *constants[1:])
    parts = [bytecode(c, plain).hex() if isinstance(c, types.CodeType) else repr(plain(c)) for c in constants]
    parts += [repr(names) for names in (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)]
    parts += [str((code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags))]
    return hashlib.sha256(code.co_code + code.co_exceptiontable + "\0".join(parts).encode()).digest()


def used_globals(code: types.CodeType, namespace: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the globals that a code object reads, and what it reads of modules outside installed packages."""
    module, before = None, ""
    steps = list(dis.get_instructions(code))
    for i, step in enumerate(steps):
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME") and step.argval in namespace:
            module, before = namespace[step.argval], step.argval
        elif step.opname in ("LOAD_ATTR", "LOAD_METHOD") and module is not None and hasattr(module, step.argval):
            module, before = getattr(module, step.argval), f"{before}.{step.argval}"
        elif step.opname == "IMPORT_NAME":
            level = steps[i - 2].argval if i > 1 and isinstance(steps[i - 2].argval, int) else 0
            package = namespace.get("__package__") or ""
            absolute = importlib.util.resolve_name("." * level + step.argval, package) if level else step.argval
            found = _imported(absolute, str(namespace.get("__name__")))
            if found is not None:
                yield f"import {absolute}", found
            continue
        else:
            if step.opname not in ("CACHE", "PUSH_NULL", "NOP"):
                module = None
            continue
        if not (isinstance(module, types.ModuleType) and is_own(module)):
            yield before, module
            module = None
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from used_globals(constant, namespace)


def _imported(name: str, by: str) -> Any:
    """Return a module that a function of another imports, `Missing`, or a text; None where it does not count.

    Those of installed packages do not count, nor does one that is not installed to a function of a package.
    """
    top = name.split(".")[0]
    found = sys.modules.get(name)
    if found is not None:
        return found if is_own(found) else None
    package = sys.modules.get(top)
    if package is not None:
        return Missing if is_own(package) else None
    spec = importlib.util.find_spec(top)
    if spec is None:
        importer = sys.modules.get(by)
        return None if importer is not None and not is_own(importer) else "not found"
    return Missing if _outside(top, spec.origin or next(iter(spec.submodule_search_locations or ()), None)) else None


def short_name(value: Any) -> str:
    """Return the name of a class or function, without the function in which it is defined."""
    return str(value.__qualname__.rpartition("<locals>.")[2])


def of_nn(kind: type) -> bool:
    """Return whether a class is one of ``torch.nn``, or a mode of gradients."""
    return module_of(kind).startswith(("torch.nn.", "torch.autograd.grad_mode"))


class Missing:
    """A module outside installed packages that a function imports, and that is not imported yet."""


def module_of(value: Any) -> str:
    """Return the name of the module that defines a class or function, or of a module."""
    if isinstance(value, types.FunctionType):  # functools.wraps copies the other attributes
        return str(value.__globals__.get("__name__"))
    if isinstance(value, type) and value.__module__ == "builtins" and value.__flags__ & 1 << 9:  # made by exec
        return "__main__"
    name = value.__name__ if isinstance(value, types.ModuleType) else getattr(value, "__module__", None)
    return str(name or type(value).__module__)


def has_code(kind: type) -> bool:
    """Return whether the methods of a class count: any class outside torch, bnrank and the standard library."""
    package = module_of(kind).split(".")[0]
    if package in ("torch", "bnrank", "builtins"):
        return False
    return is_own(kind) or (issubclass(kind, nn.Module) and package not in sys.stdlib_module_names)


def is_own(value: Any) -> bool:
    """Return whether a class, function or module is defined outside installed packages and the standard library."""
    name = module_of(value)
    return _outside(name, getattr(sys.modules.get(name), "__file__", None))


def _outside(name: str, path: str | None) -> bool:
    """Return whether a module, of which the file is given, is outside installed packages and the standard library."""
    package = name.split(".")[0]
    if package in ("torch", "bnrank", "builtins") or (package in sys.stdlib_module_names and package != "__main__"):
        return False
    folder = "" if path is None else os.path.realpath(path)
    return not folder.startswith(_LIBRARIES) and not {"site-packages", "dist-packages"} & set(Path(folder).parts)


def full_name(value: Any) -> str:
    """Return the name of a class, function or module."""
    name = getattr(value, "__qualname__", None)
    module = module_of(value)
    return module if isinstance(value, types.ModuleType) or name is None else f"{module}.{name}"


@functools.cache
def depends_on_mode(kind: type) -> bool:
    """Return whether a method of a module's class reads ``training``."""
    functions = [f for base in kind.__mro__[: kind.__mro__.index(nn.Module)] for f in vars(base).values()]
    return any(isinstance(f, types.FunctionType) and "training" in f.__code__.co_names for f in functions)


def is_builtin(value: Any) -> bool:
    """Return whether a value is a function written in C that is bound to no object."""
    owner = getattr(value, "__self__", None)
    unbound = owner is None or isinstance(owner, type | types.ModuleType)
    kinds = types.BuiltinFunctionType | types.MethodDescriptorType | types.WrapperDescriptorType
    return isinstance(value, kinds) and unbound


def slots_of(kind: type) -> Iterator[str]:
    """Yield the names of the attributes for ``__slots__`` of a class and its bases."""
    for base in kind.__mro__:
        slots = vars(base).get("__slots__", ())
        for name in [slots] if isinstance(slots, str) else slots:
            private = name.startswith("__") and not name.endswith("__")
            yield f"_{base.__name__.lstrip('_')}{name}" if private else name


def base_in_c(kind: type) -> type:
    """Return the base of a class that is written in C and holds more than fields, as far as known; else `object`.

    Examples
    --------
    >>> base_in_c(collections.Counter), base_in_c(Missing)
    (<class 'dict'>, <class 'object'>)
    """
    for base in kind.__mro__:
        new = base.__new__
        in_c = not base.__flags__ & 1 << 9 or (isinstance(new, types.BuiltinFunctionType) and new.__self__ is base)
        if in_c and base is not types.SimpleNamespace and base.__basicsize__ > object.__basicsize__:
            return base
    return object


def of_last_use(kind: type, key: str) -> bool:
    """Return whether a field of a context of torch is set where it is entered, as ``prev`` of ``torch.no_grad``."""
    enter = getattr(kind, "__enter__", None)
    if not isinstance(enter, types.FunctionType) or not module_of(enter).startswith("torch."):
        return False
    return key.startswith(("prev", "_inference_mode_context")) and key in enter.__code__.co_names


def is_own_hash(value: Any, key: str, entry: object) -> bool:
    """Return whether a field holds the hash of its object, which differs between processes if texts are part of it.

    Configurations of transformers have such a field, ``_original_object_hash``.
    """
    hashed = getattr(type(value), "__hash__", None) not in (None, object.__hash__)
    return hashed and key.startswith("_") and key.endswith("hash") and isinstance(entry, int)


def state_of(value: Any) -> dict[str, Any] | None:
    """Return all that an object holds, by name; None where that is not known, as for most objects written in C.

    It is known where Python can make the object again from its fields, and its class has no other way for this.

    Examples
    --------
    >>> state_of(Missing()), state_of(iter([1]))
    ({}, None)
    """
    kind = type(value)
    default = (getattr(kind, key) is getattr(object, key) for key in ("__reduce_ex__", "__reduce__", "__getstate__"))
    if kind is object or not all(default) or any(hasattr(kind, key) for key in ("__getnewargs__", "__getnewargs_ex__")):
        return None
    try:
        held = object.__reduce_ex__(value, 2)[2]
    except TypeError:  # more than fields
        return None
    fields, slots = held if isinstance(held, tuple) else (held, None)
    return {**(fields or {}), **(slots or {})}
