"""The result of `compress`, in memory and on disk."""

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import prune

from bnrank._core import files, identity, store, validation
from bnrank._core.content import Part, remarks
from bnrank._core.results import Printed
from bnrank.discovery import storage
from bnrank.discovery.compression.certificate import Certificate
from bnrank.discovery.compression.parts import Parts
from bnrank.discovery.compression.stages import Step
from bnrank.discovery.compression.timing import without_subnormals
from bnrank.discovery.compression.wholes import SPLIT, layer_widths, put
from bnrank.networks import Skipped
from bnrank.networks.chain import parts_of
from bnrank.networks.functional import hooked, unwrap
from bnrank.networks.replicas import copied, in_precision

KIND = "compressed network"
MODE = "_given_mode"  # attribute of a part of the working copy: its mode in the given network


@dataclass(frozen=True)
class Compressed(Printed):
    """A smaller network, its certificate and the steps that led to it; ``print`` shows a table.

    Attributes
    ----------
    network : torch.nn.Module
        A ``nn.Sequential`` of torch layers where the module was one segment; else a copy of the module with each
        segment replaced by one. Submodules have the modes that they had, replacements those of what they replace. The
        module itself where nothing was changed.
    certificate : Certificate
        Changes, bound, parameters, multiply-adds and latency, before and after.
    steps : tuple of Step
        The steps, in order.
    skipped : tuple of Skipped
        The parts left unchanged, each with the reason.
    reason : str
        Why no bottleneck was collapsed, by segment; empty if every segment had one collapsed.
    widths_before : tuple of (str, int)
        The linear and convolutional layers of the original, in order of registration, and their numbers of units.
    plan : mapping
        From the name of every replaced segment to its layers, as plain values: see
        :func:`~bnrank.discovery.storage.rebuild`.
    identity : mapping
        The parts of the original module, without the values of parameters and buffers.

    Examples
    --------
    >>> import torch, bnrank
    >>> net = bnrank.networks.from_layers([torch.ones(6, 4), torch.ones(3, 6)])         # equal neurons
    >>> timing = bnrank.discovery.Timing(repeats=3)
    >>> found = bnrank.compress(net, torch.rand(40, 4), tol=0.01, timing=timing)                # a Compressed
    >>> found.changed, [units for name, units in found.widths_before], [units for name, units in found.widths]
    (True, [6, 3], [1, 3])
    """

    network: nn.Module
    certificate: Certificate
    steps: tuple[Step, ...]
    skipped: tuple[Skipped, ...]
    reason: str
    widths_before: tuple[tuple[str, int], ...] = ()
    plan: Mapping[str, Any] = field(default_factory=dict, repr=False)
    identity: dict[str, str] = field(default_factory=dict, repr=False)

    @property
    def changed(self) -> bool:
        """Whether the network differs from the given one."""
        return bool(self.steps)

    @property
    def widths(self) -> tuple[tuple[str, int], ...]:
        """The layers of the reduced network, as in ``widths_before``; one of low rank is two, the first narrow."""
        return layer_widths(unwrap(self.network))

    def save(self, path: str | os.PathLike[str], tag: str | None = None) -> Path:
        """Write network and plan to one safetensors file; return the path.

        Parameters
        ----------
        path : path
            A name ending in ``.safetensors``.
        tag : str, optional
            The version of parts of the module that cannot be identified, as in `bnrank.training.Save`; needed only
            where some segments of a larger module were replaced.

        Raises
        ------
        TypeError, ValueError
            If a part of a segment is not a torch layer that plain values describe (the message names it, and what to
            do), a part of the rest cannot be identified, a module keeps a state that is no tensor
            (``get_extra_state``), or the path is invalid.
        """
        path = files.checked_path(path, "path", store.SUFFIX)
        if not self.steps:
            raise ValueError("network: nothing was compressed, expected a smaller one; save the module itself")
        plan = {}
        for segment in self.plan:
            made: Any = unwrap(self.network).get_submodule(segment)
            parts = {segment: made} if isinstance(made, SPLIT) else dict(_named(segment, made))
            for name, part in parts.items():
                if why := storage.obstacle(part):
                    raise TypeError(f"network: the file cannot hold part {name} ({type(part).__name__}), which {why}")
            if not isinstance(made, SPLIT) and hooked(made):
                where = f"segment {segment}" if segment else "the Sequential"
                raise TypeError(f"network: got forward hooks on {where}, which the file cannot hold; remove them")
            plan[segment] = storage.describe(list(parts.values()))
        identified = (
            {} if "" in plan else _identified(self.identity, tag, 'tag="...", as in small.save(path, tag="v1")')
        )
        _expect_tensors(self.network)
        return store.save(path, self.network.state_dict(), {"plan": plan, "identity": identified}, KIND)

    def _content(self) -> list[Part]:
        lines: list[Part] = [] if self.changed else ["returned as it is"]
        for step in self.steps:
            where = f" ({step.where})" if step.where else ""
            lines.append(f"{step.kind}{where}: {step.what}; change so far {100 * step.change:.3g} %")
        lines += [self.reason] if self.reason else []
        lines += remarks((f"skipped {part}" for part in self.skipped), "skipped")
        headline, *certificate = self.certificate._content()
        return [headline, *lines, *certificate]


