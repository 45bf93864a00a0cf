"""Balancedness of consecutive layers, neuron by neuron."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bnrank._core import validation
from bnrank.networks.functional import check_finite, is_plain_mlp

__all__ = ["Balance", "between", "norms", "residual"]

_HOMOGENEOUS = (nn.Linear, nn.ReLU, nn.LeakyReLU, nn.Identity, nn.Dropout)


@dataclass(frozen=True)
class Balance:
    """Deviation of a network from balance (T14).

    Attributes
    ----------
    per_neuron : tuple of Tensor
        For l = 1..L-1, (n_l,): | ||W_l[i,:]||^2 + b_l[i]^2 - ||W_{l+1}[:,i]||^2 |.
    per_layer : Tensor
        (L-1,): the sums of these, divided by sum_i ||W_l[i,:]||^2 + b_l[i]^2 + ||W_{l+1}[:,i]||^2, in [0, 1].
    residual : float
        The sum of all numerators over the sum of all denominators, in [0, 1]; 0 for a network of one layer.
    """

    per_neuron: tuple[Tensor, ...]
    per_layer: Tensor
    residual: float


def residual(net: nn.Module) -> Balance:
    """Return the differences between incoming and outgoing norms of every hidden neuron.

    At a local minimum of the L2-regularized loss of a network with positively homogeneous activations,
    ||W_l[i,:]||^2 + b_l[i]^2 = ||W_{l+1}[:,i]||^2 for every hidden neuron (T14), and the residual is 0.

    Parameters
    ----------
    net : MLP or torch.nn.Sequential
        A Sequential may hold Linear, ReLU, LeakyReLU, Identity and Dropout.

    Returns
    -------
    Balance
        Per neuron, per layer and overall; float64.

    Raises
    ------
    TypeError, ValueError
        If the module is anything else, or has NaN or infinite parameters.

    Examples
    --------
    >>> import torch, bnrank
    >>> net = bnrank.MLP([1, 1, 1], bias=False)
    >>> with torch.no_grad():
    ...     _ = net.weights[0].fill_(3.0), net.weights[1].fill_(1.0)
    >>> residual(net).residual                              # |9 - 1| / (9 + 1)
    0.8
    """
    layers = _chain(net)
    validation.expect(layers, "net", "no linear layer", "at least one")
    check_finite(net)
    validation.expect(not any(layer.weight.is_complex() for layer in layers), "net", "complex weights", "real ones")
    return between([layer.weight for layer in layers], [layer.bias for layer in layers])


def between(weights: Sequence[Tensor], biases: Sequence[Tensor | None]) -> Balance:
    """Return the balance of a chain given by its weights, each (n_l, n_{l-1}), and biases, each (n_l,) or None.

    See :func:`residual`; ``biases`` may be empty.

    Examples
    --------
    >>> import torch
    >>> between([torch.tensor([[3.0]]), torch.tensor([[1.0]])], []).residual
    0.8
    """
    incoming, outgoing = norms(weights, biases)
    per_neuron = tuple((a - b).abs() for a, b in zip(incoming, outgoing, strict=True))
    above = torch.tensor([float(r.sum()) for r in per_neuron], dtype=torch.float64)
    below = torch.tensor([float((a + b).sum()) for a, b in zip(incoming, outgoing, strict=True)], dtype=torch.float64)
    per_layer = torch.where(below != 0, above / below.clamp(min=torch.finfo(torch.float64).tiny), 0.0)
    total = float(below.sum())
    overall = 0.0 if total == 0 else float(above.sum()) / total  # NaN and infinite weights give NaN
    return Balance(per_neuron, per_layer, overall)


def norms(weights: Sequence[Tensor], biases: Sequence[Tensor | None]) -> tuple[list[Tensor], list[Tensor]]:
    """Return ||W_l[i,:]||^2 + b_l[i]^2 and ||W_{l+1}[:,i]||^2 of every hidden neuron, for l = 1..L-1, each (n_l,).

    Examples
    --------
    >>> import torch
    >>> norms([torch.tensor([[3.0]]), torch.tensor([[1.0]])], [])
    ([tensor([9.], dtype=torch.float64)], [tensor([1.], dtype=torch.float64)])
    """
    given = enumerate(validation.sequence(weights, "weights"))
    layers = [validation.numbers(w, f"weights[{i}]").double() for i, w in given]
    given = enumerate(validation.sequence(biases, "biases"))
    shifts = [None if b is None else validation.numbers(b, f"biases[{i}]").double() for i, b in given]
    shapes = [tuple(w.shape) for w in layers]
    matrices = bool(shapes) and all(len(shape) == 2 for shape in shapes)
    chain = matrices and all(a[0] == b[1] for a, b in itertools.pairwise(shapes))
    validation.expect(chain, "weights", f"shapes {shapes}", "(n_l, n_{l-1}), each taking what the one before gives")
    sizes = [None if b is None else tuple(b.shape) for b in shifts]
    fits = len(sizes) <= len(shapes) and all(b in (None, w[:1]) for b, w in zip(sizes, shapes, strict=False))
    validation.expect(fits, "biases", f"shapes {sizes}", "at most one per layer, (n_l,) or None")
    incoming = [(w * w).sum(1) for w in layers[:-1]]
    outgoing = [(w * w).sum(0) for w in layers[1:]]
    for number, bias in enumerate(shifts[:-1]):
        if bias is not None:
            incoming[number] = incoming[number] + bias**2
    return incoming, outgoing


def _chain(net: nn.Module) -> list[nn.Linear]:
    if is_plain_mlp(net):
        return [layer for layer in net.layers if isinstance(layer, nn.Linear)]
    if not isinstance(net, nn.Sequential):
        raise TypeError(f"net: got {type(net).__name__}, expected a bnrank.MLP or a Sequential of Linear and ReLU")
    odd = [f"{name} ({type(m).__name__})" for name, m in net.named_children() if type(m) not in _HOMOGENEOUS]
    got = f"{', '.join(odd)} in a Sequential"
    validation.expect(not odd, "net", got, "Linear, ReLU or LeakyReLU only", TypeError)
    return [m for m in net if isinstance(m, nn.Linear)]
