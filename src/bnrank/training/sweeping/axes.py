"""Axes of a grid: their names, the values that they take, and the settings of every network."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from bnrank._core import validation
from bnrank.training.options import Adam, GradientDescent
from bnrank.training.settings import OPTIMIZERS, check_dtype, whole_numbers

TASK = "task."  # before the name of an argument of the function that makes the task
BASE = ("depth", "width", "size", "ridge", "seed")
ARGUMENTS = {"depth": "depths", "ridge": "ridges", "seed": "seeds"}  # axes that are arguments of sweep, too
DEFAULTS: dict[str, list[Any]] = {"width": [100], "ridge": [1e-3], "seed": [0]}
RATE = ("lr", "schedule", "norm_power")  # fields of the optimizer
STOP = ("gradient_norm", "balance_residual")  # fields of Stop
Check = Callable[[Any, str], Any]


def _optimizer(value: Any, name: str) -> Any:
    if isinstance(value, Adam | GradientDescent):
        single = not isinstance(value.lr, tuple)
        validation.expect(single, name, value, "one step size: step sizes are an axis, 'lr'")
        return value
    return validation.choice(value, name, OPTIMIZERS)


def _dtype(value: Any, name: str) -> torch.dtype:
    value = getattr(torch, value, value) if isinstance(value, str) else value
    check_dtype(value)
    return value


CHECKS: dict[str, Check] = {
    "depth": validation.integer,
    "width": validation.integer,
    "size": lambda value, name: validation.integer(value, name, 2),
    "ridge": lambda value, name: validation.number(value, name, 0.0),
    "seed": validation.seed,
    "slope": validation.slope,
    "bias": validation.flag,
    "init": validation.init,
    "steps": lambda value, name: validation.integer(value, name, 0),
    "gradient_norm": lambda value, name: validation.number(value, name, 0.0),
    "balance_residual": lambda value, name: validation.number(value, name, 0.0),
    "optimizer": _optimizer,
    "lr": lambda value, name: validation.number(value, name, 0.0, strict=True),
    "schedule": lambda value, name: validation.choice(value, name, ("constant", "cosine", "linear", "normalized")),
    "norm_power": lambda value, name: validation.number(value, name, 0.0),
    "batch_size": lambda value, name: validation.optional(validation.integer, value, name),
    "dtype": _dtype,
    "record": validation.integer,
}


@dataclass(frozen=True)
class Grid:
    """The settings of every network of a sweep.

    Attributes
    ----------
    axes : dict
        Names and checked values of the axes of a dense grid; empty for a list of settings.
    settings : list of dict
        For every network, the checked values by the names of the axes. The seed varies fastest, then the ridge.
    places : list of tuple
        For every network of a dense grid, its indices along the axes.
    """

    axes: dict[str, list[Any]]
    settings: list[dict[str, Any]]
    places: list[tuple[int, ...]]


def read_grid(
    grid: Any, given: Mapping[str, Any], sizes: Sequence[int] | None, arguments: Iterable[str] | None
) -> Grid:
    """Return the settings of all networks.

    Parameters
    ----------
    grid : mapping or list of mappings
        Values by axes, of which every combination is trained; or settings, each trained by itself.
    given : mapping
        Values of depth, ridge and seed that are arguments of `bnrank.sweep`; None for those that are not given.
    sizes : sequence of int, optional
        Values of the axis "size" if it is not given. Default: no such axis.
    arguments : iterable of str, optional
        Names of the arguments of the task. Default: those in the grid.

    Raises
    ------
    TypeError, ValueError
        If an axis is unknown or a value invalid.
    """
    if grid is None or isinstance(grid, Mapping):
        return _dense(dict(grid or {}), given, sizes, arguments)
    listed = isinstance(grid, list | tuple) and len(grid) > 0 and all(isinstance(entry, Mapping) for entry in grid)
    expected = "a mapping of the names of axes to values, or a list of settings, mappings of names to one value each"
    validation.expect(listed, "grid", validation.describe(grid), expected, TypeError)
    return _sparse(grid, given, sizes, arguments)


def _dense(
    grid: dict[str, Any], given: Mapping[str, Any], sizes: Sequence[int] | None, arguments: Iterable[str] | None
) -> Grid:
    _known(grid, "grid", arguments)
    values = _arguments(given, grid, "grid")
    fixed: dict[str, Any] = {}
    for name, entries in ((name, _unpacked(entries)) for name, entries in grid.items()):
        if name in BASE or _is_list(entries):
            values[name] = _axis(entries, name, name)
        else:
            fixed[name] = _checked(entries, name, name)
    defaults = DEFAULTS if sizes is None else DEFAULTS | {"size": list(sizes)}
    values = {name: entries for name, entries in defaults.items() if name not in values} | values
    validation.expect("depth" in values, "depths", "None", "a list of integers, here or as 'depth' of the grid")
    names = [name for name in BASE if name in values] + [name for name in values if name not in BASE]
    axes = {name: values[name] for name in names}
    order = [name for name in names if name not in BASE] + [name for name in names if name in BASE]
    indices = itertools.product(*(range(len(axes[name])) for name in order))
    where = [dict(zip(order, index, strict=True)) for index in indices]
    settings = [{name: axes[name][place[name]] for name in names} | fixed for place in where]
    return Grid(axes, settings, [tuple(place[name] for name in names) for place in where])


def _sparse(
    grid: Sequence[Mapping[str, Any]],
    given: Mapping[str, Any],
    sizes: Sequence[int] | None,
    arguments: Iterable[str] | None,
) -> Grid:
    settings = []
    for i, entry in enumerate(grid):
        _known(entry, f"grid[{i}]", arguments)
        common = _arguments(given, entry, f"grid[{i}]")
        common = {
            name: common.get(name, DEFAULTS.get(name)) for name in ("depth", "ridge", "seed") if name not in entry
        }
        missing = common.get("depth", ()) is None
        validation.expect(not missing, f"grid[{i}]", "a setting without 'depth'", "one with it, or the argument depths")
        own = {name: _checked(value, name, f"grid[{i}].{name}") for name, value in entry.items()}
        own = {"width": DEFAULTS["width"][0]} | ({} if sizes is None else {"size": sizes[0]}) | own
        for point in itertools.product(*common.values()):
            setting = dict(zip(common, point, strict=True)) | own
            names = [name for name in BASE if name in setting]
            settings.append({name: setting[name] for name in names} | setting)
    return Grid({}, settings, [])


def _arguments(given: Mapping[str, Any], grid: Mapping[str, Any], whose: str) -> dict[str, Any]:
    """Return the checked values of the axes that are arguments of `bnrank.sweep`."""
    found = {}
    for name, entries in given.items():
        if entries is not None:
            twice = f"{name!r} and the argument {ARGUMENTS[name]}"
            validation.expect(name not in grid, whose, twice, "one of the two")
            found[name] = _axis(entries, name, ARGUMENTS[name])
    return found


def _known(names: Iterable[Any], whose: str, arguments: Iterable[str] | None) -> None:
    """Raise unless all names are those of axes."""
    own = None if arguments is None else [f"{TASK}{name}" for name in arguments]
    for name in names:
        if own is None and isinstance(name, str) and name.startswith(TASK) and name != TASK:
            continue
        if not own and isinstance(name, str) and name.startswith(TASK):
            raise ValueError(f"{whose}: got {name!r} with data, expected a function as task, which makes data of it")
        validation.choice(name, whose, [*CHECKS, *(own or ())])


def _unpacked(values: Any) -> Any:
    """Return an array of NumPy or PyTorch, or a series or index of pandas, as a list; anything else as it is."""
    if isinstance(values, torch.Tensor | np.ndarray) and not getattr(values, "is_meta", False):
        return values.tolist()
    return values.to_numpy().tolist() if hasattr(values, "to_numpy") else values


def _is_list(values: Any) -> bool:
    return isinstance(values, list | tuple | range)


def _axis(values: Any, name: str, label: str) -> list[Any]:
    """Return the distinct checked values of an axis."""
    values = _unpacked(values)
    words = {"depth": "integers", "width": "integers", "size": "integers", "seed": "integers", "ridge": "numbers"}
    expected = f"a list of {words.get(name, 'values')}"
    validation.expect(_is_list(values) and len(values), label, validation.describe(values), expected)
    found = [_checked(value, name, f"{label}[{i}]") for i, value in enumerate(values)]
    validation.expect(len(set(found)) == len(found), label, validation.describe(found), "every value once")
    texts = [str(shown(value)) for value in found]
    twice = [value for value, text in zip(found, texts, strict=True) if texts.count(text) > 1]
    validation.expect(not twice, label, validation.describe(twice), "values with different texts, which tables show")
    return found


def _checked(value: Any, name: str, label: str) -> Any:
    return _argument(value, label) if name.startswith(TASK) else CHECKS[name](value, label)


def _argument(value: Any, label: str) -> Any:
    """Return an argument of a task: a number, text, boolean, None, or a tuple of these."""
    value = value.tolist() if isinstance(value, np.generic) else _unpacked(value)
    if isinstance(value, list | tuple):
        return tuple(_argument(entry, label) for entry in value)
    plain = value is None or isinstance(value, bool | int | float | str)
    expected = "a number, text, boolean, None or a list of these; functools.partial passes others"
    validation.expect(plain, label, value, expected, TypeError)
    validation.expect(value == value, label, "NaN", "a number")
    return value


def shown(value: Any) -> Any:
    """Return a value as a number, text or boolean: a table has no other sign for None than for no value.

    Examples
    --------
    >>> shown(Adam(0.1)), shown((3, 4)), shown(torch.float64), shown(None), shown(2)
    ("Adam(lr=0.1, schedule='constant')", '[3, 4]', 'float64', 'None', 2)
    """
    if isinstance(value, torch.dtype):
        return str(value).removeprefix("torch.")
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, tuple):
        return str(list(value))
    return value if isinstance(value, bool | int | float | str) else repr(value)


def coordinate(values: Sequence[Any]) -> Any:
    """Return the values of an axis for a dataset: numbers, booleans, or the texts of all.

    Examples
    --------
    >>> coordinate([1, 0.5]), coordinate([None, 32])
    ([1, 0.5], ['None', '32'])
    """
    found = [shown(value) for value in values]
    if all(type(value) is int for value in found) and 0 <= min(found) <= max(found) < 2**64:
        return whole_numbers(found)
    for kinds in ((int, float), (bool,)):
        if all(type(value) in kinds for value in found):
            return found
    return [str(value) for value in found]
