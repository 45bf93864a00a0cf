"""The norm of the mixed second derivative of the kernel, d^2 Theta(x, y) / dx dy at y = x (T25)."""

from __future__ import annotations

import torch
from torch import Tensor

from bnrank.measures.backward import Layers
from bnrank.measures.products import CHUNK_ENTRIES, check_connected, largest_eigenvalue, transposed, twice
from bnrank.networks.functional import Functional

__all__ = ["at_sample", "by_layers"]

FORMED = 256  # d_in d_out up to which the matrix is formed


def by_layers(layers: Layers, x: Tensor, rtol: float, chunk_size: int | None, seed: int) -> Tensor:
    """Return the norms of sum_l J a_{l-1}^T J a_{l-1} (x) J(a~_l -> f) J(a~_l -> f)^T, (N,), of an MLP."""
    d_in, d_out = layers.widths[0], layers.widths[-1]
    size = d_in * d_out
    formed = size <= FORMED
    numbers = sum(layers.widths) * (d_in + d_out) + len(layers.weights) * (d_in**2 + d_out**2) + size**2 * formed
    norms = []
    for part in x.split(chunk_size or max(1, CHUNK_ENTRIES // (4 * numbers))):
        slopes = layers.forward(part).slopes
        down = [g.expand(len(part), -1, -1) for g in layers.to_output(slopes)]
        outer = torch.stack([g @ g.mT for g in down], 1)  # (n, L, d_out, d_out)
        up = [a.expand(len(part), -1, -1) for a in layers.from_input(slopes)]
        if formed:
            inner = torch.stack([a.mT @ a for a in up], 1)  # (n, L, d_in, d_in)
            matrix = (inner.flatten(2).mT @ outer.flatten(2)).view(-1, d_in, d_in, d_out, d_out)
            matrix = matrix.transpose(2, 3).reshape(-1, size, size)
            norms.append(torch.linalg.eigvalsh(matrix)[:, -1].clamp(min=0.0))
            continue
        for i in range(len(part)):
            factors, kernels = [a[i] for a in up[1:]], outer[i]

            def apply(v: Tensor, factors: list[Tensor] = factors, kernels: Tensor = kernels) -> Tensor:
                v = v.view(d_in, d_out)
                total = v @ kernels[0]
                for a, kernel in zip(factors, kernels[1:], strict=True):
                    total = total + a.T @ ((a @ v) @ kernel)
                return total.flatten()

            norms.append(outer.new_tensor([largest_eigenvalue(apply, outer.new_zeros(size), rtol, seed)]))
    return torch.cat(norms)


def at_sample(function: Functional, sample: Tensor, rtol: float, seed: int) -> float:
    """Return the norm at one sample, (1, ...), by automatic differentiation: M^T u is a gradient, M v its transpose."""
    parameters = [p for p in function.parameters.values() if p.requires_grad]
    sample = sample.detach().clone().requires_grad_(True)
    with torch.enable_grad(), twice(function):
        out = function(sample).flatten()
        if not out.requires_grad:
            return 0.0
        one = torch.ones_like(out[0], requires_grad=True)  # so that once_differentiable functions are noticed
        rows = [torch.autograd.grad(f, sample, one, create_graph=True, materialize_grads=True)[0] for f in out]
        jacobian = torch.stack([row.flatten() for row in rows], 1)  # (d_in, d_out)
        check_connected(function, [jacobian])
        if not jacobian.requires_grad:
            return 0.0
        u = torch.zeros_like(jacobian, requires_grad=True)
        found = torch.autograd.grad(jacobian, parameters, u, create_graph=True, materialize_grads=True)
        check_connected(function, found)

        def apply(v: Tensor) -> Tensor:
            directions = torch.autograd.grad(
                jacobian, parameters, v.view_as(jacobian), retain_graph=True, materialize_grads=True
            )
            return transposed(found, u, list(directions), keep=True).flatten()

        return largest_eigenvalue(apply, jacobian.detach().flatten(), rtol, seed)
