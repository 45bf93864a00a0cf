"""What enters the layers of a network in a forward pass, and leaves the network, copied by hooks."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from bnrank._core.onlooker import Onlooker
from bnrank.networks.inputs import main_output
from bnrank.networks.reading import Matrix
from bnrank.training.watching.quantities import of_rows

OUTPUT = "output"
"""Name of the row of the network's output."""
FIRST = ("weight", "weight_ih", "weight_ih_l0", "weight_ih_l0_reverse")
"""Attributes that act on the first argument of their module."""
ATTENTION = {"q": 0, "k": 1, "v": 2}
"""Arguments of attention by the projections that act on them."""


Seen = Iterable[tuple[list[str], Any, int]]  # names of layers, the tensor that enters or leaves, the dimension of units


class Capture(contextlib.ExitStack):
    """What enters the layers of a network and leaves it, copied by hooks until it is closed; they change nothing.

    The first pass in training mode counts; one in eval mode only as long as there is none in training mode.

    Parameters
    ----------
    max_rows : int
        Largest number of rows (samples, and places of images or times) that are copied, at least 2, drawn from a fixed
        seed.
    failures : dict
        Takes errors in hooks, by layer.
    """

    def __init__(self, max_rows: int, failures: dict[str, str]) -> None:
        super().__init__()
        self.max_rows, self.failures = max_rows, failures
        self._kept: dict[str, tuple[bool, list[str], Tensor, Tensor, Tensor]] = {}

    def attach(self, net: nn.Module, matrices: Sequence[Matrix]) -> None:
        """Add hooks to the modules of matrices, and to the network, of which the main output is copied."""
        for module, held in itertools.groupby(matrices, lambda matrix: matrix.stored.module):
            uses = [(i, 1 - len(matrix.shape), matrix.name) for matrix in held if (i := _argument(matrix)) is not None]
            if uses and not isinstance(module, torch.jit.ScriptModule | None):
                hook = Onlooker(partial(self._see, partial(_entering, uses), [name for _, _, name in uses]))
                self.callback(module.register_forward_pre_hook(hook, with_kwargs=True).remove)
        if not isinstance(net, torch.jit.ScriptModule):
            last = matrices[-1].stored.module if matrices else None
            channels = [last.out_channels] if isinstance(last, nn.Conv1d | nn.ConvTranspose1d) else []
            hook = Onlooker(partial(self._see, partial(_leaving, channels), [OUTPUT]))
            self.callback(net.register_forward_hook(hook, with_kwargs=True).remove)

    def rows(self) -> dict[str, dict[str, float]]:
        """Return the quantities of the activations by layer; of a single row, none that takes two."""
        measured: dict[str, dict[str, float]] = {}
        for _, names, sample, low, high in self._kept.values():
            constant, nonfinite = low == high, int((~(torch.isfinite(low) & torch.isfinite(high))).sum())
            row: dict[str, float] = {"units": len(low), "rows": len(sample), "nonfinite_units": nonfinite}
            if len(sample) > 1:
                row |= {"dead_units": int((constant & (low == 0)).sum()), "constant_units": int(constant.sum())}
                row |= {} if nonfinite else of_rows(sample)
            measured |= dict.fromkeys(names, row)
        return measured

    def _see(self, values: Callable[..., Seen], names: list[str], module: nn.Module, *call: Any) -> None:
        """Keep the values of a call; note an error, since the pass must go on."""
        try:
            for layers, tensor, dim in values(*call):
                self._keep(layers, tensor, dim, module.training)
        except Exception as error:
            self.failures |= dict.fromkeys(names, f"{type(error).__name__}: {error}")

    def _keep(self, names: list[str], tensor: Any, dim: int, training: bool) -> None:
        """Copy some of the rows of a tensor with units along ``dim``, and the least and largest value of each unit."""
        wanted = names[0] not in self._kept or (training and not self._kept[names[0]][0])
        plain = isinstance(tensor, Tensor) and tensor.is_floating_point() and not tensor.is_sparse
        if not wanted or not plain or torch._C._functorch.is_functorch_wrapped_tensor(tensor):
            return
        tensor = torch.cat([part.flatten(0, -2) for part in tensor.unbind()]) if tensor.is_nested else tensor
        if tensor.ndim == 0 or tensor.numel() == 0 or -dim > tensor.ndim:
            raise ValueError(f"got shape {tuple(tensor.shape)}, expected (N, units)")
        tensor = tensor.detach()[None].movedim(dim + (dim > 0), -1)
        shape, others = tensor.shape[:-1], list(range(tensor.ndim - 1))
        order = torch.randperm(math.prod(shape), generator=torch.Generator().manual_seed(0))  # the same every time
        sample = tensor[torch.unravel_index(order[: self.max_rows].sort().values.to(tensor.device), shape)]
        self._kept[names[0]] = training, names, sample, tensor.amin(others), tensor.amax(others)


def _entering(uses: list[tuple[int, int, str]], args: Any, kwargs: Any) -> Seen:
    """Return what enters a module: self-attention has one tensor for three matrices."""
    values = [value.data if isinstance(value, PackedSequence) else value for value in (*args, *kwargs.values())]
    entering: dict[tuple[int, int], tuple[list[str], Any, int]] = {}
    for argument, dim, name in uses:
        tensor = main_output(values[argument:])
        entering.setdefault((id(tensor), dim), ([], tensor, dim))[0].append(name)
    return entering.values()


def _leaving(channels: Sequence[int], args: Any, kwargs: Any, output: Any) -> Seen:
    """Return what leaves a network; units are in dimension 1 of images, and of lines with these numbers of channels."""
    tensor = main_output(output)
    shape = tensor.shape if isinstance(tensor, Tensor) and not tensor.is_nested else ()
    tensor = _in_rows(tensor, (*args, *kwargs.values())) if len(shape) == 1 else tensor
    images = len(shape) in (4, 5) or (len(shape) == 3 and shape[1] in channels)
    return [([OUTPUT], tensor, 1 if images else -1)]


def _in_rows(output: Tensor, arguments: Sequence[Any]) -> Tensor:
    """Return an output (N,) as one unit (N, 1), and the units of one sample as they are."""
    given = [value.shape for value in arguments if isinstance(value, Tensor)]
    alone = given and all(len(size) < 2 and size != output.shape for size in given)
    return output if alone else output[:, None]


def _argument(matrix: Matrix) -> int | None:
    """Return which argument of its module a weight acts on; None where it acts on no argument, or none is known."""
    if isinstance(matrix.stored.module, nn.MultiheadAttention):
        return ATTENTION.get(matrix.name.rpartition(".")[2])
    return 0 if matrix.stored.key in FIRST and matrix.kind not in ("embedding", "bilinear") else None
