"""Networks that carry two frames through a bottleneck z to the next two, and how well they predict."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bnrank.training import Adam, Save, train

BATCH = 256
LR = 3e-3
CHUNK = 4096  # windows
FILTERS = (24, 48)  # of the two layers of the convolutional encoder
LAST = 4  # pixels along a side after these layers, about


@dataclass(frozen=True)
class Shape:
    """Sizes of a network: (C, H, W) of the frames seen, numbers of inputs and outputs, widths of layers."""

    image: tuple[int, int, int]
    inputs: int
    outputs: int
    hidden: int
    latent: int
    encoder: str


def network(shape: Shape, seed: int) -> nn.Sequential:
    """Return encoder and decoder as a sequence of two, initialized as PyTorch does, from an own generator."""
    with torch.device("meta"):  # nothing is drawn
        front = _patches(shape) if shape.encoder == "conv" else [nn.Linear(shape.inputs, shape.hidden)]
        encoder = [*front, nn.GELU(), nn.Linear(shape.hidden, shape.hidden), nn.GELU()]
        decoder = [nn.Linear(shape.latent, shape.hidden), nn.GELU(), nn.Linear(shape.hidden, shape.hidden), nn.GELU()]
        ends = nn.Linear(shape.hidden, shape.latent), nn.Linear(shape.hidden, shape.outputs)
    net = nn.Sequential(nn.Sequential(*encoder, ends[0]), nn.Sequential(*decoder, ends[1])).to_empty(device="cpu")
    generator = torch.Generator().manual_seed(seed)
    for layer in (*encoder, *decoder, *ends):
        if isinstance(layer, nn.Linear | nn.Conv2d) and layer.bias is not None:
            nn.init.kaiming_uniform_(layer.weight, a=math.sqrt(5), generator=generator)
            bound = 1 / math.sqrt(layer.weight[0].numel())
            nn.init.uniform_(layer.bias, -bound, bound, generator=generator)
    return net


def _patches(shape: Shape) -> list[nn.Module]:
    """Return two convolutions whose patches do not overlap, and a linear map to the hidden width."""
    channels, height, width = shape.image
    first = max(1, min(round(min(height, width) / (2 * LAST)), height, width))
    second = min(2, height // first, width // first)
    layers: list[nn.Module] = [nn.Conv2d(channels, FILTERS[0], first, first), nn.GELU()]
    layers += [nn.Conv2d(FILTERS[0], FILTERS[1], second, second), nn.GELU(), nn.Flatten()]
    left = FILTERS[1] * (height // first // second) * (width // first // second)
    return [*layers, nn.Linear(left, shape.hidden)]


def trained(
    make: Callable[[int], nn.Sequential],
    x: Tensor,
    y: Tensor,
    *,
    ridge: float,
    steps: int,
    seeds: list[int],
    out: Path | None,
    resume: bool,
    progress: bool,
) -> list[nn.Sequential]:
    """Return networks trained on windows by Adam in mini-batches, one for each seed."""
    run = train(
        make,
        (x, y),
        ridge=ridge,
        steps=steps,
        seed=seeds,
        optimizer=Adam(LR, "cosine"),
        batch_size=min(BATCH, len(x)),
        record=max(1, steps // 10),
        out=None if out is None else Save(out, resume=resume),
        progress=progress,
    )
    return [run.network(i).eval() for i in range(len(seeds))]  # type: ignore[misc]


def outputs(net: nn.Module, x: Tensor) -> NDArray[np.float32]:
    """Return the outputs of a module, in chunks."""
    with torch.no_grad():
        return np.concatenate([net(x[i : i + CHUNK]).numpy() for i in range(0, len(x), CHUNK)])


def unexplained(predicted: NDArray[np.float32], y: NDArray[np.float32], mean: NDArray[np.float32]) -> float:
    """Return the squared error relative to that of a constant prediction, the mean of the training windows."""
    return float(np.square(predicted - y).sum(dtype=float) / max(np.square(y - mean).sum(dtype=float), 1e-300))
