"""How networks are trained: ensembles, optimisers, checkpoints, recording."""

from bnrank.training.grid import sweep
from bnrank.training.run import Run
from bnrank.training.trainer import train

__all__ = ["Run", "sweep", "train"]
