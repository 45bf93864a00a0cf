"""Slow, obvious float64 versions of what bnrank computes fast. Tests compare against these."""

from __future__ import annotations

import copy
import itertools

import torch
from torch import Tensor, nn


def float64(module: nn.Module) -> nn.Module:
    """A copy in float64 and eval mode."""
    return copy.deepcopy(module).double().eval()


def input_jacobian(module: nn.Module, x: Tensor) -> Tensor:
    """(N, d_out, d_in), one sample at a time."""
    net = float64(module)
    rows = []
    for sample in x.double():
        jacobian = torch.autograd.functional.jacobian(lambda s: net(s[None]).flatten(), sample)
        rows.append(jacobian.reshape(jacobian.shape[0], -1))
    return torch.stack(rows).detach()


def parameter_jacobian(module: nn.Module, x: Tensor) -> Tensor:
    """(N, d_out, P), one backward pass per sample and output."""
    net = float64(module)
    parameters = list(net.parameters())
    rows = []
    for sample in x.double():
        for output in net(sample[None]).flatten():
            gradients = torch.autograd.grad(output, parameters, retain_graph=True, allow_unused=True)
            rows.append(
                torch.cat(
                    [
                        torch.zeros(p.numel(), dtype=torch.float64) if g is None else g.flatten()
                        for g, p in zip(gradients, parameters, strict=True)
                    ]
                )
            )
    return torch.stack(rows).reshape(len(x), -1, rows[0].numel())


def ntk(module: nn.Module, x: Tensor) -> Tensor:
    """(N, N, d_out, d_out) from the full parameter Jacobian."""
    rows = parameter_jacobian(module, x)
    return torch.einsum("iap,jbp->ijab", rows, rows)


def spectrum(matrix: Tensor) -> Tensor:
    """Singular values of N^{-1/2} Z for the whole matrix at once."""
    matrix = matrix.detach().double()
    return torch.linalg.svdvals(matrix.flatten(1)) / matrix.shape[0] ** 0.5


def circular_convolution_matrix(
    kernel: Tensor, n: tuple[int, ...], stride: int = 1, dilation: int = 1, groups: int = 1
) -> Tensor:
    """The dense matrix of a convolution with circular padding, tap by tap, y[o, p] += K[o, i, t] x[i, s p + dil t]."""
    c_out, per_group, *taps = kernel.shape
    m = tuple(a // stride for a in n)
    matrix = torch.zeros(c_out, *m, per_group * groups, *n, dtype=torch.float64)
    for o in range(c_out):
        for i in range(per_group):
            channel = (o // (c_out // groups)) * per_group + i
            for p in itertools.product(*map(range, m)):
                for t in itertools.product(*map(range, taps)):
                    source = tuple((stride * a + dilation * b) % size for a, b, size in zip(p, t, n, strict=True))
                    matrix[(o, *p, channel, *source)] += kernel[(o, i, *t)].double()
    rows = matrix[(slice(None), *(slice(None) for _ in m))].reshape(c_out * torch.Size(m).numel(), -1)
    return rows


def layer_values(net: nn.Module, layers: list[nn.Module], x: Tensor) -> list[Tensor]:
    """The outputs of the given layers of a float64 copy, by calling it once with all samples."""
    outputs: dict[nn.Module, Tensor] = {}
    handles = [layer.register_forward_hook(lambda m, _, out: outputs.update({m: out.clone()})) for layer in layers]
    with torch.no_grad():
        net(x.double())
    for handle in handles:
        handle.remove()
    return [outputs[layer] for layer in layers]
