"""A conserved quantity: a quadratic form in the parameters."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bnrank._core import validation
from bnrank.measures.derivatives import differentiating
from bnrank.networks.functional import Functional, check_real, example, unwrap
from bnrank.tasks.losses import LOSSES

Array = np.ndarray[Any, Any]
Tensors = Mapping[str, Tensor]  # parameters, or gradients in them, by name
Loss = str | Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Piece:
    """Channels of one side of a parameter.

    Attributes
    ----------
    parameter, axis, groups
        Name of the parameter; 0 for its rows, 1 for its columns, -1 for single entries; the groups of a convolution.
    shape : tuple of int
        Shape of the parameter.
    members, channels : ndarray
        Indices among the n channels of the quantity, (k,), and the channels of the parameter there, (k, m).
    """

    parameter: str
    axis: int
    groups: int
    shape: tuple[int, ...]
    members: Array = field(repr=False, compare=False)
    channels: Array = field(repr=False, compare=False)

    def rows(self, parameters: Tensors) -> Tensor:
        """Return the weights of every member, (k, m * length)."""
        tensor = parameters.get(self.parameter)
        came = f"no {self.parameter}" if tensor is None else f"{self.parameter} of shape {tuple(tensor.shape)}"
        expected = f"{self.shape}, that of the module for which the quantity was found"
        validation.expect(tensor is not None and tensor.shape == self.shape, "parameters", came, expected)
        weight = parameters[self.parameter].detach().double()
        if self.axis == 0:
            matrix = weight.flatten(1)
        elif self.axis == 1:
            grouped = weight.reshape(self.groups, weight.shape[0] // self.groups, weight.shape[1], -1)
            matrix = grouped.transpose(1, 2).reshape(self.groups * weight.shape[1], -1)
        else:
            matrix = weight.reshape(-1, 1)
        if self.channels.shape == (len(matrix), 1) and (self.channels[:, 0] == np.arange(len(matrix))).all():
            return matrix
        return matrix[torch.from_numpy(self.channels).to(matrix.device)].flatten(1)


@dataclass(frozen=True)
class Term:
    """+1 for weights that write the channels, -1 for weights that read them; the pieces together cover all n."""

    sign: int
    pieces: tuple[Piece, ...]

    def rows(self, parameters: Tensors) -> Tensor:
        """Return the weights at every one of the n channels, (n, length)."""
        rows = [piece.rows(parameters) for piece in self.pieces]
        if len(rows) == 1:
            return rows[0]
        order = torch.from_numpy(np.argsort(np.concatenate([piece.members for piece in self.pieces])))
        return torch.cat([part.to(rows[0].device) for part in rows])[order.to(rows[0].device)]


def layers_of(terms: Iterable[Term]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names of the parameters that enter with +, and with -."""
    plus, minus = (
        tuple(dict.fromkeys(piece.parameter for term in terms if term.sign == sign for piece in term.pieces))
        for sign in (1, -1)
    )
    return plus, minus


