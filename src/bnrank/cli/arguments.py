"""Arguments that several commands share: a network, data, output files."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import bnrank
from bnrank._core import files, store, validation
from bnrank.cli.naming import Names, naming
from bnrank.cli.samples import Samples
from bnrank.cli.terminal import say
from bnrank.networks import files as files_of_networks

if TYPE_CHECKING:
    from torch import nn

DATA = Names(x="x of DATA", y="y of DATA")
ModelSpec = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="A .safetensors file, a folder of bnrank train, or file.py:function returning an nn.Module.",
    ),
    Names(net="MODEL"),
]
Data = Annotated[
    str,
    typer.Argument(
        metavar="DATA",
        help="A .csv file, an .npz file with x and y, or a built-in task: low-rank, bottleneck-spectra, s-shapes, "
        "digits, mnist.",
        show_default=False,
    ),
    DATA,
]
Executor = Annotated[
    str | None,
    typer.Option(help="Number of processes, or the address or file (.json) of a scheduler of Dask, for trainings."),
]
Activation = Annotated[
    str | None,
    typer.Option(help="Activation of a bare state dict: relu, linear, a slope, or a function of torch, such as tanh."),
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
    sep: Annotated[
        str | None,
        typer.Option(help='Cell separator: "," or ";", "|" or tab. Default: ";" with --decimal ",", else ",".'),
    ] = None
    decimal: Annotated[str, typer.Option(help='Decimal mark, "." or ",".')] = "."
    one_hot: Annotated[
        bool, typer.Option("--one-hot", help="Turn inputs with text into columns of 0 and 1, one for each text.")
    ] = False

    def task(self, data: str) -> bnrank.Task:
        """Return the task of a file, or a built-in one, to train on."""
        with self._naming(data):
            return bnrank.tasks.load_table(data, **self._arguments)

    def samples(self, data: str, net: nn.Module, *, outputs: bool | None = None) -> Samples:
        """Return the samples of a file or a built-in task on which a network is measured, with y where there is one."""
        return Samples.of(self.table(data, outputs=outputs), net)

    def table(self, data: str, **options: Any) -> bnrank.tasks.Table:
        """Return the columns of a file or a built-in task."""
        with self._naming(data):
            return bnrank.tasks.read_table(data, **self._arguments, **options)

    def expect_unset(self, source: str) -> None:
        """Refuse options where there is no file that they are about, by the name of its argument."""
        for field in fields(self):
            value = getattr(self, field.name)
            validation.expect(value == field.default, field.name, f"{value!r} without {source}", f"it with {source}")

    def _naming(self, data: str) -> contextlib.AbstractContextManager[None]:
        name = Path(data).name  # errors in the contents of a file begin with its name
        return naming({"path": "DATA", name: f"DATA {name}"})

    @property
    def _arguments(self) -> dict[str, Any]:
        sep = "\t" if self.sep in ("tab", "\\t") else self.sep
        names = {"targets": words(self.targets), "ignore": words(self.ignore), "drop_missing": self.drop_missing}
        return {**names, "sep": sep, "decimal": self.decimal, "one_hot": self.one_hot}


@dataclass(frozen=True)
class ModelFiles:
    """Options of a network read from a file or folder."""

    weights: Annotated[Path | None, typer.Option(help="A .safetensors state dict for file.py:function.")] = None
    activation: Activation = None
    member: Annotated[int, typer.Option(help="Ensemble member to load from a training run.")] = 0

    def read(self, model: str) -> tuple[nn.Module, float | None]:
        """Return a network, and the ridge it was trained with if known."""
        with naming(dict.fromkeys(("model", "path", "spec", "out"), "MODEL")):
            return self._code(model) if ":" in model else self._stored(model)

    def _code(self, model: str) -> tuple[nn.Module, None]:
        got = f"{self.activation!r} with {model!r}"
        validation.expect(self.activation is None, "activation", got, "none, as the code says it")
        net = bnrank.networks.load_module(model)
        if self.weights is None:
            return net, None
        with naming({"path": "--weights"}):
            stored = store.read(self.weights)
            if stored.kind:
                return bnrank.load(self.weights, net), None
            files_of_networks.fill(net, stored, "path", model)  # without what reads other results
        return net, None

    def _stored(self, model: str) -> tuple[nn.Module, float | None]:
        got = f"{str(self.weights)!r} with {model!r}"
        validation.expect(self.weights is None, "weights", got, "weights only with file.py:function")
        activation: Any = self.activation
        validation.expect(Path(model).suffix != ".py", "model", f"{model!r} without :function", f"{model}:NAME")
        with contextlib.suppress(ValueError, TypeError):
            activation = float(activation)
        found = bnrank.load(model, activation=activation)
        if isinstance(found, bnrank.Run):
            return found.network(self.member), found.settings.ridge[self.member]
        validation.expect(not self.member, "member", f"{self.member} with {model!r}", "it only with a training run")
        return found, None


def page_path(out: Path, *read: str | Path | None) -> None:
    """Check, before the work, that a page can be written, and is none of the files that are read."""
    output_path(out, "out", *read, parents=True)


def output_path(
    path: Path, name: str, *read: str | Path | None, suffix: str | None = None, parents: bool = False
) -> None:
    """Check, before the work, that a file can be written, and is none of those that are read."""
    files.checked_path(path, name, suffix, parents=parents)
    given = [Path(other).resolve() for other in read if other is not None]
    got = f"{str(path)!r}, which is read"
    validation.expect(path.resolve() not in given, name, got, "another name")


def write_page(source: object, out: Path, title: str) -> None:
    """Write a page of results, and say where it is."""
    with naming({"path": "--out"}):
        say(f"The page: {bnrank.report(source, out, title=title)}")


def words(text: str | None) -> list[str]:
    """Return the words between commas.

    Examples
    --------
    >>> words("height, girth"), words(None)
    (['height', 'girth'], [])
    """
    return [word.strip() for word in text.split(",")] if text else []
