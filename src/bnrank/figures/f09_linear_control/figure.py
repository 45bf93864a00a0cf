"""F9L: the control of F9, a deep linear network, whose saddle-to-saddle dynamics has a closed form.

The task is drawing digits: from a label, one-hot and whitened, to the image. Its matrix S = Y^T X / N is the transpose
of the one for classification of the images. For whitened inputs C = ||A - S||_F^2 + const, A = W_L ... W_1, and from
balanced weights that share the singular vectors of S every mode a_k of A evolves independently,

    da_k/dt = 2 L a_k^{2 - 2/L} (s_k - a_k).

The images enter through ten class means only, so the gradient over all of them costs as much as over ten samples.
"""

import itertools
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Picture

from bnrank.figures.f09_linear_control import computation as linear
from bnrank.figures.f09_linear_control.computation import HALF, Reduced, Staircase
from bnrank.figures.harness.claims import Claim, above, below, is_true
from bnrank.figures.harness.drawing import color, label, panels
from bnrank.figures.harness.figure import Figure, Outcome
from bnrank.networks import LinearNetwork
from bnrank.reporting import Section
from bnrank.training.gradient_flow import Flow

ALIGNED = 0.05  # fraction of s_k from which the law is compared in the run from Gaussian weights


def claims(stairs: Staircase, exact: Staircase, task: Reduced, modes: int, start: float) -> tuple[Claim, ...]:
    """Return the claims on a run from Gaussian weights and on one from aligned weights of size ``start``."""
    u, s, vt = np.linalg.svd(task.correlation, full_matrices=False)
    depth, found = len(stairs.flow.history.layer), stairs.found[1 : modes + 1]
    table = linear.rank_table(stairs)
    ranks = ", ".join("/".join(map(str, np.unique(row))) for row in table)
    in_order = len(table) >= modes and (table == 1 + np.arange(len(table))[:, None]).all()
    nets = [linear.network_at(stairs.flow, p) for p in found]
    maps = [np.zeros_like(task.correlation), *(linear.end_to_end(net) for net in nets)]
    measured = []
    for k, (net, p) in enumerate(zip(nets, found, strict=True)):
        left, _, right = np.linalg.svd(maps[k + 1] - maps[k])
        overlap = min(abs(left[:, 0] @ u[:, k]), abs(right[0] @ vt[k]))
        values = np.array([np.linalg.svd(linear.array_of(w), compute_uv=False)[: k + 1] for w in net.weights])
        apart = np.abs(values / values.mean(0) - 1).max()
        measured.append((overlap, abs(p.loss / linear.best_losses(task)[k + 1] - 1), apart))
    overlaps, losses, shared = np.array(measured or [(0.0, math.inf, math.inf)]).T
    complete = len(measured) == modes
    drift, initial = _drift(stairs.flow)
    late = np.array([_late(stairs, k, s[k], depth) for k in range(modes)])
    times = np.array([linear.time_of_mode(start**depth, HALF * s[k], s[k], depth) for k in range(modes)])
    off = np.abs(exact.escapes[:modes] / times - 1).max()
    relative, closed = "largest relative difference", "against the closed law"
    aligned = "k-th new mode against the k-th singular vectors of Y^T X, smallest overlap"
    balanced = "drift of W_{l+1}^T W_{l+1} - W_l W_l^T, relative to the largest ||W_l||_F^2"
    gaussian = f"Gaussian weights: time from s_k / 20 to s_k / 2 {closed}, {relative}"
    took = math.inf if np.isnan(late).all() else np.nanmax(late)
    return (
        is_true("rank of all layers at the plateaus after the first", in_order, ranks, "1, 2, 3, ... in every layer"),
        above(aligned, overlaps.min(), 0.99, given=complete),
        below(f"loss at plateau k against the best map of rank k, {relative}", losses.max(), 0.01, given=complete),
        below(balanced, drift, 1e-4, note=f" (its norm is {initial:.2g} throughout)"),
        below(f"singular values that all layers share, {relative} from their mean", shared.max(), 0.05, given=complete),
        below(f"aligned weights: escape times of all modes {closed}, {relative}", off, 0.01),
        below(gaussian, took, 0.05, given=not np.isnan(late).any()),
    )


