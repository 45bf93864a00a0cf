"""What stands for a tensor while torch.fx follows a module: it knows its shape, and refuses to become a number."""

from __future__ import annotations

import operator
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, fx
from torch.overrides import TorchFunctionMode

from bnrank.networks.graph.values import leaves

if TYPE_CHECKING:
    from bnrank.networks.graph.following import Follower

__all__ = ["Preallocated", "Proxy", "RefusedError", "functions_recorded", "name_of", "setitem", "where"]

_TENSORS = frozenset(["T", "mT", "H", "mH", "data", "real", "imag"])
_IN_PLACE = ("iadd", "isub", "imul", "itruediv", "ipow", "imatmul")


class RefusedError(ValueError):
    """An error of ours, on its way through torch."""


class Proxy(fx.Proxy):
    """A tensor, or several, of a running module."""

    tracer: Follower

    def __getattr__(self, name: str) -> Any:
        held = self.tracer.tensors(self)
        if isinstance(held, Tensor) and name in _TENSORS:
            return self.tracer.create_proxy("call_function", getattr, (self, name), {})
        attribute = getattr(held, name)
        if callable(attribute):
            return fx.proxy.Attribute(self, name)
        if leaves(attribute, Tensor):  # of a named tuple
            return self.tracer.create_proxy("call_function", getattr, (self, name), {})
        return attribute

    def __len__(self) -> int:
        return len(self.tracer.tensors(self))

    def __iter__(self) -> Iterator[Any]:
        return (operator.getitem(self, i) for i in range(len(self)))

    def __setitem__(self, key: Any, value: Any) -> None:
        self.tracer.create_proxy("call_function", setitem, (self, key, value), {})

    def __bool__(self) -> bool:
        return bool(self.tracer.number(self))

    def __float__(self) -> float:
        return float(self.tracer.number(self))

    def __int__(self) -> int:
        return int(self.tracer.number(self))

    def __index__(self) -> int:
        return int(self.tracer.number(self))

    def __contains__(self, item: Any) -> bool:
        return item in self.tracer.number(self)


def _in_place(name: str) -> Callable[[Proxy, Any], Any]:
    def method(self: Proxy, other: Any) -> Any:
        return self.tracer.create_proxy("call_function", getattr(operator, name), (self, other), {})

    return method


for _name in _IN_PLACE:  # without them Python would take x += y for x = x + y
    setattr(Proxy, f"__{_name}__", _in_place(_name))


def setitem(target: Tensor, key: Any, value: Any) -> Tensor:
    """Put a value into a tensor and return the tensor."""
    target[key] = value
    return target


def name_of(target: Any, args: Any) -> str:
    """Return the name of what is called, without what marks it as in place."""
    if target is getattr:
        return str(args[1])
    if isinstance(target, str):
        return target.strip("_")
    name = str(getattr(target, "__name__", type(target).__name__)).strip("_")
    home = getattr(target, "__module__", None) or "torch"
    if home.startswith("_operator"):
        return name.removeprefix("i") if name in _IN_PLACE else name
    if target is setitem or home.partition(".")[0] in ("torch", "math"):
        return name
    if home == __name__:
        return f"{name} (autograd.Function)"
    return f"{name} (wrapped)"  # by torch.fx.wrap: a function of the user's, whatever its name


@contextmanager
def functions_recorded() -> Iterator[None]:
    """Record calls of an autograd.Function of the user's as one operation, whose gradient is its own affair."""
    original = torch.autograd.Function.__dict__["apply"]

    def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        proxies: list[Proxy] = leaves((args, kwargs), Proxy)
        if not proxies:
            return original.__get__(None, cls)(*args, **kwargs)

        def function(*args: Any, **kwargs: Any) -> Any:
            return original.__get__(None, cls)(*args, **kwargs)

        function.__name__ = cls.__name__
        return proxies[0].tracer.create_proxy("call_function", function, args, kwargs)

    setattr(torch.autograd.Function, "apply", classmethod(apply))  # noqa: B010
    try:
        yield
    finally:
        setattr(torch.autograd.Function, "apply", original)  # noqa: B010


class Preallocated(TorchFunctionMode):
    """Lets torch.zeros and torch.empty in a module's forward give what fx records: results may be written there."""

    def __init__(self, tracer: Follower) -> None:
        super().__init__()
        self.tracer = tracer

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run a function, or record it."""
        kwargs = kwargs or {}
        if func in (torch.zeros, torch.empty) and self.tracer.values and not self.tracer.working:
            return self.tracer.create_proxy("call_function", func, args, kwargs)
        return func(*args, **kwargs)


def where(error: BaseException | None = None) -> str:
    """Return the line of the user's code that a trace is at, or that an error came from."""
    frames = list(traceback.extract_stack() if error is None else traceback.extract_tb(error.__traceback__))
    own = str(Path(__file__).parent)
    starts = [i for i, frame in enumerate(frames) if frame.filename.startswith(own) and frame.name == "trace"]
    frames = frames[starts[-1] + 1 :] if starts else frames
    skipped = (own, str(Path(torch.__file__).parent), str(Path(traceback.__file__).parent / "inspect.py"))
    found = [frame for frame in frames if not frame.filename.startswith(skipped)]
    return f" at {found[-1].filename}, line {found[-1].lineno} ({found[-1].line})" if found else ""
