"""Factorizations f = h o g of a network through a subspace of one of its representations."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from bnrank._core import linalg
from bnrank.networks.chain import Chain, read_chain
from bnrank.networks.functional import Functional, unwrap
from bnrank.networks.inputs import MainOutput
from bnrank.networks.mlp import MLP, from_layers, leaky_relu
from bnrank.networks.replicas import copied

Pair = tuple[nn.Module, nn.Module]


@dataclass(frozen=True)
class Basis:
    """An affine subspace of a representation: the points mu + Q z.

    Attributes
    ----------
    directions : Tensor or None
        Q, (n, k), orthonormal columns; None for the whole space.
    origin : Tensor
        mu, (n,).
    """

    directions: Tensor | None
    origin: Tensor

    @property
    def dimension(self) -> int:
        """k; n for the whole space."""
        return len(self.origin) if self.directions is None else self.directions.shape[1]

    @property
    def columns(self) -> Tensor:
        """Q, (n, k); the identity for the whole space, and one column of zeros for k = 0: a layer needs a neuron."""
        if self.directions is None:
            return torch.eye(len(self.origin), dtype=self.origin.dtype, device=self.origin.device)
        return self.directions if self.dimension else torch.zeros_like(self.origin)[:, None]

    def project(self, values: Tensor) -> Tensor:
        """Return the points of the subspace nearest to the rows of ``values``, (N, n)."""
        if self.directions is None:
            return values
        return self.origin + (values - self.origin) @ self.directions @ self.directions.T


@dataclass(frozen=True)
class Cut:
    """A place where a network can be split in two, with the representation of the samples there.

    Attributes
    ----------
    layer : int
        Number of layers (parts, for a module that is not a chain) before the cut; 0 is the input.
    place : str
        "input", "preactivation", "activation" or "output".
    values : Tensor
        The representation of the samples, (N, n), float64.
    affine : bool
        Whether subspaces may have an origin other than 0.
    rest : callable
        Maps the representation to f, (N, n) -> (N, d_out).
    split : callable
        Maps a basis to the pair of networks (h, g) in float64 with h(g(x)) = rest(projection of the representation).
    everywhere : Basis
        A subspace that contains the representation of every input, up to the precision of the parameters.
    weights : Tensor or None
        Weights of the samples in ``spread`` and ``principal``, (N, 1), of mean 1.
    """

    layer: int
    place: str
    values: Tensor
    affine: bool
    rest: Callable[[Tensor], Tensor]
    split: Callable[[Basis], Pair]
    everywhere: Basis
    weights: Tensor | None = None

    @cached_property
    def _decomposition(self) -> tuple[Tensor, Tensor, Tensor]:
        """Origin, singular values and directions of the values."""
        weighted = self.values if self.weights is None else self.values * self.weights
        origin = weighted.mean(0) if self.affine else torch.zeros_like(self.values[0])
        centered = self.values - origin
        if self.weights is not None:
            centered = centered * self.weights.sqrt()
        if len(centered) > centered.shape[1]:
            centered = torch.linalg.qr(centered, mode="r")[1]
        _, values, directions = torch.linalg.svd(centered, full_matrices=False)
        return origin, values, directions.T

    @property
    def spread(self) -> Tensor:
        """Singular values of the representation, centered if ``affine``, descending."""
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
        A chain of linear layers is cut before and after every activation, a Sequential between its parts, and any
        other module only at its input and output.
    x : Tensor
        Samples, (N, ...).

    Returns
    -------
    list of Cut
        At least the input and the output. For modules that are not chains, places whose value is not floating point or
        has no axis but that of the samples are omitted.

    Examples
    --------
    >>> import torch, bnrank
    >>> [(cut.layer, cut.place) for cut in cuts(bnrank.MLP([3, 5, 2]), torch.ones(4, 3))]
    [(0, 'input'), (1, 'preactivation'), (1, 'activation'), (2, 'output')]
    """
    net = unwrap(net)
    try:
        return list(_chain_cuts(read_chain(net), x))
    except TypeError:
        return list(_module_cuts(net, x))


