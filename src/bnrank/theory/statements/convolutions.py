"""Statements about convolutional layers (T28)."""

import itertools
import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from bnrank.measures.convolution import conv_singular_values, layer_singular_values
from bnrank.networks.reading import read
from bnrank.theory.facts import Facts
from bnrank.theory.verdicts import Sides, assume, statement

MAX_WORK = 2 * 10**10  # operations for the singular values of one convolution
SOURCE = "Jacot2023c, circular convolutional networks"


@statement(
    "T28",
    "energy of a circular convolution",
    "sum_{w,i} s_{w,i}^2 = n^2 ||K||_F^2 (with stride: output positions for n^2)",
    source=SOURCE,
)
def _energy(facts: Facts) -> Iterator[Sides]:
    for layer, values in _circular(facts):
        positions = math.prod(layer.output_shape[1:])
        right = positions * float((layer.weight.detach().double() ** 2).sum())
        yield Sides(float((values**2).sum()), right, "=", note=f"layer {layer.name!r}, {positions} positions")


@statement("T28", "frequencies w and -w", "s_{w,i} = s_{-w,i}", source=SOURCE)
def _frequencies(facts: Facts) -> list[Sides]:
    found = []
    for layer, _ in _circular(facts):
        conv, n = layer.module, layer.input_shape[1:]
        if conv.groups > 1 or any(s > 1 for s in conv.stride):
            continue
        table = conv_singular_values(layer.weight, n, dilation=conv.dilation)
        for w in itertools.islice(itertools.product(*(range(1, size) for size in n)), 8):
            direct = _at_frequency(layer.weight, [-v for v in w], n, conv.dilation)
            off = int((table[w] - direct).abs().argmax())
            note = f"layer {layer.name!r}, frequency {w}, value {off + 1}"
            found.append(Sides(float(table[w][off]), float(direct[off]), "=", 1e-9, float(direct[0]), note=note))
    assume(len(found) > 0, "there is a circular convolution without stride or groups on images larger than 1")
    return found


def _circular(facts: Facts) -> list[tuple[Any, Tensor]]:
    """Return the layers that are circular convolutions on images as large as the kernel, with all singular values."""
    found, why = [], "no convolutional layer"
    for layer in read(facts.net, facts.x).layers:
        if layer.kind == "linear" or layer.input_shape is None:
            continue
        conv: Any = layer.module
        n = layer.input_shape[1:]
        work = math.prod(n) * math.prod(layer.weight.shape[:2]) * min(layer.weight.shape[:2])
        if any(d * (k - 1) >= size for d, k, size in zip(conv.dilation, conv.kernel_size, n, strict=True)):
            why = f"layer {layer.name!r} has a kernel larger than its images"
        elif work > MAX_WORK:
            why = f"layer {layer.name!r} would take {work:.0e} operations"
        else:
            values, note = layer_singular_values(layer)
            if values is not None and not note:
                found.append((layer, values))
            else:
                why = f"layer {layer.name!r}: {note}"
    assume(len(found) > 0, "there is a convolution with circular padding", why)
    return found


def _at_frequency(kernel: Tensor, w: list[int], n: tuple[int, ...], dilation: tuple[int, ...]) -> Tensor:
    """Return the singular values of sum_t K_t exp(-2 pi i w.t / n), tap by tap."""
    total = torch.zeros(kernel.shape[:2], dtype=torch.complex128)
    taps = kernel.detach().cpu().to(torch.complex128).flatten(2)
    for i, tap in enumerate(itertools.product(*map(range, kernel.shape[2:]))):
        phase = sum(a * b * d / size for a, b, d, size in zip(w, tap, dilation, n, strict=True))
        total += complex(math.cos(2 * math.pi * phase), -math.sin(2 * math.pi * phase)) * taps[:, :, i]
    return torch.linalg.svdvals(total)
