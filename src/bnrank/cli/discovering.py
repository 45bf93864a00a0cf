"""`bnrank discover`."""

from __future__ import annotations

import shlex
import warnings
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
import typer

from bnrank import tasks
from bnrank._core import files, validation
from bnrank.cli.arguments import Data, DropMissing, Ignore, Quiet, Targets, words
from bnrank.cli.terminal import say, say_where
from bnrank.discovery import (
    BottleneckAutoencoder,
    BottleneckClassifier,
    BottleneckRegressor,
    NothingFoundWarning,
    symmetries,
)
from bnrank.reporting import report

__all__ = ["discover"]

KINDS = {"regressor": BottleneckRegressor, "classifier": BottleneckClassifier, "autoencoder": BottleneckAutoencoder}
MOST_CLASSES = 20  # different whole numbers in one column that are taken for classes rather than quantities


def discover(
    data: Data,
    targets: Targets = None,
    ignore: Ignore = None,
    kind: Annotated[
        str | None,
        typer.Option(
            help="regressor, classifier or autoencoder (of x alone). By default classifier where y is one column of "
            f"text or of at most {MOST_CLASSES} different whole numbers, else regressor."
        ),
    ] = None,
    components: Annotated[str, typer.Option(help="How many numbers; auto finds out.")] = "auto",
    drop_missing: DropMissing = False,
    symmetry: Annotated[
        bool, typer.Option("--symmetries", help="Look for transformations of x that leave the fitted map alone.")
    ] = False,
    ridges: Annotated[str | None, typer.Option(help="lambdas to try, separated by commas; auto by default.")] = None,
    depth: Annotated[int | None, typer.Option(help="Number of weight layers; auto by default.")] = None,
    width: Annotated[int | None, typer.Option(help="Width of the hidden layers; auto by default.")] = None,
    steps: Annotated[int | None, typer.Option(help="Evaluations per network; auto by default.")] = None,
    members: Annotated[int | None, typer.Option(help="Networks per ridge on all rows; auto by default.")] = None,
    seed: Annotated[int, typer.Option(help="Of folds and initial weights.")] = 0,
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("discover.html"),
    save: Annotated[Path | None, typer.Option(help="Write the fitted estimator, a .safetensors file.")] = None,
    coordinates: Annotated[Path | None, typer.Option(help="Write the numbers found, a .csv file.")] = None,
    quiet: Quiet = False,
) -> None:
    """Find out how many numbers y depends on, and what they are, and write a page.

    Fewer --steps, a smaller --depth or one of --ridges make it faster and the count less sure.

    Example: [bold]bnrank discover low-rank[/]

    Example: [bold]bnrank discover table.csv --targets price,quality --ignore id --coordinates z.csv[/]
    """
    files.checked_path(out, "out")
    for path, option, suffix in ((save, "save", ".safetensors"), (coordinates, "coordinates", ".csv")):
        if path is not None:
            files.checked_path(path, option, suffix)
    if kind is not None:
        validation.choice(kind, "kind", list(KINDS))
    needed = kind != "autoencoder"
    table = tasks.read_table(data, words(targets), words(ignore), outputs=needed, drop_missing=drop_missing, min_rows=2)
    x, y = table.inputs, table.outputs
    _say_counters(x, words(ignore), named=Path(data).suffix.lower() == ".csv")
    estimator = KINDS[kind or _kind(y)](
        _components(components),
        ridges=_ridges(ridges),
        depth=_or_auto(depth),
        width=_or_auto(width),
        n_networks=_or_auto(members),
        steps=_or_auto(steps),
        random_state=seed,
        progress=False if quiet else "auto",
    )
    found = _fitted(estimator, x, y)
    if table.dropped:
        say(f"{table.dropped} of {len(x) + table.dropped} rows left out, in which something is missing")
    say(str(found.summary()))
    if save is not None:
        say_where("The estimator", found.save(save))
        say(f"  in Python: bnrank.discovery.{type(found).__name__}.load({str(save)!r})")
    if coordinates is not None:
        _write_coordinates(found, x, coordinates)
    page: dict[str, Any] = {f"What {table.name} depends on": found}
    try:
        if symmetry:
            page |= _symmetries(found, x)
    finally:  # what was found is shown, also where the search fails or is stopped
        say_where("The page", report(page, out, title=f"bnrank discover: {table.name}"))


