"""Arguments that several commands share: a network, data, output files."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import bnrank
from bnrank._core import validation

if TYPE_CHECKING:
    from torch import nn

ModelSpec = Annotated[
    str,
    typer.Argument(help="A .safetensors file, a folder of bnrank train, or file.py:function returning an nn.Module."),
]
Data = Annotated[
    str,
    typer.Argument(
        help="A .csv file, an .npz file with x and y, or a built-in task: low-rank, bottleneck-spectra, s-shapes, "
        "digits, mnist.",
        show_default=False,
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", help="Hide progress bars.")]


@dataclass(frozen=True)
class TableColumns:
    """Options of a .csv file."""

    targets: Annotated[str | None, typer.Option(help="Target columns y, separated by commas.")] = None
    ignore: Annotated[str | None, typer.Option(help="Columns to ignore, separated by commas.")] = None
    drop_missing: Annotated[bool, typer.Option("--drop-missing", help="Drop rows with missing or infinite values.")] = (
        False
    )

    @property
    def arguments(self) -> dict[str, Any]:
        """Arguments of the reader of tables."""
        return {"targets": words(self.targets), "ignore": words(self.ignore), "drop_missing": self.drop_missing}


@dataclass(frozen=True)
class ModelFiles:
    """Options of a network read from a file or folder."""

    weights: Annotated[Path | None, typer.Option(help="A .safetensors state dict for file.py:function.")] = None
    slope: Annotated[float, typer.Option(help="Activation slope for a bare state dict; 0 is ReLU.")] = 0.0
    member: Annotated[int, typer.Option(help="Ensemble member to load from a training run.")] = 0

    def read(self, model: str) -> tuple[nn.Module, float | None]:
        """Return a network, and the ridge it was trained with if known."""
        if ":" in model:
            net = bnrank.networks.load_module(model)
            return (net if self.weights is None else bnrank.load(self.weights, net)), None
        got = f"{str(self.weights)!r} with {model!r}"
        validation.expect(self.weights is None, "weights", got, "weights only with file.py:function")
        validation.expect(Path(model).suffix != ".py", "model", f"{model!r} without :function", f"{model}:NAME")
        found = bnrank.load(model, slope=self.slope)
        if isinstance(found, bnrank.Run):
            return found.network(self.member), found.settings.ridge[self.member]
        validation.expect(not self.member, "member", f"{self.member} with {model!r}", "it only with a training run")
        return found, None


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command for typer in which the fields of dataclass parameters are options of their own."""
    parameters: list[inspect.Parameter] = []
    groups: dict[str, tuple[Any, list[str]]] = {}
    for name, parameter in inspect.signature(command, eval_str=True).parameters.items():
        kind = parameter.annotation
        if isinstance(kind, type) and dataclasses.is_dataclass(kind):
            fields = inspect.signature(kind, eval_str=True).parameters
            groups[name] = kind, list(fields)
            parameters += fields.values()
        else:
            parameters.append(parameter)

    def run(**given: Any) -> None:
        for name, (kind, fields) in groups.items():
            given[name] = kind(**{field: given.pop(field) for field in fields})
        command(**given)

    run.__doc__ = command.__doc__
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    parameters.sort(key=lambda parameter: parameter.default is not inspect.Parameter.empty)
    keyword = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in parameters]
    vars(run)["__signature__"] = inspect.Signature(keyword)
    return run


def words(text: str | None) -> list[str]:
    """Return the words between commas.

    Examples
    --------
    >>> words("height, girth"), words(None)
    (['height', 'girth'], [])
    """
    return [word.strip() for word in text.split(",")] if text else []
