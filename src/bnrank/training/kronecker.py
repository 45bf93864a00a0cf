"""A Kronecker-factored estimate of curvature, the preconditioner of L-BFGS."""

import itertools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bnrank.networks import MLP
from bnrank.networks.mlp import leaky_relu
from bnrank.training.ensemble import split

SAMPLES = 1024  # maximum number of samples used to estimate the factors
DAMPING = 25.0  # damping in units of 2 lambda, the curvature of the ridge
RELATIVE, DECAY, FLOOR = 0.3, 0.6, 1e-3  # damping in units of the mean curvature: max(0.3 * 0.6^k, 0.001), k >= 1


class KroneckerCurvature:
    r"""Block-diagonal estimate H of the Hessian of C + lambda ||theta||^2, and its inverse.

    Let a be the inputs of layer l (with a constant 1 appended if the network has biases) and f the network's output.
    The Gauss-Newton block of the cost is approximated by A_l (x) B_l with A_l = mean_i a_i a_i^T and
    B_l = mean_i J_i^T H_i J_i. Here J_i is the Jacobian of f in the layer's preactivations and H_i the Hessian of the
    loss in f; B_l is estimated from one random vector per sample (K-FAC: Martens and Grosse 2015). With
    A = U diag(p) U^T and B = V diag(q) V^T, the inverse of A (x) B + 2 lambda + damping divides the entries of V^T G U
    by q_j p_i + 2 lambda + damping. The cost of a network with a bottleneck is flat along many directions. Along these
    only the ridge contributes curvature, and one step replaces about 1 / (lr lambda) steps of a gradient method.

    Parameters
    ----------
    net : MLP
        Architecture.
    x : Tensor
        Inputs. At most 1,024 of them are used, a random subset determined by the seed.
    loss : str
        "mse", "cross_entropy" or "logistic".
    ridge : float
        lambda.
    seed : int
        Seed of the random vectors.
    sample_weights : Tensor, optional
        Weights of the samples, (N,), of mean 1: the means over i are weighted.

    Notes
    -----
    The damping is 25 times 2 lambda plus a fraction of the mean curvature of the layer's block. This fraction is
    max(0.3 * 0.6^k, 0.001) at estimate k = 1, 2, ..., so steps are conservative far from a minimum and larger near it.
    On the task of F4 at depth 12, any value from 10 to 100 times 2 lambda needed about the same number of evaluations.
    """

    def __init__(
        self, net: MLP, x: Tensor, loss: str, ridge: float, seed: int, sample_weights: Tensor | None = None
    ) -> None:
        chosen = torch.randperm(x.shape[0], generator=torch.Generator().manual_seed(seed))[:SAMPLES].sort().values
        some = slice(None) if x.shape[0] <= SAMPLES else chosen.to(x.device)
        part, self.sample_weights = x[some], None if sample_weights is None else sample_weights[some].unsqueeze(1)
        self.net, self.x, self.loss, self.ridge, self.seed = net, part, loss, ridge, seed
        self.shapes = [tuple(p.shape) for p in net.parameters()]
        self.runs = list(self._runs())
        self.bases: list[tuple[Tensor, Tensor, Tensor]] = []
        self.operands: list[tuple[Any, Any, Any]] = []  # the same in memory of numpy, on a CPU

    def refresh(self, row: Tensor, count: int, caution: int = 0) -> None:
        """Estimate the factors at one member's parameters.

        ``count`` is the index of the estimate: it seeds the random vectors and sets the decay of the damping. Each unit
        of ``caution`` multiplies the damping by ten.
        """
        weights, biases = self._split(row)
        n, slope = self.x.shape[0], self.net.slope
        inputs, preactivations = [self.x], []
        for layer, weight in enumerate(weights):
            z = inputs[-1] @ weight.T
            if biases:
                z += biases[layer]
            preactivations.append(z)
            inputs.append(leaky_relu(z, slope))
        delta = self._random_outputs(preactivations[-1], count)
        made: list[tuple[Tensor, Tensor, Tensor]] = []
        for layer in range(len(weights) - 1, -1, -1):
            a = inputs[layer]
            if biases:
                a = torch.cat([a, a.new_ones(n, 1)], dim=1)
            p, u = _eigen(self._weighted(a).T @ a / n)
            q, v = _eigen(self._weighted(delta).T @ delta / n)
            curvature = q.clamp_min(0).unsqueeze(1) * p.clamp_min(0)
            share = max(RELATIVE * DECAY**count, FLOOR)
            damping = 2 * self.ridge * DAMPING + share * float(curvature.mean()) + 1e-12
            curvature += 2 * self.ridge + damping * 10**caution
            made.append((u, v, curvature.reciprocal_()))
            if layer:
                back = delta @ weights[layer]
                delta = torch.where(preactivations[layer - 1] > 0, back, slope * back)
        made.reverse()
        self.bases, self.operands = [], []
        for _, layers, _, _ in self.runs:
            u, v, inverse = (torch.stack(parts) for parts in zip(*made[:layers], strict=True))
            self.bases.append((u, v, inverse))
            if row.device.type == "cpu":
                self.operands.append((u.numpy(), v.numpy(), inverse.numpy()))
            made = made[layers:]

    def solve(self, rows: Tensor) -> Tensor:
        """Return H^{-1} applied to rows of a parameter matrix, shape (..., size)."""
        flat = rows.reshape(-1, rows.shape[-1])
        result = torch.empty_like(flat)
        (self._solve_on_cpu if rows.device.type == "cpu" else self._solve_on_device)(flat, result)
        return result.view(rows.shape)

    def _solve_on_device(self, flat: Tensor, result: Tensor) -> None:
        """Write H^{-1} applied to the rows of a matrix into another one."""
        count = len(flat)
        for (start, layers, d_out, d_in), (u, v, inverse) in zip(self.runs, self.bases, strict=True):
            size = d_out * (d_in + 1) if self.net.bias else d_out * d_in
            piece = slice(start, start + layers * size)
            stack = flat[:, piece].view(count, layers, size)
            g = stack[..., : d_out * d_in].view(count, layers, d_out, d_in)
            if self.net.bias:
                g = torch.cat([g, stack[..., d_out * d_in :].unsqueeze(-1)], dim=-1)
            g = v @ (v.mT @ (g @ u)).mul_(inverse) @ u.mT
            made = result[:, piece].view(count, layers, size)
            made[..., : d_out * d_in].view(g[..., :d_in].shape).copy_(g[..., :d_in])
            if self.net.bias:
                made[..., d_out * d_in :] = g[..., -1]

    def _solve_on_cpu(self, flat: Tensor, result: Tensor) -> None:
        """Write H^{-1} applied to the rows of a matrix into another one.

        Stacked ``numpy.matmul`` calls take half the time of those of torch. All memory is allocated by torch, which
        aligns it, so that the last bits are the same in all runs.
        """
        rows, made = flat.numpy(), result.numpy()
        with np.errstate(all="ignore"):
            for (start, layers, d_out, d_in), (u, v, inverse) in zip(self.runs, self.operands, strict=True):
                weights, size, width = d_out * d_in, d_out * (d_in + int(self.net.bias)), u.shape[1]
                piece, shape = slice(start, start + layers * size), (len(flat), layers, d_out, d_in)
                given, found = (values[:, piece].reshape(len(flat), layers, size) for values in (rows, made))
                one, two = (flat.new_empty(len(flat), layers, d_out, width).numpy() for _ in range(2))
                if self.net.bias:
                    one[..., :d_in], one[..., d_in] = given[..., :weights].reshape(shape), given[..., weights:]
                    np.matmul(one, u, out=two)
                else:
                    np.matmul(given.reshape(shape), u, out=two)
                np.matmul(v.swapaxes(1, 2), two, out=one)
                one *= inverse
                np.matmul(v, one, out=two)
                np.matmul(two, u.swapaxes(1, 2), out=one)
                found[..., :weights].reshape(shape)[...] = one[..., :d_in]
                if self.net.bias:
                    found[..., weights:] = one[..., d_in]

    def _weighted(self, values: Tensor) -> Tensor:
        return values if self.sample_weights is None else values * self.sample_weights

    def _runs(self) -> Iterator[tuple[int, int, int, int]]:
        """Yield the runs of layers of equal shape: first entry in a row of parameters, layers, outputs, inputs."""
        start = 0
        for (d_out, d_in), group in itertools.groupby(shape for shape in self.shapes if len(shape) == 2):
            layers = len(list(group))
            yield start, layers, d_out, d_in
            start += layers * d_out * (d_in + int(self.net.bias))

    def _random_outputs(self, output: Tensor, count: int) -> Tensor:
        """Return one random vector per sample whose covariance is the Hessian of the loss in the outputs."""
        generator = torch.Generator().manual_seed((self.seed * 1_000_003 + count) % 2**64)
        noise = torch.randn(output.shape, generator=generator, dtype=output.dtype).to(output.device)
        if self.loss == "mse":
            return noise.mul_(math.sqrt(2))
        if self.loss == "logistic":  # the Hessian is p (1 - p) for any labels
            return noise.mul_((torch.sigmoid(output) * torch.sigmoid(-output)).sqrt_())
        probability = torch.softmax(output, dim=1)
        root = probability.sqrt()
        return root * noise - probability * (root * noise).sum(1, keepdim=True)

    def _split(self, row: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        pieces = split(row, self.shapes)
        return (pieces[::2], pieces[1::2]) if self.net.bias else (pieces, [])


def _eigen(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Return eigenvalues and eigenvectors, computed in float64: LAPACK may fail on nearly singular float32 matrices.

    A matrix with non-finite entries (from a diverging member) is replaced by zero.
    """
    if not bool(torch.isfinite(matrix).all()):
        matrix = torch.zeros_like(matrix)
    values, vectors = torch.linalg.eigh(matrix.double())
    return values.to(matrix.dtype), vectors.to(matrix.dtype)
