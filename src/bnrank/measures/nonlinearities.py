"""Effect of the nonlinearities on the data."""

import numpy as np
import torch
from torch import Tensor, nn

from bnrank.networks.functional import Functional, example
from bnrank.networks.inputs import Example
from bnrank.networks.reading import Reading, Taker, read_function, stream

__all__ = ["nonlinearity"]


def nonlinearity(
    net: nn.Module,
    x: Example,
    *,
    chunk_size: int = 4096,
    dtype: torch.dtype = torch.float64,
) -> dict[str, float]:
    """Return ||Z_l - sigma(Z_l)||_F / ||Z_l||_F over the sample for every layer (T27; Jacot2023a figure 1).

    Z_l = a~_l(X), (N, n_l). 0 where the nonlinearity acts as the identity, as inside a bottleneck. In modules other
    than MLP sigma(Z_l) is what enters the next layer read, so normalization or a skip connection in between
    counts as well.

    Parameters
    ----------
    net : torch.nn.Module
        Any module with linear or convolutional layers.
    x : Tensor or ndarray
        Samples, (N, ...).
    chunk_size : int
        Samples per forward pass.
    dtype : torch.dtype
        Precision of the forward pass.

    Returns
    -------
    dict
        Layer name -> ratio; NaN for the last layer, where Z_l = 0, and where the next layer reads
        something else or has another number of features (pooling).

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range, no layer is found, or the module cannot be run on x in ``dtype``.

    Examples
    --------
    >>> import torch, bnrank
    >>> net = bnrank.MLP([1, 2, 1], bias=False)
    >>> with torch.no_grad():
    ...     _ = net.weights[0].copy_(torch.tensor([[1.0], [-1.0]]))
    >>> nonlinearity(net, torch.ones(3, 1))                #  one of two equal entries is set to 0
    {'layers.0': 0.7071067811865476, 'layers.1': nan}
    """
    samples = example(net, x, inputs=True)
    function = Functional(net, dtype, whole=samples)
    reading = read_function(function, samples)
    taker = Ratio(reading)
    stream(function, samples, reading, [taker], chunk_size=chunk_size)
    return taker.ratios()


class Ratio(Taker):
    """The squared norms of Z_l - sigma(Z_l) and of Z_l, as blocks of samples come."""

    def __init__(self, reading: Reading) -> None:
        self.layers = reading.layers
        self.changed, self.total = np.zeros((2, len(self.layers)))
        self.before: dict[int, Tensor] = {}  # Z_l of a block, until sigma(Z_l) is there

    def preactivations(self, layer: int, values: Tensor) -> None:
        """Keep Z_l, where the next layer reads sigma(Z_l)."""
        if layer < len(self.layers) - 1 and not self.layers[layer].apart:
            self.before[layer] = values.flatten(1).to(torch.float64, copy=True)

    def activations(self, layer: int, values: Tensor) -> None:
        """Add a block."""
        if layer in self.before:
            z, a = self.before.pop(layer), values.flatten(1).double()
            self.total[layer] += float(torch.linalg.vector_norm(z)) ** 2
            self.changed[layer] += float(torch.linalg.vector_norm(z - a)) ** 2 if z.shape == a.shape else np.nan

    def ratios(self) -> dict[str, float]:
        """Return the ratios by the names of the layers."""
        total = np.where(self.total == 0, np.nan, self.total)  # of the last layer, too
        values = np.sqrt(self.changed / total)
        return {layer.name: float(value) for layer, value in zip(self.layers, values, strict=True)}
