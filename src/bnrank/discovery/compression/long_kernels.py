"""Convolutions in float64 for which PyTorch is slow: long kernels, by Fourier transforms, and few positions."""

import itertools
import math
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.overrides import TorchFunctionMode

AXES = {torch.conv1d: 1, torch.conv2d: 2}
NAMES = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
FEW, FEW_LONG = 8, 2  # positions of the output, up to which a product of matrices over all samples is faster
MANY = 2**13  # weights, from which on it is
LONG = 32  # taps of a kernel by its stride, from which on Fourier transforms are faster


class LongKernels(TorchFunctionMode):
    """Inside, float64 convolutions with long kernels along one axis, or few positions, are computed in other ways.

    Long kernels by Fourier transforms, which for 64 taps take a tenth of the time; few positions of the output as one
    product of matrices over all samples. The results differ by rounding, relative to the largest values of a sample.
    All other functions are left as they are.

    Examples
    --------
    >>> x, kernel = torch.ones(1, 1, 40, dtype=torch.float64), torch.ones(1, 1, 32, dtype=torch.float64)
    >>> with LongKernels():
    ...     out = torch.conv1d(x, kernel)
    >>> out.shape, torch.allclose(out, torch.full_like(out, 32.0))
    (torch.Size([1, 1, 9]), True)
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Return what a function of torch gives."""
        kwargs = kwargs or {}
        if func in AXES:
            found = _fast(AXES[func], dict(zip(NAMES, args, strict=False)) | kwargs)
            if found is not None:
                return found
        return func(*args, **kwargs)


def for_kernels_of(net: nn.Module) -> AbstractContextManager[Any]:
    """Return :class:`LongKernels` if a tensor of the module can be a long kernel; it slows all functions of torch."""
    tensors = itertools.chain(net.parameters(), net.buffers())
    long = any(max(tensor.shape[2:], default=0) >= LONG for tensor in tensors)
    return LongKernels() if long else nullcontext()


def _fast(axes: int, given: Mapping[str, Any]) -> Tensor | None:
    """Return a convolution by Fourier transforms or as one product; None where neither is known to be faster."""
    x, weight, bias, padding = given["input"], given["weight"], given.get("bias"), given.get("padding", 0)
    taps = list(weight.shape[2:])
    long = max(range(axes), key=lambda axis: taps[axis])
    stride, dilation = (_each(given.get(name, 1), axes) for name in ("stride", "dilation"))
    alone = all(taps[axis] == stride[axis] == 1 for axis in range(axes) if axis != long)
    plain = given.get("groups", 1) == 1 and set(dilation) == {1} and not isinstance(padding, str)
    if x.dtype == torch.float64 and plain and _is_few(x, weight, bias, stride, _each(padding, axes)):
        return _few(_padded(x, _each(padding, axes)), weight, bias, stride)
    if x.dtype != torch.float64 or x.ndim != axes + 2 or taps[long] < LONG * stride[long] or not alone or not plain:
        return None
    x = _padded(x, _each(padding, axes))
    if x.shape[2 + long] < taps[long]:  # an error of its own
        return None
    lines = x.movedim(2 + long, -1)
    out = _line(lines.movedim(1, -2).flatten(0, -3), weight.flatten(2), stride[long])
    out = out.unflatten(0, [len(x), *lines.shape[2:-1]]).movedim(-2, 1).movedim(-1, 2 + long)
    return out.contiguous() if bias is None else (out + bias.reshape(-1, *[1] * axes)).contiguous()


def _is_few(x: Tensor, weight: Tensor, bias: Tensor | None, stride: list[int], pads: list[int]) -> bool:
    """Return whether a convolution is one that PyTorch runs, with few positions and many weights."""
    fits = x.ndim == weight.ndim and x.shape[1] == weight.shape[1] and (bias is None or bias.shape == weight.shape[:1])
    if not fits or min(stride) < 1 or min(pads) < 0 or len(x) < 2:
        return False
    sizes = [n + 2 * p - t for n, p, t in zip(x.shape[2:], pads, weight.shape[2:], strict=True)]
    counts = [size // step + 1 for size, step in zip(sizes, stride, strict=True)]
    long = any(t >= LONG * step for t, step in zip(weight.shape[2:], stride, strict=True))
    return min(sizes) >= 0 and math.prod(counts) <= (FEW_LONG if long else FEW) and weight.numel() >= MANY


def _padded(x: Tensor, pads: list[int]) -> Tensor:
    return F.pad(x, [p for pad in reversed(pads) for p in (pad, pad)]) if any(pads) else x


def _few(x: Tensor, weight: Tensor, bias: Tensor | None, stride: list[int]) -> Tensor:
    """Return a convolution as one product of matrices, over all samples and positions."""
    axes = len(stride)
    for axis, (taps, step) in enumerate(zip(weight.shape[2:], stride, strict=True), 2):
        x = x.unfold(axis, taps, step)
    return F.linear(x.movedim(1, axes + 1).flatten(axes + 1), weight.flatten(1), bias).movedim(-1, 1).contiguous()


def _line(x: Tensor, weight: Tensor, stride: int) -> Tensor:
    """Return the correlation of lines, (N, in, n), with kernels, (out, in, taps), at every ``stride`` places."""
    count = (x.shape[2] - weight.shape[2]) // stride + 1
    if stride > 1:  # each phase is a channel
        x, weight = (F.pad(some, (0, -some.shape[2] % stride)).unflatten(2, (-1, stride)) for some in (x, weight))
        x, weight = (some.movedim(3, 2).flatten(1, 2) for some in (x, weight))
    n = _smooth(max(x.shape[2], count + weight.shape[2] - 1))
    waves, kernels = torch.fft.rfft(x, n=n), torch.fft.rfft(weight, n=n).conj()
    product = torch.einsum("ncf,ocf->nof", waves, kernels)
    return torch.fft.irfft(product, n=n)[..., :count]


def _smooth(n: int) -> int:
    """Return the smallest length from n on without prime factors above 5."""
    while True:
        left = n
        for prime in (2, 3, 5):
            while left % prime == 0:
                left //= prime
        if left == 1:
            return n
        n += 1


def _each(value: Any, axes: int) -> list[int]:
    return [value] * axes if isinstance(value, int) else [*value] * (axes if len(value) == 1 else 1)
