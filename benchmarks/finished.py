"""A network finished at a stationary point, with the numbers that are stored of it."""

from __future__ import annotations

import time
from typing import Any

from torch import nn

import bnrank
from bnrank.training import Finished

__all__ = ["finish"]


def finish(
    net: nn.Module, task: bnrank.Task, ridge: float, max_minutes: float | None = None, births: bool = True
) -> tuple[Finished, dict[str, Any]]:
    """Return a finished network and its numbers: losses before and after, certificate, and times in seconds."""
    began = time.process_time()
    done = bnrank.finish(net, task, ridge, births=births, max_minutes=max_minutes, progress=False)
    processor, at = time.process_time() - began, done.stationarity
    return done, {
        "before": done.loss_before,
        "loss": done.loss,
        "residual": at.residual,
        "kind": at.kind,
        "kinks": len(at.slopes),
        "live": [int(neurons) for neurons in at.live],
        "births": max((birth.lower for birth in at.births), default=0.0),
        "processor": round(processor, 3),
        "seconds": round(done.seconds, 3),
        "reason": done.reason,
    }
