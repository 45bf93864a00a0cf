"""Bad and unusual values by the role of an argument: made from a valid value, each with a name that repeats it."""

import datetime
import decimal
import fractions
import inspect
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
import xarray as xr
from torch import Tensor, nn

import bnrank

from .made import FOLDER, foreign_file
from .modules import NETWORKS

Change = Callable[[Any], Any]


class Opaque:
    """An object of no use."""

    def __repr__(self) -> str:
        return "Opaque()"


class Marked(Tensor):
    """A subclass of torch.Tensor."""


ANYTHING: dict[str, Change] = {
    "None": lambda v: None,
    "text": lambda v: "abc",
    "bytes": lambda v: b"abc",
    "dict": lambda v: {"a": 1},
    "list": lambda v: [1, 2],
    "empty list": lambda v: [],
    "empty tuple": lambda v: (),
    "list of None": lambda v: [None],
    "list of lists": lambda v: [[1], [2, 3]],
    "set": lambda v: {1, 2},
    "object": lambda v: Opaque(),
    "function": lambda v: lambda *a, **k: None,
    "class": lambda v: int,
    "True": lambda v: True,
    "complex": lambda v: 1j,
    "NaN": lambda v: float("nan"),
    "Path": lambda v: FOLDER / "nowhere" / "at" / "all",
    "generator": lambda v: (i for i in range(2)),
    "ellipsis": lambda v: ...,
    "date": lambda v: datetime.datetime(2020, 1, 1),
    "module": lambda v: torch,
    "network": lambda v: nn.Linear(3, 2),
    "tensor": lambda v: torch.ones(2, 2),
    "0-d tensor": lambda v: torch.tensor(2.0),
    "array of objects": lambda v: np.array([None, "a"], dtype=object),
    "frame": lambda v: pd.DataFrame({"a": [1.0, 2.0]}),
    "meta tensor": lambda v: torch.ones(2, 2, device="meta"),
    "10**12": lambda v: 10**12,
    "-1": lambda v: -1,
    "0": lambda v: 0,
}

INTEGER: dict[str, Change] = {
    "10**30": lambda v: 10**30,
    "2**31": lambda v: 2**31,
    "-10**12": lambda v: -(10**12),
    "1": lambda v: 1,
    "float": lambda v: 1.5,
    "whole float": lambda v: 2.0,
    "inf": lambda v: float("inf"),
    "1e300": lambda v: 1e300,
    "numpy integer": lambda v: np.int64(2 if v is None else v),
    "numpy uint8": lambda v: np.uint8(2 if v is None else v),
    "numpy float": lambda v: np.float64(2.0),
    "numpy bool": lambda v: np.bool_(True),
    "0-d integer tensor": lambda v: torch.tensor(2),
    "0-d array": lambda v: np.array(2),
    "one in a list": lambda v: [2],
    "digits": lambda v: "3",
    "fraction": lambda v: fractions.Fraction(4, 2),
}

NUMBER: dict[str, Change] = {
    "inf": lambda v: float("inf"),
    "-inf": lambda v: float("-inf"),
    "1e300": lambda v: 1e300,
    "-1e300": lambda v: -1e300,
    "1e-300": lambda v: 1e-300,
    "5e-324": lambda v: 5e-324,
    "1": lambda v: 1,
    "1.0": lambda v: 1.0,
    "-0.0": lambda v: -0.0,
    "10**400": lambda v: 10**400,
    "numpy float32": lambda v: np.float32(0.1),
    "numpy float16": lambda v: np.float16(0.1),
    "numpy NaN": lambda v: np.float64("nan"),
    "fraction": lambda v: fractions.Fraction(1, 3),
    "decimal": lambda v: decimal.Decimal("0.1"),
    "digits": lambda v: "0.1",
    "one in a list": lambda v: [0.1],
    "0-d array": lambda v: np.array(0.1),
}

TEXT: dict[str, Change] = {
    "empty text": lambda v: "",
    "unknown text": lambda v: "zzz",
    "NUL": lambda v: "\0",
    "long text": lambda v: "ä" * 5000,
    "upper case": lambda v: str(v).upper(),
    "1": lambda v: 1,
    "numpy text": lambda v: np.str_("zzz"),
}

FLAG: dict[str, Change] = {
    "False": lambda v: False,
    "numpy bool": lambda v: np.bool_(True),
    "yes": lambda v: "yes",
    "2": lambda v: 2,
}

