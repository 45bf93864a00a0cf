"""The work of backward passes through a module, counted rather than timed: the same on every machine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from bnrank.measures.products import Products
from bnrank.networks.functional import Functional

PER_ENTRY = 8.0  # a number that an operation writes, in the time of an arithmetic operation of a matrix product
PER_NODE = 1e4  # a node of the graph of automatic differentiation in a pass of its own: some 5 microseconds


@dataclass(frozen=True)
class PassWork:
    """The work of one output's backward pass at one sample, in the arithmetic operations of a matrix product.

    Attributes
    ----------
    together : float
        Where the passes of many outputs and samples run as one.
    alone : float
        Where each pass runs by itself, as for a module with operations that torch cannot batch.
    """

    together: float
    alone: float


def pass_work(net: nn.Module, x: Tensor, dtype: torch.dtype = torch.float64) -> PassWork:
    """Return the work of a backward pass, from the operations of a forward in ``dtype`` at the first sample.

    Examples
    --------
    >>> pass_work(nn.Linear(100, 50), torch.ones(1, 100)).together      # 2 * 50 * 100 + 8 * (100 + 50), with x
    11200.0
    """
    function = Functional(net, dtype)
    for parameter in function.parameters.values():
        parameter.requires_grad_(parameter.is_floating_point())
    with torch.enable_grad(), _Counter() as counter:
        out = function(x[:1])
    together = counter.arithmetic + PER_ENTRY * counter.entries
    return PassWork(together, together + PER_NODE * _nodes(out))


def runs_together(net: nn.Module, x: Tensor, dtype: torch.dtype = torch.float64) -> bool:
    """Return whether the backward passes of many outputs and samples run as one in torch, in ``dtype``.

    Examples
    --------
    >>> x = torch.ones(1, 4, 2)
    >>> runs_together(nn.Linear(2, 3), x), runs_together(nn.LSTM(2, 3, batch_first=True), x)
    (True, False)
    """
    return Products(Functional(net, dtype), x[:1], None).is_vectorized()


class _Counter(TorchDispatchMode):
    """Counts the entries that operations write, and the arithmetic of matrix products and convolutions."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # its base class in torch has no types
        self.entries, self.arithmetic = 0.0, 0.0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation and count it; views write nothing."""
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        if not func.is_view:
            self.entries += sum(value.numel() for value in tree_leaves(out) if isinstance(value, Tensor))
            formula = flop_registry.get(func.overloadpacket)
            self.arithmetic += 0 if formula is None else formula(*args, **kwargs, out_val=out)
        return out


def _nodes(out: Tensor) -> int:
    """Return the number of nodes in the graph of automatic differentiation behind a tensor."""
    seen: set[Any] = set()
    ahead = [out.grad_fn]
    while ahead:
        node = ahead.pop()
        if node is not None and node not in seen:
            seen.add(node)
            ahead += [after for after, _ in node.next_functions]
    return len(seen)
