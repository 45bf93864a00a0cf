"""The demo: two phenomena of the theory, trained, measured and reported on a page."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from bnrank.figures.f09_first_escape.figure import escape
from bnrank.figures.harness.training import mlp, train_recorded
from bnrank.measures import profile
from bnrank.reporting import Section, plots, report
from bnrank.tasks import Task, handwritten_digits, low_rank_map
from bnrank.training import GradientDescent, Run

DEPTHS, MEMBERS, WIDTH, STEPS, RIDGE = (4, 8, 12, 16, 24), 2, 50, 1000, 1e-3
ESCAPE_STEPS, IMAGES = 1000, 1000
QUICK_DEPTHS, QUICK_MEMBERS, QUICK_IMAGES = (4, 8, 16), 1, 300
NORM_COLUMNS = ("depth", "||theta||^2", "rank in the middle", "cost")
NOTES = (
    "Deep networks trained with an L2 penalty use few of their dimensions, and so do networks that start from small "
    "weights. Both kinds were trained for this page."
)


@dataclass(frozen=True)
class Demo:
    """The result of the demo.

    Attributes
    ----------
    rows : list of dict
        A table row per network: task, depth, seed, rank in the middle, ||theta||^2, cost.
    page : Path
        The HTML page.
    digits : str
        Which handwritten digits were used, "mnist" or "digits".
    escaped : str
        A sentence on the first escape.
    """

    rows: list[dict[str, Any]]
    page: Path
    digits: str
    escaped: str


def run_demo(
    out: str | os.PathLike[str],
    progress: bool = True,
    steps: int = STEPS,
    images: int = IMAGES,
    *,
    quick: bool = False,
) -> Demo:
    """Train deep networks on a task of rank 2, and one network on digits from small weights; write a page.

    Parameters
    ----------
    out : path
        Folder for the page, ``report.html``, and the runs (those of ``quick`` in its folder ``quick``).
    progress : bool
        Show progress bars.
    steps : int
        Evaluations of cost and gradient per deep network.
    images : int
        Digits to train on.
    quick : bool
        Fewer depths, one seed, and at most 300 digits: the same page in about a quarter of the time.

    Examples
    --------
    >>> import bnrank
    >>> demo = bnrank.figures.run_demo("demo", quick=True, progress=False)      # doctest: +SKIP
    >>> demo.page.name                                                          # doctest: +SKIP
    'report.html'
    """
    depths, members = (QUICK_DEPTHS, QUICK_MEMBERS) if quick else (DEPTHS, MEMBERS)
    images = min(images, QUICK_IMAGES) if quick else images
    folder, page = Path(out), Path(out) / "report.html"
    folder = folder / "quick" if quick else folder  # runs with other seeds and images do not resume each other
    task = low_rank_map()
    options: dict[str, Any] = {"ridge": RIDGE, "steps": steps, "members": members, "seed": 0, "records": 40}
    runs = {}
    for depth in depths:
        runs[depth] = train_recorded(mlp(task, depth, WIDTH), task, folder / f"depth-{depth:02d}", progress, **options)
    digits = handwritten_digits(images)
    small_start = mlp(digits, 6, 50, bias=False, init=5e-3)
    descent = GradientDescent(lr=0.005, schedule="normalized")
    options = {"steps": ESCAPE_STEPS, "seed": 0, "optimizer": descent, "records": 120}
    left = train_recorded(small_start, digits, folder / "digits", progress, **options)
    deep, rows = _low_rank_section(task, runs)
    small, last, escaped = _digits_section(digits, left)
    report([deep, small], page, title="bnrank demo", notes=NOTES)
    return Demo([*rows, last], page, digits.name, escaped)


def _low_rank_section(task: Task, runs: dict[int, Run]) -> tuple[Section, list[dict[str, Any]]]:
    """Return the part of the page on the deep networks, and their table rows."""
    profiles, rows = {}, []
    for depth, run in runs.items():
        for member in range(run.members):
            measured = profile(run.network(member), task.x, task.y)
            if member == 0:
                profiles[f"depth {depth}"] = measured
            rows.append(_row(task, run.summary.isel(member=member), measured))
    depths, norms, ranks, costs = zip(*[[row[key] for key in NORM_COLUMNS] for row in rows], strict=True)
    picture = plots.norm_versus_depth(depths, norms, ranks, costs)
    seeds = next(iter(runs.values())).members
    text = (
        f"y depends on {task.truth.rank if task.truth else 0} of 8 latents of x. Networks of width {WIDTH}, ridge "
        f"{RIDGE}, {len(runs)} depths, {seeds} seed{'s' if seeds > 1 else ''}. The theory expects two singular values "
        "near 1 in the middle of deep enough networks, the others vanishing, and a norm that grows by about two per "
        "layer."
    )
    histories = {f"depth {depth}": run.history for depth, run in reversed(runs.items())}  # the deepest is shown first
    pictures = {"Parameter norm against depth": picture.figure}
    return Section("A task of rank 2", text, rows=rows, figures=pictures, history=histories, profile=profiles), rows


def _digits_section(task: Task, run: Run) -> tuple[Section, dict[str, Any], str]:
    """Return the part of the page on the digits, the table row, and a sentence on the escape."""
    depth = run.history.sizes["layer"]
    found = escape(run.history.loss.values[0])
    row = run.history.isel(member=0, step=-1 if found is None else found)
    values = row.weight_singular_values.isel(layer=slice(3, None))
    ratio = float((values.sel(index=2) / values.sel(index=1)).max())
    after = f"after the first escape (step {int(row.step)}) s_2 / s_1 is at most {ratio:.3f} in layers 4 to {depth}"
    never = f"the network has not left the first saddle in {int(row.step)} steps"
    escaped = f"{task.name}, {task.n} images: {never if found is None else after}"
    measured = profile(run.network(0), task.x, task.y)
    text = (
        f"{escaped}. A bias-free network of depth {depth} with weights N(0, 0.005^2), trained by normalized gradient "
        "descent: every step is half a percent of the length of theta."
    )
    pictures = {"Loss and spectra": np.ravel(plots.plateaus(run.history))[0].figure}
    title = "Handwritten digits"
    section = Section(f"{title} from small weights", text, figures=pictures, history=run.history, profile=measured)
    return section, _row(task, run.summary.isel(member=0), measured), escaped


def _row(task: Task, last: xr.Dataset, measured: xr.Dataset) -> dict[str, Any]:
    """Return the table row of a network from its summary and its profile."""
    depth = measured.sizes["layer"]
    return {
        "task": task.name,
        "depth": depth,
        "seed": int(last.seed),
        "rank in the middle": int(measured.weight_rank.sel(layer=max(1, depth // 2))),
        "||theta||^2": float(last.parameter_norm),
        "cost": float(last.cost),
    }