SEQUENCE: dict[str, Change] = {
    "tuple": lambda v: tuple(v),
    "numpy": lambda v: np.array(v, dtype=object) if _ragged(v) else np.array(v),
    "nested": lambda v: [list(v)],
    "one entry": lambda v: list(v)[:1],
    "doubled": lambda v: list(v) + list(v),
    "reversed": lambda v: list(v)[::-1],
    "None inside": lambda v: [None, *list(v)[1:]],
    "NaN inside": lambda v: [float("nan"), *list(v)[1:]],
    "-1 inside": lambda v: [-1, *list(v)[1:]],
    "0 inside": lambda v: [0, *list(v)[1:]],
    "text inside": lambda v: ["abc", *list(v)[1:]],
    "object inside": lambda v: [Opaque(), *list(v)[1:]],
    "10**12 inside": lambda v: [10**12, *list(v)[1:]],
    "inf inside": lambda v: [float("inf"), *list(v)[1:]],
    "True inside": lambda v: [True, *list(v)[1:]],
    "tensor inside": lambda v: [torch.ones(2, 2), *list(v)[1:]],
    "1": lambda v: 1,
    "range": lambda v: range(3),
}

MAPPING: dict[str, Change] = {
    "empty dict": lambda v: {},
    "unknown key": lambda v: {**v, "zzz": 1},
    "integer key": lambda v: {**v, 3: 1},
    "None as a value": lambda v: dict.fromkeys(v),
    "object as a value": lambda v: dict.fromkeys(v, Opaque()),
    "list as a value": lambda v: {key: [1, 2] for key in v},
}

PATH: dict[str, Change] = {
    "empty text": lambda v: "",
    "missing file": lambda v: str(Path(v).parent / "missing" / "file"),
    "folder": lambda v: str(Path(v).parent),
    "NUL": lambda v: "a\0b",
    "long name": lambda v: str(Path(v).parent / ("x" * 5000)),
    "text path": lambda v: str(v),
    "file as a folder": lambda v: str(foreign_file() / "file"),
    "foreign file": lambda v: str(foreign_file()),
    "1": lambda v: 1,
}

DTYPE: dict[str, Change] = {
    "int64": lambda v: torch.int64,
    "float16": lambda v: torch.float16,
    "bfloat16": lambda v: torch.bfloat16,
    "complex64": lambda v: torch.complex64,
    "float8": lambda v: torch.float8_e4m3fn,
    "bool dtype": lambda v: torch.bool,
    "float32": lambda v: torch.float32,
    "float64": lambda v: torch.float64,
    "text dtype": lambda v: "float32",
    "numpy dtype": lambda v: np.float32,
    "python float": lambda v: float,
}


def _ragged(value: Any) -> bool:
    return any(isinstance(entry, Tensor | nn.Module | str | list | tuple) for entry in value)


def _spoiled(value: Tensor, entry: float) -> Tensor:
    made = value.clone()
    if made.numel():
        made.view(-1)[0] = entry
    return made


def _quantized(value: Tensor) -> Tensor:
    return torch.quantize_per_tensor(value.float(), 0.1, 0, torch.qint8)


def _read_only(value: Tensor) -> np.ndarray:
    made = value.numpy().copy()
    made.flags.writeable = False
    return made


def _strided(value: Tensor) -> Tensor:
    wide = torch.zeros(*value.shape[:-1], 2 * value.shape[-1], dtype=value.dtype)
    wide[..., ::2] = value
    return wide[..., ::2]


def _frame(value: Tensor) -> Any:
    return pd.DataFrame(value.reshape(len(value), -1).numpy()).rename(columns=str)


def _inference(value: Tensor) -> Tensor:
    with torch.inference_mode():
        return value.clone()


