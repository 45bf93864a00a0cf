"""Forward hooks that look on and change nothing."""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

_NOTHING = contextlib.nullcontext.__exit__  # of the standard library: takes any arguments and does nothing


@dataclass(frozen=True, eq=False)
class Onlooker:
    """A hook that calls a function and returns nothing; copies of its module, in memory and in files, call nothing.

    It also calls nothing where its module is compiled, exported or traced, so that nothing of it is in the result.

    Parameters
    ----------
    see : callable
        Takes the arguments of the hook.

    Examples
    --------
    >>> net = torch.nn.Linear(2, 3)
    >>> handle = net.register_forward_hook(Onlooker(lambda module, args, output: print(tuple(output.shape))))
    >>> _ = net(torch.ones(4, 2))
    (4, 3)
    """

    see: Callable[..., None]

    def __call__(self, *call: Any) -> None:
        if not (torch.compiler.is_compiling() or torch.jit.is_tracing()):
            self.see(*call)

    def __deepcopy__(self, memo: Any) -> Callable[..., None]:
        return contextlib.nullcontext().__exit__

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (contextlib.nullcontext(), "__exit__")


def only_looks_on(hook: object) -> bool:
    """Return whether a hook is an onlooker, or what a copy of a module has in its place.

    Examples
    --------
    >>> import copy
    >>> hook = Onlooker(print)
    >>> only_looks_on(hook), only_looks_on(copy.deepcopy(hook)), only_looks_on(print)
    (True, True, False)
    """
    return isinstance(hook, Onlooker) or getattr(hook, "__func__", None) is _NOTHING
