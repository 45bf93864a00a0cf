"""Convolutional networks: with linear layers at the end, and from image to image."""

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn

from bnrank._core import validation
from bnrank.networks.mlp import size
from bnrank.networks.stack import Stack, activation, linear_tail


@dataclass(frozen=True)
class Window:
    """The windows of every convolution and of the pooling after it.

    Attributes
    ----------
    kernel, stride : int
        Of the convolutions, in each dimension.
    padding : {"zeros", "circular", "none"}
        (kernel - 1) // 2 entries on every side, zeros or wrapped around, or none.
    pool : int
        Entries of the windows of average pooling, in each dimension; 1 for none.

    Raises
    ------
    TypeError, ValueError
        If a value is out of range; the message names it.
    """

    kernel: int = 3
    stride: int = 1
    padding: str = "zeros"
    pool: int = 1

    def __post_init__(self) -> None:
        for name in ("kernel", "stride", "pool"):
            validation.integer(getattr(self, name), name)
        validation.choice(self.padding, "padding", ("zeros", "circular", "none"))


class Convolutional(Stack):
    """Convolutions with activation sigma_s after each, then a flattening and linear layers without activations.

    Parts ``conv1``, ``activation1``, ``pool1``, ``conv2``, ..., ``flatten``, ``tail1``, ..., ``output``.

    Parameters
    ----------
    shape : sequence of int
        Of one sample: (channels, length) or (channels, height, width).
    channels : sequence of int
        Output channels of each convolution.
    d_out : int
        Number of outputs.
    window : Window
        Kernel, stride, padding and pooling of every convolution.
    tail : sequence of int
        Widths of linear layers between the flattening and the output.
    slope : float
        s in (-1, 1), or 1 for linear convolutions.
    bias : bool
        Whether convolutions and linear layers have biases.
    init, seed, dtype
        As in :class:`Drawn`, and the floating-point type.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range, or the image vanishes; the message names it.

    Examples
    --------
    >>> import torch, bnrank
    >>> net = bnrank.networks.Convolutional((1, 8, 8), [4, 6], window=Window(stride=2), tail=[5])
    >>> net(torch.ones(3, 1, 8, 8)).shape
    torch.Size([3, 1])
    >>> [(name, tuple(p.shape)) for name, p in net.named_parameters()][1:3]
    [('conv2.weight', (6, 4, 3, 3)), ('tail1.weight', (5, 24))]
    """

    def __init__(
        self,
        shape: Sequence[int],
        channels: Sequence[int],
        d_out: int = 1,
        window: Window | Mapping[str, Any] = Window(),
        tail: Sequence[int] = (),
        slope: float = 0.0,
        bias: bool = False,
        init: str | float = "he",
        seed: int = 0,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        shape, channels = _sizes(shape, channels)
        tail, d_out = validation.integers(tail, "tail"), validation.integer(d_out, "d_out")
        window = Window(**window) if isinstance(window, Mapping) else validation.kind(window, "window", Window)
        slope, bias = validation.slope(slope, linear=True), validation.flag(bias, "bias")
        dtype = validation.dtype(dtype)
        pooling = (nn.AvgPool1d, nn.AvgPool2d)[len(shape) - 2]
        around = 0 if window.padding == "none" else (window.kernel - 1) // 2
        mode = "circular" if window.padding == "circular" else "zeros"
        how = {"stride": window.stride, "padding": around, "padding_mode": mode, "bias": bias, "dtype": dtype}
        convolutions = _convolutions(shape, channels, [window.kernel] * len(shape[1:]), **how)
        image, parts = shape[1:], dict[str, nn.Module]()
        for i, convolution in enumerate(convolutions, 1):
            if mode == "circular" and around > min(image):
                raise ValueError(f"kernel: got {window.kernel}, which wraps more than once around an image of {image}")
            parts[f"conv{i}"] = convolution
            image = [(side + 2 * around - window.kernel) // window.stride + 1 for side in image]
            if slope != 1:
                parts[f"activation{i}"] = activation(slope)
            if window.pool > 1:
                parts[f"pool{i}"] = pooling(window.pool)
                image = [side // window.pool for side in image]
            if min(image) < 1:
                raise ValueError(f"shape: got {tuple(shape)}, of which nothing is left after {i} convolution(s)")
        parts["flatten"] = nn.Flatten()
        entries = channels[-1] * math.prod(image)
        ends = {"d_out": d_out, "tail": max(tail, default=0), "channels": entries}
        validation.largest_fits(size([entries, *tail, d_out]), ends, dtype.itemsize)
        parts |= linear_tail(entries, tail, d_out, bias, dtype)
        super().__init__(parts, init=init, seed=validation.seed(seed))
        self.settings = {"shape": shape, "channels": channels, "d_out": d_out, "window": asdict(window)}
        self.settings |= {"tail": tail, "slope": slope, "bias": bias}


class LinearConvolutional(Convolutional):
    """Convolutions without activations, then linear layers: :class:`Convolutional` with slope 1 (T45, T48).

    Parameters
    ----------
    shape, channels, d_out, window, tail, bias, init, seed, dtype
        As in :class:`Convolutional`.

    Examples
    --------
    >>> import torch
    >>> net = LinearConvolutional((2, 9), [3], window=Window(padding="circular"))
    >>> x = torch.ones(1, 2, 9)
    >>> torch.allclose(net(2 * x) + net(-x), net(x), atol=1e-6)
    True
    """

    def __init__(self, shape: Sequence[int], channels: Sequence[int], d_out: int = 1, **options: Any) -> None:
        super().__init__(shape, channels, d_out, slope=1.0, **options)
        self.settings = {name: value for name, value in self.settings.items() if name != "slope"}


class CircularConvolutional(Stack):
    """Image to image: L convolutions with circular padding, activation sigma_s between them and none at the end (F6).

    Every image has the size of the input, and translating the input on the torus translates the output: the layers
    are block diagonal in Fourier space (T28). A bias is one number per channel, at frequency 0.

    Parts ``conv1``, ``activation1``, ``conv2``, ..., ``convL``, ``flatten``.

    Parameters
    ----------
    shape : sequence of int
        Of one sample: (channels, n) or (channels, height, width).
    channels : sequence of int
        Output channels of each convolution, the last for the output.
    kernel : int or sequence of int
        Of every convolution, in each dimension; odd or even, no larger than the image. Tap t of a dimension with k taps
        reads the entry t - (k - 1) // 2 places further.
    slope : float
        s in (-1, 1), or 1 for a linear network.
    bias : bool
        Whether convolutions have biases.
    flatten : bool
        Whether the output is one vector per sample, (N, channels * n) or (N, channels * height * width), as
        `bnrank.train` needs it, or an image.
    init, seed, dtype
        As in :class:`~bnrank.networks.drawn.Drawn`, and the floating-point type.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range, or the kernel is larger than the image; the message names it.

    Notes
    -----
    Source: Jacot2023c (F6), T28.

    Examples
    --------
    >>> import torch, bnrank
    >>> net = bnrank.networks.CircularConvolutional((1, 6, 6), [8, 8, 2], kernel=6, flatten=False)
    >>> x = torch.randn(3, 1, 6, 6)
    >>> net(x).shape
    torch.Size([3, 2, 6, 6])
    >>> torch.allclose(net(x.roll((1, 4), (2, 3))), net(x).roll((1, 4), (2, 3)), atol=1e-5)
    True
    """

    def __init__(
        self,
        shape: Sequence[int],
        channels: Sequence[int],
        kernel: int | Sequence[int] = 3,
        slope: float = 0.0,
        bias: bool = True,
        flatten: bool = True,
        init: str | float = "he",
        seed: int = 0,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        shape, channels = _sizes(shape, channels)
        image, one = shape[1:], not isinstance(kernel, Iterable)
        taps = [validation.integer(kernel, "kernel")] * len(image) if one else validation.integers(kernel, "kernel")
        if len(taps) != len(image) or any(k > n for k, n in zip(taps, image, strict=True)):
            expected = f"one integer or {len(image)}, none larger than the image {tuple(image)}"
            raise ValueError(f"kernel: got {kernel if one else tuple(taps)}, expected {expected}")
        slope, dtype = validation.slope(slope, linear=True), validation.dtype(dtype)
        bias, flatten = validation.flag(bias, "bias"), validation.flag(flatten, "flatten")
        parts: dict[str, nn.Module] = {}
        how = {"padding": "same", "padding_mode": "circular", "bias": bias, "dtype": dtype}
        for i, convolution in enumerate(_convolutions(shape, channels, taps, **how), 1):
            parts[f"conv{i}"] = convolution
            if slope != 1 and i < len(channels):
                parts[f"activation{i}"] = activation(slope)
        if flatten:
            parts["flatten"] = nn.Flatten()
        super().__init__(parts, init=init, seed=validation.seed(seed))
        self.settings = {"shape": shape, "channels": channels, "kernel": taps[0] if one else taps}
        self.settings |= {"slope": slope, "bias": bias, "flatten": flatten}


def _convolutions(shape: list[int], channels: list[int], taps: list[int], **how: Any) -> list[nn.Module]:
    """Return the convolutions, not yet drawn; raise unless their kernels fit into memory."""
    sizes, widths = {"shape": shape[0], "channels": max(channels), "kernel": math.prod(taps)}, [shape[0], *channels]
    validation.largest_fits(size(widths) * sizes["kernel"], sizes, how["dtype"].itemsize)
    kind: Any = (nn.Conv1d, nn.Conv2d)[len(taps) - 1]
    return [nn.utils.skip_init(kind, *pair, tuple(taps), **how) for pair in itertools.pairwise(widths)]


def _sizes(shape: Sequence[int], channels: Sequence[int]) -> tuple[list[int], list[int]]:
    """Return the shape of a sample and the channels of the layers as lists."""
    shape, channels = validation.integers(shape, "shape"), validation.integers(channels, "channels")
    if len(shape) not in (2, 3):
        raise ValueError(f"shape: got {tuple(shape)}, expected (channels, length) or (channels, height, width)")
    validation.expect(channels, "channels", "none", "one number per convolution")
    return shape, channels
