"""`bnrank compress`."""

from pathlib import Path
from typing import Annotated

import typer

import bnrank
from bnrank.cli.arguments import DATA, ModelFiles, ModelSpec, TableColumns, output_path, page_path, write_page
from bnrank.cli.naming import Names, naming
from bnrank.cli.terminal import say


def compress_command(
    model: ModelSpec,
    data: Annotated[
        str,
        typer.Argument(
            metavar="DATA",
            help="Samples from the network's input distribution: an .npz file with x (and x_test, used only for the "
            "certificate), a .csv file, or a built-in task.",
        ),
        Names(**DATA, held_out="x_test of DATA"),
    ],
    files: ModelFiles,
    columns: TableColumns,
    tol: Annotated[
        float, typer.Option(help="Largest change of the output, relative to its spread over the samples.")
    ] = 0.01,
    tune: Annotated[int, typer.Option(help="Fine-tuning steps (distillation).")] = 0,
    outputs: Annotated[
        list[str] | None, typer.Option(help="Output whose change is bounded, repeatable. Default: every output.")
    ] = None,
    dtype: Annotated[str, typer.Option(help="Precision in which networks run: float64 or float32.")] = "float64",
    seed: Annotated[int, typer.Option(help="Random seed of the held-out split.")] = 0,
    max_minutes: Annotated[
        float | None,
        typer.Option(
            help="After this time, begin no further trial and take the best outcome so far. Default: no limit."
        ),
    ] = None,
    save: Annotated[Path, typer.Option(help="The .safetensors file of the smaller network.")] = Path(
        "compressed.safetensors"
    ),
    tag: Annotated[
        str | None,
        typer.Option(help="Version of parts of the network that cannot be identified; needed only for such parts."),
    ] = None,
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("compress.html"),
) -> None:
    """Reduce a trained network to its bottleneck, certify the change, and write the network and a page.

    A network that cannot be reduced is left unchanged, with the reason, and no network is written.

    Example: [bold]bnrank compress run low-rank --tol 0.02 --save small.safetensors[/]

    The folder run is written by [bold]bnrank train low-rank --depth 12 --width 30 --ridge 0.002 --steps 500[/].
    """
    import torch

    from bnrank._core import validation
    from bnrank.cli.samples import taken
    from bnrank.discovery.compression.result import expect_storable

    validation.choice(dtype, "dtype", ["float64", "float32"])
    page_path(out, model, data, files.weights)
    output_path(save, "save", model, data, files.weights, out, suffix=".safetensors")
    table = columns.table(data, outputs=False)
    net, _ = files.read(model)
    if ":" in model and files.weights is None:
        say("no --weights: using the module as returned by the function")
    with naming({"network": "MODEL"}):
        expect_storable(net, tag, "--tag, as in --tag v1")
    held_out = 0.2 if table.x_test is None else taken(table.x_test, net)
    found = bnrank.compress(
        net,
        taken(table.x, net),
        tol=tol,
        held_out=held_out,
        tune=tune,
        outputs=outputs or None,
        seed=seed,
        dtype=getattr(torch, dtype),
        max_minutes=max_minutes,
    )
    say(str(found))
    title = f"{Path(model).name} on {table.name}"
    write_page({title: found}, out, f"bnrank compress: {title}")
    if not found.changed:
        say("The network: cannot be reduced; none is written")
        return
    with naming({"path": "--save"}):
        say(f"The network: {found.save(save, tag)}")
    net_too = "" if "" in found.plan else ", net) with the original network net"
    say(f"  in Python: bnrank.load({str(save)!r}{net_too or ')'}")
