"""What training keeps of a network, for the statements about it: conserved quantities, a loss and its gradient."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from bnrank._core import validation
from bnrank.networks.graph.tracing import trace
from bnrank.theory.invariants import classes, conserved, finding, linear_end
from bnrank.theory.invariants.patterns import Pair
from bnrank.theory.invariants.tail import Tail
from bnrank.theory.verdicts import NotApplicable

__all__ = ["findings_and_tail", "gradient", "loss_of", "patterns"]

VALUES = 4  # at most, whose activation patterns are looked at


def findings_and_tail(net: nn.Module, x: Tensor) -> tuple[finding.Findings, Tail] | str:
    """Return what gradient flow conserves and the linear tail; where the module cannot be traced, the reason.

    Examples
    --------
    >>> found, tail = findings_and_tail(nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1)), torch.ones(1, 2))
    >>> found.names, tail.names
    (('matrix 0 | 1', 'layer 0 | 1'), ('0', '1'))
    """
    try:
        with torch.inference_mode(False):
            x, parameters = x.clone(), dict(net.named_parameters())
            graph = trace(net, x)
            parts = classes.blocks(graph, parameters)
            found = finding.of_graph(graph, net, x, verify=False, parts=parts)
            return found, Tail(*linear_end.layers(graph, parameters, parts[0]))
    except validation.RangeError:
        raise
    except (TypeError, ValueError) as error:
        return str(error).removeprefix("net: ")


def loss_of(x: Tensor, y: Tensor | None, outputs: int) -> tuple[str, Tensor, str]:
    """Return a loss, what it compares the outputs with, and its formula; mean ||f||^2 without targets.

    Examples
    --------
    >>> loss_of(torch.ones(2, 3), torch.tensor([0, 1]), 2)[2]
    'C = mean cross-entropy'
    """
    if y is None:
        formula = "C = mean ||f||^2, as no targets are given: it holds for any loss"
        return "mse", torch.zeros(len(x), outputs, dtype=torch.float64), formula
    if y.is_floating_point():
        return "mse", y, "C = mean ||f - y||^2"
    return "cross_entropy", y, "C = mean cross-entropy"


def gradient(net: nn.Module, x: Tensor, y: Tensor, loss: str) -> dict[str, Tensor]:
    """Return the gradient of a loss by the parameters' names, in float64.

    Examples
    --------
    >>> one = torch.ones(1, 1, dtype=torch.float64)
    >>> float(gradient(nn.Linear(1, 1, bias=False), one, one, "mse")["weight"]) != 0
    True
    """
    if not any(p.is_floating_point() for p in net.parameters()):
        raise NotApplicable("the network has parameters")
    return conserved.gradient(net, x, lambda outputs: conserved.cost(outputs.flatten(1), y, loss))[1]


def patterns(found: finding.Findings, net: nn.Module, x: Tensor) -> dict[str, Tensor]:
    """Return which channels have the same activation pattern, (n, n), by the findings' names; of a few of them.

    Examples
    --------
    >>> net, x = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1)), torch.ones(1, 2)
    >>> {name: tuple(same.shape) for name, same in patterns(finding.find(net, x), net, x).items()}
    {'pair 0 | 2': (3, 3)}
    """
    pairs = [q for q in found.having("pair") if isinstance(q, Pair)]
    rows = torch.linspace(0, len(pairs) - 1, min(VALUES, len(pairs))).round().long().tolist()
    try:
        return {pairs[i].name: pairs[i].pairs(net, x) for i in rows}
    except ValueError as error:
        raise NotApplicable("the activations are those of the computation graph", str(error)) from error
