"""What compression gives back."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import nn

from bnrank.discovery.compression.certificate import Certificate
from bnrank.discovery.compression.plans import save
from bnrank.discovery.compression.stages import Step
from bnrank.networks import Skipped

__all__ = ["Compressed"]


@dataclass(frozen=True)
class Compressed:
    """A smaller network and what is known of it; ``print`` shows a table.

    Attributes
    ----------
    network : torch.nn.Module
        A ``nn.Sequential`` of torch layers where the module was one segment; else the module's copy with its segments
        replaced by such. The module itself where nothing was done.
    certificate : Certificate
        Changes, bound, parameters, multiply-adds and latency, before and after.
    steps : tuple of Step
        What was done, in order.
    untouched : tuple of Skipped
        What was left as it is, each with the reason.
    reason : str
        Why no bottleneck was collapsed, by segment; empty where one was in every segment.
    plan : mapping
        From the name of every segment that was replaced to its layers, as plain values: see
        :func:`~bnrank.discovery.compression.plans.rebuild`.
    """

    network: nn.Module
    certificate: Certificate
    steps: tuple[Step, ...]
    untouched: tuple[Skipped, ...]
    reason: str
    plan: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def changed(self) -> bool:
        """Whether the network is another one than was given."""
        return bool(self.steps)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write network and plan to one safetensors file, to be read by ``load``.

        Raises
        ------
        TypeError, ValueError
            If a part of a segment is no layer of torch that can be built from plain values, or the path is not fit.
        """
        return save(self.network, self.plan, path)

    def __str__(self) -> str:
        lines = [] if self.changed else ["returned as it is"]
        lines += [
            f"{step.kind}{f' ({step.where})' if step.where else ''}: {step.what}; change so far "
            f"{100 * step.change:.3g} %"
            for step in self.steps
        ]
        lines += [self.reason] if self.reason else []
        lines += [f"untouched {u.name or 'the module'} ({u.type}): {u.reason}" for u in self.untouched]
        return "\n".join([*lines, str(self.certificate)])