@dataclass(frozen=True)
class Conserved:
    """A quantity that gradient flow conserves (LeJegelka2022; T44-T46): in-weights minus out-weights of channels.

    If theta(t) follows d theta/dt = -grad C, where C is any differentiable function of the outputs on any data, then
    Q(theta(t)) is constant. The reason is that theta -> exp(s M) theta does not change the outputs, and
    Q(theta) = <theta, M theta> with M symmetric.

    Attributes
    ----------
    name : str
        Name, unique among the quantities that :func:`bnrank.invariants.find` returns for a module, e.g.
        "vertex layers.0 | layers.1".
    kind : str
        "vertex": (n,), the sum of squares of the weights that write channel u minus that of the weights that read it.
        "pair": (n, n) with a zero diagonal, products of the weights of channels u and v instead of squares, conserved
        if both are active on the same samples. "matrix": (n, n), W1 W1^T - W2^T W2, with the vertex quantity on its
        diagonal; entries between groups of a grouped convolution are 0 by definition. "layer": (), the difference of
        the sums of squares of two cuts.
    ids : tuple of str
        The statements it belongs to: "T44", a case of T45 such as "T45 (1)", "T45, beyond the source", "T44-T45,
        identity stream", "T44-T45, sums" for several writers or readers that do not form a residual block, "T44-T45"
        for the rest; "no gradient" if nothing reads or nothing writes the value, so that its weights do not move.
    reason : str
        Why it is conserved, and why no larger quantity is.
    assumption : str
        Condition for conservation.
    biases : str
        How biases enter.
    size : int
        n; for a "layer", the number of channels between the cuts.
    layers : tuple of two tuples of str
        Names of the parameters that enter with +, and with -.
    terms : tuple of Term
        The weights that enter, with + and -.
    parts : ndarray
        (n,), equal for channels that may be mixed; entries of pairs and matrices between different parts are 0.
    cuts : tuple of two tuples of str
        For a "layer", the parameters of the two cuts whose sums of squares differ by a constant. A parameter is listed
        even if only some of its entries are in the cut, as after a concatenation.
    every : mapping of str to tuple of int
        Names and shapes of all parameters of the module it was found for; other modules raise a ValueError.
    """

    name: str
    kind: str
    ids: tuple[str, ...]
    reason: str
    assumption: str
    biases: str
    size: int = field(init=False)
    layers: tuple[tuple[str, ...], tuple[str, ...]] = field(init=False)
    terms: tuple[Term, ...] = field(repr=False)
    parts: Array = field(repr=False, compare=False)
    cuts: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
    every: Mapping[str, tuple[int, ...]] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Note the number of channels and the names of the parameters."""
        object.__setattr__(self, "size", len(self.parts))
        object.__setattr__(self, "layers", layers_of(self.terms))

    @property
    def parameters(self) -> tuple[str, ...]:
        """Names of the parameters it depends on."""
        return tuple(dict.fromkeys((*self.layers[0], *self.layers[1])))

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of its value."""
        return {"vertex": (self.size,), "layer": ()}.get(self.kind, (self.size, self.size))

    def value(self, net: nn.Module) -> Tensor:
        """Return the quantity at the module's parameters, in float64.

        The module is the one it was found for, or one with parameters of the same names and shapes; otherwise a
        ValueError names the difference.
        """
        return self.of(self._checked(net))

    def _checked(self, net: nn.Module) -> dict[str, Tensor]:
        """Return a module's parameters, if they match those of the module that the quantity was found for."""
        named: dict[str, Tensor] = dict(unwrap(net).named_parameters())
        for name in dict.fromkeys([*self.every, *named] if self.every else []):
            came = str(tuple(named[name].shape)) if name in named else "no such parameter"
            expected = str(self.every.get(name, "no such parameter"))
            said = f"{expected}, as for {self.name!r} when it was found"
            validation.expect(came == expected, "net", f"{name}: {came}", said)
        return named

    def of(self, parameters: Tensors) -> Tensor:
        """Return the quantity at named tensors, any floating-point type and device, in float64."""
        return self.between(parameters, parameters)

    def between(self, a: Tensors, b: Tensors) -> Tensor:
        """Return B(a, b), the symmetric bilinear form with B(a, a) = Q(a)."""
        if self.kind in ("vertex", "layer"):
            return self._sum(a, b)
        total = self._sum(a, b, products=True)
        if a is not b:
            total = (total + total.T) / 2
        parts = torch.from_numpy(self.parts).to(total.device)
        total = total.where(parts[:, None] == parts, 0)
        return total - torch.diag(total.diagonal()) if self.kind == "pair" else total

    def scale(self, parameters: Tensors) -> Tensor:
        """Return the scale of changes: in-weights plus out-weights, sqrt(s_u s_v) for a pair u, v."""
        sums = self._sum(parameters, parameters, signed=False)
        return sums if self.kind in ("vertex", "layer") else torch.outer(sums.sqrt(), sums.sqrt())

    def rate(self, net: nn.Module, x: Tensor, y: Tensor, loss: Loss = "mse") -> Tensor:
        """Return dQ/dt along the gradient flow of a loss, -2 B(theta, grad C), by autograd in float64.

        Parameters
        ----------
        net : torch.nn.Module
            The module the quantity was found for; it is not modified, and run in eval mode.
        x, y : Tensor
            Samples and targets.
        loss : "mse", "cross_entropy", "logistic" or callable
            "mse": mean over samples of the squared error summed over outputs. "cross_entropy": mean of -log softmax at
            the class indices y. "logistic": mean of log(1 + exp(-y f)), y = -1 or 1. A callable takes (outputs, y) and
            returns a scalar.

        Returns
        -------
        Tensor
            Same shape as the value: 0 up to rounding, or the rate of T47 for a pair with different activation patterns.
        """
        self._checked(net)
        weights, flow = gradient(net, example(net, x), lambda outputs: cost(outputs, y, loss))
        return self.rate_along(weights, flow)[0]

    def rate_along(self, parameters: Tensors, gradient: Tensors) -> tuple[Tensor, Tensor]:
        """Return -2 B(theta, g), dQ/dt for g = grad C, and the size of the terms that cancel in it.

        The size is the sum of the absolute values of the products; for a pair or matrix, an upper bound on it.
        """
        rate = -2 * self.between(parameters, gradient)
        if self.kind in ("vertex", "layer"):
            products = {name: (parameters[name] * gradient[name]).abs().sqrt() for name in self.parameters}
            return rate, 2 * self.scale(products)
        weights, slopes = (self.scale(named).diagonal().sqrt() for named in (parameters, gradient))
        outer = torch.outer(weights, slopes)
        return rate, outer + outer.T

    def _sum(self, a: Tensors, b: Tensors, *, signed: bool = True, products: bool = False) -> Tensor:
        """Return the sum over the terms of the products of every channel with itself, or with every channel."""
        total = torch.zeros((), dtype=torch.float64)
        for term in self.terms:
            u = term.rows(a)
            v = u if a is b else term.rows(b)
            part = (term.sign if signed else 1) * (u @ v.T if products else (u * v).sum(1))
            part = part.sum() if self.kind == "layer" else part  # of several values, each with its channels
            total = total.to(part.device) + part
        return total


