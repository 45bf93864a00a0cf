"""Charts and words of a sweep: progress, heat maps over pairs of axes, and failures."""

import itertools
from collections import Counter
from typing import Any

import numpy as np
import plotly.graph_objects as go

from bnrank.reporting.charts import parts
from bnrank.training import Sweep
from bnrank.training.sweeping.diagrams import Diagram, phase_diagram, short, words

RESULTS = ("bottleneck_rank", "loss")
FINISHED, FAILED, WAITING, RUNNING = "finished", "failed", "waiting", "running"
MOST = 6  # heat maps of a page
NUMBERED = 8  # columns up to which cells have numbers


def sweep_figures(sweep: Sweep) -> dict[str, go.Figure]:
    """Return heat maps of rank and loss over pairs of axes, by caption; against the seed only without another axis."""
    table = sweep.to_frame()
    axes = [name for name in sweep.axes if name != "seed"] or sweep.axes
    axes = [name for name in axes if table[name].map(np.isscalar).all() and table[name].nunique() <= 200]
    pairs = list(itertools.combinations(axes, 2)) or [(name, "seed") for name in axes if name != "seed"]
    found: dict[str, go.Figure] = {}
    for (x, y), value in itertools.product(pairs, RESULTS):
        if len(found) < MOST and value in table and table[value].notna().any():
            drawn = phase_diagram(table, x, y, value)
            found[f"{drawn.title}, over {words(x)} and {words(y)}"] = heat_map(drawn)
    return found


def heat_map(drawn: Diagram) -> go.Figure:
    """Return a phase diagram as a figure, its colors on a logarithmic scale where its values are far apart."""
    z = np.log10(drawn.means) if drawn.logarithmic else drawn.means
    bar = parts.color_bar("", orientation="h", y=-0.32, yanchor="top")
    if drawn.logarithmic:
        known = z[np.isfinite(z)]
        ticks = np.linspace(known.min(), known.max(), 5).tolist()
        bar |= {"tickvals": ticks, "ticktext": [short(10**tick) for tick in ticks]}
    hover = f"{words(drawn.x)} %{{x}}<br>{words(drawn.y)} %{{y}}<br>{words(drawn.value)} %{{customdata[0]}}"
    custom = [
        [[parts.short(mean), int(count)] for mean, count in zip(*lines, strict=True)]
        for lines in zip(drawn.means, drawn.counts, strict=True)
    ]
    more: dict[str, Any] = {
        "x": list(map(short, drawn.xs)),
        "y": list(map(short, drawn.ys)),
        "zmin": None,
        "customdata": custom,
    }
    more["colorscale"] = parts.heat_scale(light=False)  # the lowest value is no empty cell
    if len(drawn.xs) <= NUMBERED and len(drawn.ys) <= 2 * NUMBERED:
        texts = [["" if count == 0 else text for text, count in row] for row in custom]
        more |= {"text": texts, "texttemplate": "%{text}", "textfont": {"size": 10}}
    heat = parts.heat_map(parts.numbers(z), f"{hover}<br>%{{customdata[1]}} networks", bar, **more)
    axes = ({"title": words(name), "type": "category"} for name in (drawn.x, drawn.y))
    return parts.figure([heat], *axes)


def sweep_text(sweep: Sweep) -> str:
    """Return progress, the time that is left, and the folder."""
    counts, total = sweep.counts, len(sweep.rows)
    done = counts.get(FINISHED, 0)
    share = f" ({100 * done / total:.0f} percent)" if total else ""
    others = [f"{count:,} {status}" for status, count in sorted(counts.items()) if status != FINISHED]
    said = [f"{done:,} of {total:,} networks are finished{share}{', '.join(['', *others])}."]
    left = sweep.seconds_left
    if WAITING in counts or RUNNING in counts:
        said.append(f"About {_duration(left)} left." if np.isfinite(left) else "Nobody is at work on what is left.")
    return "\n\n".join([" ".join(said), f"Folder: {sweep.path}"])


def failures(sweep: Sweep, most: int = 20) -> list[tuple[str, str]]:
    """Return a title and the whole error of each kind of failure, the most frequent first."""
    rows = [row for row in sweep.rows if row["status"] == FAILED]
    found = []
    for error, count in Counter(str(row["error"]) for row in rows).most_common(most):
        one = next(row for row in rows if str(row["error"]) == error)
        place = ", ".join(f"{words(name)} {short(one[name])}" for name in sweep.axes if name in one)
        first = error.splitlines()[0] if error else "no reason is known"
        found.append((f"{count} failed{f', as at {place}' if place else ''}: {first}", error))
    return found


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} minutes" if seconds < 5400 else f"{seconds / 3600:.1f} hours"
