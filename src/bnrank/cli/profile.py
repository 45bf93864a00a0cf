"""`bnrank profile`."""

import os
from pathlib import Path
from typing import Annotated, Any, cast

import typer

import bnrank
from bnrank._core import text, validation
from bnrank.cli import terminal
from bnrank.cli.arguments import DATA, ModelFiles, Quiet, TableColumns, page_path, words, write_page
from bnrank.cli.naming import Names
from bnrank.cli.terminal import escape
from bnrank.networks.reading.files import is_named_so
from bnrank.training.history import NETWORKS

# Headings that fit a terminal of 80 columns.
SHORT = {
    "size of W": "size",
    "rank of W": "rank",
    "relative rank of W": "rel.",
    "stable rank of W": "stable",
    "entropy rank of W": "entr.",
    "dimension at 95 %": "95 %",
    "dimension at 99 %": "99 %",
    "dead units": "dead",
    "subnormal weights": "subn.",
    "s₁ of W": "s₁(W)",
    "s₁ of activations": "s₁(a)",
    "nonlinearity": "nonlin.",
    "‖θ‖² of the layer": "‖θ‖²",
}
MAX_ROWS = 60  # of the table in the terminal; the page has all


def profile_command(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="A .safetensors file, a folder of bnrank train, or file.py:function returning an nn.Module. Without "
            "DATA also .onnx, .pt, .pth, .bin, .ckpt or .pth.tar, the .index.json of split weights, or a TorchScript "
            "archive: no code of it is run.",
        ),
        Names(net="MODEL"),
    ],
    files: ModelFiles,
    columns: TableColumns,
    data: Annotated[
        str | None,
        typer.Argument(
            metavar="DATA",
            help="A .csv file, an .npz file with x (and y, for the cost), or a built-in task: low-rank, "
            "bottleneck-spectra, s-shapes, digits, mnist. Without it only the weights are measured.",
            show_default=False,
        ),
        DATA,
    ] = None,
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("profile.html"),
    what: Annotated[
        str | None,
        typer.Option(
            help="Some of weights, activations, jacobian, ntk, operators, with commas. Default: what is cheap."
        ),
    ] = None,
    max_minutes: Annotated[float | None, typer.Option(help="Time budget. Default: none.")] = None,
    quiet: Quiet = False,
) -> None:
    """Measure your network layer by layer on your data, or only its weights, and write a page.

    Example: [bold]bnrank profile run low-rank --out profile.html[/]

    The folder run is written by [bold]bnrank train low-rank --depth 8 --width 30 --steps 300 --out run[/]. A file of
    weights needs neither code nor data: [bold]bnrank profile model.safetensors[/].
    """
    page_path(out, model, data, files.weights)
    if data is None:
        columns.expect_unset("DATA")
    net: object = model
    name = Path(model).name
    if data is not None or not is_weight_file(model, files):
        net, _ = files.read(model)
    given: dict[str, Any] = {}
    if data is not None:
        found = columns.samples(data, cast(Any, net))
        given = {"x": found.x, "y": found.y}
        name = f"{name} on {found.name}"
        found.say_missing("the cost is not measured")
    given |= {"what": words(what) or None, "max_minutes": max_minutes, "progress": not quiet}
    measured = bnrank.profile(cast(Any, net), **given)
    layers = bnrank.reporting.tables.layer_rows(measured)
    rows = [{SHORT.get(key, key): value for key, value in row.items()} for row in layers]
    section = bnrank.Section(name, profile=measured)
    terminal.show(text.table(rows[:MAX_ROWS]))
    if len(rows) > MAX_ROWS:
        terminal.say(f"... and {len(rows) - MAX_ROWS} more, which the page shows")
    for line in bnrank.measures.describe(measured):
        terminal.console.print(escape(line), highlight=False)
    write_page(section, out, "bnrank profile")


def is_weight_file(model: str, files: ModelFiles) -> bool:
    """Return whether a model is a file of weights, without code, rather than a folder or a function.

    Files with other names count, except for code and safetensors: the error says which names are possible.
    """
    path = Path(model)
    folder, file = os.path.isdir(model), os.path.isfile(model)  # noqa: PTH112, PTH113 - no error for long names
    if folder and not (path / NETWORKS).exists():
        inside = sorted(filter(is_named_so, path.iterdir()), key=lambda one: (one.suffix != ".json", one.name))
        expected = f"the folder of a run, or a file of weights: {inside[0] if inside else ''}"
        validation.expect(not inside, "net", f"{model!r}, a folder without a run", expected)
    found = not folder and (is_named_so(path) or (file and path.suffix != ".py" and not _is_safetensors(path)))
    given = "--weights with a file of weights"
    validation.expect(not (found and files.weights), "weights", given, "it only with file.py:function")
    return found


def _is_safetensors(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(9)[8:] == b"{"
