"""What else makes a trained chain of layers smaller: pruning, truncated SVD, Torch-Pruning; and fine-tuning for all."""

from __future__ import annotations

import copy
import functools
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import prune

from benchmarks.against.compression_models import Block
from bnrank.discovery.compression import multiply_adds, parameters

Layer = nn.Linear | nn.Conv1d | nn.Conv2d

__all__ = ["PEERS", "Peer", "costs", "find_strongest", "fine_tuned", "layers"]

KEPT = tuple(float(k) for k in np.geomspace(0.93, 0.01, 32))  # share of entries or neurons that pruning leaves
CUT = tuple(float(c) for c in np.geomspace(1e-3, 0.9, 32))  # square root of the share of energy that an SVD leaves out
DECIDING = 2000  # samples on which the data-aware SVD measures activations
BATCH = 150
ITERATIONS = 5  # of Torch-Pruning
RATES = (3e-3, 3e-4)


@dataclass(frozen=True)
class Peer:
    """A way to make a network smaller.

    Attributes
    ----------
    shrink : callable
        From a network with Linear and convolutions, inputs and a strength to a smaller network; the network given stays
        as it is.
    strengths : tuple of float
        What is tried, weakest first.
    sparse : bool
        Whether entries become zero instead of being taken out.
    """

    shrink: Callable[[nn.Sequential, Tensor, float], nn.Module]
    strengths: tuple[float, ...]
    sparse: bool = False  # whether what is saved are zeros


def layers(net: nn.Module) -> list[Layer]:
    """Return the linear and convolutional layers in order."""
    return [part for part in net.modules() if isinstance(part, Layer)]


def costs(net: nn.Module, x: Tensor, sparse: bool = False) -> tuple[int, int]:
    """Return parameters and multiply-adds per sample; where ``sparse``, of entries that are not zero.

    Only a sparse engine would save the multiply-adds of these.
    """
    if not sparse:
        return parameters(net), multiply_adds(net, x)
    zeros = sum(int((p == 0).sum()) for p in net.parameters())
    shares = [(multiply_adds_of(net, layer, x), float((layer.weight == 0).double().mean())) for layer in layers(net)]
    return parameters(net) - zeros, round(multiply_adds(net, x) - sum(count * share for count, share in shares))


def multiply_adds_of(net: nn.Module, layer: Layer, x: Tensor) -> int:
    """Return the multiply-adds per sample of one layer, 0 if it is not called."""
    sizes: list[int] = []
    handle = layer.register_forward_hook(lambda _, __, out: sizes.append(out[0].numel()))
    with torch.no_grad():
        net(x[:1])
    handle.remove()
    return sum(sizes[:1]) * layer.weight[0].numel()


def entries(net: nn.Sequential, x: Tensor, kept: float) -> nn.Module:
    """Set the smallest weights and biases of the whole network to zero: ``prune.global_unstructured`` by L1."""
    work = copy.deepcopy(net)
    chosen = [
        (layer, name) for layer in layers(work) for name in ("weight", "bias") if getattr(layer, name) is not None
    ]
    prune.global_unstructured(chosen, pruning_method=prune.L1Unstructured, amount=1 - kept)
    return work


def neurons(net: nn.Sequential, x: Tensor, kept: float) -> nn.Module:
    """Remove the neurons or channels of least norm, the same share of every hidden layer: ``prune.ln_structured``."""
    if type(net) is not nn.Sequential:
        raise TypeError(f"a {type(net).__name__}, which is no chain of layers")
    work = copy.deepcopy(net)
    for layer in layers(work)[:-1]:
        count = len(layer.weight)
        prune.ln_structured(layer, "weight", amount=count - max(1, round(kept * count)), n=2, dim=0)
    return without_pruned(work)


def without_pruned(work: nn.Sequential) -> nn.Sequential:
    """Take out neurons and channels of which the mask is zero; their biases go with them."""
    for layer, following in itertools.pairwise(layers(work)):
        mask = layer.weight_mask.flatten(1).any(1)  # type: ignore[operator, union-attr]
        prune.remove(layer, "weight")
        places = following.weight.shape[1] // len(mask)
        columns = mask.repeat_interleave(places)  # after Flatten a channel is several columns
        if hasattr(following, "weight_mask"):
            following.weight_orig = nn.Parameter(following.weight_orig.detach()[:, columns])  # type: ignore[operator]
            following.weight_mask = following.weight_mask[:, columns]
            following.weight = following.weight_orig * following.weight_mask
        else:
            following.weight = nn.Parameter(following.weight.detach()[:, columns])
        layer.weight = nn.Parameter(layer.weight.detach()[mask])
        layer.bias = nn.Parameter(layer.bias.detach()[mask])  # type: ignore[union-attr]
    resize(work)
    return work


