"""A module read as one chain of linear layers with the same activation between them."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor, nn

from bnrank.networks.functional import is_plain_mlp, unwrap
from bnrank.networks.mlp import MLP, from_layers

__all__ = ["as_mlp"]

_PASSED = (nn.Identity, nn.Dropout)


def as_mlp(module: nn.Module) -> MLP:
    """Return an MLP in float64 that computes what the module computes in eval mode, with the same parameters.

    Layers without biases among layers with biases get biases 0, so that ||theta||^2 stays the same.

    Parameters
    ----------
    module : MLP or torch.nn.Sequential
        A Sequential, perhaps of Sequentials, may hold Linear, ReLU, LeakyReLU, Identity and Dropout, and a Flatten in
        front. Between any two Linear there must be the same activation, or none.

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
    """
    module = unwrap(module)
    if is_plain_mlp(module):
        return _copy([w.detach() for w in module.weights], [b.detach() for b in module.biases], module.slope)
    if isinstance(module, MLP):
        raise TypeError("module: got an MLP that was changed, expected each layer a Linear with parameters of its own")
    layers: list[nn.Linear] = []
    slopes: list[float] = []
    slope: float | None = None  # what stands between the last linear layer and the next
    for name, part in _flat(module):
        if type(part) is nn.Linear:
            if layers:
                slopes.append(1.0 if slope is None else slope)
            elif slope is not None:
                raise TypeError("module: got an activation before the first Linear, expected a Linear first")
            layers.append(part)
            slope = None
        elif type(part) in (nn.ReLU, nn.LeakyReLU):
            if slope is not None:
                raise TypeError(f"module: got two activations in a row at {name}, expected one")
            slope = part.negative_slope if isinstance(part, nn.LeakyReLU) else 0.0
        elif not (type(part) in _PASSED or (type(part) is nn.Flatten and not layers)):
            raise TypeError(
                f"module: got {name} ({type(part).__name__}), expected a bnrank.MLP or a Sequential of Linear, ReLU, "
                "LeakyReLU, Identity and Dropout"
            )
    if not layers:
        raise TypeError(f"module: got {type(module).__name__} without a Linear, expected at least one")
    if slope is not None:
        raise TypeError("module: got an activation after the last Linear, expected the output to be linear")
    if len(set(slopes)) > 1:
        raise TypeError(f"module: got activations of slopes {slopes}, expected the same between all layers")
    held = [p for layer in layers for p in (layer.weight, layer.bias) if p is not None]
    if len({id(p) for p in held}) < len(held):
        raise TypeError("module: got a parameter shared between layers, expected each layer to have its own")
    biases = [layer.bias for layer in layers]
    if any(b is not None for b in biases):
        all_biases = [
            layer.weight.new_zeros(layer.out_features) if b is None else b.detach()
            for layer, b in zip(layers, biases, strict=True)
        ]
    else:
        all_biases = []
    return _copy([layer.weight.detach() for layer in layers], all_biases, slopes[0] if slopes else 0.0)


def _copy(weights: list[Tensor], biases: list[Tensor], slope: float) -> MLP:
    try:
        return from_layers(weights, biases, slope).to(weights[0].device)
    except ValueError as error:
        raise TypeError(f"module: {error}") from error


def _flat(module: nn.Module, prefix: str = "") -> Iterator[tuple[str, nn.Module]]:
    if type(module) is not nn.Sequential:
        yield prefix or type(module).__name__, module
        return
    for name, part in module._modules.items():  # named_children leaves out what is there twice
        if part is not None:
            yield from _flat(part, f"{prefix}.{name}" if prefix else name)