TENSOR: dict[str, Change] = {
    "numpy": lambda v: v.numpy().copy(),
    "lists": lambda v: v.tolist(),
    "list of tensors": lambda v: list(v),
    "0-d": lambda v: v.reshape(-1)[0],
    "empty": lambda v: v[:0],
    "empty and flat": lambda v: torch.zeros(0),
    "no columns": lambda v: v[..., :0],
    "one row": lambda v: v[:1],
    "two rows": lambda v: v[:2],
    "one column": lambda v: v[..., :1],
    "flat": lambda v: v.reshape(-1),
    "first row": lambda v: v[0],
    "transposed": lambda v: v.T if v.ndim == 2 else v,
    "three dimensions": lambda v: v[None] if v.ndim == 2 else v[..., None, None],
    "five dimensions": lambda v: v.reshape(1, 1, 1, 1, -1),
    "more columns": lambda v: torch.cat([v, v], -1),
    "more rows": lambda v: torch.cat([v, v]),
    "int64": lambda v: (10 * v).long(),
    "uint8": lambda v: (10 * v.abs()).to(torch.uint8),
    "uint16": lambda v: (10 * v.abs()).to(torch.uint16),
    "bool": lambda v: v > 0,
    "complex64": lambda v: v.to(torch.complex64),
    "complex128": lambda v: v.to(torch.complex128),
    "half": lambda v: v.half(),
    "bfloat16": lambda v: v.bfloat16(),
    "float8": lambda v: v.to(torch.float8_e4m3fn),
    "float32": lambda v: v.float(),
    "float64": lambda v: v.double(),
    "big endian": lambda v: v.numpy().astype(">f8"),
    "long double": lambda v: v.numpy().astype(np.longdouble),
    "numpy half": lambda v: v.numpy().astype(np.float16),
    "numpy integers": lambda v: (10 * v.numpy()).astype(np.int32),
    "numpy complex": lambda v: v.numpy().astype(np.complex128),
    "numpy bool": lambda v: v.numpy() > 0,
    "numpy objects": lambda v: v.numpy().astype(object),
    "numpy texts": lambda v: v.numpy().astype(str),
    "numpy dates": lambda v: np.full(tuple(v.shape), np.datetime64("2020-01-01")),
    "numpy structured": lambda v: np.zeros(len(v), dtype=[("a", "f4"), ("b", "f4")]),
    "numpy matrix": lambda v: np.asmatrix(v.numpy()) if v.ndim == 2 else v,
    "NaN": lambda v: _spoiled(v, float("nan")),
    "inf": lambda v: _spoiled(v, float("inf")),
    "all NaN": lambda v: torch.full_like(v, float("nan")),
    "zeros": lambda v: torch.zeros_like(v),
    "ones": lambda v: torch.ones_like(v),
    "huge": lambda v: v * 1e30,
    "1e300": lambda v: v.double() * 1e300,
    "subnormal": lambda v: v.double() * 1e-310,
    "tiny": lambda v: v * 1e-30,
    "negative": lambda v: -v.abs(),
    "equal rows": lambda v: v[:1].expand(v.shape),
    "meta": lambda v: v.to("meta"),
    "sparse COO": lambda v: v.to_sparse(),
    "sparse CSR": lambda v: v.to_sparse_csr() if v.ndim == 2 else v.to_sparse(),
    "quantized": _quantized,
    "nested": lambda v: torch.nested.nested_tensor([v, v[:1]]),
    "requires grad": lambda v: v.clone().requires_grad_(),
    "not a leaf": lambda v: v.clone().requires_grad_() * 2,
    "parameter": lambda v: nn.Parameter(v.clone()),
    "not contiguous": _strided,
    "column major": lambda v: v.T.contiguous().T if v.ndim == 2 else v,
    "stride 0": lambda v: v.reshape(-1)[:1].expand(v.shape),
    "negative strides": lambda v: v.numpy()[::-1],
    "read-only": _read_only,
    "masked": lambda v: np.ma.masked_array(v.numpy(), v.numpy() > 0),
    "memory map": lambda v: np.array(v.numpy()).view(np.memmap),
    "frame": _frame,
    "series": lambda v: pd.Series(v.reshape(-1).numpy()),
    "data array": lambda v: xr.DataArray(v.numpy()),
    "subclass": lambda v: v.clone().as_subclass(Marked),
    "inference": _inference,
    "negated view": lambda v: torch._neg_view(v),
    "Task": lambda v: bnrank.Task(v, v),
}

CLASSES: dict[str, Change] = {
    "class indices": lambda v: torch.arange(len(v)) % 2,
    "negative classes": lambda v: torch.arange(len(v)) - 1,
    "huge classes": lambda v: torch.arange(len(v)) * 10**12,
}
TENSOR |= CLASSES


def _side(change: Change, side: int) -> Change:
    return lambda v: (change(v[0]), v[1]) if side == 0 else (v[0], change(v[1]))


