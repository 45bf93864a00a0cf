"""A small valid call of every public function: values by parameter name, and those of single functions."""

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from . import of_discovery, of_measures, of_networks, of_reporting, of_tasks, of_theory, of_training
from .made import MONITORED, Values, films, mlp, new, normal, profile, run, stored, swept, verdicts
from .of_discovery import estimator

ROOMS = (of_tasks, of_networks, of_measures, of_training, of_theory, of_discovery, of_reporting)

INPUTS = {
    *("Adam", "Finish", "GradientDescent", "Limits", "Record", "Save", "SkipPlateau", "Solver", "Stop", "Steps"),
    *("Window", "Task", "Claim", "Figure", "Collapse", "Range", "Timing", "Sides", "Statement"),
}
"""Dataclasses that users construct; all others are results."""

SKIPPED = {
    "bnrank.figures.run_demo": "runs for a minute",
    "bnrank.figures.reproduce": "runs for minutes; its refusals are tested in tests/figures/test_reproduce_input.py",
    "bnrank.training.Watcher": "a protocol, not constructed",
    "bnrank.measures.Regions": "a result",
    "bnrank.cost.LowerBound": "a result: a float with evidence",
    "bnrank.cost.R1LowerBound": "a result: a float with evidence",
    "bnrank.cost.TwoPointBound": "a result: a float with evidence",
    "bnrank.invariants.Findings": "a result",
    "bnrank.theory.NeuronGraph": "a result",
    "bnrank.discovery.RankPattern": "a result",
    "bnrank.tasks.mnist": "may download",
    "bnrank.tasks.digits": "may download",
    "bnrank.spectra.Spectra": "a result",
    "bnrank.cost.Corrections": "a result",
    "bnrank.Sweep": "a result",
    "bnrank.training.Watch": "made by watch",
    "Regions.of": "made by the functions of bnrank.regions",
    "TrainSettings.create": "made by train",
    "TrainSettings.from_json": "made by Run.open",
    "TrainSettings.differences": "asked by train",
    "Figure.changed": "asked by reproduce",
    "Figure.described": "asked by reproduce",
    "Figure.stamp": "asked by reproduce",
    "Figure.run": "asked by reproduce",
    "Record.rows": "asked by train and flow",
    "Node.bias_places": "asked by NeuronGraph",
    "Node.pooled": "asked by NeuronGraph",
    "Layer.added": "asked by Tail",
    "Layer.biases": "asked by Tail",
    "Layer.read": "asked by Tail",
    "Layer.written": "asked by Tail",
    "Tail.factors": "asked by Monitor",
    "Monitor.observe": "asked by train and flow",
}
"""Public names that are not called, with the reason."""

METHOD_OWNERS = (
    *("bnrank.Jacobian", "bnrank.MLP", "bnrank.train", "bnrank.bottleneck", "bnrank.spectra.weight_singular_values"),
    *("bnrank.spectra.Accumulator", "bnrank.cost.expand", "bnrank.cost.planarity", "bnrank.graph.trace"),
    *("bnrank.regions.in_plane", "bnrank.regions.along_line", "bnrank.regions.enumerate", "bnrank.regions.tripoints"),
    *("bnrank.discovery.BottleneckRegressor", "bnrank.discovery.BottleneckClassifier"),
    *("bnrank.discovery.BottleneckAutoencoder", "bnrank.compress", "bnrank.discovery.symmetries"),
    "bnrank.discovery.StateVariables",
    *("bnrank.check", "bnrank.escape.join_rate", "bnrank.invariants.Monitor", "bnrank.invariants.find"),
    *("bnrank.invariants.tail", "bnrank.tasks.rank_one_factorization", "bnrank.tasks.low_rank_map"),
    *("bnrank.theory.Facts", "bnrank.theory.kernels.select", "bnrank.flow", "bnrank.networks.read"),
)
"""Targets whose results have methods with arguments."""

