"""Files of `bnrank sweep`: what is trained, as TOML."""

from __future__ import annotations

import functools
import inspect
import itertools
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import bnrank
from bnrank._core import validation
from bnrank.cli.naming import naming
from bnrank.networks.files import find_function
from bnrank.training import Range, sample_settings
from bnrank.training.sweeping.axes import CHECKS, TASK

EXAMPLE = """\
# bnrank sweep grid.toml --out sweep

[task]
make = "low_rank_map"     # a function of bnrank.tasks, or "file.py:function"; or file = "table.csv"
n = 100                   # its arguments, the same for all networks
d_in = 10

[grid]                    # every combination is trained
depth = [3, 6]
width = 20
ridge = [1e-3, 1e-2]
seed = [0, 1]
"task.rank" = [1, 2, 3]   # any argument of the task, of bnrank.train or of the network

[train]                   # the same for all networks
steps = 100

# [samples]               # settings drawn from ranges, each with every combination of the grid
# n = 16
# method = "latin-hypercube"
# seed = 0

# [ranges]
# lr = { low = 1e-4, high = 1e-1, log = true }

# [[settings]]            # or a list of settings
# depth = 12
# ridge = 1e-4
"""
SECTIONS = ("task", "grid", "train", "samples", "ranges", "settings")
LISTS = ("depth", "width", "size", "ridge", "seed")  # axes of every result
OWN = ("checkpoint_every", "device")  # arguments of bnrank.sweep that are no axes
SAMPLES = ("n", "method", "seed")
ELSEWHERE = ("out", "processes")  # what errors name that does not come from the file
ORDER = ("grid", "train", "settings", "ranges", "samples", "task")  # where a key is looked for


@dataclass(frozen=True)
class GridFile:
    """A file of `bnrank sweep`.

    Attributes
    ----------
    task : callable
        Makes the task.
    grid : mapping or list of mappings
        As in `bnrank.sweep`.
    options : mapping
        Further arguments of `bnrank.sweep`.
    text, name : str
        The file, and what it is called in errors.
    """

    task: Callable[..., Any]
    grid: dict[str, Any] | list[dict[str, Any]]
    options: dict[str, Any]
    text: str
    name: str

    @classmethod
    def read(cls, path: str) -> GridFile:
        """Return what a file says.

        Raises
        ------
        ValueError
            If it cannot be read; the message names the line or the key.
        """
        file, name = Path(path), f"GRID {path}"
        validation.expect(path and file.is_file(), "GRID", f"{path!r}", "a file; bnrank sweep --example prints one")
        try:
            text = file.read_bytes().decode()
            found = tomllib.loads(text)
        except ValueError as error:  # of TOML or UTF-8
            raise ValueError(f"{name}: {error}") from error
        for section, value in found.items():
            where = _where(text, name, section)
            validation.choice(section, where, SECTIONS)
            tables = value if section == "settings" else [value]
            expected = "tables [[settings]]" if section == "settings" else f"a table [{section}]"
            listed = isinstance(tables, list) and all(isinstance(table, dict) for table in tables)
            validation.expect(listed, where, validation.describe(value), expected, ValueError)
        validation.expect("task" in found, name, "no table [task]", "one with make or file")
        with _Naming(text, name):
            task = _task(found["task"], file.parent, name)
            train = _flat(found.get("train", {}))
            options = {key: train.pop(key) for key in OWN if key in train}
            grid = _flat(found.get("grid", {}))
            for key in train:
                validation.expect(key not in grid, key, "a value in [train] and one in [grid]", "one of the two")
            return cls(task, _settings(found, grid, train), options, text, name)

    def naming(self) -> _Naming:
        """Name the line of a key in errors that name the key."""
        listed = len(tomllib.loads(self.text).get("settings", ())) or len(self.grid)
        return _Naming(self.text, self.name, len(self.grid) // max(1, listed))


class _Naming:
    """A context in which errors that name a key of a file name its line, too."""

    def __init__(self, text: str, name: str, each: int = 1) -> None:
        self.text, self.name, self.each = text, name, each

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, ValueError | TypeError) and not str(error).startswith(self.name):
            head, colon, rest = str(error).partition(": ")
            if setting := re.fullmatch(r"grid\[(\d+)\]\.(.+)", head):
                place = f"settings[{int(setting[1]) // self.each}].{setting[2]}"
                line = _line(self.text, place) or _line(self.text, setting[2])
                where = f"{self.name}, line {line}" if line else self.name
                raise ValueError(f"{where}: {setting[2]}{colon}{rest}") from error
            quoted = re.match(r"\S+: got '([^']+)'", str(error))
            words = [quoted[1]] if quoted and head.startswith("grid") else re.split(r"[\[\], ]+", head)
            for word in [part for each in words for part in (each, each.rpartition(".")[2])]:
                if _line(self.text, word):
                    raise ValueError(f"{_where(self.text, self.name, word)}: {error}") from error
            if head not in ELSEWHERE:
                raise ValueError(f"{self.name}: {error}") from error