@dataclass(frozen=True)
class Settings:
    """Settings of F9L.

    Attributes
    ----------
    images : int or None
        Number of digits; None for all.
    depth, width, init, seed
        Of the network with Gaussian weights.
    start : float
        Singular values of the layers of the aligned network.
    modes : int
        Number of modes that have to escape.
    others : tuple of (width, seed)
        Of further networks with Gaussian weights.
    """

    images: int | None = None
    depth: int = 6
    width: int = 100
    init: float = 0.018
    start: float = 0.25
    modes: int = 3
    seed: int = 0
    others: tuple[tuple[int, int], ...] = ((50, 0), (50, 1))


def make(settings: Settings, folder: Path, progress: bool) -> Outcome:
    """Follow the flow from Gaussian and from aligned weights, and from Gaussian weights of other widths and seeds.

    Gaussian weights of other widths n are N(0, init^2 width / n), so that ||W_l||_op stays about the same.
    """
    s, (task, name) = settings, linear.drawing(settings.images)
    n_in, n_out = task.x.shape[1], task.y.shape[1]
    runs = {}
    for width, seed in ((s.width, s.seed), *s.others):
        widths = [n_in, *[width] * (s.depth - 1), n_out]
        init = s.init * math.sqrt(s.width / width)
        net = LinearNetwork(widths, init=init, seed=seed, dtype=torch.float64)
        runs[width, seed] = linear.staircase(net, task, s.modes, skip=True)
    stairs = runs[s.width, s.seed]
    aligned = linear.aligned_network(task.correlation, s.depth, s.width, s.start)
    exact = linear.staircase(aligned, task, s.modes, skip=False)
    text = (
        f"{name}, drawn from their labels: {n_in} whitened inputs, {n_out} targets, depth {s.depth}. No map of labels "
        f"can reduce the loss below {task.constant:.4g}, which the pictures leave out. Gaussian weights start at "
        f"{s.init:g}, width {s.width}; the plateau at the origin is skipped. Aligned weights have the singular values "
        f"{s.start:g} in every layer, and their flow is followed from the start.\n\n"
        "The width enters through the random weights alone. From depth 3 on every pair of singular vectors of Y^T X is "
        "a local optimum of the escape speed: which of near singular values comes first depends on the draw too."
    )
    rows = [_row(*key, run, s.modes) for key, run in runs.items()]
    sections = (
        Section("Runs", text=text, rows=rows, history=stairs.flow.spectra),
        Section("Effective rank of every layer at every plateau", rows=_rank_rows(stairs)),
    )
    pictures = {"linear-staircase": picture(stairs, exact, task, s.modes, s.start)}
    captions = {"linear-staircase": "Loss, singular values and modes, from Gaussian and from aligned weights"}
    made = claims(stairs, exact, task, s.modes, s.start)
    return Outcome(claims=made, sections=sections, pictures=pictures, settings={"data": name}, captions=captions)


def picture(stairs: Staircase, exact: Staircase, task: Reduced, modes: int, start: float) -> Picture:
    """Draw the loss with its plateaus, layers' singular values, and modes with the law dashed."""
    drawn, axes = panels(2, 3, (14.5, 7.6))
    drawn.get_layout_engine().set(wspace=0.06)  # type: ignore[union-attr,call-arg]
    depth = len(stairs.flow.history.layer)
    s = np.linalg.svd(task.correlation, compute_uv=False)
    spectra = stairs.flow.spectra
    when = spectra["time_since_handover"].values[0]
    shown = ((stairs, "Gaussian weights", 1), (exact, "Aligned weights", depth))
    for (left, middle, right), (run, title, layer) in zip(axes, shown, strict=True):
        _draw_loss(left, run, linear.best_losses(task), modes, title)
        for k in range(modes):
            right.plot(run.times, run.modes[:, k], color=color(k), linewidth=1.8, label=f"k = {k + 1}")
            begin = run.times[0] if run is exact else _small(run, k, s[k])
            if math.isfinite(begin) and begin < run.times[-1]:
                times = np.linspace(begin, run.times[-1], 600)
                value = start**depth if run is exact else ALIGNED * s[k]
                law = linear.law(value, s[k], depth, times - begin)
                right.plot(times, law, color="black", linestyle="--", linewidth=1.0)
        since = "law from the start" if run is exact else "law from $s_k/20$"
        label(right, _clock(run), "$u_k^T A v_k$", f"Modes of the map; dashed: {since}", legend="upper left")
        values = spectra["weight_singular_values"].sel(layer=layer).values[0]
        for k in range(values.shape[1]):
            hue = color(k) if k < modes else "0.75"
            middle.plot(when, values[:, k], color=hue, linewidth=1.4, zorder=2 + (k < modes))
        for k in range(modes):
            middle.axhline(s[k] ** (1 / depth), color="0.4", linestyle=":", linewidth=0.9, zorder=1)
        title = f"Gaussian weights, layer {layer}; dotted: $s_k^{{1/L}}$"
        label(middle, _clock(stairs), "singular value of W", title, bottom=0)
    for ax in (*axes[0], axes[1, 1]):
        ax.set_xlim(0, stairs.times[-1])
    return drawn


