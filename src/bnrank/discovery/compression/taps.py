"""Taps of convolution kernels that meet nothing but zeros, removed without changing the output."""

from collections.abc import Collection
from contextlib import ExitStack
from typing import Any, cast

import torch
from torch import Tensor, nn

from bnrank.discovery.compression.parts import CONVOLUTIONS, first_input, is_linear
from bnrank.discovery.compression.wholes import put

PADS: tuple[Any, ...] = (nn.ZeroPad1d, nn.ZeroPad2d, nn.ZeroPad3d)


def trimmed(net: nn.Module, names: Collection[str], x: Tensor) -> dict[str, str]:
    """Remove the taps of convolutions that read only zeros on the samples, in place.

    On small images most of a wide kernel reads padding: of 64 taps on an input of 8 entries that is padded to keep its
    size, 49. Zeros that the module itself pads with are found by their values: the smallest box outside of which the
    input of the convolution is 0 for all samples. Inputs of another size than the samples' need the taps removed.

    Parameters
    ----------
    net : torch.nn.Module
        Run on ``x``. A convolution becomes a smaller one, after a layer that crops or pads where that is necessary.
    names : collection of str
        The layers that may be replaced.
    x : Tensor
        (N, ...).

    Returns
    -------
    dict of str
        For every convolution that was replaced, its kernel sizes before and after.

    Examples
    --------
    >>> net = nn.ModuleDict({"layer": nn.Conv1d(1, 1, 9, padding=4)})
    >>> net.forward = lambda x: net["layer"](x)
    >>> trimmed(net, ["layer"], torch.ones(4, 1, 3)), net["layer"].kernel_size, net["layer"].padding
    ({'layer': '9 to 5'}, (5,), (2,))
    """
    boxes: dict[str, Tensor | None] = {}
    shapes: dict[str, tuple[torch.Size, torch.Size]] = {}

    def note(name: str, given: Tensor, out: Tensor) -> None:
        own = _box(given, len(out.shape) - 2)
        before = boxes.get(name)
        if name in shapes and (shapes[name] != (given.shape[2:], out.shape[2:])):
            boxes[name] = None  # inputs of several sizes
        elif own is not None:
            boxes[name] = own if before is None else torch.stack([before[0].minimum(own[0]), before[1].maximum(own[1])])
        shapes.setdefault(name, (given.shape[2:], out.shape[2:]))

    with ExitStack() as stack, torch.no_grad():
        for name in names:
            part = net.get_submodule(name)
            if is_linear(part) and isinstance(part, CONVOLUTIONS) and part.padding_mode == "zeros":
                take = lambda _, given, by_name, out, name=name: note(name, first_input(given, by_name), out)  # noqa: E731
                stack.callback(part.register_forward_hook(take, with_kwargs=True).remove)
        for some in x.split(256):
            net(some.clone())
    done = {}
    for name, box in boxes.items():
        layer = cast(Any, net.get_submodule(name))
        small = None if box is None else _smaller(layer, box.tolist(), *shapes[name])
        if small is not None:
            before, after = (_text(cast(Any, one).kernel_size) for one in (layer, small[-1]))
            put(net, name, small[0] if len(small) == 1 else nn.Sequential(*small))
            done[name] = f"{before} to {after}"
    return done


def _box(value: Tensor, axes: int) -> Tensor | None:
    """Return the first and the last index along the last axes at which some entry is not 0; None without any."""
    if value.ndim != axes + 2:
        return None
    some = (value != 0).flatten(0, 1).any(0)
    if not bool(some.any()):
        return None
    return torch.stack([some.nonzero().amin(0), some.nonzero().amax(0)])


def _smaller(layer: Any, box: list[list[int]], size: torch.Size, out: torch.Size) -> list[nn.Module] | None:
    """Return a convolution without the taps that never read inside the box; None where all of them do, or none."""
    cuts, pads = [], []
    for axis, (first, last) in enumerate(zip(*box, strict=True)):
        stride, step, taps = layer.stride[axis], layer.dilation[axis], layer.kernel_size[axis]
        reach = step * (taps - 1)
        left = {"same": reach // 2, "valid": 0}.get(layer.padding) if isinstance(layer.padding, str) else None
        left = layer.padding[axis] if left is None else left
        starts = torch.arange(out[axis]) * stride - left
        read = starts[:, None] + step * torch.arange(taps)
        used = ((read >= first) & (read <= last)).any(0).nonzero().flatten().tolist()
        if not used:  # the output is the bias
            return None
        cuts.append(slice(used[0], used[-1] + 1))
        left -= step * cuts[-1].start
        right = (out[axis] - 1) * stride + step * (cuts[-1].stop - cuts[-1].start - 1) + 1 - size[axis] - left
        pads.append((left, right))
    kernel = layer.weight.detach()[(slice(None), slice(None), *cuts)]
    if kernel.numel() == layer.weight.numel():
        return None
    even = all(left == right >= 0 for left, right in pads)
    padding = tuple(left for left, _ in pads) if even else 0
    kinds = {"stride": layer.stride, "dilation": layer.dilation, "padding": padding, "dtype": kernel.dtype}
    outer, inner, *sizes = kernel.shape
    small = nn.utils.skip_init(
        type(layer), inner, outer, tuple(sizes), bias=layer.bias is not None, device=kernel.device, **kinds
    )
    state = {"weight": kernel} if layer.bias is None else {"weight": kernel, "bias": layer.bias.detach()}
    small.load_state_dict(state)
    return [small] if even else [PADS[len(pads) - 1](tuple(p for pair in reversed(pads) for p in pair)), small]


def _text(sizes: tuple[int, ...]) -> str:
    return " x ".join(map(str, sizes))
