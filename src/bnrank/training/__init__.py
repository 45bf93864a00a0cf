"""Training of networks: ensembles, optimizers, gradient flow, checkpoints and recording."""

import importlib
from typing import TYPE_CHECKING, Any

from bnrank.training.checkpoints import Checkpoints, read_checkpoints
from bnrank.training.comparing import compare
from bnrank.training.gradient_flow import Flow, flow
from bnrank.training.grid import sweep
from bnrank.training.history import Run
from bnrank.training.options import (
    Adam,
    Finish,
    GradientDescent,
    Limits,
    Record,
    Save,
    SkipPlateau,
    Solver,
    Stop,
    Watcher,
)
from bnrank.training.sweeping.results import Sweep
from bnrank.training.sweeping.sampled import Range, sample_settings
from bnrank.training.trainer import train
from bnrank.training.watching import Collapse, CollapseError, Measured, Watch, read_csv, watch

if TYPE_CHECKING:
    from bnrank.training.finishing.finisher import Finished, finish

__all__ = [
    "Adam",
    "Checkpoints",
    "Collapse",
    "CollapseError",
    "Finish",
    "Finished",
    "Flow",
    "GradientDescent",
    "Limits",
    "Measured",
    "Range",
    "Record",
    "Run",
    "Save",
    "SkipPlateau",
    "Solver",
    "Stop",
    "Sweep",
    "Watch",
    "Watcher",
    "compare",
    "finish",
    "flow",
    "read_checkpoints",
    "read_csv",
    "sample_settings",
    "sweep",
    "train",
    "watch",
]


def __getattr__(name: str) -> Any:
    """Import what needs SciPy's optimizers on first use."""
    if name in ("Finished", "finish"):
        return getattr(importlib.import_module(f"{__name__}.finishing.finisher"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