def _draw_loss(ax: Axes, run: Staircase, levels: np.ndarray, modes: int, title: str) -> None:
    for level in levels[: modes + 1]:
        ax.axhline(level, color="0.45", linestyle="--", linewidth=0.9)
    for p in run.found:
        begin, end = max(p.start, 0.0), min(p.end, float(run.times[-1]))
        ax.axvspan(begin, end, color="0.93", zorder=0)
        ax.annotate(f"{p.number - 1}", ((begin + end) / 2, p.loss), (0, 3), textcoords="offset points")
    ax.plot(run.flow.times_since_handover, run.flow.loss, color=color(0), linewidth=1.8)
    label(ax, _clock(run), "C minus its constant", f"{title}; dashed: best of rank 0, 1, 2, …")
    ax.margins(y=0.12)


def _clock(run: Staircase) -> str:
    return "t" if run.flow.handover is None else "t since the hand-over"


def _rank_rows(stairs: Staircase) -> list[dict[str, object]]:
    """Return one table row per plateau after the first."""
    rows = []
    for p in stairs.found[1:]:
        row: dict[str, object] = {"plateau": p.number, "time": p.time, "loss": p.loss, "gradient norm": p.gradient_norm}
        rows.append(row | {f"layer {layer}": rank for layer, rank in enumerate(p.ranks, 1)})
    return rows


def _row(width: int, seed: int, run: Staircase, modes: int) -> dict[str, object]:
    """Return the table row of a run."""
    return {
        "width": width,
        "seed": seed,
        "time skipped": run.flow.handover.time if run.flow.handover is not None else 0.0,
        "escape times after it": ", ".join(f"{t:.4g}" for t in run.escapes[:modes]),
        "order of the modes": ", ".join(map(str, np.argsort(run.escapes[:modes]) + 1)),
        "plateaus": len(run.found),
        "evaluations": run.flow.evaluations,
        "seconds": run.flow.seconds,
    }


def _late(stairs: Staircase, k: int, s: float, depth: int) -> float:
    """Return the relative difference between the measured time from s / 20 to s / 2 and the law's."""
    took = stairs.escapes[k] - _small(stairs, k, s)
    return abs(took / linear.time_of_mode(ALIGNED * s, HALF * s, s, depth) - 1) if math.isfinite(took) else math.nan


def _small(stairs: Staircase, k: int, s: float) -> float:
    """Return when mode k is last at s / 20 before it escapes, inf if it does not escape."""
    if not math.isfinite(stairs.escapes[k]):
        return math.inf
    before = stairs.times < stairs.escapes[k]
    times, values = stairs.times[before], stairs.modes[before, k]
    below = np.flatnonzero(values < ALIGNED * s)
    first = int(below[-1]) if len(below) else 0
    return linear.crossing(times[first:], values[first:], ALIGNED * s, len(stairs.flow.history.layer))


def _drift(path: Flow) -> tuple[float, float]:
    """Return the largest change of W_{l+1}^T W_{l+1} - W_l W_l^T, and its largest size, both relative."""
    weights = [[linear.array_of(w) for w in net.weights] for net in path.networks]  # type: ignore[union-attr]
    apart = [[b.T @ b - a @ a.T for a, b in itertools.pairwise(own)] for own in weights]
    scale = max(float((w**2).sum()) for w in weights[-1])
    norm = np.linalg.norm
    drift = max(norm(now - then) for own in apart for now, then in zip(own, apart[0], strict=True))
    return float(drift) / scale, float(max(norm(d) for d in apart[0])) / scale


PAPER = Settings(init=0.012, start=0.2, modes=4, others=tuple((n, draw) for n in (25, 50, 200) for draw in range(4)))

FIGURE = Figure(
    "F9L",
    "first-escape-linear",
    "The control: a deep linear network learns one singular vector at a time",
    "T37 and T41 with no activation; Bantzis2025, Figure 1, for ReLU",
    "ranks 1, 2, 3, ... of all layers at the plateaus, singular vectors in order, layers balanced, times as computed",
    {"quick": Settings(), "paper": PAPER},
    make,
    gigabytes={"quick": 1.5, "paper": 1.6},
    data={"paper": ("mnist",)},
    printed=False,
)
