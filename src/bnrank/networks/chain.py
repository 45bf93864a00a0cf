"""Parts of a module that run one after another, and chains, linear layers with one activation between."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor, nn

from bnrank._core import validation
from bnrank.networks.functional import check_finite, hooked, is_plain_mlp, unwrap
from bnrank.networks.mlp import MLP, from_layers
from bnrank.networks.stack import activation

_NEUTRAL = (nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout)  # in eval mode


def parts_of(net: nn.Module, name: str = "", *, through_hooks: bool = False) -> Iterator[tuple[str, nn.Module]]:
    """Iterate over the parts of a module that run one after another, with their names.

    Sequential modules, nested ones too, and MLPs are taken apart; dropout and identities are left out. Any other
    module is one part, and so is a module with hooks, which could change its output, unless ``through_hooks``.
    """
    inside = f"{name}." if name else ""
    if is_sequential(net, through_hooks):
        for child, part in net._modules.items():  # named_children omits repeated modules
            if part is not None:
                yield from parts_of(part, inside + child, through_hooks=through_hooks)
    elif is_plain_mlp(net):
        for i, layer in enumerate(net.layers):
            if i and net.slope != 1:
                yield f"{inside}activation{i}", activation(net.slope)
            yield f"{inside}layers.{i}", layer
    elif type(net) not in _NEUTRAL or (hooked(net) and not through_hooks):
        yield name, net


def is_sequential(net: nn.Module, through_hooks: bool = False) -> bool:
    """Return whether a module runs its parts one after another, and nothing else."""
    plain = isinstance(net, nn.Sequential) and type(net).forward is nn.Sequential.forward and "forward" not in vars(net)
    return plain and (through_hooks or not hooked(net))


@dataclass(frozen=True)
class Chain:
    """Weights and biases in float64, with the precision and the device of their network.

    Attributes
    ----------
    weights : list of Tensor
        W_1, ..., W_L, (n_l, n_{l-1}).
    biases : list of Tensor
        b_1, ..., b_L, (n_l,), or none.
    slope : float
        s of the activation between the layers; 1 without one.
    dtype, device
        Precision and device of the network that was read, in which `network` returns one.
    """

    weights: list[Tensor]
    biases: list[Tensor]
    slope: float
    dtype: torch.dtype = torch.float64
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    @property
    def depth(self) -> int:
        """L, the number of weight layers."""
        return len(self.weights)

    @property
    def norm(self) -> float:
        """||theta||^2."""
        return sum(float((value * value).sum()) for value in [*self.weights, *self.biases])

    def biased(self) -> Chain:
        """Return the chain with biases, 0 where it has none."""
        return self if self.biases else replace(self, biases=[w.new_zeros(len(w)) for w in self.weights])

    def arrays(self) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Return weights and biases as NumPy arrays."""
        return [w.cpu().numpy() for w in self.weights], [b.cpu().numpy() for b in self.biases]

    def network(self) -> MLP:
        """Return the chain as an MLP (a :class:`~bnrank.networks.LinearNetwork` where the slope is 1)."""
        return from_layers(self.weights, self.biases, self.slope).to(self.device, self.dtype)


def as_mlp(net: nn.Module, *, multiply_out: bool = False) -> MLP:
    """Return an MLP in float64 that computes what the module computes in eval mode, with the same parameters.

    Layers without biases among layers with biases get biases 0, so that ||theta||^2 stays the same.

    Parameters
    ----------
    net : MLP or torch.nn.Sequential
        A Sequential, possibly nested, may hold Linear, ReLU, LeakyReLU, Identity, Dropout and MLPs, and a Flatten in
        front. Between any two Linear there must be the same activation, or none.
    multiply_out : bool
        Replace consecutive Linear, as in a factored layer, by their product where there are activations elsewhere. The
        function is the same, the parameters and their norm are not.

    Returns
    -------
    MLP
        A copy; a :class:`LinearNetwork` without activations.

    Raises
    ------
    TypeError
        If the module is not such a chain; the message names the obstacle.

    Examples
    --------
    >>> import torch
    >>> net = as_mlp(torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.LeakyReLU(0.3), torch.nn.Linear(4, 2)))
    >>> net.widths, net.slope
    ([3, 4, 2], 0.3)
    >>> factored = torch.nn.Linear(3, 1, bias=False), torch.nn.Linear(1, 4)
    >>> as_mlp(torch.nn.Sequential(*factored, torch.nn.ReLU(), torch.nn.Linear(4, 2)), multiply_out=True).widths
    [3, 4, 2]
    """
    return replace(_chain(net, validation.flag(multiply_out, "multiply_out")), dtype=torch.float64).network()


