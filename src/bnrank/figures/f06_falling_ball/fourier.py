"""Circular convolutional networks that compute in Fourier space, where they are block diagonal (T28)."""

import copy
import itertools
import math
from collections import OrderedDict

import torch
from torch import Tensor, nn

from bnrank.networks import CircularConvolutional


def in_fourier_space(net: CircularConvolutional) -> nn.Sequential:
    """Return a network with copies of the parameters of another that computes its convolutions in Fourier space.

    A circular convolution is block diagonal in Fourier space (T28): c_out x c_in numbers per frequency instead of as
    many per pair of pixels. For kernels as large as the image training is several times faster on images of 36 pixels
    or more. Parameters have the same names and meaning; ``net.load_state_dict(result.state_dict())`` takes them back.

    Parameters
    ----------
    net : CircularConvolutional
        Not changed.

    Returns
    -------
    torch.nn.Sequential
        The same function up to rounding, on images of the size in ``net.settings["shape"]`` only; on the same device
        and in the same mode, with the same parameters frozen.

    Notes
    -----
    The transforms are products with real matrices of cosines and sines, P x P for P pixels, which for small images is
    faster than a fast Fourier transform and differentiates under `torch.func`.

    Examples
    --------
    >>> import torch, bnrank
    >>> net = bnrank.networks.CircularConvolutional((2, 6, 6), [8, 8, 1], kernel=6)
    >>> x = torch.randn(3, 2, 6, 6)
    >>> torch.allclose(in_fourier_space(net)(x), net(x), atol=1e-5)
    True
    """
    image = tuple(net.settings["shape"][1:])
    parts: OrderedDict[str, nn.Module] = OrderedDict()
    for name, part in net.named_children():
        parts[name] = _Convolution(part, image) if isinstance(part, nn.Conv1d | nn.Conv2d) else copy.deepcopy(part)
    return nn.Sequential(parts).train(net.training)


class _Convolution(nn.Module):
    """One circular convolution, by way of cosines and sines of half the frequencies."""

    pixels_to_waves: Tensor
    taps_to_waves: Tensor
    waves_to_pixels: Tensor

    def __init__(self, convolution: nn.Conv1d | nn.Conv2d, image: tuple[int, ...]) -> None:
        super().__init__()
        self.image = image
        self.weight = _copied(convolution.weight)
        self.bias = None if convolution.bias is None else _copied(convolution.bias)
        taps = tuple(convolution.kernel_size)
        frequencies, times = _half(image)
        pixels = torch.tensor(list(itertools.product(*map(range, image))), dtype=torch.float64)
        places = torch.tensor(list(itertools.product(*map(range, taps))), dtype=torch.float64)
        places = places - torch.tensor([(k - 1) // 2 for k in taps])  # what tap t reads, relative to the pixel
        turn = 2 * math.pi * frequencies / torch.tensor(image)
        at_pixels, at_taps = pixels @ turn.T, places @ turn.T
        matrices = {
            "pixels_to_waves": torch.cat([at_pixels.cos(), -at_pixels.sin()], 1),
            "taps_to_waves": torch.cat([at_taps.cos(), at_taps.sin()], 1),
            "waves_to_pixels": torch.cat([at_pixels.cos() * times, -at_pixels.sin() * times], 1).T / len(pixels),
        }
        for name, matrix in matrices.items():
            self.register_buffer(name, matrix.to(self.weight), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[1:] != (self.weight.shape[1], *self.image):
            raise ValueError(f"x: got shape {tuple(x.shape)}, expected images of size {self.image}")
        n, before, after = len(x), x.shape[1], len(self.weight)
        half = self.pixels_to_waves.shape[1] // 2
        waves = (x.flatten(2) @ self.pixels_to_waves).view(n, before, 2, half)
        real, imaginary = (self.weight.flatten(2) @ self.taps_to_waves).view(after, before, 2, half).unbind(2)
        rows = torch.stack([torch.stack([real, imaginary]), torch.stack([-imaginary, real])])  # (of x, of y, ...)
        block = rows.permute(4, 0, 3, 1, 2).reshape(half, 2 * before, 2 * after)
        waves = torch.bmm(waves.permute(3, 0, 2, 1).reshape(half, n, 2 * before), block)
        waves = waves.view(half, n, 2, after).permute(1, 3, 2, 0).reshape(n, after, 2 * half)
        pixels = waves @ self.waves_to_pixels
        if self.bias is not None:
            pixels = pixels + self.bias[:, None]
        return pixels.view(n, after, *self.image)


def _copied(p: Tensor) -> nn.Parameter:
    return nn.Parameter(p.detach().clone(), requires_grad=p.requires_grad)


def _half(image: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Return one frequency of every pair w and -w, (frequency, dimension), and its multiplicity."""
    counts: dict[tuple[int, ...], int] = {}
    for w in itertools.product(*map(range, image)):
        mirror = tuple(-a % n for a, n in zip(w, image, strict=True))
        counts[min(w, mirror)] = 1 if w == mirror else 2
    return torch.tensor(list(counts), dtype=torch.float64), torch.tensor(list(counts.values()), dtype=torch.float64)
