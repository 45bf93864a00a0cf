"""How networks are trained: ensembles, optimisers, checkpoints, recording."""

from bnrank.training.run import Run
from bnrank.training.sweep import sweep
from bnrank.training.train import train

__all__ = ["Run", "sweep", "train"]
