"""What enters the layers of a network in a forward pass, and leaves the network, copied by hooks."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
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


class Capture:
    """Hooks on the layers of a network that copy what enters them, until they are removed; they change nothing.

    The first pass in training mode counts; one in eval mode only as long as there is none in training mode.

    Parameters
    ----------
    net : nn.Module
        The network, of which the main output is copied, too.
    matrices : sequence of Matrix
        Its weights.
    max_rows : int
        Largest number of rows (samples, and places of images or times) that are copied, drawn from a fixed seed.

    Attributes
    ----------
    failures : dict
        Errors by layer.
    """

    def __init__(self, net: nn.Module, matrices: Sequence[Matrix], max_rows: int) -> None:
        self.max_rows = max_rows
        self.failures: dict[str, str] = {}
        self._kept: dict[str, tuple[bool, list[str], Tensor, Tensor, Tensor, int]] = {}
        last: Any = matrices[-1].stored.module if matrices else None
        self._channels = last.out_channels if isinstance(last, nn.Conv1d | nn.ConvTranspose1d) else -1  # of its outputs
        groups: dict[tuple[Any, int], list[tuple[int, str]]] = {}
        for matrix in matrices:
            if (argument := _argument(matrix)) is not None:
                dim = -1 - int(matrix.kind[-2]) if "conv" in matrix.kind else -1
                groups.setdefault((matrix.stored.module, dim), []).append((argument, matrix.name))
        self._handles: list[Any] = []
        for (module, dim), uses in groups.items():
            hook = Onlooker(partial(self._enter, uses, dim))
            self._handles.append(module.register_forward_pre_hook(hook, with_kwargs=True))
        if not isinstance(net, torch.jit.ScriptModule):
            self._handles.append(net.register_forward_hook(Onlooker(self._leave), with_kwargs=True))

    def remove(self) -> None:
        """Remove the hooks."""
        for handle in self._handles:
            handle.remove()

    def rows(self) -> dict[str, dict[str, float]]:
        """Return the quantities of the activations by layer; of a single row, none that takes two."""
        measured: dict[str, dict[str, float]] = {}
        for _, names, sample, low, high, count in self._kept.values():
            constant, nonfinite = low == high, int((~(torch.isfinite(low) & torch.isfinite(high))).sum())
            row: dict[str, float] = {"units": len(low), "rows": len(sample), "nonfinite_units": nonfinite}
            if count > 1:
                row |= {"dead_units": int((constant & (low == 0)).sum()), "constant_units": int(constant.sum())}
                row |= {} if nonfinite else of_rows(sample)
            measured |= {name: row for name in names}
        return measured

    def _enter(self, uses: list[tuple[int, str]], dim: int, module: nn.Module, args: Any, kwargs: Any) -> None:
        with self._noting([name for _, name in uses]):
            values = [value.data if isinstance(value, PackedSequence) else value for value in (*args, *kwargs.values())]
            entering: dict[int, tuple[Tensor, list[str]]] = {}  # self-attention has one tensor for three matrices
            for argument, name in uses:
                tensor = main_output(values[argument:])
                if isinstance(tensor, Tensor):
                    entering.setdefault(id(tensor), (tensor, []))[1].append(name)
            for tensor, names in entering.values():
                self._keep(names, tensor, dim, module.training)

    def _leave(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        with self._noting([OUTPUT]):
            tensor = main_output(output)
            shape = tensor.shape if isinstance(tensor, Tensor) and not tensor.is_nested else ()
            if len(shape) == 1:
                given = [value.shape for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]
                alone = given and all(len(size) < 2 and size != shape for size in given)  # one sample
                tensor = tensor if alone else tensor[:, None]
            images = len(shape) in (4, 5) or (len(shape) == 3 and shape[1] == self._channels)
            self._keep([OUTPUT], tensor, 1 if images else -1, module.training)

    @contextlib.contextmanager
    def _noting(self, names: list[str]) -> Iterator[None]:
        """Note an error in a hook, since the pass must go on."""
        try:
            yield
        except Exception as error:
            self.failures |= dict.fromkeys(names, f"{type(error).__name__}: {error}")

    def _keep(self, names: list[str], tensor: Any, dim: int, training: bool) -> None:
        """Copy some of the rows of a tensor with units along ``dim``, and the least and largest value of each unit."""
        if names[0] in self._kept and (self._kept[names[0]][0] or not training):
            return
        if not isinstance(tensor, Tensor) or not tensor.is_floating_point() or tensor.is_sparse:
            return
        if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
            return
        tensor = tensor.detach()
        if tensor.is_nested:
            tensor = torch.cat([rows.flatten(0, -2) for rows in tensor.unbind()])
        if tensor.ndim == 0 or tensor.numel() == 0 or -dim > tensor.ndim:
            raise ValueError(f"got shape {tuple(tensor.shape)}, expected (N, units)")
        tensor = tensor[None].movedim(dim + (dim > 0), -1)
        shape, others = tensor.shape[:-1], list(range(tensor.ndim - 1))
        count, generator = math.prod(shape), torch.Generator().manual_seed(0)  # the same rows at every measurement
        chosen = torch.randperm(count, generator=generator)[: self.max_rows].sort().values.to(tensor.device)
        sample = tensor[torch.unravel_index(chosen, shape)]
        self._kept[names[0]] = training, names, sample, tensor.amin(others), tensor.amax(others), count


def _argument(matrix: Matrix) -> int | None:
    """Return which argument of its module a weight acts on; None where it acts on no argument, or no hook sees it."""
    module = matrix.stored.module
    if matrix.kind in ("embedding", "bilinear") or isinstance(module, torch.jit.ScriptModule | None):
        return None
    if isinstance(module, nn.MultiheadAttention):
        return ATTENTION.get(matrix.name.rpartition(".")[2])
    return 0 if matrix.stored.key in FIRST else None
