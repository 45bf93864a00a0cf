"""Measure, train, check and use the bottleneck structure of deep networks.

Start with :class:`bnrank.MLP` or any ``nn.Module`` of your own, :mod:`bnrank.tasks` or data of your own,
:func:`bnrank.train`, :func:`bnrank.profile`, :func:`bnrank.check` and :func:`bnrank.report`.
"""

from bnrank import discovery, figures, measures, networks, reporting, tasks, theory, training
from bnrank._version import __version__
from bnrank.measures import balance, frequencies, nonlinearity, ntk, profile, regions, spectra
from bnrank.measures.bottleneck import find as bottleneck
from bnrank.measures.jacobian import Jacobian
from bnrank.networks import MLP, LinearNetwork, constructions, graph, load, save
from bnrank.reporting import Section, plots, report
from bnrank.tasks import Task
from bnrank.theory import check, cost, escape, invariants, rank
from bnrank.training import Flow, Run, flow, sweep, train

__all__ = [
    "MLP",
    "Flow",
    "Jacobian",
    "LinearNetwork",
    "Run",
    "Section",
    "Task",
    "__version__",
    "balance",
    "bottleneck",
    "check",
    "constructions",
    "cost",
    "discovery",
    "escape",
    "figures",
    "flow",
    "frequencies",
    "graph",
    "invariants",
    "load",
    "measures",
    "networks",
    "nonlinearity",
    "ntk",
    "plots",
    "profile",
    "rank",
    "regions",
    "report",
    "reporting",
    "save",
    "spectra",
    "sweep",
    "tasks",
    "theory",
    "train",
    "training",
]
