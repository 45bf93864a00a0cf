"""The linear tail of a network, and the bounds on its rank that follow from conserved quantities (T48)."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from bnrank._core import validation
from bnrank._core.results import Printed
from bnrank.networks.functional import unwrap
from bnrank.theory.invariants import finding
from bnrank.theory.invariants.conserved import Tensors
from bnrank.theory.invariants.finding import Findings
from bnrank.theory.invariants.tail_layers import Layer, largest, layers, squares

State = nn.Module | Tensors  # a network, or its parameters by name


@dataclass(frozen=True, eq=False)
class Constants:
    """The constants of a linear tail under gradient flow: eigenvalues, ascending, float64.

    Attributes
    ----------
    between : tuple of Tensor
        Of D_j = in - out at the value between layers j and j + 1 of the tail, biases with in; (channels,).
    inside : tuple of tuple of tuple of Tensor
        Of E = in - out at the values inside layer j: per chain of a block, per value along the chain.
    """

    between: tuple[Tensor, ...]
    inside: tuple[tuple[tuple[Tensor, ...], ...], ...]


@dataclass(frozen=True)
class Bound:
    """T48 for one layer: ``left`` >= ``right``, and the underlying bound ``beyond`` <= ``constant``.

    Attributes
    ----------
    layer : str
        Its name.
    left : float
        ||W_j||_op^2, W_j the written form.
    right : float
        (||W_j||_F^2 - constant) / factor.
    frobenius : float
        ||W_j||_F^2.
    factor : int
        rank 2^{N_j} M_j, rank the smaller side of the last layer, 1 for a scalar output.
    beyond : float
        The sum of the squared singular values of W_j after the first ``factor``.
    constant : float
        The upper bound of ``beyond``, from the eigenvalues of the conserved matrices.
    trivial : float
        ||W_j||_F^2 / min(rows, columns), which ``left`` is at least for any matrix: a ``right`` up to it says nothing.
    """

    layer: str
    left: float
    right: float
    frobenius: float
    factor: int
    beyond: float
    constant: float
    trivial: float


@dataclass(frozen=True)
class Alignment:
    """The alignment of what a layer writes with what the next one reads.

    Attributes
    ----------
    layers : tuple of str
        The layer and the next one.
    value : float
        |<v_{j+1}, u_j>|: u_j the first left singular vector of the written form of layer j, v_{j+1} the first right one
        of the read form of layer j + 1.
    minimum : float
        The lower bound from the conserved matrix between them; 0 if it is trivial.
    """

    layers: tuple[str, str]
    value: float
    minimum: float


@dataclass(frozen=True)
class Tail(Printed):
    """The last linear layers of a network, between values with a conserved matrix in - out.

    Attributes
    ----------
    layers : tuple of Layer
        In order; the last one produces the output. Empty if another operation produces the output.
    why : str
        Reason why the tail does not begin earlier, e.g. "before it: ReLU (1)".

    Notes
    -----
    Source: T48; LeJegelka2022 theorem 2, constants and biases as derived in docs/low-rank-tails.md.
    """

    layers: tuple[Layer, ...]
    why: str

    def __len__(self) -> int:
        return len(self.layers)

    def __str__(self) -> str:
        return f"linear tail of {len(self)} layers: {', '.join(self.names) or 'none'} ({self.why})"

    @property
    def names(self) -> tuple[str, ...]:
        """The layers' names."""
        return tuple(layer.name for layer in self.layers)

    @property
    def blocks(self) -> tuple[int, ...]:
        """N_j of every layer: the number of free blocks after it."""
        kinds = [layer.kind for layer in self.layers]
        return tuple(kinds[j + 1 :].count("free block") for j in range(len(kinds)))

    @property
    def multiplicities(self) -> tuple[float, ...]:
        """M_j of every layer: the product over the layers i > j of their factor, halved for free blocks.

        The factor is min(in, k) for a convolution, min(C, P) for a fully connected layer that reads C channels at P
        positions, and 1 for any other layer. Blocks of convolutions may have an odd factor.
        """
        return tuple(product / 2**blocks for product, blocks in zip(self._products, self.blocks, strict=True))

    @property
    def _products(self) -> list[int]:
        """2^{N_j} M_j of every layer."""
        factors = [layer.factor for layer in self.layers]
        return [math.prod(factors[j + 1 :]) for j in range(len(factors))]

    def factors(self, parameters: Any) -> tuple[int, ...]:
        """Return rank 2^{N_j} M_j of every layer, rank the smaller side of the last layer's matrix."""
        rank = min(self.layers[-1].written(_named(parameters, self)).shape) if self.layers else 1
        return tuple(rank * product for product in self._products)

    def constants(self, net: State) -> Constants:
        """Return the eigenvalues of the conserved matrices between and inside the layers, computed in float64."""
        return self._constants(net, "net")

    def _constants(self, net: State, argument: str) -> Constants:
        named, eigenvalues = _named(net, self, argument), torch.linalg.eigvalsh
        inside = (tuple(tuple(eigenvalues(q.of(named)) for q in chain) for chain in one.inside) for one in self.layers)
        return Constants(tuple(map(eigenvalues, self.between(named))), tuple(inside))

    def between(self, net: State) -> tuple[Tensor, ...]:
        """Return the conserved matrices D_j = in - out between the layers, float64."""
        named = _named(net, self)
        return tuple(layer.after.of(named) for layer in self.layers if layer.after is not None)

    def ratios(self, net: State) -> tuple[float, ...]:
        """Return ||W_j||_op^2 / ||W_j||_F^2 of every layer's written form, in (0, 1]; NaN for a layer that is 0."""
        named = _named(net, self)
        spectra = [squares(layer.written(named)) for layer in self.layers]
        return tuple(float(values[0] / values.sum()) for values in spectra)

    def bounds(self, net: State, start: State | Constants | None = None) -> tuple[Bound, ...]:
        """Return both sides of T48 for every layer.

        Parameters
        ----------
        net : torch.nn.Module or mapping of str to Tensor
            The current network, or its named parameters.
        start : torch.nn.Module, mapping or Constants, optional
            The network at the start of training, or its :meth:`constants`. With it, the bound holds under gradient
            flow, and other training methods can violate it; without it, the bound follows from linear algebra alone.

        Returns
        -------
        tuple of Bound
            ||W_j||_op^2 >= (||W_j||_F^2 - constant_j) / factor_j.

        Raises
        ------
        TypeError, ValueError
            If a parameter is missing or has another shape.
        """
        named = _named(net, self)
        if not isinstance(start, Constants):
            start = self._constants(named, "net") if start is None else self._constants(start, "start")
        factors, constant = self.factors(named), 0.0
        found: list[Bound] = []
        for j in range(len(self.layers) - 1, -1, -1):
            if j < len(self.layers) - 1:
                constant += self.layers[j + 1].added(start.inside[j + 1], factors[j + 1])
                constant += largest(start.between[j], len(start.between[j]) - factors[j])
            values = squares(self.layers[j].written(named))
            total, beyond = float(values.sum()), float(values[factors[j] :].sum())
            right = (total - constant) / factors[j]
            name, trivial = self.layers[j].name, total / len(values)
            found.append(Bound(name, float(values[0]), right, total, factors[j], beyond, constant, trivial))
        return tuple(reversed(found))

    def alignments(self, net: State, start: State | Constants | None = None) -> tuple[Alignment, ...]:
        """Return |<v_{j+1}, u_j>| of neighboring layers, with its lower bound from the conserved matrix between them.

        Let s be the difference of the largest and the smallest eigenvalue of D_j, and s_1, s_2 the first singular
        values of the written form. Without a bias, 1 - value^2 <= (s / 2)^2 / (s_1^2 - s_2^2 - s / 2)^2 where the
        denominator is positive. A bias turns u_j away from the first direction of [W_j b_j], which is the one bound to
        v_{j+1}, by an angle whose squared sine is at most t_2^2 / s_1^2, t_2 the second singular value of [W_j b_j].

        Parameters are those of :meth:`bounds`.
        """
        named = _named(net, self)
        if not isinstance(start, Constants):
            start = self._constants(named, "net") if start is None else self._constants(start, "start")
        found = []
        for j, (layer, following) in enumerate(zip(self.layers, self.layers[1:], strict=False)):
            matrix, bias = layer.written(named), layer.biases(named)
            left, values, _ = torch.linalg.svd(matrix, full_matrices=False)
            right = torch.linalg.svd(following.read(named), full_matrices=False)[2]
            whole = torch.linalg.svdvals(torch.cat([matrix, bias], 1)) if bias.numel() else values
            first, second = float(whole[0]) ** 2, float(whole[1]) ** 2 if len(whole) > 1 else 0.0
            half = float(start.between[j][-1] - start.between[j][0]) / 2
            angle = _angle(half, first - second - half)
            if bias.numel():
                angle += _angle(math.sqrt(second), float(values[0]))
            minimum = math.cos(angle) if angle < math.pi / 2 else 0.0
            found.append(Alignment((layer.name, following.name), abs(float(left[:, 0] @ right[0])), minimum))
        return tuple(found)


