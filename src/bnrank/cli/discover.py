"""`bnrank discover`."""

from __future__ import annotations

import shlex
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

import bnrank
from bnrank._core import files, validation
from bnrank.cli.arguments import Data, Quiet, TableColumns, output_path, page_path, words, write_page
from bnrank.cli.films import discover_films, is_film, refuse, settings_of
from bnrank.cli.naming import Names, naming
from bnrank.cli.products import power_products, read_units
from bnrank.cli.terminal import say

if TYPE_CHECKING:
    import pandas as pd

KINDS = ("regressor", "classifier", "autoencoder", "films")
MAX_CLASSES = 20  # different whole numbers in one column that are read as classes rather than quantities
MAX_NAMED = 3  # outputs named in the title


@dataclass(frozen=True)
class Search:
    """Options of the search for the count."""

    components: Annotated[
        str, typer.Option(help='Number of components, or "auto".'), Names(n_components="--components")
    ] = "auto"
    ridges: Annotated[
        str | None,
        typer.Option(help="Strengths of the penalty on the weights (lambda), separated by commas. Default: automatic."),
    ] = None
    depth: Annotated[int | None, typer.Option(help="Number of weight layers. Default: automatic.")] = None
    width: Annotated[int | None, typer.Option(help="Width of the hidden layers. Default: automatic.")] = None
    steps: Annotated[int | None, typer.Option(help="Evaluations per network. Default: automatic.")] = None
    members: Annotated[
        int | None,
        typer.Option(help="Networks per ridge on all rows. Default: automatic."),
        Names(n_networks="--members"),
    ] = None
    seed: Annotated[int, typer.Option(help="Random seed."), Names(random_state="--seed")] = 0
    jobs: Annotated[
        int, typer.Option(help="Processes that share the trainings; -1: all cores."), Names(n_jobs="--jobs")
    ] = 1

    def estimator(self, kind: str, progress: bool | str) -> Any:
        """Return the estimator, not yet fitted."""
        names = {"depth": self.depth, "width": self.width, "steps": self.steps, "n_networks": self.members}
        options: dict[str, Any] = {name: "auto" if value is None else value for name, value in names.items()}
        estimator = getattr(bnrank.discovery, f"Bottleneck{kind.capitalize()}")
        return estimator(
            _components(self.components),
            ridges=_ridges(self.ridges),
            random_state=self.seed,
            progress=progress,
            n_jobs=self.jobs,
            **options,
        )


