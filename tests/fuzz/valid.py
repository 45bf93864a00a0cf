"""A small valid call of every public function: values by parameter name, and what single functions need beside."""

import atexit
import gzip
import inspect
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

import bnrank
from bnrank import escape, networks, tasks, training
from bnrank.discovery import BottleneckAutoencoder, BottleneckClassifier, BottleneckRegressor, StateVariables

FOLDER = Path(tempfile.mkdtemp(prefix="bnrank-fuzz-")).resolve()
"""Files of valid and bad calls; removed at the end."""
atexit.register(shutil.rmtree, FOLDER, ignore_errors=True)

INPUTS = {
    *("Adam", "Finish", "GradientDescent", "Limits", "Record", "Save", "SkipPlateau", "Solver", "Stop", "Steps"),
    *("Window", "Task", "Claim", "Figure", "Collapse", "Range"),
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
    "bnrank.graph.NeuronGraph": "a result",
    "bnrank.discovery.RankPattern": "a result",
    "bnrank.tasks.mnist": "may download",
    "bnrank.tasks.digits": "may download",
    "bnrank.spectra.Spectra": "a result",
    "bnrank.cost.Corrections": "a result",
    "bnrank.Sweep": "a result",
    "bnrank.training.MLflowWriter": "needs MLflow; tested in tests/training/test_watching_writers.py",
    "bnrank.training.TensorBoardWriter": "needs TensorBoard; tested in tests/training/test_watching_writers.py",
    "bnrank.training.WandbWriter": "needs wandb; tested in tests/training/test_watching_writers.py",
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
    "Node.bias_places": "asked by LayerGraph",
    "Node.pooled": "asked by LayerGraph",
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
    *("bnrank.discovery.BottleneckAutoencoder", "bnrank.discovery.compress", "bnrank.discovery.symmetries"),
    "bnrank.discovery.StateVariables",
    *("bnrank.check", "bnrank.escape.join_rate", "bnrank.invariants.Monitor", "bnrank.invariants.find"),
    *("bnrank.invariants.tail", "bnrank.tasks.rank_one_factorization", "bnrank.tasks.low_rank_map"),
    *("bnrank.theory.Facts", "bnrank.theory.kernels.select", "bnrank.flow", "bnrank.networks.read"),
)
"""Targets whose results have methods with arguments."""

SLOW = {
    "bnrank.discovery.compress": 0.3,
    "bnrank.discovery.BottleneckRegressor": 0.5,
    "bnrank.discovery.BottleneckClassifier": 0.5,
    "bnrank.discovery.StateVariables": 0.5,
    "Compressed": 0.1,
    "bnrank.plots.discovered": 0.3,
}
"""Share of the calls of targets, and of the methods of classes, whose valid call takes long."""


