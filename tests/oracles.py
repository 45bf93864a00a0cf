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


def activation_aware_svd(net, x, limit, cut=None):
    """Return the fewest parameters that activation-aware SVD leaves within a change, and its layers at one strength.

    Every layer W becomes its truncated SVD in the metric of its inputs, W C^{1/2}, where that has fewer parameters;
    each loses at most the fraction cut^2 of the variance of its output. All of 60 strengths are tried.
    """
    layers = {n: m for n, m in net.named_modules() if isinstance(m, torch.nn.Linear | torch.nn.Conv1d)}
    given, total = {}, sum(p.numel() for p in net.parameters())
    hooks = [m.register_forward_pre_hook(lambda _, a, n=n: given.setdefault(n, a[0])) for n, m in layers.items()]
    with torch.no_grad():
        before = net(x).flatten(1)
    for hook in hooks:
        hook.remove()
    frames = {}
    for name, layer in layers.items():
        rows = _inputs_as_rows(layer, given[name])
        mean, centered = rows.mean(0), rows - rows.mean(0)
        values, vectors = torch.linalg.eigh(centered.T @ centered / len(rows))
        root = vectors * values.clamp(min=0).sqrt() @ vectors.T
        weight = layer.weight.detach().flatten(1)
        u, s, _ = torch.linalg.svd(weight @ root, full_matrices=False)
        frames[name] = u, s, weight, mean

    def at(strength):
        new, size = {}, total
        for name, (u, s, weight, mean) in frames.items():
            left = s.square().flip(0).cumsum(0).flip(0)  # from the k-th on
            k = max(1, int((left > strength**2 * left[0]).sum()))
            out, taps = weight.shape
            if k * (out + taps) >= out * taps:
                continue
            layer = copy.deepcopy(layers[name])
            small = u[:, :k] @ u[:, :k].T @ weight
            bias = 0 if layer.bias is None else layer.bias.detach()
            layer.weight = torch.nn.Parameter(small.reshape(layer.weight.shape))
            layer.bias = torch.nn.Parameter(bias + (weight - small) @ mean)
            new[name] = layer
            size -= out * taps - k * (out + taps) - (out if layers[name].bias is None else 0)
        return new, size

    if cut is not None:
        return None, at(cut)[0]
    fewest = total
    for strength in torch.logspace(-3, 0, 60).tolist():
        new, size = at(strength)
        work = copy.deepcopy(net)
        for name, layer in new.items():
            parent, _, own = name.rpartition(".")
            setattr(work.get_submodule(parent), own, layer)
        with torch.no_grad():
            after = work(x).flatten(1)
        if size < fewest and (after - before).norm() <= limit * (before - before.mean(0)).norm():
            fewest = size
    return fewest, {}


def _inputs_as_rows(layer, value):
    """Return what a layer multiplies its weights with: features, or the patches of a convolution with zero padding."""
    if isinstance(layer, torch.nn.Linear):
        return value.reshape(-1, value.shape[-1])
    padded = torch.nn.functional.pad(value, [layer.padding[0]] * 2)
    return padded.unfold(2, layer.kernel_size[0], 1).movedim(2, 1).flatten(2).flatten(0, 1)
