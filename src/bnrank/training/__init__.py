"""Training of networks: ensembles, optimizers, gradient flow, checkpoints and recording."""

from bnrank.training.gradient_flow import Flow, flow
from bnrank.training.grid import sweep
from bnrank.training.history import Run
from bnrank.training.options import Adam, GradientDescent, Limits, Record, Save, SkipPlateau, Solver, Stop, Watcher
from bnrank.training.trainer import train

__all__ = [
    "Adam",
    "Flow",
    "GradientDescent",
    "Limits",
    "Record",
    "Run",
    "Save",
    "SkipPlateau",
    "Solver",
    "Stop",
    "Watcher",
    "flow",
    "sweep",
    "train",
]
