"""Networks with kinks everywhere, and the signs of their neurons, for the tests of regions."""

import torch

import bnrank
from bnrank.networks.chain import as_mlp
from helpers import normal


def network(widths, seed=0, **settings):
    """A network with biases of standard deviation 1/2."""
    net = bnrank.MLP(widths, seed=seed, **settings)
    for i, bias in enumerate(net.biases):
        bias.data = normal(*bias.shape, seed=1000 * seed + i + 1, dtype=bias.dtype) / 2
    return net


def signs(net, x):
    """Signs of all hidden neurons at samples, (N, hidden), layer by layer."""
    net, found = as_mlp(net), []
    with torch.no_grad():
        for layer in net.layers[:-1]:
            z = layer(x)
            found.append(z.sign())
            x = torch.where(z > 0, z, net.slope * z)
    return torch.cat([*found, x[:, :0]], 1).to(torch.int8)