SLOW = {
    "bnrank.compress": 0.3,
    "bnrank.discovery.BottleneckRegressor": 0.5,
    "bnrank.discovery.BottleneckClassifier": 0.5,
    "bnrank.discovery.StateVariables": 0.5,
    "Compressed": 0.1,
    "bnrank.plots.discovered": 0.3,
}
"""Share of the calls of targets, and of the methods of classes, whose valid call takes long."""

VALUES: Values = {
    "net": mlp,
    "module": mlp,
    "x": lambda: normal(6, 3),
    "y": lambda: normal(6, 2, seed=1),
    "g": lambda: normal(6, 2, seed=1),
    "task": lambda: (normal(6, 3), normal(6, 2, seed=1)),
    "a": lambda: normal(2, 3),
    "b": lambda: normal(2, 3, seed=1),
    "w": lambda: normal(3),
    "f": lambda: mlp(3, 5, 2),
    "h": lambda: mlp(2, 4, 4, 1),
    "depth": lambda: 4,
    "width": lambda: 4,
    "hidden": lambda: 3,
    "widths": lambda: [3, 4, 2],
    "seed": lambda: 0,
    "n": lambda: 12,
    "n_test": lambda: 4,
    "starts": lambda: 2,
    "rounds": lambda: 2,
    "steps": lambda: 4,
    "polish": lambda: 2,
    "resamples": lambda: 3,
    "repeats": lambda: 2,
    "max_regions": lambda: 500,
    "max_pairs": lambda: 20,
    "max_cones": lambda: 100,
    "max_samples": lambda: 50,
    "max_jacobian_samples": lambda: 4,
    "progress": lambda: False,
    "values": lambda: torch.tensor([3.0, 1.0, 0.1]),
    "weights": lambda: [normal(4, 3), normal(2, 4)],
    "biases": lambda: [torch.zeros(4), torch.zeros(2)],
    "kernel": lambda: normal(2, 1, 3),
    "size": lambda: 6,
    "matrix": lambda: normal(3, 2),
    "start": lambda: torch.zeros(3),
    "end": lambda: torch.ones(3),
    "starts_of_lines": lambda: torch.zeros(2, 3),
    "origin": lambda: torch.zeros(3),
    "u": lambda: torch.tensor([1.0, 0.0, 0.0]),
    "v": lambda: torch.tensor([0.0, 1.0, 0.0]),
    "box": lambda: (-1.0, 1.0),
    "shape": lambda: (1, 6),
    "channels": lambda: [3, 2],
    "d_in": lambda: 3,
    "d_out": lambda: 2,
    "d": lambda: 3,
    "k": lambda: 2,
    "example": lambda: normal(1, 3),
    "path": lambda: new("file.safetensors"),
    "out": new,
    "t_end": lambda: 0.5,
    "depths": lambda: [2, 3, 4, 6],
    "norms": lambda: [4.0, 5.0, 6.1, 8.0],
    "loss": lambda: "mse",
    "profile": profile,
    "history": lambda: run().history,
    "verdicts": verdicts,
    "layer": lambda: 1,
    "name": lambda: "activations",
    "corners": lambda: normal(5, 2),
    "positions": lambda: torch.tensor([[0.0], [1.5]]),
    "points": lambda: normal(3, 3),
    "angles": lambda: normal(5, 2),
    "t": lambda: torch.tensor([-0.5, 0.0, 0.5]),
    "inner": lambda: 1,
    "scale": lambda: "quick",
    "names": lambda: ["F11"],
}
"""Valid values by parameter name; a parameter without one keeps its default."""

OWN: dict[str, Values] = {name: values for room in ROOMS for name, values in room.OWN.items()}
OPTIONAL: dict[str, Values] = {name: values for room in ROOMS for name, values in room.OPTIONAL.items()}

