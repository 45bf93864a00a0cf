"""Measure, train, check and use the bottleneck structure of deep networks.

Start with :class:`bnrank.MLP` or any ``nn.Module`` of your own, :mod:`bnrank.tasks` or data of your own,
:func:`bnrank.train`, :func:`bnrank.profile` and :func:`bnrank.report`.
"""

from bnrank import figures, measures, networks, reporting, tasks, training
from bnrank._version import __version__
from bnrank.measures import balance, bottleneck, jacobian, nonlinearity, ntk, profile, spectra
from bnrank.networks import MLP, load, save
from bnrank.reporting import Section, plots, report
from bnrank.tasks import Task
from bnrank.training import Run, sweep, train

__all__ = [
    "MLP",
    "Run",
    "Section",
    "Task",
    "__version__",
    "balance",
    "bottleneck",
    "figures",
    "jacobian",
    "load",
    "measures",
    "networks",
    "nonlinearity",
    "ntk",
    "plots",
    "profile",
    "report",
    "reporting",
    "save",
    "spectra",
    "sweep",
    "tasks",
    "train",
    "training",
]