def normal(*shape: int, seed: int = 0) -> Tensor:
    """Return standard normal numbers from a seed."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def mlp(*widths: int, bias: bool = True, seed: int = 0) -> nn.Module:
    """Return a small network."""
    return bnrank.MLP(widths or (3, 4, 4, 2), bias=bias, seed=seed)


def films() -> np.ndarray:
    """Return films of waves that travel, (n, T, H, W)."""
    x, t = np.arange(4), np.arange(5)[:, None, None]
    start = np.linspace(0, 6, 40)[:, None, None, None]
    return np.asarray(np.sin(0.9 * x + 0.3 * x[:, None] + 0.7 * t + start))


class Radius(nn.Module):
    """The squared distance from an axis."""

    def forward(self, x: Tensor) -> Tensor:
        return x[:, :2].square().sum(1, keepdim=True)


def cnn(size: int = 6) -> nn.Module:
    """Return a small circular convolutional network."""
    return networks.CircularConvolutional((1, size), [3, 2], seed=0)


def new(name: str = "new") -> Path:
    """Return a path that is not there yet."""
    return Path(tempfile.mkdtemp(dir=FOLDER)) / name


def foreign_file() -> Path:
    """Return the path of a file that the library did not write."""
    path = FOLDER / "foreign.txt"
    path.write_text("not a file of bnrank\n")
    return path


def csv() -> Path:
    """Return the path of a small table."""
    path = FOLDER / "table.csv"
    if not path.exists():
        rows = np.random.default_rng(0).normal(size=(12, 3))
        path.write_text("a,b,c\n" + "\n".join(",".join(f"{v:.4f}" for v in row) for row in rows))
    return path


def idx() -> Path:
    """Return the path of a small IDX file of labels."""
    path = FOLDER / "labels.gz"
    path.write_bytes(gzip.compress(bytes([0, 0, 8, 1, 0, 0, 0, 3, 1, 2, 3])))
    return path


def weights_file() -> Path:
    """Return the path of a stored network."""
    path = FOLDER / "net.safetensors"
    if not path.exists():
        networks.save(mlp(), path)
    return path


def run() -> Any:
    """Return a short training run."""
    task = (normal(6, 3), normal(6, 2, seed=1))
    return training.train(mlp(), task, steps=4, record=training.Record(2, spectra_every=2), progress=False)


def watched_csv() -> Path:
    """Return the path of a file that a watch wrote."""
    path = new("watch").with_suffix(".csv")
    with bnrank.watch(mlp(), x=normal(6, 3), writers=path) as watch:
        watch.step()
    return path


def checkpoints() -> Path:
    """Return a folder of two checkpoints."""
    folder = new("checkpoints")
    folder.mkdir()
    for step in (1, 2):
        torch.save(mlp(seed=step).state_dict(), folder / f"step-{step}.pt")
    return folder


def flow() -> Any:
    """Return a short gradient flow from small weights."""
    x, y = torch.tensor([[1.0], [0.5]]).double(), torch.tensor([[2.0], [1.0]]).double()
    net = networks.from_layers([torch.tensor([[1e-3]]), torch.tensor([[1e-3]]), torch.tensor([[1e-3]])])
    return training.flow(net, (x, y), plateau=training.SkipPlateau(t_after=20.0))


def positive_net() -> nn.Module:
    """Return a network without biases near a stationary point."""
    return networks.from_layers([torch.tensor([[7.0, 0.0]]), torch.tensor([[7.0]])])


def circle() -> Any:
    """Return the task of eight points on a circle."""
    return tasks.circle(dtype=torch.float64)


_MONITORED: list[nn.Module] = []


def monitored() -> nn.Module:
    """Return a network, and remember it for the optimizer that a monitor is attached to."""
    _MONITORED[:] = [mlp()]
    return _MONITORED[0]


def saddle() -> nn.Module:
    """Return the escape direction of the circle."""
    rows = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [0.0, -1.0]]) / 2
    return networks.from_layers([rows, torch.tensor([[1.0, -1.0, 1.0, -1.0]]) / 2, -torch.ones(1, 1)])


def found() -> Any:
    """Return a found escape direction."""
    return escape.find(circle().x, -circle().y, 3, 4, starts=2, steps=20)


def profile() -> Any:
    """Return a profile of a small network."""
    return bnrank.profile(mlp(), normal(6, 3), normal(6, 2))


def verdicts() -> Any:
    """Return verdicts on a small network."""
    return bnrank.check(mlp(), normal(6, 3), only=["T4", "T14"])


Values = dict[str, Callable[[], Any]]

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

_IMAGE: Values = {"shape": lambda: (1, 6, 6), "channels": lambda: [2], "d_out": lambda: 2, "seed": lambda: 0}
_BOX: Values = {"net": lambda: mlp(2, 4, 2), "box": lambda: (-1.0, 1.0), "max_regions": lambda: 500}
_CIRCLE: Values = {"net": saddle, "x": lambda: circle().x, "g": lambda: -circle().y}
_JOIN: Values = {
    "net": lambda: networks.from_layers([torch.tensor([[1.0, 0.0], [0.0, 1e-3]]), torch.tensor([[1.0, 1e-3]])]),
    "x": lambda: torch.eye(2),
    "y": lambda: torch.ones(2, 1),
    "starts": lambda: 2,
}
_LAW: Values = {"r0": lambda: 0.1, "speed": lambda: 0.5, "depth": lambda: 3}
_CONV: Values = {"net": cnn, "x": lambda: normal(4, 1, 6)}

OWN: dict[str, Values] = {
    "bnrank.Jacobian": {"net": mlp, "x": lambda: normal(4, 3)},
    "bnrank.Section": {"title": lambda: "Title"},
    "bnrank.Task": {"x": lambda: normal(6, 3), "y": lambda: normal(6, 2)},
    "bnrank.check": {"only": lambda: ["T4", "T14"]},
    "bnrank.load": {"path": weights_file},
    "bnrank.profile": {"x": lambda: normal(6, 3)},
    "bnrank.report": {"source": verdicts, "path": lambda: new("page.html")},
    "bnrank.save": {"result": mlp},
    "bnrank.measures.feature_convergence": {"ridge": lambda: 0.1},
    "bnrank.measures.stationarity": {"ridge": lambda: 0.1},
    "bnrank.finish": {"max_minutes": lambda: 0.005, "ridge": lambda: 0.1},
    "bnrank.flow": {"t_end": lambda: 0.05, "limits": lambda: training.Limits(max_evaluations=200)},
    "bnrank.sweep": {
        "depths": lambda: [2],
        "steps": lambda: 2,
        "processes": lambda: 1,
        "grid": lambda: {"width": [4]},
        "ridges": lambda: [1e-3],
    },
    "bnrank.train": {"record": lambda: 2},
    "bnrank.training.Range": {"low": lambda: 1e-3, "high": lambda: 0.1},
    "bnrank.training.sample_settings": {"ranges": lambda: {"ridge": training.Range(1e-3, 0.1)}, "n": lambda: 3},
    "bnrank.compare": {"a": mlp, "b": lambda: mlp(seed=1), "x": lambda: normal(6, 3)},
    "bnrank.measures.similarity.cca": {"a": lambda: normal(12, 3), "b": lambda: normal(12, 3, seed=1)},
    "bnrank.measures.similarity.cka": {"a": lambda: normal(6, 3), "b": lambda: normal(6, 4, seed=1)},
    "bnrank.measures.similarity.principal_angles": {"a": lambda: normal(6, 2), "b": lambda: normal(6, 2, seed=1)},
    "bnrank.training.CSVWriter": {"path": lambda: new("watch").with_suffix(".csv")},
    "bnrank.training.Checkpoints": {"folder": new},
    "bnrank.training.read_checkpoints": {"folder": checkpoints},
    "bnrank.training.read_csv": {"path": watched_csv},
    "bnrank.watch": {"what": lambda: ["weights", "activations"]},
    "bnrank.constructions.bottleneck": {"h": lambda: mlp(2, 4, 1), "g": lambda: mlp(3, 5, 2), "depth": lambda: 8},
    "bnrank.constructions.compose": {"h": lambda: mlp(2, 4, 1), "g": lambda: mlp(3, 5, 2)},
    "bnrank.constructions.add": {"f": lambda: mlp(3, 5, 2), "g": lambda: mlp(3, 4, 2)},
    "bnrank.constructions.completely_positive": {"a": lambda: torch.eye(2), "x": lambda: normal(5, 2).abs() + 0.1},
    "bnrank.constructions.deepen": {"depth": lambda: 5},
    "bnrank.constructions.deepen_escape": {**_CIRCLE, "depth": lambda: 6},
    "bnrank.constructions.line_interpolant": {
        "x": lambda: torch.linspace(0, 1, 4)[:, None],
        "y": lambda: torch.tensor([[0.0], [1.0], [0.5], [2.0]]),
    },
    "bnrank.constructions.max_of_affine": {"b": lambda: normal(2)},
    "bnrank.constructions.wavering": {"t": lambda: 2.0},
    "bnrank.constructions.with_slope": {"slope": lambda: 0.1},
    "bnrank.cost.bracket": {"net": lambda: mlp(2, 3, 2), "x": lambda: normal(4, 2)},
    "bnrank.cost.completely_positive": {"x": lambda: normal(4, 2).abs()},
    "bnrank.cost.diagonal": {"w": lambda: [1.0, 2.0]},
    "bnrank.cost.lower_bound": {"net": lambda: mlp(2, 3, 2), "x": lambda: normal(4, 2)},
    "bnrank.cost.r1_lower_bound": {"net": lambda: mlp(2, 3, 2), "x": lambda: normal(4, 2)},
    "bnrank.cost.shorten": {
        "net": lambda: mlp(2, 3, 2),
        "x": lambda: normal(4, 2),
        "y": lambda: None,
        "steps": lambda: 5,
    },
    "bnrank.cost.least_linear_loss": {"ridge": lambda: 0.1, "depth": lambda: 3},
    "bnrank.cost.linear_tradeoff": {"ridge": lambda: 0.1},
    "bnrank.cost.solve": {"depth": lambda: 2},
    "bnrank.cost.solve_depths": {"depths": lambda: [2, 3]},
    "bnrank.cost.solved_tradeoff": {
        "x": lambda: normal(3, 3).abs(),
        "y": lambda: normal(3, 3).abs()[:, :1],
        "ridge": lambda: 0.1,
        "depths": lambda: [2, 3, 4],
        "width": lambda: 6,
        "steps": lambda: 20,
    },
    "bnrank.cost.subadditivity": {
        "depths": lambda: [3, 4, 6, 8, 12],
        "first": lambda: [3.5, 4.4, 6.3, 8.3, 12.2],
        "second": lambda: [3.4, 4.3, 6.2, 8.2, 12.1],
        "whole": lambda: [3.6, 4.6, 6.5, 8.5, 12.4],
    },
    "bnrank.cost.two_point": {"y": lambda: normal(6, 3)},
    "bnrank.cost.tangent_bound": {"a": lambda: torch.eye(2), "b": lambda: torch.eye(2)},
    "bnrank.cost.tsp_bound": {
        "x": lambda: torch.linspace(0, 1, 5)[:, None],
        "y": lambda: torch.tensor([[0.0], [1.0], [0.0], [1.0], [0.0]]),
    },
    "bnrank.discovery.compress": {"x": lambda: normal(40, 3), "y": lambda: None, "tol": lambda: 0.05},
    "bnrank.discovery.dimensionless_groups": {
        "X": lambda: normal(20, 3).double().exp().numpy(),
        "y": lambda: normal(20, 3).double().exp().numpy()[:, 0] ** 2,
    },
    "bnrank.lora_ranks": {"budget": lambda: 40, "steps": lambda: 4},
    "bnrank.discovery.symmetries": {"net": lambda: Radius(), "x": lambda: normal(40, 3), "y": lambda: None},
    "bnrank.escape.Steps": {"count": lambda: 5},
    "bnrank.escape.blow_up_time": _LAW,
    "bnrank.escape.check": {"found": found},
    "bnrank.escape.deepen": {**_CIRCLE, "depth": lambda: 6},
    "bnrank.escape.examine": _CIRCLE,
    "bnrank.escape.exit_time": _JOIN,
    "bnrank.escape.find": {**_CIRCLE, "depth": lambda: 3, "start": lambda: "gaussian", "polish": lambda: False},
    "bnrank.escape.first_escape": {
        "flow": flow,
        "x": lambda: torch.tensor([[1.0], [0.5]]).double(),
        "g": lambda: escape.output_gradient("mse", torch.tensor([[2.0], [1.0]]).double()),
    },
    "bnrank.escape.join_rate": _JOIN,
    "bnrank.escape.norm_at": {**_LAW, "t": lambda: 2.0},
    "bnrank.escape.one_neuron_speed": {"directions": lambda: normal(4, 3)},
    "bnrank.escape.rank_one_speed": {"x": lambda: circle().x, "g": lambda: circle().y},
    "bnrank.escape.residual": _CIRCLE,
    "bnrank.escape.speed": _CIRCLE,
    "bnrank.escape.time_to": {**_LAW, "r": lambda: 1.0},
    "bnrank.figures.Claim": {
        "name": lambda: "rank",
        "passed": lambda: True,
        "measured": lambda: 1.0,
        "expected": lambda: "1",
    },
    "bnrank.figures.Figure": {
        **{name: (lambda name=name: name) for name in ("id", "name", "title", "source", "expected")},
        "settings": lambda: {"quick": {}},
        "make": lambda: lambda settings, out, progress: None,
    },
    "bnrank.figures.duration": {"seconds": lambda: 3.0},
    "bnrank.figures.find": {"name": lambda: "F11"},
    "bnrank.frequencies.activation_power": _CONV,
    "bnrank.frequencies.activation_singular_values": _CONV,
    "bnrank.frequencies.grid": {"size": lambda: (3, 4)},
    "bnrank.frequencies.kept": {
        "values": lambda: bnrank.frequencies.weight_singular_values(
            networks.CircularConvolutional((1, 6), [4, 4, 1]), size=6
        )
    },
    "bnrank.frequencies.label": {"name": lambda: "1", "multiplicity": lambda: 2},
    "bnrank.frequencies.rank": {"values": lambda: bnrank.frequencies.weight_singular_values(cnn(), size=6)},
    "bnrank.frequencies.weight_singular_values": _CONV,
    "bnrank.invariants.Monitor": {"net": monitored},
    "bnrank.measures.usage.centered_dimension": {"activations": lambda: normal(8, 5)},
    "bnrank.measures.usage.dead_units": {"activations": lambda: normal(8, 5).relu()},
    "bnrank.measures.usage.subnormals": {"tensor": lambda: torch.tensor([1.0, 1e-40])},
    "bnrank.measures.usage.variance_dimension": {
        "eigenvalues": lambda: torch.tensor([2.0, 1.0]),
        "samples": lambda: 8,
        "features": lambda: 5,
    },
    "bnrank.networks.Convolutional": {**_IMAGE, "channels": lambda: [2]},
    "bnrank.networks.LinearConvolutional": {**_IMAGE, "channels": lambda: [2]},
    "bnrank.networks.load": {"path": weights_file},
    "bnrank.networks.load_module": {"spec": lambda: "torch.nn:ReLU"},
    "bnrank.networks.Stack": {"parts": lambda: [networks.FreeBlock(3, 4, seed=0), nn.Linear(3, 2)]},
    "bnrank.plots.bottleneck_spectra": {"top": lambda: 3},
    "bnrank.plots.discovered": {"found": lambda: regressor().summary()},
    "bnrank.plots.frequency_spectra": {"profile": lambda: bnrank.profile(cnn(), normal(4, 1, 6))},
    "bnrank.plots.norm_versus_depth": {"ranks": lambda: [1, 1, 1, 1], "costs": lambda: [0.1, 0.1, 0.1, 0.1]},
    "bnrank.plots.phase_diagram": {
        "results": lambda: pd.DataFrame({"a": [1, 2], "b": [1, 1], "c": [0.1, 0.2]}),
        "x": lambda: "a",
        "y": lambda: "b",
        "value": lambda: "c",
        "axes": lambda: None,
    },
    "bnrank.plots.plateaus": {"top": lambda: 3},
    "bnrank.plots.spectra_over_steps": {"layer": lambda: 1},
    "bnrank.plots.weight_spectra": {"trials": lambda: [profile()]},
    "bnrank.regions.along_lines": {"starts": lambda: torch.zeros(2, 3), "ends": lambda: normal(2, 3)},
    "bnrank.regions.enumerate": _BOX,
    "bnrank.regions.tripoints": {"net": lambda: mlp(3, 4, 3)},
    "bnrank.reporting.follow": {
        "folder": lambda: _swept().folder.path,
        "path": lambda: new("page.html"),
        "max_minutes": lambda: 0.0,
    },
    "bnrank.reporting.tables.claim_rows": {"claims": lambda: []},
    "bnrank.reporting.tables.noted_rows": {"name": lambda: "skipped"},
    "bnrank.reporting.tables.typeset": {"text": lambda: "||theta||^2"},
    "bnrank.tasks.ball_images": {"size": lambda: 4, "width": lambda: 0.5},
    "bnrank.tasks.block_norms": {"x": lambda: normal(3, 4), "inner": lambda: 2},
    "bnrank.tasks.bottleneck_spectra_map": {"rank": lambda: 2},
    "bnrank.tasks.composition": {"d_in": lambda: 4, "d_out": lambda: 4},
    "bnrank.tasks.distances_to_polyline": {"x": lambda: normal(3, 2)},
    "bnrank.tasks.falling_ball": {"n": lambda: 4, "size": lambda: 6, "width": lambda: 1.0},
    "bnrank.tasks.lattice_sum": {"d": lambda: 2, "power": lambda: 4.0},
    "bnrank.tasks.autoencoder": {"task": lambda: bnrank.Task(normal(6, 3), normal(6, 2))},
    "bnrank.tasks.load_table": {"path": csv, "targets": lambda: "c"},
    "bnrank.tasks.low_rank_map": {"latent": lambda: 2, "rank": lambda: 1, "width": lambda: 6},
    "bnrank.tasks.parse_idx": {"path": idx, "magic": lambda: 2049},
    "bnrank.tasks.planar_curve": {"width": lambda: 5},
    "bnrank.tasks.polyline": {
        "g": lambda: tasks.ShallowReLU(normal(4, 1), normal(4), normal(2, 4)),
        "lower": lambda: -1.0,
        "upper": lambda: 1.0,
    },
    "bnrank.tasks.read_table": {"path": csv, "targets": lambda: "c"},
    "bnrank.tasks.torus_map": {"d": lambda: 2, "alphas": lambda: (2.0,), "cutoff": lambda: 5},
    "bnrank.tasks.two_digits": {"images": lambda: 20},
    "bnrank.theory.kernels.jacobian_ranks": {
        "x": lambda: normal(12, 3),
        "y": lambda: normal(12, 2),
        "kernel": lambda: "rbf",
    },
    "bnrank.theory.kernels.select": {
        "x": lambda: normal(15, 2),
        "y": lambda: normal(15, 1),
        "kernels": lambda: ["rbf"],
        "ridges": lambda: (1e-2, 1.0),
        "scales": lambda: (1.0,),
        "folds": lambda: 3,
    },
    "bnrank.theory.stability.growth_bound": {
        "net": lambda: networks.from_layers([torch.ones(1, 1)] * 4),
        "x": lambda: torch.linspace(0, 8, 9)[:, None],
    },
    "bnrank.theory.structure.activation_bound": {"x": lambda: normal(1, 3)},
    "bnrank.theory.structure.preactivation_bound": {
        "net": lambda: mlp(3, 4, 4, 4, 4, 3, seed=1),
        "x": lambda: normal(6, 3).abs(),
        "rank": lambda: 1,
    },
    "bnrank.theory.structure.weight_structure": {"x": lambda: normal(1, 3)},
    "bnrank.theory.symmetry.projection": {"net": lambda: mlp(3, 4, 3)},
    "bnrank.theory.stability.largest_trace": {"net": lambda: mlp(3, 4, 2)},
    "bnrank.theory.stability.sharpness_bound": {"step": lambda: 0.1},
    "bnrank.theory.symmetry.classes_on_line": {
        "net": lambda: networks.from_layers([torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0], [1.0], [2.0]])]),
        "x": lambda: torch.tensor([[0.0, 0.0], [5.0, 0.0]]),
    },
    "bnrank.theory.symmetry.nearest_rank_one": {"weight": lambda: normal(2, 3)},
    "bnrank.theory.symmetry.rank_bound": {"generators": lambda: [(torch.zeros(3, 3), torch.tensor([0.0, 1.0, 0.0]))]},
    "bnrank.training.Record": {"every": lambda: 2},
}
"""What single functions need beside, or in place of, the values by name."""


@dataclass(frozen=True)
class Adapter:
    """A call that takes several public steps: its room and its function."""

    room: str
    call: Callable[..., Any]


def regressor() -> Any:
    """Return a fitted regressor, small enough to be fitted in about a second."""
    x = normal(30, 3).double().numpy()
    small: dict[str, Any] = {"ridges": [1e-2], "depth": 3, "width": 8, "n_networks": 1, "steps": 30, "progress": False}
    return BottleneckRegressor(1, **small).fit(x, x[:, :1] * 2)


def _fit(kind: type) -> Callable[..., Any]:
    parameters = dict(inspect.signature(kind).parameters)

    def fit(**options: Any) -> Any:
        data = [options.pop(name) for name in ("X", "y", "frames") if name in options]
        return kind(**options).fit(*data)

    names = ["X"] if kind is BottleneckAutoencoder else ["frames"] if kind is StateVariables else ["X", "y"]
    first = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in names]
    options = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in parameters.values()]
    fit.__signature__ = inspect.Signature([*first, *options])  # type: ignore[attr-defined]
    return fit


ADAPTERS = {
    f"bnrank.discovery.{kind.__name__}": Adapter("discovery", _fit(kind))
    for kind in (BottleneckRegressor, BottleneckClassifier, BottleneckAutoencoder, StateVariables)
}
OWN["bnrank.discovery.StateVariables"] = {
    "frames": lambda: films(),
    "n_latent": lambda: 4,
    "width": lambda: 8,
    "steps": lambda: 5,
    "n_networks": lambda: 1,
    "n_coordinates": lambda: 1,
    "stride": lambda: 1,
    "out": lambda: new("states"),
    "progress": lambda: False,
}
for _name in ADAPTERS.keys() - OWN.keys():
    OWN[_name] = {
        "X": lambda: normal(30, 3).double().numpy(),
        "y": (lambda: np.arange(30) % 2) if "Classifier" in _name else (lambda: normal(30, 2).double().numpy()),
        "n_components": lambda: 1,
        "ridges": lambda: [1e-2],
        "depth": lambda: 3,
        "width": lambda: 8,
        "n_networks": lambda: 1,
        "steps": lambda: 10,
        "progress": lambda: False,
    }

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


def _swept() -> Any:
    path, task = new("sweep"), (normal(6, 3), normal(6, 2, seed=1))
    training.sweep(task, depths=[2], grid={"width": [4]}, steps=2, processes=1, out=path, progress=False)
    return training.Sweep.open(path)


def _stored(value: Any, suffix: str) -> Path:
    path = new(f"file{suffix}")
    value.save(path)
    return path


def estimator(name: str) -> Any:
    """Return a fitted estimator."""
    return ADAPTERS[name].call(**{key: make() for key, make in OWN[name].items()})


def _recorded(monitor: Any) -> None:
    monitor.record(0, time=0.0)
    monitor.record(1, time=0.1)


PREPARED: dict[str, Callable[[Any], None]] = {
    f"Monitor.{name}": _recorded for name in ("parts", "plot", "signs_changed_since", "verdicts")
}
"""What methods need to have happened to their object."""

METHOD_OWN: dict[str, Values] = {
    "Monitor.signs_changed_since": {"step": lambda: 0},
    "Monitor.attach": {"optimizer": lambda: torch.optim.SGD(_MONITORED[-1].parameters(), lr=0.1)},
    **{
        f"{name}.load": {"path": lambda name=name: _stored(estimator(f"bnrank.discovery.{name}"), ".safetensors")}
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
    "Run.open": {"out": lambda: _stored(run(), "")},
    "Sweep.open": {"path": lambda: _swept().folder.path},
    "Sweep.run": {"depth": lambda: 2},
    "Selected.predict": {"x": lambda: normal(6, 2)},
    "Truth.task": {"settings": dict, "name": lambda: "task"},
}
"""What single methods need."""


OPTIONAL: dict[str, Values] = {
    "bnrank.Jacobian": {"tangent": lambda: normal(3, 2)},
    "bnrank.Task": {"x_test": lambda: normal(4, 3), "y_test": lambda: normal(4, 2), "weights": lambda: torch.ones(6)},
    "bnrank.constructions.bottleneck": {"lower": lambda: torch.full((2,), -9.0)},
    "bnrank.constructions.completely_positive": {"inner": lambda: torch.eye(2), "outer": lambda: torch.eye(2)},
    "bnrank.constructions.deepen": {"x": lambda: normal(6, 3)},
    "bnrank.constructions.max_of_affine": {"signs": lambda: torch.ones(1)},
    "bnrank.cost.bracket": {"domain": lambda: torch.tensor([[-1.0, -1.0], [1.0, 1.0]])},
    "bnrank.cost.lower_bound": {"domain": lambda: torch.tensor([[-1.0, -1.0], [1.0, 1.0]])},
    "bnrank.cost.r1_lower_bound": {"domain": lambda: torch.tensor([[-1.0, -1.0], [1.0, 1.0]])},
    "bnrank.cost.prune": {"x": lambda: normal(6, 3)},
    "bnrank.discovery.compress": {"y": lambda: normal(40, 2), "held_out": lambda: normal(10, 3)},
    "bnrank.discovery.symmetries": {"y": lambda: normal(40, 3)[:, :2].square().sum(1, keepdim=True)},
    "bnrank.escape.find": {"initial": lambda: [mlp(2, 3, 3, 1, bias=False)]},
    "bnrank.networks.from_layers": {"biases": lambda: [torch.zeros(4), torch.zeros(2)]},
    "bnrank.networks.account": {"x": lambda: normal(6, 3)},
    "bnrank.networks.read": {"x": lambda: normal(6, 3)},
    "bnrank.spectra.weight_singular_values": {"x": lambda: normal(6, 3)},
    "bnrank.theory.kernels.jacobian_ranks": {"points": lambda: normal(4, 3)},
    "bnrank.load": {"net": mlp},
    "LayerGraph.neurons": {"net": mlp},
    "Run.open": {"net": mlp},
    "Truth.task": {"y": lambda: normal(12, 2)},
}
"""Values of optional arguments that the valid call leaves out."""


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
