"""Whether a module draws random numbers that change what it computes, found by running it again with others."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from bnrank.networks.graph.values import function_name

__all__ = ["drawn", "generators", "steps"]

DRAWS = 32


@contextmanager
def generators(seed: int | None = None) -> Iterator[None]:
    """Put the random generators of torch, NumPy and Python back afterwards; within, start them at a seed if given."""
    numpy, python = np.random.get_state(), random.getstate()  # noqa: NPY002  (what forward may draw from)
    try:
        with torch.random.fork_rng([]):
            if seed is not None:
                torch.manual_seed(seed)
                np.random.seed(seed)  # noqa: NPY002
                random.seed(seed)
            yield
    finally:
        np.random.set_state(numpy)  # noqa: NPY002
        random.setstate(python)


def drawn(run: Callable[[], Any]) -> tuple[Any, bool]:
    """Return what a function returns, and whether it drew random numbers; the generators are put back."""
    with generators():
        before = _state()
        result = run()
        return result, _state() != before


def steps(net: nn.Module, x: Tensor) -> str:
    """Return "" if a module carries out the same operations under every seed, else the first one that differs.

    It is run 32 times, as it is: a copy. What happens less often than that may not be seen.
    """
    first: list[str] | None = None
    for seed in range(DRAWS):
        with generators(seed), torch.no_grad(), _Names() as names:
            net(x.clone())
        if first is None:
            first = names.found
            _, again = drawn(lambda: net(x.clone()))
            if not again:
                return ""
        if names.found != first:
            pairs = zip([*first, "the end"], [*names.found, "the end"], strict=False)
            return next(f"{a} or {b}" for a, b in pairs if a != b)
    return ""


def _state() -> tuple[bytes, Any, Any]:
    numpy = np.random.get_state(legacy=False)  # noqa: NPY002
    key = (numpy["state"]["key"].tobytes(), numpy["state"]["pos"])
    return torch.get_rng_state().numpy().tobytes(), key, random.getstate()


class _Names(TorchFunctionMode):
    """Takes down the names of the functions that are called, and the shapes that they give."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run a function."""
        result = func(*args, **(kwargs or {}))
        shape = "x".join(map(str, result.shape)) if isinstance(result, Tensor) else ""
        self.found.append(f"{function_name(func)} {shape}".strip())
        return result
