"""Random numbers of torch from generators of their own."""

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


class OwnDraws(TorchDispatchMode):
    """A context in which torch's random functions, called in this thread, draw from generators with a fixed seed.

    The global generators are neither read nor changed. Functions that are given a generator use it.

    Attributes
    ----------
    count : int
        Number of draws so far.

    Examples
    --------
    >>> before = torch.get_rng_state()
    >>> with OwnDraws():
    ...     a = torch.nn.functional.dropout(torch.ones(5), 0.5)
    >>> with OwnDraws() as draws:
    ...     b = torch.nn.functional.dropout(torch.ones(5), 0.5)
    >>> torch.equal(a, b), draws.count, torch.equal(before, torch.get_rng_state())
    (True, 1, True)
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0
        self._generators: dict[torch.device, torch.Generator] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation, with a generator if it draws."""
        kwargs = dict(kwargs or {})
        drawing = _with_generator(func) if torch.Tag.nondeterministic_seeded in func.tags else None
        if drawing is None or kwargs.get("generator") is not None:
            return func(*args, **kwargs)
        self.count += 1
        tensor = next((a for a in args if isinstance(a, Tensor)), None)
        device = torch.device(kwargs.get("device") or "cpu") if tensor is None else tensor.device
        if device not in self._generators:
            self._generators[device] = torch.Generator(device).manual_seed(0)
        return drawing(*args, **kwargs | {"generator": self._generators[device]})


def _with_generator(func: Any) -> Any:
    """Return the overload of an operation with the same arguments and a generator, or None."""
    names = [argument.name for argument in func._schema.arguments if argument.name != "generator"]
    for overload in (func, *(getattr(func.overloadpacket, name) for name in func.overloadpacket.overloads())):
        others = [argument.name for argument in overload._schema.arguments]
        if "generator" in others and [name for name in others if name != "generator"] == names:
            return overload
    return None