def expect_storable(net: nn.Module, tag: str | None, remedy: str) -> None:
    """Raise, before a search, where `Compressed.save` cannot store what it leads to unless the whole is replaced.

    Parameters
    ----------
    net : torch.nn.Module
        The module to compress.
    tag : str or None
        As in `Compressed.save`.
    remedy : str
        How the caller gives a tag.

    Raises
    ------
    TypeError
        If a part of the module cannot be identified and there is no tag, or it keeps a state that is no tensor.
    """
    _expect_text(tag)
    net = prepared(unwrap(net), torch.float64)
    if any(storage.obstacle(part) for _, part in parts_of(net)):  # else the file holds the layers of the whole
        _identified(identity.describe(net, "net", values=False), tag, remedy)
        _expect_tensors(net)


def _expect_text(tag: str | None) -> None:
    validation.expect(tag is None or tag.strip(), "tag", repr(tag), "a text")


def _identified(parts: dict[str, str], tag: str | None, remedy: str) -> dict[str, str]:
    _expect_text(tag)
    found = parts | ({} if tag is None else {"tag": repr(tag)})
    identity.require(found, remedy)
    return found


def _expect_tensors(network: nn.Module) -> None:
    extra = [key for key, value in network.state_dict().items() if not isinstance(value, Tensor)]
    if extra:
        raise TypeError(
            f"network: got a state that is no tensor ({', '.join(extra)}, from get_extra_state), which the file "
            "cannot hold; save its state_dict with torch.save"
        )


def _named(segment: str, parts: Iterable[nn.Module]) -> Iterator[tuple[str, nn.Module]]:
    for i, part in enumerate(parts):
        yield ".".join(filter(None, (segment, str(i)))), part


def prepared(original: nn.Module, dtype: torch.dtype) -> nn.Module:
    """Return a copy in a precision and in eval mode, with pruning masks carried out; its parts remember their mode."""
    work = copied(original)
    for part in work.modules():
        vars(part)[MODE] = part.training
        for hook in list(part._forward_pre_hooks.values()):
            if isinstance(hook, prune.BasePruningMethod):
                prune.remove(part, hook._tensor_name)
    return in_precision(work, dtype).eval().requires_grad_(True)


def finished(original: nn.Module, new: dict[str, Parts]) -> nn.Module:
    """Return the module with new segments and no subnormal weights, in its own precision, device and modes."""
    network = copied(original)
    for name, parts in new.items():
        before = original.get_submodule(name)
        first = next(p for p in before.parameters() if p.is_floating_point())
        segment = nn.Sequential(*(in_precision(copied(part), first.dtype, first.device) for part in parts))
        for part in segment.modules():
            part.training = vars(part).pop(MODE, before.training)
        segment.requires_grad_(True).zero_grad(set_to_none=True)
        network = replaced(network, name, segment)
    return without_subnormals(network)


def replaced(net: nn.Module, name: str, segment: nn.Sequential) -> nn.Module:
    """Return the module with a submodule replaced, in place; the segment itself for the name ""."""
    alone = len(segment) == 1 and isinstance(segment[0], SPLIT)
    return put(net, name, segment[0] if alone else segment)


def open_compressed(stored: store.Stored, net: nn.Module | None = None) -> nn.Module:
    """Return the network in a file of kind "compressed network", in eval mode and in the precision of the file.

    Parameters
    ----------
    stored : Stored
        The contents of the file.
    net : torch.nn.Module, optional
        A module of the original architecture, required where only some segments were replaced; it is copied.

    Raises
    ------
    ValueError
        If the file is corrupted, or ``net`` is missing or another network, apart from its parameters and buffers.
    """
    plan: Any = stored.about.get("plan")
    described = isinstance(plan, dict) and all(isinstance(layers, list) for layers in plan.values())
    validation.expect(described, "path", f"{stored.path} with a damaged plan", "layers by name of a segment")
    if "" not in plan and net is None:
        what = f"segments {', '.join(plan)} of a larger module" if plan else "parameters only"
        raise ValueError(f"net: got None, but {stored.path} holds {what}")
    network = copied(net) if net is not None else nn.Module()
    if "" not in plan:
        identity.expect_same(stored.about.get("identity", {}), unwrap(network), stored.path, values=False)
    try:
        for name, layers in plan.items():
            start = f"{name}." if name else ""
            own = {key.removeprefix(start): t for key, t in stored.tensors.items() if key.startswith(start)}
            alone = len(layers) == 1 and layers[0].get("type") in {kind.__name__ for kind in SPLIT}
            inner = {f"0.{key}": t for key, t in own.items()} if alone else own
            network = replaced(network, name, storage.rebuild(layers, inner))
        floating = next((t.dtype for t in stored.tensors.values() if t.is_floating_point()), torch.float32)
        network = network.to(floating)
        network.load_state_dict(stored.tensors)
    except (AttributeError, RuntimeError, ValueError) as error:
        raise ValueError(f"path: {stored.path} does not fit the module: {error}") from error
    return network.eval()