def _line(text: str, key: str) -> int:
    """Return the line of a key, which may follow its table and a dot, or of a table; 0 if there is none."""
    table, listed, lines = "", 0, dict[str, int]()
    for i, line in enumerate(text.splitlines(), 1):
        bare = re.sub(r"[\"'\s]|#.*", "", line)
        if header := re.fullmatch(r"\[+([A-Za-z_][^\[\]]*)\]+", bare):
            table = header[1]
            lines.setdefault(table, i)
            listed += bare == "[[settings]]"
        elif own := re.match(r"([A-Za-z_][\w.-]*)=", bare):
            lines.setdefault(f"{table}.{own[1]}".removeprefix("."), i)
            lines.setdefault(f"{table}[{listed - 1}].{own[1]}", i)
    first, dot, _ = key.partition(".")
    places = [*(f"{table}.{key}" for table in ORDER), key, *([first] if dot and first == "samples" else [])]
    return next((lines[place] for place in places if place in lines), 0)


def _where(text: str, name: str, key: str) -> str:
    line = _line(text, key)
    return f"{name}, line {line}" if line else name


def _flat(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return a table in which task.rank is one name, as it is if it was quoted."""
    own = table.get("task")
    nested = {f"task.{key}": value for key, value in own.items()} if isinstance(own, dict) else {}
    return {key: value for key, value in table.items() if not (key == "task" and nested)} | nested


def _task(table: dict[str, Any], folder: Path, name: str) -> Callable[..., Any]:
    """Return what makes the task, with the arguments in the table."""
    arguments = {key: value for key, value in table.items() if key not in ("make", "file")}
    source = [key for key in ("make", "file") if key in table]
    validation.expect(len(source) == 1, "task", " and ".join(source) or "neither make nor file", "make or file")
    value = table[source[0]]
    validation.expect(isinstance(value, str), source[0], value, "a text", TypeError)
    function: Callable[..., Any]
    if source == ["file"]:
        place = value if value in bnrank.tasks.NAMED else str(folder / value)
        function = functools.partial(bnrank.tasks.load_table, place)
    elif ":" in value:
        with naming({"spec": "make"}):
            function = find_function(str(folder / value) if value.partition(":")[0].endswith(".py") else value)
    else:
        function = getattr(bnrank.tasks, validation.choice(value, "make", _makers()))
    parameters = inspect.signature(function).parameters
    if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        for key in arguments:
            validation.choice(key, _key("task", key), list(parameters))
    return functools.partial(function, **arguments)


def _key(table: str, key: str) -> str:
    return f"{table}.{key}"


def _makers() -> list[str]:
    """Return the names of the functions of `bnrank.tasks` that make tasks."""
    found = {name: getattr(bnrank.tasks, name) for name in bnrank.tasks.__all__}
    functions = {name: value for name, value in found.items() if inspect.isfunction(value)}
    return [name for name, value in functions.items() if value.__annotations__.get("return") in ("Task", bnrank.Task)]


def _settings(
    found: Mapping[str, Any], grid: dict[str, Any], train: dict[str, Any]
) -> dict[str, Any] | list[dict[str, Any]]:
    """Return the grid, or, with samples or settings, a list of settings."""
    given = [name for name in ("samples", "ranges", "settings") if name in found]
    if not given:
        values = {**train, **grid}
        _expect_depth(values, "a number, or a list of numbers, in [grid]")
        return {key: [v] if key in LISTS and not isinstance(v, list) else v for key, v in values.items()}
    if "settings" in given:
        validation.expect(given == ["settings"], "settings", " and ".join(given), "settings, or samples of ranges")
        validation.expect(found["settings"], "settings", "[]", "at least one table [[settings]]")
        listed = [_flat(setting) for setting in found["settings"]]
    else:
        both = "a table [samples] with n, and a table [ranges]"
        validation.expect(given == ["samples", "ranges"], given[0], f"[{given[0]}] alone", both)
        samples = found["samples"]
        for key in samples:
            validation.choice(key, "samples", SAMPLES)
        validation.expect("n" in samples, "samples", "no n", "the number of settings")
        ranges = {key: _range(key, value) for key, value in _flat(found["ranges"]).items()}
        with naming({key: f"samples.{key}" for key in SAMPLES}):
            listed = sample_settings(ranges, **samples)
    for setting in listed:
        for key in setting:
            twice = key in grid or key in train
            validation.expect(not twice, key, "a value of its own and one in [grid] or [train]", "one of the two")
        _expect_depth({**setting, **grid, **train}, "a number in [grid], in [ranges], or in all [[settings]]")
    axes = {key: value if isinstance(value, list) else [value] for key, value in grid.items()}
    validation.expect(all(axes.values()), next((key for key in axes if not axes[key]), ""), "[]", "a list of values")
    points = [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]
    return [train | point | setting for setting in listed for point in points]


def _expect_depth(keys: Mapping[str, Any], expected: str) -> None:
    """Raise unless there is a depth, or an unknown key, which `bnrank.sweep` refuses."""
    known = all(key in CHECKS or key.startswith(TASK) for key in keys)
    validation.expect("depth" in keys or not known, "depth", "none", expected)


def _range(key: str, value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    expected = "{ low = ..., high = ... }, and log = true for a logarithmic range"
    known = {"low", "high"} <= value.keys() <= {"low", "high", "log"}
    validation.expect(known, key, f"{value}", expected)
    try:
        return Range(**value)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{key}: {error}") from error