def _chain_cuts(given: Chain, x: Tensor) -> Iterator[Cut]:
    chain, x = given.biased(), x.flatten(1).to(given.device, torch.float64)
    weights, biases, slope = chain.weights, chain.biases, chain.slope

    def network(weights: list[Tensor], biases: list[Tensor]) -> MLP:
        return from_layers(weights, biases if given.biases else (), slope).to(x.device)

    def cut(layer: int, activated: bool, values: Tensor, everywhere: Basis) -> Cut:
        """Return the cut at a_layer, or before the activation at a~_layer."""

        def rest(a: Tensor) -> Tensor:
            for i in range(layer, chain.depth):
                a = a if i == layer and activated else leaky_relu(a, slope)
                a = a @ weights[i].T + biases[i]
            return a

        def split(basis: Basis) -> Pair:
            q, origin = basis.columns, basis.origin
            if activated:  # g ends with z = Q^T (a - mu), h begins with W (mu + Q z) + b
                g = network([*weights[:layer], q.T], [*biases[:layer], -q.T @ origin])
                first, bias = weights[layer] @ q, biases[layer] + weights[layer] @ origin
                return network([first, *weights[layer + 1 :]], [bias, *biases[layer + 1 :]]), g
            # g ends with z = Q^T (W a + b - mu), h begins with mu + Q z
            last, bias = q.T @ weights[layer - 1], q.T @ (biases[layer - 1] - origin)
            g = network([*weights[: layer - 1], last], [*biases[: layer - 1], bias])
            return network([q, *weights[layer:]], [origin, *biases[layer:]]), g

        ends = {0: "input", chain.depth: "output"}
        place = ends.get(layer, "activation" if activated else "preactivation")
        return Cut(layer, place, values, bool(given.biases), rest, split, everywhere)

    a = x
    for layer, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
        yield cut(layer, True, a, Basis(None, torch.zeros_like(a[0])))
        u, s, _ = torch.linalg.svd(weight, full_matrices=False)
        rank = int(linalg.rank(s, max(weight.shape) * torch.finfo(given.dtype).eps))  # smaller ones are rounding
        image = Basis(None, torch.zeros_like(bias)) if rank == len(bias) else Basis(u[:, :rank], bias)
        z = a @ weight.T + bias
        yield cut(layer + 1, False, z, image)
        a = leaky_relu(z, slope)


def _module_cuts(net: nn.Module, x: Tensor) -> Iterator[Cut]:
    parts = [part for part in net._modules.values() if part is not None] if type(net) is nn.Sequential else []
    parts = parts or [net]
    functions = [Functional(part) for part in parts]
    runs: list[Callable[[Tensor], Tensor]] = [*(function.main for function in functions[:-1]), functions[-1]]

    def cut(start: int, place: str, shape: torch.Size, values: Tensor) -> Cut:
        def rest(values: Tensor) -> Tensor:
            a = values.reshape(len(values), *shape).clone()  # a part may work in place
            for run in runs[start:]:
                a = run(a)
            return a.flatten(1)

        def split(basis: Basis) -> Pair:
            copies = [copied(part).double().eval() for part in parts]
            inner: list[nn.Module] = [MainOutput()] if start == len(parts) and not plain else []
            inner.append(nn.Flatten())
            outer: list[nn.Module] = [nn.Unflatten(1, tuple(shape))] if len(shape) != 1 else []
            if basis.directions is not None:
                q = basis.columns
                inner.append(from_layers([q.T], [-q.T @ basis.origin]).to(q.device))
                outer.insert(0, from_layers([q], [basis.origin]).to(q.device))
            return nn.Sequential(*outer, *copies[start:]), nn.Sequential(*copies[:start], *inner)

        return Cut(start, place, values, True, rest, split, Basis(None, torch.zeros_like(values[0])))

    a, plain = x, True
    with torch.no_grad():
        for i in range(len(parts) + 1):
            place = "input" if i == 0 else "output" if i == len(parts) else "activation"
            if a.is_floating_point() and a.ndim > 1:
                values = a.flatten(1).to(functions[0].device, torch.float64, copy=True)
                yield cut(i, place, a.shape[1:], values)
            if i < len(parts):
                before, a = a, runs[i](a)
                plain = i + 1 < len(parts) or functions[i].is_plain(before[:2])
