"""Training of networks: ensembles, optimizers, gradient flow, checkpoints and recording."""

from bnrank.training.comparing import compare
from bnrank.training.finishing.finisher import Finished, finish
from bnrank.training.gradient_flow import Flow, flow
from bnrank.training.grid import sweep
from bnrank.training.history import Run
from bnrank.training.options import Adam, GradientDescent, Limits, Record, Save, SkipPlateau, Solver, Stop, Watcher
from bnrank.training.sweeping.results import Sweep
from bnrank.training.sweeping.sampled import Range, sample_settings
from bnrank.training.trainer import train
from bnrank.training.watching import (
    Checkpoints,
    Collapse,
    CollapseError,
    CSVWriter,
    MLflowWriter,
    TensorBoardWriter,
    WandbWriter,
    Watch,
    read_checkpoints,
    read_csv,
    watch,
)

__all__ = [
    "Adam",
    "CSVWriter",
    "Checkpoints",
    "Collapse",
    "CollapseError",
    "Finished",
    "Flow",
    "GradientDescent",
    "Limits",
    "MLflowWriter",
    "Range",
    "Record",
    "Run",
    "Save",
    "SkipPlateau",
    "Solver",
    "Stop",
    "Sweep",
    "TensorBoardWriter",
    "WandbWriter",
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
