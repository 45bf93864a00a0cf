"""Measure, train, check and use the bottleneck structure of deep networks.

Start with :class:`bnrank.MLP` or any ``nn.Module``, :mod:`bnrank.tasks` or your data, :func:`bnrank.train`,
:func:`bnrank.profile`, :func:`bnrank.check` and :func:`bnrank.report`. Every name is imported on first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from bnrank._version import __version__

if TYPE_CHECKING:
    from bnrank import discovery, figures, measures, networks, reporting, tasks, theory, training
    from bnrank.discovery.adapters import lora_ranks
    from bnrank.discovery.compression import compress
    from bnrank.measures import frequencies, ntk, profile, regions, similarity, spectra
    from bnrank.measures.bottlenecks import bottleneck
    from bnrank.measures.jacobian import Jacobian
    from bnrank.measures.nonlinearities import nonlinearity
    from bnrank.networks import MLP, LinearNetwork, graph
    from bnrank.reporting import Section, load, plots, report, save
    from bnrank.reporting.by_layer import layer_table
    from bnrank.tasks import Task
    from bnrank.theory import check, constructions, cost, escape, invariants
    from bnrank.theory.rank_bounds import rank
    from bnrank.training import Flow, Run, Sweep, compare, finish, flow, sweep, train, watch

__all__ = [
    "MLP",
    "Flow",
    "Jacobian",
    "LinearNetwork",
    "Run",
    "Section",
    "Sweep",
    "Task",
    "__version__",
    "bottleneck",
    "check",
    "compare",
    "compress",
    "constructions",
    "cost",
    "discovery",
    "escape",
    "figures",
    "finish",
    "flow",
    "frequencies",
    "graph",
    "invariants",
    "layer_table",
    "load",
    "lora_ranks",
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
    "similarity",
    "spectra",
    "sweep",
    "tasks",
    "theory",
    "train",
    "training",
    "watch",
]

_ROOMS = {
    "discovery.adapters": ("lora_ranks",),
    "discovery.compression": ("compress",),
    "measures": ("frequencies", "ntk", "profile", "regions", "similarity", "spectra"),
    "measures.bottlenecks": ("bottleneck",),
    "measures.jacobian": ("Jacobian",),
    "measures.nonlinearities": ("nonlinearity",),
    "networks": ("MLP", "LinearNetwork", "graph"),
    "reporting": ("Section", "load", "plots", "report", "save"),
    "reporting.by_layer": ("layer_table",),
    "tasks": ("Task",),
    "theory": ("check", "constructions", "cost", "escape", "invariants"),
    "theory.rank_bounds": ("rank",),
    "training": ("Flow", "Run", "Sweep", "compare", "finish", "flow", "sweep", "train", "watch"),
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    room = next((room for room, names in _ROOMS.items() if name in names), None)
    found = getattr(import_module(f"bnrank.{room}"), name) if room else import_module(f"bnrank.{name}")
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return __all__
