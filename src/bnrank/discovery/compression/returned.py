"""The values that a module returns, by name, and those of them whose change a compression bounds."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, is_dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from bnrank._core import devices, validation
from bnrank.networks import Skipped
from bnrank.networks.functional import Functional
from bnrank.networks.inputs import OUTPUTS, entries, main_output

RTOL = 1e-6  # of the outputs; a larger difference between two runs is no round-off
APART = "no output whose change is bounded depends on it"
NO_SAMPLES = "has no entry per sample, so that its change is not bounded"


@dataclass(frozen=True)
class Judged:
    """The outputs whose change is bounded; called with what a module returns, their values.

    Attributes
    ----------
    names : tuple of str
        As in :func:`named`.
    dims : tuple of int
        The dimension of the samples in each.
    shapes : tuple of torch.Size
        Of one sample of each.
    """

    names: tuple[str, ...] = ("",)
    dims: tuple[int, ...] = (0,)
    shapes: tuple[torch.Size, ...] = ()

    def __call__(self, returned: Any) -> list[Tensor]:
        """Return the values as rows, (N, entries), in float64.

        Examples
        --------
        >>> [tuple(rows.shape) for rows in Judged(("logits", "state"), (0, 1))(
        ...     {"state": torch.ones(2, 3, 5), "logits": torch.ones(3)}
        ... )]
        [(3, 1), (3, 10)]
        """
        found = named(returned)
        rows = (
            found[name].movedim(dim, 0) if dim else found[name] for name, dim in zip(self.names, self.dims, strict=True)
        )
        return [row.reshape(len(row) if row.ndim else 1, -1).double() for row in rows]


def named(returned: Any) -> dict[str, Tensor]:
    """Return the dense floating-point tensors in what a module returns, by name; the main output is the first.

    Tuples, lists, mappings and dataclasses are searched, and objects with a main output.

    Examples
    --------
    >>> list(named(({"boxes": torch.ones(3), "count": 3}, [torch.ones(2), torch.ones(2)])))
    ['[0].boxes', '[1][0]', '[1][1]']
    >>> list(named({"hidden": torch.ones(3, 2), "logits": torch.ones(3)})), list(named(torch.ones(3)))
    (['logits', 'hidden'], [''])
    """
    found: dict[str, Tensor] = {}
    for name, tensor in _walk(returned, "", ()):
        dense = tensor.is_floating_point() and tensor.layout == torch.strided and not tensor.is_nested
        if dense and not any(tensor is other for other in found.values()):
            found[name] = tensor
    main = main_output(returned)
    return dict(sorted(found.items(), key=lambda item: item[1] is not main))


def tensors(returned: Any) -> list[Tensor]:
    """Return all tensors in what a module returns, in order, those in other objects, too.

    Examples
    --------
    >>> [tuple(t.shape) for t in tensors((torch.ones(3), {"h": [torch.ones(2), None]}))]
    [(3,), (2,)]
    """
    return [tensor for _, tensor in _walk(returned, "", (), everything=True)]


def _walk(value: Any, name: str, around: tuple[int, ...], everything: bool = False) -> Iterator[tuple[str, Tensor]]:
    """Iterate over the tensors in a value, with their names; what it holds may hold it again."""
    if isinstance(value, Tensor):
        yield name, value
    elif id(value) not in around and (everything or _is_searched(value)):
        for key, inside in entries(value).items():
            own = f"{name}[{key}]" if isinstance(key, int) else f"{name}.{key}".removeprefix(".")
            yield from _walk(inside, own, (*around, id(value)), everything)


def _is_searched(value: Any) -> bool:
    if isinstance(value, PackedSequence):
        return False
    if isinstance(value, tuple | list | Mapping) or is_dataclass(value):
        return True
    return any(isinstance(getattr(value, name, None), Tensor) for name in OUTPUTS)


def judged(function: Functional, x: Tensor, names: Sequence[str] | None) -> tuple[Judged, list[Skipped]]:
    """Return the outputs whose change is bounded, and those that have no entry per sample.

    Which dimension is that of the samples is seen in runs on two and on three of them.

    Raises
    ------
    ValueError
        If an output of a given name does not exist or has no entry per sample, or the module fails.
    """
    with torch.no_grad():
        function(x[:2])  # raises an error for a main output that cannot be measured
        two, three = (named(run(function, x[:count])) for count in (2, 3))
    dims = {name: _samples_dim(value, three[name]) for name, value in two.items() if name in three}
    known = {name: dim for name, dim in dims.items() if dim is not None}
    chosen = list(known) if names is None else [names] if isinstance(names, str) else list(names)
    unknown = [name for name in chosen if name not in known]
    expected = f"some of {', '.join(map(repr, known))}"
    validation.expect(chosen and not unknown, "outputs", ", ".join(map(repr, unknown)) or "no name", expected)
    shapes = (two[name].movedim(known[name], 0).shape[1:] for name in chosen)
    others = [Skipped(name, "output", NO_SAMPLES) for name, dim in dims.items() if dim is None and names is None]
    return Judged(tuple(chosen), tuple(known[name] for name in chosen), tuple(shapes)), others


def run(function: Functional, x: Tensor) -> Any:
    """Return what the module returns for x, as it is."""
    return function._run(function.parameters, x)


def _samples_dim(two: Tensor, three: Tensor) -> int | None:
    """Return the dimension whose size is the number of samples, in runs on two and on three; None without one."""
    differing = [dim for dim, (a, b) in enumerate(zip(two.shape, three.shape, strict=False)) if a != b]
    if two.ndim != three.ndim or len(differing) != 1:
        return None
    dim = differing[0]
    return dim if (two.shape[dim], three.shape[dim]) == (2, 3) else None


def alike(one: Any, other: Any) -> bool:
    """Return whether two modules returned tensors of the same shapes and values, up to rounding.

    Examples
    --------
    >>> alike((torch.ones(2), None), (torch.ones(2), torch.ones(1)))
    False
    """
    a, b = tensors(one), tensors(other)
    return [t.shape for t in a] == [t.shape for t in b] and all(map(_close, a, b))


def _close(a: Tensor, b: Tensor) -> bool:
    if not a.is_floating_point():
        return torch.equal(a, b)
    rtol = torch.finfo(a.dtype).eps ** 0.5
    return torch.allclose(a, b, rtol=rtol, atol=0.1 * rtol)


def apart(net: nn.Module, names: Iterable[str], x: Tensor, judged: Judged) -> list[Skipped]:
    """Return the submodules on which other values that a module returns depend, but no judged output.

    Examples
    --------
    >>> net = nn.ModuleDict({"head": nn.Linear(2, 1), "other": nn.Linear(2, 1)})
    >>> net.forward = lambda x: (net["head"](x), net["other"](x))
    >>> [part.name for part in apart(net, ["head", "other"], torch.ones(2, 2), Judged(("[0]",)))]
    ['other']
    """

    def both(name: str | None = None) -> tuple[list[Tensor], list[Tensor]]:
        with ExitStack() as stack, torch.no_grad(), devices.forked(x.device):
            if name is not None:
                hook = net.get_submodule(name).register_forward_hook(lambda _, __, out: _moved(out))
                stack.callback(hook.remove)
            returned = net(x.clone())
        return judged(returned), tensors(returned)

    before = both()
    if len(before[0]) == len(before[1]):
        return []
    found = []
    for name in names:
        same = [all(map(_equal, old, new)) for old, new in zip(before, both(name), strict=True)]
        if same == [True, False]:
            found.append(Skipped.part(name, net.get_submodule(name), APART))
    return found


def _equal(a: Tensor, b: Tensor) -> bool:
    return torch.equal(a.nan_to_num(), b.nan_to_num())


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