def _say_counters(x: pd.DataFrame, ignored: list[str], *, named: bool) -> None:
    """Say which inputs are numbers of rows, from 0 or 1, and how to leave them out where columns have names."""
    since = x.to_numpy(dtype=np.float64) - x.index.to_numpy()[:, None]  # rows keep their number where some are left out
    found = x.columns[(since == 0).all(axis=0) | (since == 1).all(axis=0)]
    for name in found:
        option = shlex.quote(",".join([*ignored, *found]))
        say(f"column {name!r} counts the rows" + (f"; --ignore {option} leaves it out" if named else ""))


def _kind(y: pd.DataFrame | None) -> str:
    """Return which estimator fits the outputs, and say how to have another where that is a guess."""
    if y is None:
        return "autoencoder"
    column = y.iloc[:, 0]
    if y.shape[1] > 1 or pd.api.types.is_float_dtype(column):
        return "regressor"
    if not pd.api.types.is_integer_dtype(column):
        return "classifier"
    count = column.nunique()
    guess, other = ("classifier", "regressor") if count <= MOST_CLASSES else ("regressor", "classifier")
    as_what = {"classifier": "classes", "regressor": "quantities"}
    name = f"{column.name} has {count} different whole numbers"
    say(f"{name}, taken for {as_what[guess]}; --kind {other} takes them for {as_what[other]}")
    return guess


def _fitted(estimator: Any, x: pd.DataFrame, y: pd.DataFrame | None) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NothingFoundWarning)  # the summary says it
        if isinstance(estimator, BottleneckAutoencoder):
            return estimator.fit(x)
        assert y is not None
        if isinstance(estimator, BottleneckRegressor):
            return estimator.fit(x, y)
        if y.shape[1] > 1:
            raise ValueError(f"targets: got {y.shape[1]} columns, expected one column of classes")
        column = y.iloc[:, 0]
        text = not pd.api.types.is_numeric_dtype(column)
        return estimator.fit(x, column.to_numpy(dtype=np.str_ if text else None))


def _symmetries(found: Any, inputs: pd.DataFrame) -> dict[str, Any]:
    if not found.n_components_:
        say("symmetries: none looked for, since nothing was found that y depends on")
        return {}
    error = None
    if not isinstance(found, BottleneckClassifier):  # losses are squared errors, of held-out rows
        error = float((found.held_out_[found.n_components_] / found.held_out_[0]) ** 0.5)
    x = inputs.to_numpy(dtype=np.float64)
    symmetric = symmetries(found, x, rtol=error, names=inputs.columns.tolist())
    say(str(symmetric))
    return {"Transformations of x that leave the fitted map alone": symmetric}


def _write_coordinates(found: Any, x: pd.DataFrame, path: Path) -> None:
    if not found.n_components_:
        say("The coordinates: none, and no file is written")
        return
    z = pd.DataFrame(found.transform(x), index=x.index)
    z.columns = [f"z{j + 1}" for j in range(z.shape[1])]
    files.write_atomically(path, z.to_csv(index_label="row"))
    say_where("The coordinates, with the number of their row from 0", path)


def _components(text: str) -> int | str:
    if text == "auto":
        return text
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"components: got {text!r}, expected a whole number or 'auto'") from None


def _ridges(text: str | None) -> list[float] | str:
    try:
        return [float(word) for word in words(text)] or "auto"
    except ValueError:
        raise ValueError(f"ridges: got {text!r}, expected numbers separated by commas") from None


def _or_auto(value: int | None) -> int | str:
    return "auto" if value is None else value