def gradient(net: nn.Module, x: Tensor, function: Callable[[Tensor], Tensor]) -> tuple[Tensors, dict[str, Tensor]]:
    """Return the parameters in float64 and the gradient of a function of the outputs at them, by name."""
    check_real(net)
    with torch.inference_mode(False), torch.enable_grad():
        network = Functional(net)
        weights = {name: p.requires_grad_() for name, p in network.parameters.items() if p.is_floating_point()}
        outputs = network(x)
        value = function(outputs)
        gradients: Sequence[Tensor | None] = [None] * len(weights)  # where the outputs do not depend on the parameters
        if outputs.requires_grad:
            expected = "one that depends on the outputs by differentiable operations"
            validation.expect(value.requires_grad, "loss", "a value without a gradient", expected)
            with differentiating(net):
                gradients = torch.autograd.grad(value, list(weights.values()), allow_unused=True)
    found = {n: torch.zeros_like(p) if g is None else g for (n, p), g in zip(weights.items(), gradients, strict=True)}
    return {name: p.detach() for name, p in weights.items()}, found


def cost(outputs: Tensor, y: Tensor, loss: Loss) -> Tensor:
    """Return a loss of outputs (N, ...), as :meth:`Conserved.rate` describes it."""
    if callable(loss):
        value = loss(outputs, y)
        if not isinstance(value, Tensor) or value.numel() != 1:
            raise ValueError(f"loss: returned {validation.describe(value)}, expected a tensor with one number")
        return value.reshape(())
    validation.choice(loss, "loss", tuple(LOSSES))
    validation.expect(isinstance(y, Tensor), "y", validation.describe(y), "a tensor", TypeError)
    y = y.to(outputs.device)
    if loss == "cross_entropy":
        classes = outputs.shape[1] if outputs.ndim > 1 else 0
        shape = (len(outputs), *outputs.shape[2:])
        whole = not (y.is_floating_point() or y.is_complex() or y.dtype == torch.bool)
        fits = whole and tuple(y.shape) == shape and bool(((y >= 0) & (y < classes)).all())
        expected = f"class indices from 0 to {classes - 1} of shape {shape} for the loss 'cross_entropy'"
        validation.expect(fits, "y", y, expected)
        return LOSSES[loss](outputs, y.long())
    y = y.to(outputs.dtype)
    y = y.reshape(outputs.shape) if y.numel() == outputs.numel() else y
    expected = f"that of the outputs, {tuple(outputs.shape)}"
    validation.expect(y.shape == outputs.shape, "y", f"shape {tuple(y.shape)}", expected)
    if loss == "logistic" and not bool((y.abs() == 1).all()):
        raise ValueError("y: got other numbers than -1 and 1, which the loss 'logistic' expects")
    return LOSSES[loss](outputs, y)


def loss_of(x: Tensor, y: Tensor | None, outputs: int) -> tuple[str, Tensor, str]:
    """Return the loss that fits the targets, the targets, and its formula; mean ||f||^2 without targets.

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