TASK: dict[str, Change] = {
    "one of the pair": lambda v: (v[0],),
    "three": lambda v: (v[0], v[1], v[0]),
    "pair in a list": lambda v: list(v),
    "x and None": lambda v: (v[0], None),
    "None and y": lambda v: (None, v[1]),
    "Task": lambda v: bnrank.Task(*v),
    "stacked": lambda v: v[0],
    "pair of arrays": lambda v: (v[0].numpy(), v[1].numpy()),
    "pair of lists": lambda v: (v[0].tolist(), v[1].tolist()),
    "pair of float64": lambda v: (v[0].double(), v[1]),
    **{f"x {name}": _side(change, 0) for name, change in TENSOR.items() if name != "Task"},
    **{f"y {name}": _side(change, 1) for name, change in TENSOR.items() if name != "Task"},
}


def _dataset(change: Callable[[Any], Any]) -> Change:
    return lambda v: change(v)


DATASET: dict[str, Change] = {
    "empty dataset": lambda v: xr.Dataset(),
    "no attributes": lambda v: v.drop_attrs() if hasattr(v, "drop_attrs") else v,
    "data array": lambda v: xr.DataArray(np.ones((2, 2))),
    "first variable": lambda v: v[next(iter(v.data_vars))] if isinstance(v, xr.Dataset) else v,
    "one variable": lambda v: v[[next(iter(v.data_vars))]] if isinstance(v, xr.Dataset) else v,
    "all NaN": lambda v: v.where(False) if isinstance(v, xr.DataArray) else v * np.nan,
    "array": lambda v: np.ones((2, 2)),
}

OPTIONS: dict[str, Change] = {
    "Stop": lambda v: bnrank.training.Stop(steps=2),
    "Record": lambda v: bnrank.training.Record(every=2),
    "Solver": lambda v: bnrank.training.Solver(),
    "Timing": lambda v: bnrank.discovery.Timing(repeats=1),
    "SkipPlateau": lambda v: bnrank.training.SkipPlateau(),
    "Limits": lambda v: bnrank.training.Limits(max_evaluations=20),
    "Adam": lambda v: bnrank.training.Adam(),
    "GradientDescent": lambda v: bnrank.training.GradientDescent(),
    "10**12": lambda v: 10**12,
    "unknown text": lambda v: "zzz",
    "2": lambda v: 2,
    "0.5": lambda v: 0.5,
}

_VALUES = {
    "None",
    "list",
    "empty list",
    "empty tuple",
    "True",
    "NaN",
    "10**12",
    "-1",
    "0",
    "tensor",
    "0-d tensor",
    "frame",
}
TYPES = ANYTHING.keys() - _VALUES
"""Changes to a wrong type, whatever the argument: a message must name this argument."""

SAME = {
    *("numpy", "lists", "read-only", "column major", "not contiguous", "memory map", "requires grad", "parameter"),
    *("subclass", "inference", "data array", "copy", "as it is", "pair of arrays", "pair of lists", "pair in a list"),
    *(f"{side} {change}" for side in "xy" for change in ("numpy", "not contiguous", "column major", "requires grad")),
}
"""Changes that leave the numbers of a value as they are: the answer must stay as well."""


def role_of(value: Any, default: Any, annotation: str) -> dict[str, Change]:
    """Return the changes that suit an argument, by its valid value, its default and its annotation."""
    if isinstance(value, nn.Module):
        return NETWORKS
    if isinstance(value, Tensor):
        return TENSOR
    if isinstance(value, np.ndarray):
        return {name: (lambda v, c=change: c(torch.tensor(v))) for name, change in TENSOR.items()}
    if isinstance(value, xr.Dataset | xr.DataArray):
        return DATASET
    if isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], Tensor) and value[0].ndim == 2:
        return TASK
    sample = value if value is not None else default
    for kind, role in ((bool, FLAG), (int, INTEGER), (float, NUMBER), (Path, PATH), (torch.dtype, DTYPE)):
        if isinstance(sample, kind):
            return role
    if isinstance(sample, str):
        return PATH if "PathLike" in annotation else TEXT
    if isinstance(sample, list | tuple):
        return SEQUENCE
    if isinstance(sample, dict):
        return MAPPING
    if "float" in annotation or "int" in annotation:
        return NUMBER | INTEGER
    return OPTIONS


def mutations(value: Any, parameter: inspect.Parameter | None) -> dict[str, Change]:
    """Return the changes of one argument by name: those of its role, and wrong types of any kind."""
    default = parameter.default if parameter is not None and parameter.default is not inspect.Parameter.empty else None
    annotation = str(parameter.annotation) if parameter is not None else ""
    return {**ANYTHING, **role_of(value, default, annotation)}


def shuffled(seed: str, names: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return pairs of an argument and a change in an order drawn from a seed."""
    made = list(names)
    random.Random(seed).shuffle(made)
    return made
