"""The values that a module returns, by name, and those of them whose change a compression bounds."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from bnrank._core import validation
from bnrank.networks import Skipped
from bnrank.networks.functional import Functional
from bnrank.networks.inputs import entries, floating_outputs, main_output
from bnrank.networks.replicas import sandbox

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

    Examples
    --------
    >>> list(named({"hidden": torch.ones(3, 2), "logits": torch.ones(3)})), list(named(torch.ones(3)))
    (['logits', 'hidden'], [''])
    """
    main, found = main_output(returned), floating_outputs(returned)
    name = next((name for name, tensor in found.items() if tensor is main), "")
    dense = {name: tensor for name, tensor in found.items() if tensor.layout == torch.strided and not tensor.is_nested}
    return {name: main} | dense


def tensors(returned: Any) -> list[Tensor]:
    """Return all tensors in what a module returns, in order, those in other objects, too.

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
    expected = "no name: the network returns one tensor"
    if "" not in known:
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
        with ExitStack() as stack, torch.no_grad(), sandbox():
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


class _Drawing(TorchDispatchMode):
    """Notes whether an operation draws random numbers."""

    drawn = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation."""
        self.drawn |= torch.Tag.nondeterministic_seeded in func.tags
        return func(*args, **(kwargs or {}))


def confinement(run: Callable[[], object]) -> Callable[[], AbstractContextManager[None]]:
    """Return contexts in which a copy of a module runs without the random numbers of the process.

    These cost time in every operation: they are :func:`sandbox` only if ``run`` draws random numbers.
    """
    with torch.no_grad(), _Drawing() as drawing, sandbox():  # type: ignore[no-untyped-call]  # torch gives no types
        run()
    return sandbox if drawing.drawn else nullcontext


def noise(function: Functional, x: Tensor) -> str:
    """Return in words by how much the outputs of two runs on the same samples differ; empty where they do not."""
    first, second = function.twice(x)
    size, change = float(first.norm()), float((second - first).norm())
    if not change > RTOL * size:
        return ""
    by = f"by {100 * change / size:.3g} percent of them" if size else f"by {change:.3g}"
    return f"the outputs of two runs on the same samples differ {by}: the module is random in eval mode"