def discover_command(
    data: Data,
    columns: TableColumns,
    search: Search,
    kind: Annotated[
        str | None,
        typer.Option(
            help="regressor, classifier, autoencoder (of x alone) or films (state variables of the arrays in a .npy or "
            ".npz file). Default: classifier if y is one column of text "
            f"or of at most {MAX_CLASSES} different whole numbers (at most half as many as rows), else regressor; "
            "films for a .npy file."
        ),
    ] = None,
    groups: Annotated[
        str | None,
        typer.Option(
            help="Column of subjects, plates or batches, whose rows depend on each other: held out together; "
            "not used as an input.",
            metavar="COLUMN",
        ),
    ] = None,
    weights: Annotated[
        str | None,
        typer.Option(help="Column with the weights of the rows, at least 0; not used as an input.", metavar="COLUMN"),
    ] = None,
    symmetry: Annotated[
        bool,
        typer.Option("--symmetries", help="Search for transformations of x that leave the fitted map unchanged."),
        Names(symmetries="--symmetries"),
    ] = False,
    products: Annotated[
        bool,
        typer.Option("--power-products", help="Search for power products of positive inputs, such as rho v L / mu."),
        Names(power_products="--power-products"),
    ] = False,
    units: Annotated[
        str | None,
        typer.Option(
            help="Units of all inputs and of the output: search for dimensionless groups. For numbers: COLUMN=.",
            metavar="COLUMN=UNIT,...",
        ),
        Names(y_unit="--units"),
    ] = None,
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("discover.html"),
    save: Annotated[Path | None, typer.Option(help="Write the fitted estimator, a .safetensors file.")] = None,
    coordinates: Annotated[Path | None, typer.Option(help="Write the components, a .csv file.")] = None,
    keep: Annotated[
        Path | None,
        typer.Option(help="Folder that keeps trained networks: after Ctrl-C, the same command resumes."),
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Find the number of latent variables that y depends on, and their values, and write a page.

    Fewer --steps, a smaller --depth or a single ridge are faster and less reliable.

    Example: [bold]bnrank discover low-rank[/]

    Example: [bold]bnrank discover low-rank --components 2 --coordinates z.csv[/]

    For a .csv file, name the target columns: [bold]--targets price,quality --ignore id[/].

    For one output of physics: [bold]--targets T --units L=m,g=m/s^2,T=s[/] prints its dimensionless groups.

    For films, (T, H, W) or (n, T, H, W[, C]), the number of state variables: [bold]bnrank discover pendulum.npy[/].

    With decimal commas, inputs with text, and batches, add: [bold]--decimal , --one-hot --groups batch[/].
    """
    page_path(out, data)
    if save is not None:
        output_path(save, "save", data, out, suffix=".safetensors")
    if coordinates is not None:
        output_path(coordinates, "coordinates", data, out, suffix=".csv")
    validation.optional(validation.choice, kind, "kind", KINDS)
    if is_film(data, kind):
        refuse(ridges=search.ridges, depth=search.depth, targets=columns.targets, ignore=columns.ignore, groups=groups)
        refuse(weights=weights, symmetries=symmetry, power_products=products, units=units)
        refuse(drop_missing=columns.drop_missing, sep=columns.sep, one_hot=columns.one_hot)
        refuse(decimal=columns.decimal if columns.decimal != "." else None)
        refuse(n_jobs=search.jobs if search.jobs != 1 else None)
        settings = settings_of(search, _components(search.components), quiet)
        discover_films(data, settings, keep, save, coordinates, out)
        return
    table = columns.table(data, outputs=kind != "autoencoder", min_rows=2, groups=groups, weights=weights)
    x, y = table.inputs, table.outputs
    wanted = products or units is not None
    units_of = read_units(units, table, kind) if wanted else None
    _refuse_weights(table, kind, wanted)
    _say_counters(x, words(columns.ignore), named=Path(data).suffix.lower() == ".csv")
    kind = kind or ("regressor" if wanted else _kind(y))
    found = search.estimator(kind, False if quiet else "auto")
    with naming({"out": "--keep", "sample_weight": "--weights"}):
        _fit(found, x, y, table, keep)
    if table.dropped:
        say(f"{table.dropped} of {len(x) + table.dropped} rows with missing values are dropped")
    say(str(found.summary()))
    if save is not None:
        with naming({"path": "--save"}):
            say(f"The estimator: {found.save(save)}")
        say(f"  in Python: bnrank.load({str(save)!r})")
    if coordinates is not None:
        _write_coordinates(found, x, coordinates)
    page: dict[str, Any] = {_title(table): found}
    try:
        if wanted and not found.partial_:
            page["Power products of the inputs"] = power_products(table, units_of, search.estimator("regressor", False))
        if symmetry and not found.partial_:
            page |= _symmetries(found, x if table.weights is None else x[table.weights > 0])
    finally:  # the fit is shown even if the search fails or is interrupted
        write_page(page, out, f"bnrank discover: {table.name}")
    if found.partial_:
        raise KeyboardInterrupt


def _refuse_weights(table: bnrank.tasks.Table, kind: str | None, products: bool) -> None:
    """Raise if rows have weights that would not be used."""
    if table.weights is not None:
        what = "an autoencoder" if kind == "autoencoder" else "power products"
        unused = kind == "autoencoder" or products
        validation.expect(not unused, "weights", f"a column for {what}", "none: these do not weight rows")


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
    if y.shape[1] > 1 or column.dtype.kind == "f":
        return "regressor"
    if column.dtype.kind not in "iu":
        return "classifier"
    count = column.nunique()
    few = count <= min(MAX_CLASSES, len(column) / 2)  # classes have several rows
    guess, other = ("classifier", "regressor") if few else ("regressor", "classifier")
    as_what = {"classifier": "classes", "regressor": "quantities"}
    name = f"{column.name} has {count} different whole numbers"
    say(f"{name}, read as {as_what[guess]}; --kind {other} reads them as {as_what[other]}")
    return guess


def _fit(estimator: Any, x: pd.DataFrame, y: pd.DataFrame | None, table: bnrank.tasks.Table, keep: Path | None) -> None:
    """Fit an estimator; where the user interrupts that, it has a partial result."""
    outputs: Any = y
    options: dict[str, Any] = {"groups": table.groups, "out": keep}
    if table.weights is not None:
        options["sample_weight"] = table.weights
    if isinstance(estimator, bnrank.discovery.BottleneckClassifier):
        assert y is not None
        validation.expect(y.shape[1] <= 1, "targets", f"{y.shape[1]} columns", "one column of classes")
        column = y.iloc[:, 0]
        text = column.dtype.kind not in "biuf"
        outputs = column.to_numpy(dtype=np.str_ if text else None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", bnrank.discovery.NothingFoundWarning)  # the summary says it
        try:
            estimator.fit(x, outputs, **options)
        except KeyboardInterrupt:
            if keep is not None:
                say(f"Interrupted; rerun to resume from {keep}")
            if not getattr(estimator, "partial_", False) or not hasattr(estimator, "summary_"):
                raise


def _symmetries(found: Any, inputs: pd.DataFrame) -> dict[str, Any]:
    if not found.n_components_:
        say("symmetries: not searched, since nothing was found that y depends on")
        return {}
    x = inputs.to_numpy(dtype=np.float64)
    symmetric = bnrank.discovery.symmetries(found, x, names=inputs.columns.tolist())
    say(str(symmetric))
    return {"Transformations of x that leave the fitted map unchanged": symmetric}


def _title(table: bnrank.tasks.Table) -> str:
    if table.y is None:
        return "What the columns have in common"
    of = f"the {len(table.targets)} outputs" if len(table.targets) > MAX_NAMED else ", ".join(table.targets)
    return f"What {of} depend{'s' if len(table.targets) == 1 else ''} on"


def _write_coordinates(found: Any, x: pd.DataFrame, path: Path) -> None:
    if not found.n_components_:
        say("The coordinates: none; no file is written")
        return
    import pandas as pd

    z = pd.DataFrame(found.transform(x), x.index, [f"z{j + 1}" for j in range(found.n_components_)])
    with files.writing("coordinates", path):
        files.write_atomically(path, z.to_csv(index_label="row"))
    say(f"The coordinates, with row numbers from 0: {path}")


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
