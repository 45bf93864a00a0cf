"""A module read as one chain of linear layers with the same activation between them."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor, nn

from bnrank.networks.functional import is_plain_mlp, unwrap
from bnrank.networks.mlp import MLP, from_layers

__all__ = ["as_mlp"]

_PASSED = (nn.Identity, nn.Dropout)
_Pair = tuple[Tensor, Tensor | None]


def as_mlp(net: nn.Module, *, multiply_out: bool = False) -> MLP:
    """Return an MLP in float64 that computes what the module computes in eval mode, with the same parameters.

    Layers without biases among layers with biases get biases 0, so that ||theta||^2 stays the same.

    Parameters
    ----------
    net : MLP or torch.nn.Sequential
        A Sequential, perhaps of Sequentials, may hold Linear, ReLU, LeakyReLU, Identity and Dropout, and a Flatten in
        front. Between any two Linear there must be the same activation, or none.
    multiply_out : bool
        Take Linear in a row, as in a factored layer, for one, their product, where there are activations elsewhere. The
        function is the same, the parameters and their norm are not.

    Returns
    -------
    MLP
        A copy; a :class:`LinearNetwork` where there is no activation.

    Raises
    ------
    TypeError
        If the module is no such chain; the message says what is in the way.

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
    net = unwrap(net)
    if is_plain_mlp(net):
        return _copy([w.detach() for w in net.weights], [b.detach() for b in net.biases], net.slope)
    if isinstance(net, MLP):
        raise TypeError("net: got an MLP that was changed, expected each layer a Linear with parameters of its own")
    layers, slopes = _read(net)
    if len(set(slopes)) > 1 and not multiply_out:
        with_one = {slope for slope in slopes if slope is not None}
        hint = "; multiply_out=True takes Linear in a row for their product" if len(with_one) == 1 else ""
        said = [1.0 if slope is None else slope for slope in slopes]
        raise TypeError(f"net: got activations of slopes {said}, expected the same between all layers{hint}")
    held = [p for layer in layers for p in (layer.weight, layer.bias) if p is not None]
    if len({id(p) for p in held}) < len(held):
        raise TypeError("net: got a parameter shared between layers, expected each layer to have its own")
    pairs: list[_Pair] = [
        (layer.weight.detach(), None if layer.bias is None else layer.bias.detach()) for layer in layers
    ]
    if len(set(slopes)) > 1:
        pairs, slopes = _multiplied(pairs, slopes)
        if len(set(slopes)) > 1:
            raise TypeError(f"net: got activations of slopes {slopes}, expected the same between all layers")
    some = any(b is not None for _, b in pairs)
    biases = [w.new_zeros(len(w)) if b is None else b for w, b in pairs] if some else []
    slope = slopes[0] if slopes else 0.0
    return _copy([w for w, _ in pairs], biases, 1.0 if slope is None else slope)


def _read(net: nn.Module) -> tuple[list[nn.Linear], list[float | None]]:
    """Return the linear layers and the slope of what stands between each and the next, None for nothing."""
    layers: list[nn.Linear] = []
    slopes: list[float | None] = []
    slope: float | None = None  # what stands between the last linear layer and the next
    for name, part in _flat(net):
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
        elif not (type(part) in _PASSED or (type(part) is nn.Flatten and not layers)):
            raise TypeError(
                f"net: got {name} ({type(part).__name__}), expected a bnrank.MLP or a Sequential of Linear, ReLU, "
                "LeakyReLU, Identity and Dropout"
            )
    if not layers:
        raise TypeError(f"net: got {type(net).__name__} without a Linear, expected at least one")
    if slope is not None:
        raise TypeError("net: got an activation after the last Linear, expected the output to be linear")
    return layers, slopes


def _multiplied(pairs: list[_Pair], slopes: list[float | None]) -> tuple[list[_Pair], list[float | None]]:
    """Multiply layers with nothing between them, in float64."""
    merged = [pairs[0]]
    left: list[float | None] = []
    for (weight, bias), slope in zip(pairs[1:], slopes, strict=True):
        before, shift = merged[-1]
        if slope is not None:
            merged.append((weight, bias))
            left.append(slope)
            continue
        if weight.shape[1] != len(before):
            raise TypeError(
                f"net: got weights {tuple(before.shape)} and {tuple(weight.shape)}, expected each to take "
                "what the one before gives"
            )
        wide = weight.double()
        both = None if shift is None else wide @ shift.double()
        if bias is not None:
            both = bias.double() if both is None else both + bias.double()
        merged[-1] = wide @ before.double(), both
    return [(w.double(), None if b is None else b.double()) for w, b in merged], left


def _copy(weights: list[Tensor], biases: list[Tensor], slope: float) -> MLP:
    try:
        return from_layers(weights, biases, slope).to(weights[0].device)
    except ValueError as error:
        raise TypeError(f"net: {error}") from error


def _flat(net: nn.Module, prefix: str = "") -> Iterator[tuple[str, nn.Module]]:
    if type(net) is not nn.Sequential:
        yield prefix or type(net).__name__, net
        return
    for name, part in net._modules.items():  # named_children leaves out what is there twice
        if part is not None:
            yield from _flat(part, f"{prefix}.{name}" if prefix else name)
