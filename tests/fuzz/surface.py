"""What is called: every public function, class and method, collected from the package itself."""

import dataclasses
import functools
import inspect
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

import bnrank

from .of_discovery import ADAPTERS
from .valid import INPUTS, PREPARED, SKIPPED, arguments

_ANY = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


@dataclass(frozen=True)
class Target:
    """A public callable: its name, its room, a way to get it, and the names of its parameters."""

    name: str
    room: str
    obtain: Callable[[], Callable[..., Any]]
    parameters: tuple[str, ...]
    extra: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """Names by which a message may call an argument."""
        return self.parameters + self.extra


def _modules() -> Iterator[tuple[str, types.ModuleType]]:
    seen: set[str] = set()

    def walk(module: types.ModuleType, path: str) -> Iterator[tuple[str, types.ModuleType]]:
        yield path, module
        for name in getattr(module, "__all__", ()):
            value = getattr(module, name)
            inside = isinstance(value, types.ModuleType) and value.__name__.startswith("bnrank")
            if inside and value.__name__ not in seen:
                seen.add(value.__name__)
                yield from walk(value, f"{path}.{name}")

    yield from walk(bnrank, "bnrank")


def public() -> dict[str, Any]:
    """Return every public function and class by its shortest public name."""
    found: dict[int, tuple[str, Any]] = {}
    for path, module in _modules():
        for name in getattr(module, "__all__", ()):
            value = getattr(module, name)
            if callable(value) and not isinstance(value, types.ModuleType):
                old = found.get(id(value))
                if old is None or len(path) + len(name) + 1 < len(old[0]):
                    found[id(value)] = (f"{path}.{name}", value)
    return dict(sorted(found.values(), key=lambda pair: pair[0]))


def _room(value: Any) -> str:
    part = value.__module__.split(".")[1] if value.__module__.startswith("bnrank.") else "cli"
    return "measures" if part == "_core" else part


def _parameters(value: Callable[..., Any]) -> tuple[str, ...]:
    return tuple(p.name for p in inspect.signature(value).parameters.values() if p.kind not in _ANY)


def is_record(value: Any) -> bool:
    """Whether a class is a result that the library fills, and not one that users construct."""
    name = getattr(value, "__name__", "")
    return inspect.isclass(value) and (
        (dataclasses.is_dataclass(value) and name not in INPUTS) or issubclass(value, Warning | Exception)
    )


def functions() -> list[Target]:
    """Return the public functions and the classes that users construct."""
    targets = []
    for name, value in public().items():
        if name in SKIPPED or name in ADAPTERS or is_record(value):
            continue
        targets.append(Target(name, _room(value), lambda value=value: value, _parameters(value), extra_names(name)))
    for name, adapter in ADAPTERS.items():
        targets.append(Target(name, adapter.room, lambda adapter=adapter: adapter.call, _parameters(adapter.call)))
    return sorted(targets, key=lambda target: target.name)


def extra_names(name: str) -> tuple[str, ...]:
    """Return names beside the parameters': the options of ``**options``, and x, y of a task."""
    extra: tuple[str, ...] = ("x", "y")
    if name == "bnrank.sweep":
        extra += ("depth", "ridge", "width", *_parameters(bnrank.train))
    if name.endswith("Stack"):
        extra += ("parts",)
    if name.endswith("LinearConvolutional"):
        extra += ("bias", "init", "seed", "dtype")
    if name.endswith("exit_time"):
        extra += _parameters(bnrank.escape.join_rate)
    return extra


def results(value: Any, depth: int = 0) -> Iterator[Any]:
    """Yield the library's objects in a result: itself, and those in its fields, tuples and lists."""
    if depth > 3 or value is None:
        return
    if isinstance(value, tuple | list):
        for entry in value[:3]:
            yield from results(entry, depth + 1)
    elif type(value).__module__.startswith("bnrank"):
        yield value
        if dataclasses.is_dataclass(value):
            for field in dataclasses.fields(value):
                if not field.name.startswith("_"):
                    yield from results(getattr(value, field.name, None), depth + 1)


def methods(value: Any) -> list[str]:
    """Return the names of the public methods that the library gives an object's class."""
    inherited = set(dir(nn.Module)) if isinstance(value, nn.Module) else set()
    inherited |= set(dir(torch.Tensor)) if isinstance(value, torch.Tensor) else set()
    inherited |= set(dir(tuple)) | set(dir(dict))
    names = []
    for name in dir(type(value)):
        attribute = inspect.getattr_static(type(value), name)
        known = isinstance(attribute, types.FunctionType | staticmethod | classmethod)
        if name.startswith("_") or name in inherited or not known:
            continue
        if getattr(getattr(type(value), name), "__module__", "").startswith("bnrank"):
            names.append(name)
    return names


def properties(value: Any) -> list[str]:
    """Return the names of the public properties, and methods without arguments, that the library gives an object."""
    names = []
    for name in dir(type(value)):
        attribute = inspect.getattr_static(type(value), name)
        if name.startswith("_") or isinstance(value, nn.Module | torch.Tensor):
            continue
        if isinstance(attribute, property | functools.cached_property):
            names.append(name)
        elif isinstance(attribute, types.FunctionType) and attribute.__module__.startswith("bnrank"):
            names += [name] if len(inspect.signature(attribute).parameters) == 1 else []
    return names


def of_result(name: str, value: Any) -> list[Target]:
    """Return the methods with arguments of the objects in the result of a valid call of the target ``name``."""
    found: dict[str, Target] = {}
    for position, result in enumerate(results(value)):
        for method in methods(result):
            full = f"{type(result).__name__}.{method}"
            bound = getattr(result, method)
            if full in found or not _parameters(bound) or f"{full}" in SKIPPED:
                continue
            obtain = _method(name, position, method, full)
            found[full] = Target(full, _room(type(result)), obtain, _parameters(bound), ("x", "y"))
    return list(found.values())


def _method(name: str, position: int, method: str, full: str) -> Callable[[], Callable[..., Any]]:
    def obtain() -> Callable[..., Any]:
        target = next(target for target in functions() if target.name == name)
        value = target.obtain()(**arguments(name, target.parameters, target.obtain()))
        owner = list(results(value))[position]
        PREPARED.get(full, lambda _: None)(owner)
        return getattr(owner, method)

    return obtain