def _angle(opposite: float, hypotenuse: float) -> float:
    """Return the angle whose sine is opposite / hypotenuse; a right angle if hypotenuse <= opposite."""
    return math.asin(opposite / hypotenuse) if hypotenuse > opposite else math.pi / 2


def _named(net: Any, of: Tail, argument: str = "net") -> Tensors:
    """Return the tail's parameters by name, after checking their sizes."""
    if not isinstance(net, Mapping | nn.Module):
        expected = "a torch.nn.Module or a mapping of names to parameters"
        raise TypeError(f"{argument}: got {validation.describe(net)}, expected {expected}")
    named: Tensors = net if isinstance(net, Mapping) else dict(unwrap(net).named_parameters())
    for one in (one for layer in of.layers for branch in layer.branches for one in branch):
        for name, places in ((one.weight, one.written), (one.bias, one.biases)):
            if name and name not in named:
                raise ValueError(f"{argument}: got no parameter {name}, which is in the tail")
            if name and places is not None and named[name].numel() != places.size:
                came = validation.describe(named[name])
                raise ValueError(f"{argument}: got {name} as {came}, expected {places.size} entries")
            if name and not bool(torch.isfinite(named[name]).all()):
                raise ValueError(f"{argument}: got NaN or infinite entries in {name}, expected finite parameters")
    return named