def resize(work: nn.Module) -> None:
    """Let the layers say what their weights' shapes are."""
    for layer in layers(work):
        if isinstance(layer, nn.Linear):
            layer.out_features, layer.in_features = layer.weight.shape
        else:
            layer.out_channels, layer.in_channels = layer.weight.shape[:2]


def graph_pruned(net: nn.Sequential, x: Tensor, kept: float) -> nn.Module:
    """Remove the neurons or channels of least group norm in the whole network: Torch-Pruning, global."""
    import torch_pruning

    work = copy.deepcopy(net).requires_grad_(True)  # it follows the gradient's graph
    hidden = layers(work)[:-1]
    pruner = torch_pruning.pruner.BasePruner(
        work,
        x[:2],
        importance=torch_pruning.importance.GroupMagnitudeImportance(p=2),
        global_pruning=True,
        pruning_ratio=1 - kept,
        max_pruning_ratio=1 - 1 / min(len(layer.weight) for layer in hidden),  # a neuron stays
        ignored_layers=layers(work)[-1:],
        iterative_steps=ITERATIONS,
        num_heads=heads(work),
    )
    for _ in range(ITERATIONS):
        pruner.step()
    return work


def heads(net: nn.Module) -> dict[nn.Module, int]:
    """Return the number of heads of every layer whose units are divided among heads, by the layer."""
    found: dict[nn.Module, int] = {}
    for part in net.modules():
        if isinstance(part, nn.MultiheadAttention):
            found[part] = part.num_heads
        elif isinstance(part, Block):
            found |= dict.fromkeys((part.query, part.key, part.value), part.heads)
    return found


def truncated(net: nn.Module, x: Tensor, cut: float) -> nn.Module:
    """Replace every weight matrix by its truncated SVD; the energy that is left out is at most cut^2 in each."""
    frames = []
    for layer in layers(net):
        u, s, _ = torch.linalg.svd(layer.weight.detach().flatten(1).double(), full_matrices=False)
        frames.append((u, s.square(), torch.zeros(len(u), dtype=torch.float64)))
    return factored(net, frames, cut)


def truncated_on_data(net: nn.Module, x: Tensor, cut: float) -> nn.Module:
    """Replace every layer by its best one of low rank on the data: SVD of W C^{1/2}, C the covariance of its inputs.

    The left singular vectors of W C^{1/2} are the principal axes of what the layer gives, which is how they are found.
    """
    return factored(net, principal_axes(net, x), cut)


def truncated_together(net: nn.Module, x: Tensor, cut: float) -> nn.Module:
    """Do the same with one budget: each layer minimizes its share of parameters plus energy left out over cut^2.

    Energy is relative to that of the layer's output.
    """
    frames = principal_axes(net, x)
    whole = parameters(net)
    ranks = []
    for layer, (_, energy, _) in zip(layers(net), frames, strict=True):
        out, flat = layer.weight.flatten(1).shape
        k = torch.arange(1, out + 1)
        left = (energy.sum() - energy.cumsum(0)).clamp(min=0) / energy.sum().clamp(min=1e-300)
        sums = (k * (out + flat)).double() / whole + left / cut**2
        best = int(sums.argmin())
        ranks.append(best + 1 if float(sums[best]) < out * flat / whole else out)
    return with_ranks(net, frames, ranks)


@functools.lru_cache(maxsize=1)
def principal_axes(net: nn.Module, x: Tensor) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Return for every layer axes (columns), variances along them, and the mean of what it gives on the data."""
    found: dict[nn.Module, tuple[Tensor, Tensor, Tensor]] = {}

    def note(layer: nn.Module, _: object, out: Tensor) -> None:
        rows = (out if isinstance(layer, nn.Linear) else out.movedim(1, -1)).flatten(0, -2).double()
        values, vectors = torch.linalg.eigh(torch.cov(rows.T, correction=0).reshape(rows.shape[1], -1))
        found[layer] = vectors.flip(1), values.flip(0).clamp(min=0), rows.mean(0)

    handles = [layer.register_forward_hook(note) for layer in layers(net)]
    with torch.no_grad():
        net(x[:DECIDING])
    for handle in handles:
        handle.remove()
    return [found[layer] for layer in layers(net)]


def factored(net: nn.Module, frames: Sequence[tuple[Tensor, Tensor, Tensor]], cut: float) -> nn.Module:
    """Replace each layer by two, onto its first axes and back, where that takes fewer parameters."""
    ranks = []
    for _, energy, _ in frames:
        left_out = energy.sum() - energy.cumsum(0)
        ranks.append(1 + int((left_out > cut**2 * energy.sum()).sum()))
    return with_ranks(net, frames, ranks)


def with_ranks(net: nn.Module, frames: Sequence[tuple[Tensor, Tensor, Tensor]], ranks: Sequence[int]) -> nn.Module:
    """Replace each layer by two of the given rank, where that takes fewer parameters; a chain stays a chain."""
    work = copy.deepcopy(net)
    names = {layer: name for name, layer in work.named_modules()}
    for layer, (axes, _, mean), rank in zip(layers(work), frames, ranks, strict=True):
        out, flat = layer.weight.flatten(1).shape
        if rank * (out + flat) < out * flat:
            parent, _, own = names[layer].rpartition(".")
            setattr(work.get_submodule(parent), own, nn.Sequential(*pair(layer, axes[:, :rank], mean)))
    if type(work) is not nn.Sequential:
        return work
    return nn.Sequential(*(one for part in work for one in (part if isinstance(part, nn.Sequential) else [part])))


def rescaled(net: nn.Module, x: Tensor, cut: float) -> nn.Module:
    """Replace each Linear by a truncated SVD with columns scaled by its inputs: fasterai's ``FC_Decomposer``."""
    from fasterai.misc import fc_decomposer

    if not hasattr(fc_decomposer._collect_activation_rms, "cache_info"):  # it measures the data anew at every strength
        fc_decomposer._collect_activation_rms = functools.lru_cache(1)(fc_decomposer._collect_activation_rms)
    return fc_decomposer.FC_Decomposer().decompose(net, energy_threshold=1 - cut**2, data=_first(x))


