"""`bnrank compare`."""

from pathlib import Path
from typing import Annotated, Any

import typer

import bnrank
from bnrank._core import validation
from bnrank.cli.arguments import Activation, ModelFiles, TableColumns, page_path, write_page
from bnrank.cli.naming import Names, naming
from bnrank.cli.terminal import console, escape

WEIGHTS = (
    "A file of weights (.safetensors, .onnx, .pt, .pth, .bin, .ckpt, .pth.tar, .index.json), a folder of bnrank train, "
    "or file.py:function"
)


def compare_command(
    a: Annotated[
        str,
        typer.Argument(metavar="A", help=f"{WEIGHTS}; without B a folder of checkpoints, numbered by step."),
        Names(a="A", folder="A"),
    ],
    columns: TableColumns,
    b: Annotated[
        str | None, typer.Argument(metavar="B", help="The same, to compare with A.", show_default=False), Names(b="B")
    ] = None,
    x: Annotated[
        str | None,
        typer.Option(help="Samples, to compare representations: .csv, .npz with x, or a built-in task."),
        Names(x="--x"),
    ] = None,
    code: Annotated[
        str | None,
        typer.Option(help="file.py:function returning the nn.Module whose .safetensors weights A and B are, for --x."),
        Names(spec="--code"),
    ] = None,
    activation: Activation = None,
    top: Annotated[int, typer.Option(help="Leading singular values and vectors to compare.")] = 8,
    max_minutes: Annotated[
        float | None, typer.Option(help="Time budget; what is not reached is said. Default: none.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Also write a page.")] = None,
) -> None:
    """Compare two networks layer by layer, or the checkpoints of a training with the first one.

    Example: [bold]bnrank compare checkpoints --out compare.html[/]

    The folder is written by [bold]bnrank train low-rank --steps 300 --out watched --checkpoints checkpoints[/].
    Two of its files, with samples:
    [bold]bnrank compare checkpoints/step-0.safetensors checkpoints/step-300.safetensors --x low-rank --activation relu[/]
    """  # noqa: E501 - one command
    if out is not None:
        page_path(out, a, b)
    if x is None:
        columns.expect_unset("--x")
    if b is None:
        validation.expect(x is None, "x", f"{x!r} without B", "it with A and B")
        validation.expect(code is None, "code", f"{code!r} without B", "it with A and B")
        validation.expect(activation is None, "activation", f"{activation!r} without B", "it with A and B")
        found: Any = bnrank.compare(a, top=top, max_minutes=max_minutes)
    else:
        runs = x is not None
        for name, value in (("code", code), ("activation", activation)):
            validation.expect(runs or value is None, name, f"{value!r} without --x", "it with --x")
        sides = (_network(a, "A", code, runs, activation), _network(b, "B", code, runs, activation))
        samples = None if x is None else _samples(x, columns, sides[0])
        found = bnrank.compare(*sides, samples, top=top, max_minutes=max_minutes)
        names = (a, b) if Path(a).name == Path(b).name else (Path(a).name, Path(b).name)
        found.data.attrs |= {"name_a": names[0], "name_b": names[1], "title": " and ".join(names)}
    console.print(escape(str(found)), highlight=False, soft_wrap=True)
    if out is not None:
        write_page(found, out, "bnrank compare")


def _samples(x: str, columns: TableColumns, net: Any) -> Any:
    with naming({"DATA": "--x", f"DATA {Path(x).name}": f"--x {Path(x).name}"}):
        return columns.samples(x, net, outputs=False).x


def _network(source: str, name: str, code: str | None, runs: bool, activation: str | None) -> Any:
    """Return a network if it is to run, or is more than a file; else the path of a file of weights."""
    if not runs and ":" not in source and not Path(source).is_dir():
        return source
    with naming({"MODEL": name, "--weights": name}):
        if code is None:
            return ModelFiles(activation=activation).read(source)[0]
        validation.expect(":" in code, "code", repr(code), "file.py:function")
        validation.expect(":" not in source, "MODEL", f"{source!r} with --code", "a file of weights")
        with naming({"MODEL": "--code", "spec": "--code"}):
            return ModelFiles(Path(source), activation).read(code)[0]