def tail(net: nn.Module, example: Any) -> Tail:
    """Return the last linear layers of a network.

    They form the longest chain of learnable fully connected layers, convolutions and free residual blocks
    x -> Z(Y x) + D x that ends in the output and between which the whole matrix in - out is conserved: no activation,
    maximum, diagonal or identity skip, group or frozen weight. Flattening and average pooling may occur between them;
    before the chain, anything may.

    Parameters
    ----------
    net : torch.nn.Module
        Any feedforward module that :func:`bnrank.graph.trace` accepts; not modified.
    example : Tensor or ndarray
        Samples, (N, ...).

    Returns
    -------
    Tail
        Its layers, and the reason why it does not begin earlier.

    Raises
    ------
    TypeError, ValueError
        If the module cannot be traced.

    Examples
    --------
    >>> import torch
    >>> from torch import nn
    >>> layers = [nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 4), nn.Linear(4, 4), nn.Linear(4, 1)]
    >>> found = tail(nn.Sequential(*layers), torch.ones(1, 3))
    >>> found.names, found.why
    (('2', '3', '4'), 'before it: ReLU (1)')
    """
    return findings_and_tail(net, example, verify=False)[1]


def findings_and_tail(net: nn.Module, example: Any, *, verify: bool = True) -> tuple[Findings, Tail]:
    """Return what :func:`bnrank.invariants.find` and :func:`tail` return, from one trace.

    Examples
    --------
    >>> found, last = findings_and_tail(nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1)), torch.ones(1, 2))
    >>> found.names, last.names
    (('matrix 0 | 1', 'layer 0 | 1'), ('0', '1'))
    """
    found, parts, entries = finding.with_blocks(net, example, verify=verify)
    return found, Tail(*layers(found.graph, parts, entries))
