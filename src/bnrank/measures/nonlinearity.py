"""Effect of the nonlinearities on the data."""

import numpy as np
import torch
from torch import nn

from bnrank.networks.inputs import Example
from bnrank.networks.reading import Reading, capture, read_or

__all__ = ["ratio"]


def ratio(
    net: nn.Module,
    x: Example,
    *,
    chunk_size: int = 4096,
    dtype: torch.dtype = torch.float64,
    reading: Reading | None = None,
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
    reading : Reading, optional
        The result of ``read(net, x)``.

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
    >>> ratio(net, torch.ones(3, 1))                       # one of two equal entries is set to 0
    {'layers.0': 0.7071067811865476, 'layers.1': nan}
    """
    reading = read_or(reading, net, x)
    changed = np.zeros(len(reading.layers))
    total = np.zeros(len(reading.layers))
    for part in capture(net, x, reading, chunk_size, dtype):
        for i, (z, a) in enumerate(zip(part.preactivations[:-1], part.activations[:-1], strict=True)):
            if reading.layers[i].apart:  # the next layer reads something else
                continue
            z, a = z.flatten(1).double(), a.flatten(1).double()
            total[i] += float((z * z).sum())
            changed[i] += float(((z - a) ** 2).sum()) if z.shape == a.shape else np.nan
    total[total == 0] = np.nan  # the last layer, too
    values = np.sqrt(changed / total)
    return {layer.name: float(value) for layer, value in zip(reading.layers, values, strict=True)}