def read_chain(net: nn.Module, name: str = "net", *, multiply_out: bool = False) -> Chain:
    """Return the layers of a chain with finite parameters.

    Parameters
    ----------
    net, multiply_out
        As in `as_mlp`.
    name : str
        The caller's argument, for errors.

    Raises
    ------
    TypeError, ValueError
        If the module is not such a chain, or a parameter is not finite.

    Examples
    --------
    >>> chain = read_chain(torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2)))
    >>> chain.depth, chain.slope, chain.dtype
    (2, 0.0, torch.float32)
    """
    name, multiply_out = validation.text(name, "name"), validation.flag(multiply_out, "multiply_out")
    try:
        check_finite(net)
        return _chain(net, multiply_out)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{name}: {str(error).removeprefix('net: ')}") from error


def _chain(net: nn.Module, multiply_out: bool) -> Chain:
    """Return the layers of a chain, in the precision of the module."""
    net = unwrap(net)
    validation.expect(not any(p.is_complex() for p in net.parameters()), "net", "complex weights", "real ones")
    layers, slopes = _layers(net)
    joined = multiply_out and len(set(slopes)) > 1
    weights, biases, given = list[Tensor](), list[Tensor](), list[float]()
    for layer, slope in zip(layers, [None, *slopes], strict=True):
        weight = layer.weight.detach().to(torch.float64, copy=True)
        bias = weight.new_zeros(len(weight)) if layer.bias is None else layer.bias.detach().to(weight, copy=True)
        if weights and joined and slope is None:
            weight, bias = weight @ weights.pop(), weight @ biases.pop() + bias
        elif weights:
            given.append(1.0 if slope is None else slope)
        weights.append(weight)
        biases.append(bias)
    if len(set(given)) > 1:
        hint = "" if multiply_out or None not in slopes else "; multiply_out=True takes consecutive Linear for one"
        raise TypeError(f"net: got activations of slopes {given}, expected the same between all layers{hint}")
    common = given[0] if given else float(getattr(net, "slope", 0.0))
    validation.expect(-1 < common <= 1, "net: slope", f"{common:g}", "a number in (-1, 1], 1 for none", TypeError)
    floats = [p.dtype for p in net.parameters() if p.is_floating_point()]
    validation.expect(floats, "net", f"{type(net).__name__} without floating-point parameters", "some", TypeError)
    dtype = functools.reduce(torch.promote_types, floats)
    shifts = biases if any(layer.bias is not None for layer in layers) else []
    return Chain(weights, shifts, common, dtype, weights[0].device)


def _layers(net: nn.Module) -> tuple[list[nn.Linear], list[float | None]]:
    """Return the linear layers and the slopes between them, None where there is no activation."""
    layers: list[nn.Linear] = []
    slopes: list[float | None] = []
    slope: float | None = None  # of the activation since the last linear layer
    for name, part in parts_of(net, through_hooks=True):
        if type(part) is nn.Linear:
            if layers:
                slopes.append(slope)
            elif slope is not None:
                raise TypeError("net: got an activation before the first Linear, expected a Linear first")
            layers.append(part)
            slope = None
        elif type(part) in (nn.ReLU, nn.LeakyReLU):
            if slope is not None:
                raise TypeError(f"net: got two activations in a row at {name}, expected one")
            slope = part.negative_slope if isinstance(part, nn.LeakyReLU) else 0.0
        elif isinstance(part, MLP):
            raise TypeError("net: got an MLP that was changed, expected each layer a Linear with parameters of its own")
        elif type(part) is not nn.Flatten or layers:
            expected = "a bnrank.MLP or a Sequential of Linear, ReLU, LeakyReLU, Identity and Dropout"
            at = f" (first at {name})" if name else ""
            raise TypeError(f"net: got {type(part).__name__}{at}, expected {expected}")
    validation.expect(layers, "net", f"{type(net).__name__} without a Linear", "at least one", TypeError)
    validation.expect(slope is None, "net", "an activation after the last Linear", "a linear output", TypeError)
    for before, after in itertools.pairwise(layers):
        fits, shapes = after.in_features == before.out_features, [tuple(layer.weight.shape) for layer in layers]
        validation.expect(fits, "net", f"weights {shapes}", "each to take what the one before gives", TypeError)
    held = [id(p) for layer in layers for p in layer.parameters()]
    if len(set(held)) < len(held):
        raise TypeError("net: got a parameter shared between layers, expected each layer to have its own")
    return layers, slopes
