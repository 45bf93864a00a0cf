"""Pairs of neurons: conserved if both are active on the same samples; otherwise they change at the rate of T47."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from bnrank._core import validation
from bnrank._core.sampling import evenly_spaced
from bnrank.measures.derivatives import differentiating
from bnrank.networks.functional import Functional, example
from bnrank.networks.graph import operations
from bnrank.networks.graph.layers import LayerGraph
from bnrank.theory.invariants.conserved import Array, Conserved, Loss, cost

MAX_PAIRS = 4


@dataclass(frozen=True, kw_only=True)
class Pair(Conserved):
    """A conserved quantity of kind "pair", and the activation patterns for which it is conserved.

    Channel u of the value passes through one or more activations, at one or more positions (of a convolution). The
    pattern of u consists of the derivatives of the activation at its preactivations, over samples, activations and
    positions: 1 if a preactivation is positive, otherwise the slope; at 0 it is the derivative that autograd uses.

    Attributes
    ----------
    nodes : tuple of str
        The activations.
    node_of, entry_of : ndarray
        (n, places), index of the activation, and index of the entry in its value.
    graph : LayerGraph
        The module's graph.
    """

    nodes: tuple[str, ...] = field(repr=False)
    node_of: Array = field(repr=False, compare=False)
    entry_of: Array = field(repr=False, compare=False)
    graph: LayerGraph = field(repr=False, compare=False)

    def slopes(self, net: nn.Module, x: Tensor) -> Tensor:
        """Return the activation patterns: the derivatives of the activations, (N, n, places), float64.

        1 where a preactivation is positive, the slope where it is negative. At 0 it is the derivative that autograd
        uses: the slope for ReLU, LeakyReLU and PReLU, 1 for ``clamp(min=0)``, 0 for ``abs``.
        """
        return self._gathered(self._values(net, x), 1)

    def pairs(self, net: nn.Module, x: Tensor) -> Tensor:
        """Return which pairs u, v have the same pattern on every sample, (n, n), bool, False on the diagonal.

        For these pairs, the entry (u, v) is conserved as long as the patterns agree. See :meth:`slopes` for patterns.
        """
        patterns = self.slopes(net, x).transpose(0, 1).flatten(1)
        label = torch.from_numpy(np.unique(patterns.cpu().numpy(), axis=0, return_inverse=True)[1].reshape(-1))
        parts = torch.from_numpy(self.parts)
        same = (label[:, None] == label) & (parts[:, None] == parts)
        return same.fill_diagonal_(False)

    def closed_form_rate(self, net: nn.Module, x: Tensor, y: Tensor, loss: Loss = "mse") -> Tensor:
        """Return dQ/dt by T47, (n, n), in float64: sum_i (D_ui - D_vi)(g_vi p_ui - g_ui p_vi).

        The sum is over samples, activations and places; p are preactivations, g = dC/d(activation), D the derivatives
        of :meth:`slopes`. Arguments as for :meth:`rate`.
        """
        values = self._values(net, x, y, loss)
        p, d, g = (self._gathered(values, i).transpose(0, 1).flatten(1) for i in range(3))
        a, b = (d * p) @ g.T, (d * g) @ p.T
        rate = a + a.T - b - b.T
        parts = torch.from_numpy(self.parts).to(rate.device)
        return rate.where(parts[:, None] == parts, 0).fill_diagonal_(0)

    def rate_rank(self, net: nn.Module, x: Tensor) -> int:
        """Return an upper bound on the rank of dQ/dt by T47: at most 4 per sample of a fully connected layer.

        For one sample, T47 is h g^T + g h^T - e p^T - p e^T with h = D p and e = D g, of rank at most 4; and it is 0
        for two channels with the same derivative D, so that its rank is at most 2 m if all but m channels share one.
        The bound is the sum of min(4, 2 m) over samples, activations and places (and groups), at most n. A step
        of gradient descent on one sample changes in - out, diagonal included, by a matrix of rank at most 4 as well:
        the gradients are e a^T and G h^T, so that eta^2 Q(g) of T49 adds multiples of e e^T and h h^T only.

        Parameters
        ----------
        net, x
            As for :meth:`rate`.

        Returns
        -------
        int
            The bound.

        Notes
        -----
        Source: LeJegelka2022, remark 1, for any number of samples.
        """
        slopes = self.slopes(net, x).permute(0, 2, 1).flatten(0, 1).cpu().numpy()  # (N places, n)
        total = 0
        for part in np.unique(self.parts):
            among, rank = self.parts == part, 0
            for row in slopes[:, among]:
                alike = int(np.unique(row, return_counts=True)[1].max())  # the largest number that share a derivative
                rank += min(4, 2 * (len(row) - alike))
                if rank >= len(row):
                    break
            total += min(rank, int(among.sum()))
        return total

    def _gathered(self, values: Mapping[str, Sequence[Tensor]], i: int) -> Tensor:
        """Return the i-th values at the entries of every channel, (N, n, places)."""
        starts = np.cumsum([0, *(self.graph[name].size for name in self.nodes[:-1])])
        index = torch.from_numpy(starts[self.node_of] + self.entry_of)
        table = torch.cat([values[name][i].flatten(1) for name in self.nodes], dim=1)
        return table[:, index.to(table.device)]

    def _values(
        self, net: nn.Module, x: Tensor, y: Tensor | None = None, loss: Loss = "mse"
    ) -> dict[str, tuple[Tensor, ...]]:
        """Return preactivations, the slopes there and, with targets, dC/d(activation), (N, *shape) each, by node."""
        self._checked(net)
        x = example(net, x)
        watch = _Watch()
        with torch.inference_mode(False), torch.enable_grad():
            function = Functional(net)
            leaves = [p.requires_grad_() for p in function.parameters.values() if p.is_floating_point()]
            if x.is_floating_point():
                x = x.to(torch.float64, copy=True).requires_grad_()
                leaves.append(x)
            with watch:
                outputs = function(x)
            value = outputs.sum() if y is None else cost(outputs, y, loss)
            with differentiating(net):
                torch.autograd.grad(value, leaves, allow_unused=True)
        reached = [i for i, call in enumerate(watch.calls) if len(call) == 3]
        nodes = [node for node in self.graph if node.op == "activation"]
        expected = (
            f"{len(nodes)}, those of the graph that the quantity was found with; find the invariants of this module"
        )
        validation.expect(len(reached) == len(nodes), "net", f"{len(reached)} activations when run", expected)
        found = {}
        for node, i in zip(nodes, reached, strict=True):
            if node.name in self.nodes:
                held = tuple(watch.calls[i][0].shape)
                where = [d for d in range(len(held)) if (held[d], held[:d] + held[d + 1 :]) == (len(x), node.shape)]
                if len(where) > 1:  # as many samples as positions: one more sample tells them apart
                    more = _Watch()
                    with more, torch.no_grad():
                        function(torch.cat([x.detach(), x[:1].detach()]))
                    where = [d for d in where if more.calls[i][0].shape[d] == len(x) + 1]
                got = f"activation {node.name} on shape {held}, without a value for each of {len(x)} samples"
                validation.expect(where, "net", got, "activations that every sample passes")
                found[node.name] = tuple(v.movedim(where[0], 0) for v in watch.calls[i])
        return found


def same_patterns(quantities: Iterable[Conserved], net: nn.Module, x: Tensor) -> dict[str, Tensor]:
    """Return :meth:`Pair.pairs`, (n, n), by name, of up to four evenly spaced pairs among the quantities."""
    found = [q for q in quantities if isinstance(q, Pair)]
    return {found[i].name: found[i].pairs(net, x) for i in evenly_spaced(len(found), MAX_PAIRS).tolist()}


class _Watch(TorchFunctionMode):
    """Records the input of every activation, its derivative, and the gradient at its output once it is computed."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[list[Tensor]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run a function."""
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if not operations.is_activation(name):
            return func(*args, **kwargs)
        others = {key: value for key, value in kwargs.items() if key != "input"}
        if "prelu" not in name and math.isnan(operations.homogeneous_slope(lambda a: func(a, *args[1:], **others))):
            return func(*args, **kwargs)
        taken = (args[0] if args else kwargs["input"]).detach().clone()  # it may work in place
        result = func(*args, **kwargs)
        call = [taken, _derivative(func, taken, args, kwargs)]
        self.calls.append(call)
        if result.requires_grad:
            result.register_hook(lambda gradient: call.append(gradient.detach()))
        return result


def _derivative(func: Any, at: Tensor, args: Any, kwargs: Any) -> Tensor:
    """Return the derivative of an elementwise function as computed by autograd, kinks included."""
    others = [a.detach() if isinstance(a, Tensor) else a for a in args[1:]]
    named = {k: v.detach() if isinstance(v, Tensor) else v for k, v in kwargs.items() if k != "input"}
    with torch.enable_grad():
        leaf = at.requires_grad_()
        (slope,) = torch.autograd.grad(func(leaf.clone(), *others, **named).sum(), leaf)  # it may work in place
    at.requires_grad_(False)
    return slope + 0.0  # one zero