@functools.lru_cache(1)
def _first(x: Tensor) -> Tensor:
    return x[:DECIDING]


def pair(layer: Layer, axes: Tensor, mean: Tensor) -> list[nn.Module]:
    """Return two layers that give mean + U U^T (W x + b - mean)."""
    rank, dtype = axes.shape[1], layer.weight.dtype
    weight = layer.weight.detach().double()
    bias = torch.zeros(len(weight), dtype=torch.float64) if layer.bias is None else layer.bias.detach().double()
    first = copy.deepcopy(layer)
    first.weight = nn.Parameter((axes.T @ weight.flatten(1)).reshape(rank, *weight.shape[1:]).to(dtype))
    first.bias = None
    linear = isinstance(layer, nn.Linear)
    second = nn.Linear(rank, len(axes)) if linear else type(layer)(rank, len(axes), 1)  # type: ignore[arg-type]
    second.weight = nn.Parameter(axes.to(dtype).reshape(second.weight.shape))
    kept_bias = bias if not mean.any() else mean + axes @ (axes.T @ (bias - mean))
    second.bias = nn.Parameter(kept_bias.to(dtype))
    made = [first, second]
    resize(nn.Sequential(*made))
    return made


PEERS = {
    "magnitude, single entries": Peer(entries, KEPT, sparse=True),
    "magnitude, neurons": Peer(neurons, KEPT),
    "Torch-Pruning, global": Peer(graph_pruned, KEPT),
    "truncated SVD": Peer(truncated, CUT),
    "truncated SVD on data": Peer(truncated_on_data, CUT),
    "truncated SVD on data, one budget": Peer(truncated_together, CUT),
    "fasterai ASVD": Peer(rescaled, CUT),
}


def finished(net: nn.Module) -> nn.Module:
    """Return the network with masks applied for good."""
    work = copy.deepcopy(net)
    for layer in layers(work):
        for name in ("weight", "bias"):
            if hasattr(layer, f"{name}_mask"):
                prune.remove(layer, name)
    return work


def fine_tuned(
    net: nn.Module,
    x: Tensor,
    outputs: Tensor,
    steps: int,
    rates: Sequence[float] = RATES,
) -> nn.Module:
    """Fit the parameters left to the outputs before: Adam, squared error, batches of at most 150.

    Every step size is tried; the network of least error on all inputs given is returned, the one before among them.
    """

    def error(work: nn.Module) -> float:
        with torch.no_grad():
            found = float((work(x) - outputs).square().sum(1).mean())
        return found if math.isfinite(found) else math.inf

    return min([net, *(_descended(net, x, outputs, steps, rate) for rate in rates)], key=error)


def _descended(net: nn.Module, x: Tensor, outputs: Tensor, steps: int, rate: float) -> nn.Module:
    work = copy.deepcopy(net).requires_grad_(True)
    optimizer = torch.optim.Adam(work.parameters(), lr=rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    generator = torch.Generator().manual_seed(0)
    for _ in range(steps):
        rows = torch.randint(len(x), (BATCH,), generator=generator) if len(x) > BATCH else slice(None)
        optimizer.zero_grad()
        (work(x[rows]) - outputs[rows]).square().sum(1).mean().backward()
        optimizer.step()
        schedule.step()
    for parameter in work.parameters():
        parameter.requires_grad_(False).grad = None
    with torch.no_grad():
        work(x[:1])  # masks are applied when it runs
    return work


def find_strongest(acceptable: Callable[[int], bool], count: int) -> None:
    """Ask about strengths 0, ..., count - 1, by bisection, as if what is not acceptable stayed so when stronger."""
    low, high = -1, count
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if acceptable(middle) else (low, middle)
