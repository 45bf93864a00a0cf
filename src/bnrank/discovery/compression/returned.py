"""What a module returns: the main output, by which changes are measured, and what else there is."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from bnrank._core import devices
from bnrank.networks import Skipped
from bnrank.networks.functional import Functional
from bnrank.networks.inputs import columns, entries, main_output

RTOL = 1e-6  # of the outputs; a larger difference between two runs is no round-off
APART = "the main output, by which the change is measured, does not depend on it"


def main(returned: Any) -> Tensor:
    """Return the main output, (N, outputs).

    Examples
    --------
    >>> main({"hidden": torch.ones(3, 2), "logits": torch.ones(3)}).shape
    torch.Size([3, 1])
    """
    return columns(main_output(returned)).flatten(1)


def tensors(returned: Any) -> list[Tensor]:
    """Return all tensors in what a module returns, in order.

    Examples
    --------
    >>> [tuple(t.shape) for t in tensors((torch.ones(3), {"h": [torch.ones(2), None]}))]
    [(3,), (2,)]
    """
    return list(_walk(returned, ()))


def _walk(value: Any, around: tuple[int, ...]) -> Iterator[Tensor]:
    """Iterate over the tensors in a value; what it holds may hold it again."""
    if isinstance(value, Tensor):
        yield value
    elif id(value) not in around:
        for inside in entries(value).values():
            yield from _walk(inside, (*around, id(value)))


def alike(one: Any, other: Any, rtol: float, atol: float) -> bool:
    """Return whether two modules returned tensors of the same shapes and values, up to rounding.

    Examples
    --------
    >>> alike((torch.ones(2), None), (torch.ones(2), torch.ones(1)), 1e-8, 1e-9)
    False
    """
    a, b = tensors(one), tensors(other)
    return [t.shape for t in a] == [t.shape for t in b] and all(
        torch.allclose(s, t, rtol=rtol, atol=atol) if s.is_floating_point() else torch.equal(s, t)
        for s, t in zip(a, b, strict=True)
    )


def apart(net: nn.Module, names: Sequence[str], x: Tensor) -> list[Skipped]:
    """Return the submodules on which other values that a module returns depend, but not the main output.

    Examples
    --------
    >>> net = nn.ModuleDict({"head": nn.Linear(2, 1), "other": nn.Linear(2, 1)})
    >>> net.forward = lambda x: (net["head"](x), net["other"](x))
    >>> [part.name for part in apart(net, ["head", "other"], torch.ones(2, 2))]
    ['other']
    """

    def run(name: str | None = None) -> list[Tensor]:
        with ExitStack() as stack, torch.no_grad(), devices.forked(x.device):
            if name is not None:
                hook = net.get_submodule(name).register_forward_hook(lambda _, __, out: _moved(out))
                stack.callback(hook.remove)
            returned = net(x.clone())
        return [main(returned), *tensors(returned)]

    before = run()
    if len(before) < 3:  # the main output alone
        return []
    found = []
    for name in names if names != [""] else []:
        after = run(name)
        same = [torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in zip(before, after, strict=True)]
        if same[0] and not all(same):
            found.append(Skipped.part(name, net.get_submodule(name), APART))
    return found


def _moved(out: Any) -> Any:
    """Return a tensor with other values, and everything else as it is."""
    if not isinstance(out, Tensor):
        return out
    by = torch.arange(out.numel(), dtype=out.dtype, device=out.device).cos().reshape(out.shape)
    return out + (1 + out.abs().max()) * by  # not by a constant, which a normalization takes away


def noise(function: Functional, x: Tensor) -> str:
    """Return in words by how much the outputs of two runs on the same samples differ; empty where they do not."""
    first, second = function.twice(x)
    size, change = float(first.norm()), float((second - first).norm())
    if not change > RTOL * size:
        return ""
    by = f"by {100 * change / size:.3g} percent of them" if size else f"by {change:.3g}"
    return f"the outputs of two runs on the same samples differ {by}: the module is random in eval mode"
