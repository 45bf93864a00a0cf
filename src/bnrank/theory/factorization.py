"""Writing a network as f = h o g through a subspace of one of its representations."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from bnrank.networks.chain import as_mlp
from bnrank.networks.functional import Functional, unwrap
from bnrank.networks.mlp import MLP, from_layers, leaky_relu

__all__ = ["Basis", "Cut", "cuts"]

Pair = tuple[nn.Module, nn.Module]


@dataclass(frozen=True)
class Basis:
    """An affine subspace of a representation, its points mu + Q z.

    Attributes
    ----------
    directions : Tensor or None
        Q, (n, k), orthonormal columns; None for the whole space.
    origin : Tensor
        mu, (n,).
    """

    directions: Tensor | None
    origin: Tensor

    def project(self, values: Tensor) -> Tensor:
        """Return the nearest points of the subspace, (N, n), to the rows of values."""
        if self.directions is None:
            return values
        return self.origin + (values - self.origin) @ self.directions @ self.directions.T


@dataclass(frozen=True)
class Cut:
    """A place where a network can be cut in two, with what passes there on the data.

    Attributes
    ----------
    layer : int
        Number of layers before the cut; 0 is the input.
    place : str
        "input", "preactivation", "activation" or "output".
    values : Tensor
        The representation of the samples, (N, n), float64.
    affine : bool
        Whether subspaces may have an origin other than 0.
    rest : callable
        From the representation to f, (N, n) -> (N, d_out).
    split : callable
        From a basis to the networks h and g in float64, h(g(x)) = rest(projection of the representation on it).
    everywhere : Basis
        A subspace that holds the representation of every input, to the precision of the parameters.
    """

    layer: int
    place: str
    values: Tensor
    affine: bool
    rest: Callable[[Tensor], Tensor]
    split: Callable[[Basis], Pair]
    everywhere: Basis

    @cached_property
    def _decomposition(self) -> tuple[Tensor, Tensor, Tensor]:
        """Origin, singular values and directions of the values."""
        origin = self.values.mean(0) if self.affine else torch.zeros_like(self.values[0])
        centered = self.values - origin
        if len(centered) > centered.shape[1]:
            centered = torch.linalg.qr(centered, mode="r")[1]
        _, values, directions = torch.linalg.svd(centered, full_matrices=False)
        return origin, values, directions.T

    @property
    def spread(self) -> Tensor:
        """Singular values of the representation (centered where it may be), descending."""
        return self._decomposition[1]

    def principal(self, k: int) -> Basis:
        """Return the subspace of dimension k nearest to the representation of the samples."""
        origin, _, directions = self._decomposition
        return Basis(directions[:, :k], origin)


def cuts(net: nn.Module, x: Tensor) -> list[Cut]:
    """Return the places where a network can be cut, in order.

    Parameters
    ----------
    net : torch.nn.Module
        A chain of linear layers is cut before and after every activation; a Sequential between its parts; any other
        module at its input and its output.
    x : Tensor
        Samples, (N, ...).

    Returns
    -------
    list of Cut
        At least the input and the output.

    Examples
    --------
    >>> import torch, bnrank
    >>> [(cut.layer, cut.place) for cut in cuts(bnrank.MLP([3, 5, 2]), torch.ones(4, 3))]
    [(0, 'input'), (1, 'preactivation'), (1, 'activation'), (2, 'output')]
    """
    net = unwrap(net)
    try:
        chain = as_mlp(net)
    except TypeError:
        return list(_module_cuts(net, x))
    eps = torch.finfo(next(net.parameters()).dtype).eps
    return list(_chain_cuts(chain, x.flatten(1).to(chain.weights[0].device, torch.float64), eps))


def numerical_rank(values: Tensor, shape: Sequence[int], eps: float) -> int:
    """Count the singular values, descending, that are not rounding: above max(shape) eps times the largest."""
    return int((values > max(shape) * eps * values[0]).sum())


def _chain_cuts(net: MLP, x: Tensor, eps: float) -> Iterator[Cut]:
    weights = [w.detach() for w in net.weights]
    biases = [b.detach() for b in net.biases]
    slope, depth = net.slope, net.depth

    def rest_from(layer: int, activate: bool) -> Callable[[Tensor], Tensor]:
        def rest(a: Tensor) -> Tensor:
            a = leaky_relu(a, slope) if activate else a
            for i in range(layer, depth):
                a = a @ weights[i].T + (biases[i] if biases else 0.0)
                a = leaky_relu(a, slope) if i < depth - 1 else a
            return a

        return rest

    def split_after(layer: int) -> Callable[[Basis], Pair]:
        """Cut at a_layer: g ends with z = Q^T (a - mu), h begins with W (mu + Q z) + b."""

        def split(basis: Basis) -> Pair:
            q = _directions(basis)
            inner, first = q.T, weights[layer] @ q
            before = [*biases[:layer], -inner @ basis.origin] if biases else []
            after = [biases[layer] + weights[layer] @ basis.origin, *biases[layer + 1 :]] if biases else []
            g = from_layers([*weights[:layer], inner], before, slope)
            return from_layers([first, *weights[layer + 1 :]], after, slope), g

        return split

    def split_at(layer: int) -> Callable[[Basis], Pair]:
        """Cut at a~_layer: g ends with z = Q^T (W a + b - mu), h begins with mu + Q z."""

        def split(basis: Basis) -> Pair:
            q = _directions(basis)
            last = q.T @ weights[layer - 1]
            before = [*biases[: layer - 1], q.T @ (biases[layer - 1] - basis.origin)] if biases else []
            after = [basis.origin, *biases[layer:]] if biases else []
            return from_layers([q, *weights[layer:]], after, slope), from_layers(
                [*weights[: layer - 1], last], before, slope
            )

        return split

    a = x
    for layer in range(depth):
        place = "activation" if layer else "input"
        zero = torch.zeros_like(a[0])
        yield Cut(layer, place, a, net.bias, rest_from(layer, False), split_after(layer), Basis(None, zero))
        z = a @ weights[layer].T + (biases[layer] if biases else 0.0)
        u, s, _ = torch.linalg.svd(weights[layer], full_matrices=False)
        rank = numerical_rank(s, weights[layer].shape, eps)
        image = Basis(u[:, :rank], biases[layer] if biases else torch.zeros_like(z[0]))
        if rank == len(z[0]):
            image = Basis(None, torch.zeros_like(z[0]))
        last = layer == depth - 1
        rest = rest_from(layer + 1, not last)
        yield Cut(layer + 1, "output" if last else "preactivation", z, net.bias, rest, split_at(layer + 1), image)
        a = leaky_relu(z, slope)


def _directions(basis: Basis) -> Tensor:
    """Return Q, (n, k); a column of zeros in place of none, since networks have at least one neuron."""
    if basis.directions is None:
        return torch.eye(len(basis.origin), dtype=basis.origin.dtype, device=basis.origin.device)
    return basis.directions if basis.directions.shape[1] else torch.zeros_like(basis.origin)[:, None]


def _module_cuts(net: nn.Module, x: Tensor) -> Iterator[Cut]:
    parts = [part for part in net._modules.values() if part is not None] if type(net) is nn.Sequential else []
    parts = parts or [net]
    functions = [Functional(part) for part in parts]

    def rest_from(start: int, shape: torch.Size) -> Callable[[Tensor], Tensor]:
        def rest(values: Tensor) -> Tensor:
            a = values.reshape(len(values), *shape).clone()  # a part may work in place
            for function in functions[start:]:
                a = function(a)
            return a.flatten(1)

        return rest

    def split_from(start: int, shape: torch.Size) -> Callable[[Basis], Pair]:
        def split(basis: Basis) -> Pair:
            copies = [copy.deepcopy(part).double().eval() for part in parts]
            inner: list[nn.Module] = [nn.Flatten()]
            outer: list[nn.Module] = [nn.Unflatten(1, tuple(shape))] if len(shape) != 1 else []
            if basis.directions is not None:
                q = _directions(basis)
                inner.append(_linear(q.T, -q.T @ basis.origin))
                outer.insert(0, _linear(q, basis.origin))
            return nn.Sequential(*outer, *copies[start:]), nn.Sequential(*copies[:start], *inner)

        return split

    a = x
    with torch.no_grad():
        for i in range(len(parts) + 1):
            place = "input" if i == 0 else "output" if i == len(parts) else "activation"
            if a.is_floating_point() and a.ndim > 1:
                shape, values = a.shape[1:], a.flatten(1).to(functions[0].device, torch.float64, copy=True)
                whole = Basis(None, torch.zeros_like(values[0]))
                yield Cut(i, place, values, True, rest_from(i, shape), split_from(i, shape), whole)
            if i < len(parts):
                a = functions[i](a)


def _linear(weight: Tensor, bias: Tensor) -> nn.Linear:
    layer = nn.utils.skip_init(nn.Linear, weight.shape[1], weight.shape[0], dtype=weight.dtype, device=weight.device)
    with torch.no_grad():
        layer.weight.copy_(weight)
        layer.bias.copy_(bias)
    return layer
