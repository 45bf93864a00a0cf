"""What enters the layers of a network in a forward pass, gathered by hooks that are removed afterwards."""

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from bnrank._core.onlooker import Onlooker
from bnrank.networks.inputs import columns, main_output
from bnrank.networks.replicas import restored
from bnrank.training.watching import quantities
from bnrank.training.watching.parts import OUTPUT, Part


@dataclass(frozen=True)
class Seen:
    """The activations that entered a layer.

    Attributes
    ----------
    rows : Tensor
        (n, units), a copy of some rows: samples, and places of images or times.
    units : int
        Number of units: features or channels.
    dead : Tensor
        Number of units that are 0 on all rows, not only on those copied.
    constant : Tensor
        Number of units with the same value on all rows, not only on those copied.
    nonfinite : Tensor
        Number of units that are NaN or infinite on some row, not only on those copied.
    training : bool
        Whether the layer was in training mode.
    """

    rows: Tensor
    units: int
    dead: Tensor
    constant: Tensor
    nonfinite: Tensor
    training: bool

    def measured(self) -> dict[str, float]:
        """Return the quantities of the activations; dimensions are NaN where a unit is NaN or infinite on some row."""
        bad, many = float(self.nonfinite), len(self.rows) > 1
        found = quantities.of_rows(self.rows[:0] if bad else self.rows)
        # of a single row, every unit has one value
        found["dead_units"] = float(self.dead) if many else math.nan
        found["constant_units"] = float(self.constant) if many else math.nan
        return found | {"nonfinite_units": bad, "units": float(self.units), "rows": float(len(self.rows))}


