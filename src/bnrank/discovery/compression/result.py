"""The result of a compression, in memory and on disk."""

import copy
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from bnrank._core import files, store
from bnrank._core.results import Printed
from bnrank.discovery.compression.certificate import Certificate
from bnrank.discovery.compression.stages import Step
from bnrank.discovery.storage import rebuild
from bnrank.networks import Skipped

KIND = "compressed network"


@dataclass(frozen=True)
class Compressed(Printed):
    """A smaller network, its certificate and the steps that led to it; ``print`` shows a table.

    Attributes
    ----------
    network : torch.nn.Module
        A ``nn.Sequential`` of torch layers where the module was one segment; else its copy with the segments replaced
        by such. The module itself where nothing was done.
    certificate : Certificate
        Changes, bound, parameters, multiply-adds and latency, before and after.
    steps : tuple of Step
        The steps, in order.
    skipped : tuple of Skipped
        The parts left as they are, each with the reason.
    reason : str
        Why no bottleneck was collapsed, by segment; empty where one was in every segment.
    plan : mapping
        From the name of every replaced segment to its layers, as plain values: see
        :func:`~bnrank.discovery.storage.rebuild`.
    """

    network: nn.Module
    certificate: Certificate
    steps: tuple[Step, ...]
    skipped: tuple[Skipped, ...]
    reason: str
    plan: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def changed(self) -> bool:
        """Whether the network differs from the given one."""
        return bool(self.steps)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write network and plan to one safetensors file; return the path.

        Raises
        ------
        TypeError, ValueError
            If a part of a segment is no layer of torch that plain values describe, or the path does not fit.
        """
        path = files.checked_path(path, "path", store.SUFFIX)
        if not self.plan:
            raise ValueError("network: nothing was compressed, expected replaced segments; save the module itself")
        unknown = [name or "the module" for name, layers in self.plan.items() if layers is None]
        if unknown:
            found = ", ".join(unknown)
            raise TypeError(f"network: {found} has parts that no plain values describe; save its state_dict")
        return store.save(path, self.network.state_dict(), {"plan": dict(self.plan)}, KIND)

    def __str__(self) -> str:
        lines = [] if self.changed else ["returned as it is"]
        for step in self.steps:
            where = f" ({step.where})" if step.where else ""
            lines.append(f"{step.kind}{where}: {step.what}; change so far {100 * step.change:.3g} %")
        lines += [self.reason] if self.reason else []
        lines += [f"skipped {part}" for part in self.skipped]
        return "\n".join([*lines, str(self.certificate)])


def replaced(net: nn.Module, name: str, segment: nn.Module) -> nn.Module:
    """Return the module with a submodule replaced, in place; the segment itself for the name ""."""
    if not name:
        return segment
    parent, _, own = name.rpartition(".")
    setattr(net.get_submodule(parent), own, segment)
    return net


def open_compressed(stored: store.Stored, net: nn.Module | None = None) -> nn.Module:
    """Return the network in a file of kind "compressed network", in eval mode and in the precision of the file.

    Parameters
    ----------
    stored : Stored
        The contents of the file.
    net : torch.nn.Module, optional
        A module of the architecture that was compressed, needed where only segments of it were replaced; it is copied.

    Raises
    ------
    ValueError
        If the file is damaged, or ``net`` is missing or does not fit.
    """
    plan = stored.about.get("plan", {})
    if "" not in plan and net is None:
        raise ValueError(f"net: got None, but {stored.path} holds segments {', '.join(plan)} of a larger module")
    network = copy.deepcopy(net) if net is not None else nn.Module()
    try:
        for name, layers in plan.items():
            network = replaced(network, name, rebuild(layers))
        floating = next((t.dtype for t in stored.tensors.values() if t.is_floating_point()), torch.float32)
        network = network.to(floating)
        network.load_state_dict(stored.tensors)
    except (AttributeError, RuntimeError) as error:
        raise ValueError(f"path: {stored.path} does not fit the module: {error}") from error
    return network.eval()