METHODS: Values = {
    "X": lambda: normal(30, 3).double().numpy(),
    "frames": lambda: films(),
    "Z": lambda: normal(30, 1).double().numpy(),
    "y": lambda: normal(30, 2).double().numpy(),
    "i": lambda: 0,
    "index": lambda: 0,
    "member": lambda: 0,
    "k": lambda: 1,
    "row": lambda: 0,
    "t": lambda: 0.1,
    "status": lambda: "holds",
    "kind": lambda: "matrix",
    "name": lambda: "input",
    "depth": lambda: 4,
    "amplitude": lambda: 1e-3,
    "rtol": lambda: 1e-6,
    "path": lambda: new("file"),
    "optimizer": lambda: torch.optim.SGD(mlp().parameters(), lr=0.1),
    "parameters": lambda: dict(mlp().named_parameters()),
    "v": lambda: normal(2, 6),
    "u": lambda: normal(2, 7),
    "distance": lambda: 0.1,
    "piece": lambda: normal(6, 3),
    "step": lambda: 0,
    "time": lambda: 0.0,
    "dtype": lambda: torch.float64,
}
"""Values for the methods of results, where they differ from those of functions."""

_STATISTICS: Values = {"u": lambda: normal(3, 2).abs()}


def _recorded(monitor: Any) -> None:
    monitor.record(0, time=0.0)
    monitor.record(1, time=0.1)


PREPARED: dict[str, Callable[[Any], None]] = {
    f"Monitor.{name}": _recorded for name in ("parts", "plot", "signs_changed_since", "verdicts")
}
"""What methods need to have happened to their object."""

METHOD_OWN: dict[str, Values] = {
    "Monitor.signs_changed_since": {"step": lambda: 0},
    "Monitor.attach": {"optimizer": lambda: torch.optim.SGD(MONITORED[-1].parameters(), lr=0.1)},
    **{
        f"{name}.load": {"path": lambda name=name: stored(estimator(f"bnrank.discovery.{name}"), ".safetensors")}
        for name in ("BottleneckRegressor", "BottleneckClassifier", "BottleneckAutoencoder", "StateVariables")
    },
    "BottleneckClassifier.fit": {"y": lambda: np.arange(30) % 2},
    **{
        f"{kind}.save": {"path": lambda: new("file.safetensors")}
        for kind in (
            *("BottleneckRegressor", "BottleneckClassifier", "BottleneckAutoencoder", "Compressed", "StateVariables"),
        )
    },
    "RankOneFactorization.cost_of_statistics": _STATISTICS,
    "RankOneFactorization.representative": _STATISTICS,
    "RankOneFactorization.step_statistics": _STATISTICS,
    "Run.open": {"out": lambda: stored(run(), "")},
    "Sweep.open": {"path": lambda: swept().folder.path},
    "Sweep.run": {"depth": lambda: 2},
    "Selected.predict": {"x": lambda: normal(6, 2)},
    "Truth.task": {"settings": dict, "name": lambda: "task"},
}
"""What single methods need."""


def optional(name: str) -> dict[str, Any]:
    """Return the values of optional arguments that the valid call of a target leaves out, built anew."""
    return {parameter: make() for parameter, make in OPTIONAL.get(name, {}).items()}


def arguments(name: str, parameters: tuple[str, ...], function: Callable[..., Any]) -> dict[str, Any]:
    """Return the arguments of a small valid call, built anew."""
    method = name[0].isupper()
    own = METHOD_OWN.get(name, {}) if method else OWN.get(name, {})
    known = inspect.signature(function).parameters
    by_name = VALUES | METHODS if method else VALUES
    built: dict[str, Any] = {}
    for parameter in known:
        required = parameter in parameters and known[parameter].default is inspect.Parameter.empty
        if parameter in own:
            built[parameter] = own[parameter]()
        elif parameter in by_name and (required or (parameter in CHEAP and not method)):
            built[parameter] = by_name[parameter]()
    variable = any(p.kind == inspect.Parameter.VAR_KEYWORD for p in known.values())
    return built | ({p: own[p]() for p in own if p not in built} if variable else {})


CHEAP = {
    *("n", "n_test", "starts", "rounds", "steps", "resamples", "repeats", "max_regions", "max_pairs", "max_cones"),
    *("max_samples", "max_jacobian_samples", "progress", "d_in", "d_out", "y"),
}
"""Optional parameters that a valid call gives, so that it is small."""
