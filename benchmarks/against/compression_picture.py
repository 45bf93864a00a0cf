"""Draw output change against parameters: ``python -m benchmarks.against.compression_picture RESULTS.jsonl OUT.png``."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.against import trials
from benchmarks.against.compression_tables import gains

__all__ = ["curve", "draw"]

COLORS = {
    "bnrank": "#D55E00",
    "truncated SVD on data": "#0072B2",
    "truncated SVD": "#56B4E9",
    "Torch-Pruning, global": "#009E73",
    "magnitude, neurons": "#CC79A7",
    "magnitude, single entries": "#000000",
}
LEAST = 1e-3  # changes below are drawn there


def curve(results: Sequence[dict[str, Any]], method: str) -> np.ndarray:
    """Return (strengths, 4): parameters over those before, and change with its least and largest over the seeds.

    Medians over the seeds, of what was cut without fine-tuning.
    """
    rows: dict[float, list[tuple[float, float]]] = {}
    for result in results:
        if result["method"] == method:
            for point in result.get("points", []):
                if not point["fine_tuned"]:
                    share = point["parameters"] / result["dense"]["parameters"]
                    rows.setdefault(point["strength"], []).append((share, max(point["change"], LEAST)))
    found = []
    for strength in sorted(rows):
        share, change = np.array(rows[strength]).T
        found.append((np.median(share), np.median(change), change.min(), change.max()))
    return np.array(found).reshape(-1, 4)


def draw(results: Sequence[dict[str, Any]]) -> Figure:
    """Draw a panel per case: lines as cut, with the range over the seeds; points fine-tuned, at 1, 2 and 5 percent."""
    names = list(dict.fromkeys(r["case"] for r in results))
    figure = Figure(figsize=(11, 3.5 * -(-len(names) // 3)), layout="constrained")
    panels = np.atleast_1d(figure.subplots(-(-len(names) // 3), min(3, len(names)), sharey=True)).ravel()
    for axes, name in zip(panels, names, strict=False):
        some = [r for r in results if r["case"] == name]
        for method, color in COLORS.items():
            _method(axes, some, method, color)
        seeds = len({r["seed"] for r in some})
        axes.set(xscale="log", yscale="log", ylim=(LEAST, 2), title=f"{name} ({seeds} seeds)")
        for level in (0.01, 0.02, 0.05):
            axes.axhline(level, color="0.85", lw=0.8, zorder=0)
    for axes in panels[len(names) :]:
        axes.remove()
    figure.supxlabel("parameters, share of those before")
    figure.supylabel("change of the output on held-out samples")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=4, frameon=False)
    return figure


def _method(axes: Axes, some: list[dict[str, Any]], method: str, color: str) -> None:
    line, ours = curve(some, method), method == "bnrank"
    if not len(line):
        return
    axes.plot(line[:, 0], line[:, 1], color=color, lw=2.2 if ours else 1.3, label=method, zorder=3 if ours else 2)
    axes.fill_between(line[:, 0], line[:, 2], line[:, 3], color=color, alpha=0.12, lw=0)
    for target in ("0.01", "0.02", "0.05"):
        if found := list(gains(some, method, target, "tuned").values()):
            style = {"marker": "o", "ms": 6 if ours else 4, "mec": color, "mfc": color if ours else "white"}
            axes.plot(1 / np.median(found), float(target), ls="", zorder=4, **style)


def main() -> None:
    """Read stored results and write the picture."""
    parser = argparse.ArgumentParser("python -m benchmarks.against.compression_picture", description=__doc__)
    parser.add_argument("results", type=Path, help="compression.jsonl, as written by python -m benchmarks.against")
    parser.add_argument("out", type=Path, help="the picture, .png")
    arguments = parser.parse_args()
    if not arguments.results.is_file():
        parser.error(f"results: {str(arguments.results)!r} does not exist")
    lines = trials.stored(arguments.results).values()
    draw([{**line["cell"], **result} for line in lines for result in line["results"]]).savefig(arguments.out, dpi=80)


if __name__ == "__main__":
    main()
