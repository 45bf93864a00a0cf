"""Random small problems finished to stationary points: python -m benchmarks.minima --seeds 0 50.

With --landscape, one problem from many seeds: how many minima, of which ranks and losses. With --figure F1 or F4, the
networks of these figures. With --expansion, minima of F4's problem followed through depths 8 to 24. With --out, a row
per finished network is appended to a file of the folder, which ``python -m benchmarks.pages --store`` keeps.
"""

import argparse
import statistics
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import bnrank
from benchmarks import at_minima, continuation, landscape
from benchmarks.against.trials import markdown
from benchmarks.finished import finish
from benchmarks.stored import writer
from bnrank.figures.f01_bottleneck_spectra.figure import Settings as Spectra
from bnrank.figures.f04_norm_and_depth.figure import RANK, RIDGE
from bnrank.figures.f04_norm_and_depth.figure import Settings as Depths
from bnrank.figures.harness.training import mlp

FIGURE, EXPANSION = (8, 12, 16, 20), range(8, 25, 2)  # depths
MIDDLE = 0.05  # least singular value of the middle weight that is shown
LOWERS = 1 + 1e-6  # a new neuron of a larger effect lowers the loss to first order; 1 up to rounding is usual

Row = dict[str, Any]


def draw(seed: int) -> tuple[bnrank.Task, bnrank.MLP, float]:
    """Return a task of low rank, with noise or not, a network of depth 3 to 6 and width 5 to 20, and a ridge."""
    rng = np.random.default_rng(seed)
    depth, width, n = int(rng.integers(3, 7)), int(rng.integers(5, 21)), int(rng.integers(20, 101))
    d_in, d_out = int(rng.integers(2, 9)), int(rng.integers(1, 9))
    latent = int(rng.integers(1, min(d_in, 4) + 1))
    rank = int(rng.integers(1, min(latent, d_out) + 1))
    ridge, noise = float(10 ** rng.uniform(-3.5, -1.7)), float(rng.choice([0.0, 0.1]))
    sizes = {"n": n, "d_in": d_in, "d_out": d_out, "latent": latent, "rank": rank}
    task = bnrank.tasks.low_rank_map(**sizes, width=20, seed=seed, noise=noise)
    return task, bnrank.MLP([d_in, *[width] * (depth - 1), d_out]), ridge


def figures(name: str, depths: Sequence[int]) -> Iterator[tuple[str, nn.Module, bnrank.Task, float]]:
    """Return name, trained network, task and ridge: the best member of F1, or the first seed of F4 at every depth."""
    if name == "F1":
        spectra, task = Spectra(), bnrank.tasks.bottleneck_spectra_map(rank=Spectra().rank)
        ridge = 0.05 / spectra.depth
        net = mlp(task, spectra.depth, spectra.width)
        options = {"steps": spectra.steps, "members": spectra.members, "seed": 0}
        run = bnrank.train(net, task, ridge=ridge, progress=False, **options)
        yield "F1", run.network(int(run.summary.loss.argmin("member"))), task, ridge
        return
    of = Depths()
    task = bnrank.tasks.low_rank_map(rank=RANK, y_norm_squared=of.y_norm_squared)
    for depth in depths:
        net = mlp(task, depth, of.width)
        run = bnrank.train(net, task, ridge=RIDGE, steps=of.steps, seed=of.seeds[0], progress=False)
        yield f"F4 at depth {depth}", run.network(0), task, RIDGE


def finish_figures(
    name: str, depths: Sequence[int], max_minutes: float, births: bool, append: Callable[[Row], None]
) -> None:
    """Print and append what the networks of a figure end at."""
    for label, net, task, ridge in figures(name, depths):
        done, numbers = finish(net, task, ridge, max_minutes, births)
        middle = {"middle_before": middle_values(net), "middle": middle_values(done.network)}
        append({"network": label, "depth": len(done.network.weights), **middle, **numbers})
        before = f"{label}: loss {done.loss_before:.8f} before, {numbers['processor']:.0f} s of processor"
        print(f"{before}, {done.seconds:.0f} s, {done.reason}\n{done.stationarity}", flush=True)