class Capture:
    """Hooks on the layers of a network, present only while armed.

    The first pass in training mode is kept; one in eval mode only as long as there is none in training mode. The hooks
    read the tensors and change nothing.

    Parameters
    ----------
    net : nn.Module
        The network, whose first output tensor is captured, too.
    parts : sequence of Part
        The layers.
    max_rows : int
        Largest number of rows that are copied, drawn without replacement from a fixed seed.
    """

    def __init__(self, net: nn.Module, parts: Sequence[Part], max_rows: int) -> None:
        self.net, self.max_rows = net, max_rows
        self.seen: dict[str, Seen] = {}
        self.failures: list[str] = []
        self.take(parts)
        self._handles: list[Any] = []
        self._drawn: dict[tuple[int, int], Tensor] = {}

    def take(self, parts: Sequence[Part]) -> None:
        """Take the layers on which hooks are set from now on."""
        self._parts: dict[nn.Module, list[Part]] = {}
        for part in parts:
            if not part.unseen:
                self._parts.setdefault(part.module, []).append(part)
        last: Any = parts[-1] if parts else None  # where it is a Conv1d, outputs are (N, channels, places)
        self._line_channels = last.module.out_channels if last is not None and last.spatial == 1 else -1

    @property
    def armed(self) -> bool:
        """Whether the hooks are present."""
        return bool(self._handles)

    def arm(self) -> None:
        """Forget what was seen, and add the hooks."""
        self.disarm()
        self.seen, self.failures = {}, []
        for module, parts in self._parts.items():
            self._handles.append(module.register_forward_pre_hook(Onlooker(self._entered(parts)), with_kwargs=True))
        if not isinstance(self.net, torch.jit.ScriptModule):
            self._handles.append(self.net.register_forward_hook(Onlooker(self._left), with_kwargs=True))

    def disarm(self) -> None:
        """Remove the hooks."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _entered(self, parts: Sequence[Part]) -> Callable[..., None]:
        def enter(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
            for part in parts:
                with self._noting(part.name):
                    if self._wanted(part.name, module):
                        self._keep(part.name, _first_tensor((*args, *kwargs.values())), part.unit_dim, module.training)

        return enter

    def _left(self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], output: Any) -> None:
        with self._noting(OUTPUT):
            if self._wanted(OUTPUT, module):
                found = _first_tensor(output)
                if found is not None and found.is_nested:
                    found = _unnested(found.detach())
                if found is not None and found.ndim == 1 and not _is_one_sample((*args, *kwargs.values()), len(found)):
                    found = columns(found)
                lines = found is not None and found.ndim == 3 and found.shape[1] == self._line_channels
                images = found is not None and (found.ndim in (4, 5) or lines) and not isinstance(output, Mapping)
                self._keep(OUTPUT, found, 1 if images else -1, module.training)

    def _wanted(self, name: str, module: nn.Module) -> bool:
        seen = self.seen.get(name)
        return seen is None or (module.training and not seen.training)

    def _keep(self, name: str, tensor: Tensor | None, dim: int, training: bool) -> None:
        if tensor is None or not tensor.is_floating_point():
            return
        if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
            return
        with torch.no_grad(), _plain_precision(tensor):
            tensor = _unnested(tensor.detach())
            if tensor.layout is torch.strided:
                self.seen[name] = self._copied(tensor, dim, training)

    @contextlib.contextmanager
    def _noting(self, name: str) -> Iterator[None]:
        """Note an error in a hook, since the pass must go on."""
        try:
            yield
        except Exception as error:
            text = f"{name}: {type(error).__name__}: {error}"
            if text not in self.failures:
                self.failures.append(text)

    def _copied(self, tensor: Tensor, dim: int, training: bool) -> Seen:
        if tensor.ndim == 0 or tensor.numel() == 0 or (dim < 0 and -dim > tensor.ndim):
            raise ValueError(f"got shape {tuple(tensor.shape)}, expected (N, units)")
        by_unit = tensor.movedim(dim, -1)
        units, shape = by_unit.shape[-1], by_unit.shape[:-1]
        count = math.prod(shape)
        rest = [i for i in range(tensor.ndim) if i != dim % tensor.ndim]
        low, high = (tensor.amin(rest), tensor.amax(rest)) if rest else (tensor, tensor)
        finite = torch.isfinite(low) & torch.isfinite(high)
        if count > self.max_rows:
            chosen = self._rows(count).to(tensor.device)
            index = torch.unravel_index(chosen, shape)
            rows = by_unit[index]
        else:
            rows = by_unit.reshape(count, units).clone()
        dead = ((low == 0) & (high == 0)).sum()
        return Seen(rows, units, dead, (low == high).sum(), (~finite).sum(), training)

    def _rows(self, count: int) -> Tensor:
        """Return which of ``count`` rows are copied: the same at every measurement."""
        key = (count, self.max_rows)
        if key not in self._drawn:
            generator = torch.Generator().manual_seed(0)
            self._drawn = {key: v for key, v in list(self._drawn.items())[-63:]}
            self._drawn[key] = torch.randperm(count, generator=generator)[: self.max_rows].sort().values
        return self._drawn[key]


@contextlib.contextmanager
def probing(net: nn.Module) -> Iterator[None]:
    """Run uncompiled, in eval mode, without gradients; restore modes, buffers, attributes and random generators."""
    devices = sorted({p.device.index or 0 for p in net.parameters() if p.device.type == "cuda"})
    with torch.no_grad(), torch.random.fork_rng(devices), restored(net):
        for sub in net.modules():
            sub.training = False
        yield


def call(net: nn.Module, x: Any) -> Any:
    """Return the output on one tensor, on a tuple of arguments, or on a mapping of keyword arguments."""
    if isinstance(x, Mapping):
        return net(**x)
    return net(*x) if isinstance(x, tuple | list) else net(x)


def shapes(x: Any) -> str:
    """Return the shapes of a batch in words."""
    if isinstance(x, Tensor):
        return f"shape {tuple(x.shape)} ({str(x.dtype).removeprefix('torch.')})"
    named = x.items() if isinstance(x, Mapping) else enumerate(x)
    return ", ".join(f"{name}: {shapes(v) if isinstance(v, Tensor) else type(v).__name__}" for name, v in named)


def _unnested(tensor: Tensor) -> Tensor:
    """Return the rows of a nested tensor, one below the other; another tensor as it is."""
    return torch.cat([one.flatten(0, -2) for one in tensor.unbind()]) if tensor.is_nested else tensor


def _plain_precision(tensor: Tensor) -> Any:
    return torch.autocast(tensor.device.type, enabled=False)


def _is_one_sample(args: Sequence[Any], units: int) -> bool:
    """Return whether a network that returns a vector was called on one: a single sample, without a dimension for it."""
    tensors = [value for value in args if isinstance(value, Tensor)]
    return bool(tensors) and all(tensor.ndim < 2 and tensor.shape != (units,) for tensor in tensors)


def _first_tensor(value: Any) -> Tensor | None:
    """Return the main tensor of an output, or the first floating-point one of the arguments of a call."""
    main = main_output(value)
    if isinstance(main, Tensor):
        return main if main.is_floating_point() else None
    entries = value.values() if isinstance(value, Mapping) else value if isinstance(value, tuple | list) else ()
    return next((found for entry in entries if (found := _first_tensor(entry)) is not None), None)
