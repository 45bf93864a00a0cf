"""Small networks, data, files and results for valid calls, built anew by each call."""

import atexit
import gzip
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import bnrank
from bnrank import escape, networks, tasks, training
from bnrank.discovery import BottleneckRegressor

FOLDER = Path(tempfile.mkdtemp(prefix="bnrank-fuzz-")).resolve()
"""Files of valid and bad calls; removed at the end."""
atexit.register(shutil.rmtree, FOLDER, ignore_errors=True)


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


MONITORED: list[nn.Module] = []


def monitored() -> nn.Module:
    """Return a network, and remember it for the optimizer that a monitor is attached to."""
    MONITORED[:] = [mlp()]
    return MONITORED[0]


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


def regressor() -> Any:
    """Return a fitted regressor, small enough to be fitted in about a second."""
    x = normal(30, 3).double().numpy()
    small: dict[str, Any] = {"ridges": [1e-2], "depth": 3, "width": 8, "n_networks": 1, "steps": 30, "progress": False}
    return BottleneckRegressor(1, **small).fit(x, x[:, :1] * 2)


def swept() -> Any:
    path, task = new("sweep"), (normal(6, 3), normal(6, 2, seed=1))
    training.sweep(task, depths=[2], grid={"width": [4]}, steps=2, processes=1, out=path, progress=False)
    return training.Sweep.open(path)


def stored(value: Any, suffix: str) -> Path:
    path = new(f"file{suffix}")
    value.save(path)
    return path