def middle_values(net: nn.Module) -> list[float]:
    """Return the singular values above 0.05 of the weight in the middle, without its bias."""
    weights = [p for p in net.parameters() if p.ndim == 2]
    values = torch.linalg.svdvals(weights[len(weights) // 2].detach().double())
    return [round(float(value), 4) for value in values if value > MIDDLE]


def finish_problems(seeds: Sequence[int], max_minutes: float, append: Callable[[Row], None]) -> None:
    """Print and append what random problems end at, and print the summary."""
    rows = []
    for seed in seeds:
        task, net, ridge = draw(seed)
        run = bnrank.train(net, task, ridge=ridge, steps=1000, seed=seed, progress=False)
        done, numbers = finish(run.network(0), task, ridge, max_minutes)
        rows.append({"seed": seed, "widths": list(net.widths), "samples": task.n, "ridge": ridge, **numbers})
        append(rows[-1])
        print(
            f"seed {seed}: widths {net.widths}, N {task.n}, ridge {ridge:.2g}: {numbers['processor']:.1f} s of "
            f"processor, relative gradient {numbers['residual']:.1e}, loss {done.loss_before:.8f} -> {done.loss:.8f}, "
            f"{numbers['kinks']} kinks, largest new neuron {numbers['births']:.4f}, {done.kind}; {done.reason}",
            flush=True,
        )
    print(f"\n{problems(rows)}")


def problems(rows: Sequence[Row]) -> str:
    """Return a table of the ends of random problems, a row per kind of point, and what is not as it should be."""
    lines = []
    for kind in ("all", *sorted({row["kind"] for row in rows})):
        some = [row for row in rows if kind in ("all", row["kind"])]
        seconds = [row["processor"] for row in some]
        times = f"{statistics.median(seconds):.1f} s", f"{max(seconds):.1f} s"
        lines.append([kind, len(some), f"{max(row['residual'] for row in some):.0e}", *times])
    headings = ["kind", "problems", "largest relative gradient", "processor, median", "processor, largest"]
    left = sorted(row["births"] for row in rows if row["births"] > LOWERS)
    effects = f" ({', '.join(f'{effect:.4f}' for effect in left)})" if left else ""
    said = (
        f"{sum(row['residual'] <= 1e-8 for row in rows)} of {len(rows)} reach a relative gradient of 1e-8, "
        f"{sum(row['loss'] > row['before'] for row in rows)} end above the loss of the start, and {len(left)} leave a "
        f"new neuron of an effect above 1{effects}."
    )
    return f"{markdown(headings, lines)}\n\n{said}"


def depths(rows: Sequence[Row]) -> str:
    """Return a table of the finished networks of figures, a row per network."""
    lines = [
        [
            *(row["network"], f"{row['before']:.6f}", f"{row['loss']:.6f}", f"{row['residual']:.0e}", row["kinks"]),
            *(", ".join(f"{value:.3g}" for value in row[name]) for name in ("middle_before", "middle")),
            *(f"{row['processor']:.0f} s", f"{row['seconds']:.0f} s"),
        ]
        for row in rows
    ]
    middle = ["middle singular values before", "after"]
    headings = ["network", "loss before", "loss", "relative gradient", "kinks", *middle, "processor", "time"]
    return markdown(headings, lines)


def main() -> None:
    """Print a line per finished network and the summary."""
    parser = argparse.ArgumentParser("python -m benchmarks.minima", description=__doc__)
    parser.add_argument("--seeds", type=int, nargs=2, default=(0, 50), metavar=("FIRST", "END"))
    parser.add_argument("--max-minutes", type=float, default=5.0)
    parser.add_argument("--landscape", action="store_true", help="one problem from every seed")
    parser.add_argument("--picture", type=Path, help="with --landscape or --expansion, its file")
    parser.add_argument("--expansion", action="store_true", help="follow F4's minima of --seeds from depth 8 to 24")
    parser.add_argument("--verdicts", type=Path, help="check statements on finished networks, and write them to a page")
    parser.add_argument("--figure", choices=("F1", "F4"), help="finish networks of a figure")
    parser.add_argument("--depths", type=int, nargs="+", help="with --figure F4 or --expansion")
    parser.add_argument("--no-births", action="store_true", help="with --figure, do not add neurons")
    parser.add_argument("--out", type=Path, help="folder for the numbers of every finished network")
    given = parser.parse_args()

    def append(name: str) -> Callable[[Row], None]:
        return writer(given.out, name, "benchmarks.minima")

    if given.figure:
        births, at = not given.no_births, given.depths or FIGURE
        finish_figures(given.figure, at, given.max_minutes, births, append(f"minima_{given.figure}"))
    elif given.expansion:
        at = given.depths or EXPANSION
        continuation.main(range(*given.seeds), at, given.max_minutes, given.picture, append("minima_expansion"))
    elif given.verdicts:
        at_minima.main(given.verdicts, given.max_minutes)
    elif given.landscape:
        landscape.main(*given.seeds, given.max_minutes, given.picture, append("minima_landscape"))
    else:
        finish_problems(range(*given.seeds), given.max_minutes, append("minima"))


if __name__ == "__main__":
    main()
