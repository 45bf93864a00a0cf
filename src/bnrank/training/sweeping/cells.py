"""From the settings of a grid to groups of networks."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from bnrank._core import validation
from bnrank.networks import MLP
from bnrank.training.options import Adam, GradientDescent, Record, Stop, given
from bnrank.training.settings import OPTIMIZERS, TrainSettings, check_batch_size, check_dtype, starting_points
from bnrank.training.sweeping.axes import RATE, STOP, Grid, shown
from bnrank.training.sweeping.groups import Group, encoded, first, in_groups, keyed, store_task
from bnrank.training.sweeping.makers import Arguments, Maker, arguments_of
from bnrank.training.trainer import train

PARAMETERS = inspect.signature(train).parameters
TRAIN = ("steps", "optimizer", "batch_size", "dtype", "record")  # what is the same for all members of a group
OPTIONS = [*(name for name in PARAMETERS if name not in ("net", "task", "out", "progress")), "checkpoint_every"]
NETWORK: dict[str, Any] = {"slope": 0.0, "bias": True, "init": "he"}


@dataclass(frozen=True)
class Cell:
    """The setting of a network with all defaults filled in.

    Attributes
    ----------
    arguments : tuple
        Arguments of the task.
    size : int
        Number of its training samples.
    depth, width : int
        Of the network.
    network, options : mapping
        Slope, bias and init; arguments of `bnrank.train` with the defaults filled in.
    ridge, seed : float, int
        Its own settings.
    point : mapping
        Its setting as plain values.
    """

    arguments: Arguments
    size: int
    depth: int
    width: int
    network: Mapping[str, Any]
    options: Mapping[str, Any]
    ridge: float
    seed: int
    point: Mapping[str, Any]


def check_options(options: Mapping[str, Any], grid: Grid) -> None:
    """Raise unless these are options of `bnrank.train` that are neither axes nor of single networks."""
    axes = {name for setting in grid.settings for name in setting}
    for name in options:
        if name in ("members", "ridge", "seed"):
            raise ValueError(f"options: got {name!r}, which the grid decides; use ridges and seeds")
        if name not in OPTIONS:
            raise TypeError(f"options: got {name!r}, which train does not have{validation.suggest(name, OPTIONS)}")
        validation.expect(name not in axes, name, "an option and an axis of this name", "one of the two")
    if isinstance(options.get("record"), Record) and options["record"].watch is not None:
        raise ValueError("watch: the runs of a grid are trained in parallel; watch one of bnrank.train")
    validation.optional(validation.integer, options.get("checkpoint_every"), "checkpoint_every")


def cells_of(grid: Grid, maker: Maker, options: Mapping[str, Any]) -> list[Cell]:
    """Return the networks of a grid, in its order.

    Raises
    ------
    TypeError, ValueError
        If settings do not fit together.
    """
    cells: list[Cell] = []
    rates = options.get("optimizer")
    rates = rates.lr if isinstance(rates, Adam | GradientDescent) and isinstance(rates.lr, tuple) else None
    pairs = len(grid.axes.get("ridge", ())) * len(grid.axes.get("seed", ()))
    if rates is not None:
        lr = f"{len(rates)} values"
        validation.expect(grid.axes and "lr" not in grid.axes, "lr", lr, "one number, or the axis 'lr' alone")
        validation.expect(len(rates) == pairs, "lr", lr, f"one number or one per ridge and seed ({pairs})")
    made: dict[Any, dict[str, Any]] = {}
    sizes: dict[Arguments, tuple[int, int, int]] = {}
    for i, setting in enumerate(grid.settings):
        arguments = arguments_of(setting)
        if arguments not in sizes:
            task = maker.of(arguments)
            sizes[arguments] = task.n, task.d_in, task.d_out
        n, d_in, d_out = sizes[arguments]
        size, depth, width = setting.get("size", n), setting["depth"], setting["width"]
        validation.expect(n >= 2, "task", "1 sample", "at least 2")
        validation.expect(size <= n, "size", f"{size}", f"at most the number of samples, {n}")
        weights = (depth - 1) * (width**2 + 256) + width * (d_in + d_out)
        validation.largest_fits(weights, {"depths": depth, "width": width})
        own = {name: setting[name] for name in (*TRAIN, *RATE, *STOP) if name in setting}
        if rates is not None:
            own["lr"] = rates[i % pairs]
        if (key := tuple(own.items())) not in made:
            made[key] = resolved(options, own)
        check_batch_size(made[key]["batch_size"], size)
        network = {name: setting.get(name, value) for name, value in NETWORK.items()}
        point = {"depth": depth, "width": width, "size": size}
        point |= {name: shown(value) for name, value in setting.items()}
        trained = setting["ridge"], setting["seed"], point
        cells.append(Cell(arguments, size, depth, width, network, made[key], *trained))
    return cells


def resolved(options: Mapping[str, Any], setting: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of `bnrank.train` of a network, with the defaults filled in.

    Raises
    ------
    TypeError, ValueError
        If they do not fit together.
    """
    found = {name: setting.get(name, options.get(name, PARAMETERS[name].default)) for name in TRAIN}
    check_dtype(found["dtype"])
    stop = given(Stop, found["steps"], "steps")
    found["steps"] = replace(stop, **{name: setting[name] for name in STOP if name in setting})
    record = given(Record, found["record"], "record")
    every, spectra_every = record.rows(100)
    found["record"] = replace(record, every=every, spectra_every=spectra_every)
    optimizer, rate = found["optimizer"], {name: setting[name] for name in RATE if name in setting}
    if not isinstance(optimizer, Adam | GradientDescent):
        name = validation.choice(optimizer, "optimizer", OPTIMIZERS)
        if name == "auto":
            name = "adam" if found["batch_size"] is not None else "adam+kfac-lbfgs"
        optimizer = {"adam": Adam, "gd": GradientDescent}.get(name, lambda: name)()
    for name, value in rate.items():
        whose = f"{shown(value)!r} with the optimizer {shown(found['optimizer'])!r}"
        known = hasattr(optimizer, name)
        validation.expect(known, name, whose, "'gd'" if name == "norm_power" else "'adam' or 'gd', which have it")
        optimizer = replace(optimizer, **{name: value})
    found["optimizer"] = optimizer
    return found


