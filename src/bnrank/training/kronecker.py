"""Kronecker-factored curvature of an MLP's cost, used as the metric in which L-BFGS starts."""

import math

import torch
from torch import Tensor

from bnrank.networks import MLP
from bnrank.networks.mlp import leaky_relu
from bnrank.training.ensemble import split

SAMPLES = 1024  # samples that the factors are estimated on, at most
DAMPING = 25.0  # in units of 2 lambda, what the ridge itself adds to the curvature
RELATIVE, DECAY, FLOOR = 0.3, 0.6, 1e-3  # in units of the mean curvature: at first, its factor per estimate, in the end


class KroneckerCurvature:
    r"""Block-diagonal estimate H of the Hessian of C + lambda ||theta||^2, and its inverse.

    For layer l with inputs a (a constant 1 appended where there are biases) and output f, the Gauss-Newton block of
    the cost is approximated by A_l (x) B_l, A_l = mean_i a_i a_i^T, B_l = mean_i J_i^T H_i J_i, with J_i the Jacobian
    of f in the layer's preactivations and H_i the Hessian of the loss in f, estimated from one random vector per sample
    (K-FAC: Martens and Grosse 2015). With A = U diag(p) U^T and B = V diag(q) V^T the inverse of
    A (x) B + 2 lambda + damping divides the entries of V^T G U by q_j p_i + 2 lambda + damping: along the many
    directions in which the cost of a network with a bottleneck is flat, the ridge alone remains, and one step does what
    takes a gradient method 1 / (lr lambda) steps.

    Parameters
    ----------
    net : MLP
        Architecture.
    x : Tensor
        Inputs; at most 1,024 of them, chosen at random by the seed, are used.
    loss : str
        "mse", "cross_entropy" or "logistic".
    ridge : float
        lambda.
    seed : int
        Seed of the random vectors.

    Notes
    -----
    The damping is 25 times 2 lambda, plus a share of the mean curvature of the layer's block that falls from 0.3 to
    0.001 as estimates follow one another: a cautious metric far from a minimum, a bold one near it. On the task of F4
    at depth 12 anything from 10 to 100 times 2 lambda took about the same number of evaluations.
    """

    def __init__(self, net: MLP, x: Tensor, loss: str, ridge: float, seed: int) -> None:
        chosen = torch.randperm(x.shape[0], generator=torch.Generator().manual_seed(seed))[:SAMPLES].sort().values
        part = x if x.shape[0] <= SAMPLES else x[chosen.to(x.device)]
        self.net, self.x, self.loss, self.ridge, self.seed = net, part, loss, ridge, seed
        self.shapes = [tuple(p.shape) for p in net.parameters()]
        self.bases: list[tuple[Tensor, Tensor, Tensor]] = []

    def refresh(self, row: Tensor, count: int, caution: int = 0) -> None:
        """Estimate the factors at one member's parameters.

        ``count`` numbers the random vectors; each unit of ``caution`` multiplies the damping by ten.
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
        self.bases = []
        for layer in range(len(weights) - 1, -1, -1):
            a = inputs[layer]
            if biases:
                a = torch.cat([a, a.new_ones(n, 1)], dim=1)
            p, u = _eigen(a.T @ a / n)
            q, v = _eigen(delta.T @ delta / n)
            curvature = q.clamp_min(0).unsqueeze(1) * p.clamp_min(0)
            share = max(RELATIVE * DECAY**count, FLOOR)
            damping = 2 * self.ridge * DAMPING + share * float(curvature.mean()) + 1e-12
            curvature += 2 * self.ridge + damping * 10**caution
            self.bases.append((u, v, curvature.reciprocal_()))
            if layer:
                back = delta @ weights[layer]
                delta = torch.where(preactivations[layer - 1] > 0, back, slope * back)
        self.bases.reverse()

    def solve(self, row: Tensor) -> Tensor:
        """Return H^{-1} applied to one row of a parameter matrix, shape (size,)."""
        result = torch.empty_like(row)
        weights, biases = self._split(row)
        out_weights, out_biases = self._split(result)
        for layer, (u, v, inverse) in enumerate(self.bases):
            g = torch.cat([weights[layer], biases[layer].unsqueeze(1)], dim=1) if biases else weights[layer]
            g = v @ ((v.T @ g @ u).mul_(inverse)) @ u.T
            out_weights[layer].copy_(g[:, : weights[layer].shape[1]])
            if biases:
                out_biases[layer].copy_(g[:, -1])
        return result

    def _random_outputs(self, output: Tensor, count: int) -> Tensor:
        """Return one random vector per sample whose covariance is the Hessian of the loss in the outputs."""
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + count)
        noise = torch.randn(output.shape, generator=generator, dtype=output.dtype).to(output.device)
        if self.loss == "mse":
            return noise.mul_(math.sqrt(2))
        if self.loss == "logistic":  # p (1 - p), whatever the labels
            return noise.mul_((torch.sigmoid(output) * torch.sigmoid(-output)).sqrt_())
        probability = torch.softmax(output, dim=1)
        root = probability.sqrt()
        return root * noise - probability * (root * noise).sum(1, keepdim=True)

    def _split(self, row: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        pieces = split(row, self.shapes)
        return (pieces[::2], pieces[1::2]) if self.net.bias else (pieces, [])


def _eigen(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Return eigenvalues and eigenvectors, computed in float64: LAPACK may fail on nearly singular float32 matrices.

    A matrix that is not finite (of a diverging member) is replaced by zero.
    """
    if not bool(torch.isfinite(matrix).all()):
        matrix = torch.zeros_like(matrix)
    values, vectors = torch.linalg.eigh(matrix.double())
    return values.to(matrix.dtype), vectors.to(matrix.dtype)
