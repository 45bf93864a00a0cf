"""Search for all conserved quantities of T44 to T46 of an architecture."""

import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import overload

import numpy as np
import torch
from torch import Tensor, nn

from bnrank._core import validation
from bnrank._core.content import Part, Table
from bnrank._core.results import Printed
from bnrank.networks.graph.layers import LayerGraph
from bnrank.networks.graph.tracing import Tracer, run
from bnrank.networks.reasons import Skipped
from bnrank.theory.invariants.classes import Block, blocks, numbers
from bnrank.theory.invariants.conserved import Conserved
from bnrank.theory.invariants.derivation import differences, quantities
from bnrank.theory.invariants.entries import Entries

RTOL, ROUNDING = 1e-8, 1e-13


class Findings(Printed, Sequence[Conserved]):
    """The result of :func:`find`: conserved quantities, by index or by name.

    Attributes
    ----------
    graph : LayerGraph
        The module's computation graph.
    outside : tuple of Skipped
        Parts of the module that the theory does not cover, each with its reason.
    """

    def __init__(self, items: Iterable[Conserved], graph: LayerGraph) -> None:
        self._items = tuple(items)
        self.graph = graph

    @property
    def outside(self) -> tuple[Skipped, ...]:
        """Parts of the module that the theory does not cover, each with its reason."""
        return self.graph.outside

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the quantities, in order."""
        return tuple(item.name for item in self._items)

    def having(self, kind: str) -> tuple[Conserved, ...]:
        """Return the quantities of a kind: "vertex", "pair", "matrix" or "layer"."""
        validation.choice(kind, "kind", ("vertex", "pair", "matrix", "layer"))
        return tuple(item for item in self._items if item.kind == kind)

    @overload
    def __getitem__(self, key: int | str) -> Conserved: ...
    @overload
    def __getitem__(self, key: slice) -> tuple[Conserved, ...]: ...
    def __getitem__(self, key: int | str | slice) -> Conserved | tuple[Conserved, ...]:
        """Return a quantity by its index or its name."""
        if isinstance(key, str):
            for item in self._items:
                if item.name == key:
                    return item
            raise KeyError(
                f"got {key!r}, expected one of {', '.join(map(repr, self.names)) or 'none: nothing is conserved'}"
            )
        return self._items[key]

    def __len__(self) -> int:
        return len(self._items)

    def __repr__(self) -> str:
        return f"Findings({', '.join(map(repr, self.names))})"

    def _content(self) -> list[Part]:
        rows = [
            {
                "quantity": item.name,
                "values": " x ".join(map(str, item.shape)) or "1",
                "statement": ", ".join(item.ids),
                "why": item.reason,
            }
            for item in self
        ]
        table = Table("Conserved quantities", rows)
        lines: list[Part] = [table if rows else f"nothing is conserved: {self.why_nothing}"]
        if self.outside:
            lines.append("outside the theory:")
            lines += [f"  {part.name} ({part.type}): {part.reason}" for part in self.outside]
        return lines

    @property
    def why_nothing(self) -> str:
        """The reason if there is no conserved quantity; "" otherwise."""
        if self._items:
            return ""
        learnable = [n for n in self.graph if n.weight in self.graph.trained and n.op in ("linear", "conv", "diagonal")]
        if not self.graph.trained:
            return "no parameter requires a gradient"
        if not learnable:
            return "no linear or convolutional layer is trained"
        if len(learnable) == 1:
            only = learnable[0].weight
            return f"only {only} is trained, between the input and the output there is no value to rescale"
        if self.outside:
            parts = ", ".join(dict.fromkeys(part.type for part in self.outside))
            return f"every hidden value is tied to the input, the output or something outside the theory ({parts})"
        return "every hidden value is tied to the input or the output through maps that are not trained"


def find(net: nn.Module, example: Tensor | np.ndarray, *, verify: bool = True) -> Findings:
    """Return every quantity of T44 to T46 that gradient flow conserves for an architecture, with the reason.

    Each hidden value is multiplied by g = exp(s S): the weights that write it by g, and those that read it by the
    inverse of g. If this preserves the function, in-weights minus out-weights restricted to S is constant (the scalings
    of T44, and symmetric S for T45). The operations on the value determine the allowed S: any S for learnable free
    linear maps, sums, averages and reorderings; diagonal S for activations, maxima and diagonal maps; none if something
    fixed reads or writes the value. Identity skips tie the values before and after them, and the kernel of a
    convolution ties its positions.

    For most small networks these are all quadratic conserved quantities, but not for all. Not included are quantities
    from

    - scaling or mixing of positions, as with 1 x 1 convolutions between fully connected layers;
    - mixing of channels that a layer on another axis does not act on (token mixing: the channels between the layers
      before and after it could be mixed, but are tied here);
    - mixing across a frozen matrix that is not the same for every channel, or that preserves a frozen bias;
    - mixing of parallel linear branches that are subtracted.

    Parameters
    ----------
    net : torch.nn.Module
        Any feedforward module that :func:`bnrank.graph.trace` accepts; not modified.
    example : Tensor or ndarray
        Samples, (N, ...).
    verify : bool
        Compute the rate of every vertex, matrix and layer quantity along the gradient of a random function of the
        outputs on (at most two of) the samples, in float64: one backward pass.

    Returns
    -------
    Findings
        A sequence of :class:`Conserved`, printed as a table. If nothing is conserved, it is empty and has the reason.

    Raises
    ------
    TypeError, ValueError
        If the module cannot be traced, see :func:`bnrank.graph.trace`.
    RuntimeError
        If the verification finds that a quantity is not conserved, which is a bug in bnrank.

    Examples
    --------
    >>> import torch, bnrank
    >>> from torch import nn
    >>> net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2, bias=False), nn.Linear(2, 1, bias=False))
    >>> found = find(net, torch.ones(1, 3))
    >>> [f"{q.name} {tuple(q.shape)}" for q in found]  # doctest: +NORMALIZE_WHITESPACE
    ['vertex 0 | 2 (4,)', 'pair 0 | 2 (4, 4)', 'matrix 2 | 3 (2, 2)', 'layer 0 | 2 ()', 'layer 2 | 3 ()']
    >>> w1, w2 = net[2].weight.double(), net[3].weight.double()
    >>> torch.allclose(found["matrix 2 | 3"].value(net), w1 @ w1.T - w2.T @ w2)
    True
    """
    return with_blocks(net, example, verify=verify)[0]


def with_blocks(
    net: nn.Module, example: Tensor | np.ndarray, *, verify: bool = True
) -> tuple[Findings, list[Block], Entries]:
    """Return the result of :func:`find`, and the blocks and entries it is derived from."""
    with torch.inference_mode(False):
        graph, tracer = run(net, example)
        found, entries = blocks(graph)
        items = [q for block in found for q in quantities(block, entries)]
        for block in numbers(entries) if entries.kept else ():
            items += quantities(block, entries, number=True)
        items += differences(entries, found)
        if validation.flag(verify, "verify"):
            _verify([item for item in items if item.kind != "pair"], tracer)
        repeated = {name: itertools.count(1) for name, n in Counter(q.name for q in items).items() if n > 1}
        items = [replace(q, name=f"{q.name} ({next(repeated[q.name])})") if q.name in repeated else q for q in items]
        return Findings(items, graph), found, entries


def _verify(items: list[Conserved], tracer: Tracer) -> None:
    """Check that the rate of every quantity is 0 along the gradient of a random function of the traced outputs."""
    outputs, generator = tracer.output.tensor, torch.Generator().manual_seed(0)
    weights = {name: p for name, p in tracer.weights.items() if p.requires_grad}
    if not items or not outputs.requires_grad:
        return
    cost = (outputs * torch.randn(outputs.shape, generator=generator, dtype=torch.float64)).sum()
    gradient = torch.autograd.grad(cost, list(weights.values()), materialize_grads=True)
    if not all(bool(g.isfinite().all()) for g in gradient):
        advice = "so what is found cannot be verified; pass other samples, or verify=False"
        raise ValueError(f"example: the gradient there is not finite, {advice}")
    flow = dict(zip(weights, gradient, strict=True))
    for item in items:
        rate, size = item.rate_along(weights, flow)
        bound = size + torch.finfo(torch.float64).tiny
        if not bool((rate.abs() <= RTOL * bound + ROUNDING * bound.max()).all()):
            raise RuntimeError(
                f"{item.name}: its rate along a gradient is {(rate.abs() / bound).max():.1e} of its scale, expected 0. "
                "This is an error in bnrank: please report it with the module; verify=False skips this check"
            )