def check_trainable(cells: Sequence[Cell], maker: Maker, device: Any) -> None:
    """Raise what `bnrank.train` would raise of these options, before any network is trained."""
    named = isinstance(device, str | torch.device)
    validation.expect(named, "device", device, "a device, such as 'cpu'", TypeError)
    try:
        torch.empty(0, device=device)
    except (TypeError, ValueError, RuntimeError, AssertionError) as error:
        raise ValueError(
            f"device: got {validation.describe(device)}, expected a device of this machine: {error}"
        ) from None
    checked = set()
    for cell in cells:
        options = cell.options
        optimizer = options["optimizer"]
        kind = repr(replace(optimizer, lr=1.0)) if hasattr(optimizer, "lr") else optimizer
        key = kind, options["batch_size"], options["dtype"], replace(options["steps"], steps=1), options["record"]
        if key not in checked:
            checked.add(key)
            task = first(maker.of(cell.arguments), cell.size)
            net, varied = MLP([task.d_in, 1, task.d_out]), [cell.ridge, getattr(optimizer, "lr", None)]
            start = starting_points(net, task, None, cell.seed, varied, options["batch_size"], options["dtype"])
            rest = optimizer, options["batch_size"], options["record"], None
            TrainSettings.create(start, task, cell.ridge, options["steps"], *rest)


def groups_of(
    cells: Sequence[Cell], maker: Maker, folder: Path, device: Any, checkpoint_every: int | None
) -> tuple[list[Group], list[str]]:
    """Store the tasks, and return groups of networks that can share an ensemble, and the keys of all networks."""
    digests: dict[Arguments, str] = {}
    plain: dict[int, dict[str, Any]] = {}  # by the identity of options, which many cells share
    found: dict[str, tuple[dict[str, Any], list[int]]] = {}
    for i, cell in enumerate(cells):
        if cell.arguments not in digests:
            digests[cell.arguments] = store_task(folder, maker.of(cell.arguments))
        if id(cell.options) not in plain:
            options = {name: encoded(value, name) for name, value in cell.options.items()}
            if _rate(cell) is not None:
                del options["optimizer"]["lr"]  # of each member
            plain[id(cell.options)] = options
        settings = {"task": digests[cell.arguments], "size": cell.size, "depth": cell.depth, "width": cell.width}
        settings |= {"network": dict(cell.network), "device": str(device), "checkpoint_every": checkpoint_every}
        settings |= {"options": plain[id(cell.options)]}
        found.setdefault(repr(settings), (settings, []))[1].append(i)
    groups: list[Group] = []
    keys = [""] * len(cells)
    for settings, where in found.values():
        chosen = [cells[i] for i in where]
        rates = [rate for rate in map(_rate, chosen) if rate is not None]
        members = keyed(settings, [(cell.ridge, cell.seed, cell.point) for cell in chosen], rates)
        groups += in_groups(settings, members)
        for i, member in zip(where, members, strict=True):
            keys[i] = member.key
    return groups, keys


def _rate(cell: Cell) -> float | None:
    rate: float | None = getattr(cell.options["optimizer"], "lr", None)
    return rate
