"""A monitor's rows as a dataset and as a table."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr

from bnrank._core import text
from bnrank.theory.invariants.conserved import Conserved
from bnrank.theory.invariants.drift import Ledger
from bnrank.theory.invariants.linear_tail import Tail
from bnrank.theory.invariants.squares import Array
from bnrank.theory.invariants.track import Track

__all__ = ["dataset", "table"]

MEASURES = {
    "value": ("theta^2", "||Q||"),
    "drift": ("theta^2", "||Q - Q at the first row||"),
    "relative": ("1", "drift over ||in + out||, the larger of now and at the first row"),
    "by_step": ("theta^2", "component along the drift of what the size of the steps explains"),
    "by_decay": ("theta^2", "component along the drift of what weight decay explains"),
    "rest": ("theta^2", "component along the drift of what is left"),
    "norm_by_step": ("theta^2", "norm of what the size of the steps explains"),
    "norm_by_decay": ("theta^2", "norm of what weight decay explains"),
    "norm_rest": ("theta^2", "norm of what is left"),
}
TAIL = {
    "ratio": ("1", "||W||_op^2 / ||W||_F^2"),
    "alignment": ("1", "|<v, u>| of the first singular vectors, with the next layer"),
    "operator": ("theta^2", "||W||_op^2"),
    "bound": ("theta^2", "what ||W||_op^2 is at least by T48 from the first row's constants"),
}
SHARES = {"by step size": "by_step", "by weight decay": "by_decay", "rest": "rest"}


def dataset(
    tracks: Mapping[int, Track], quantities: Sequence[Conserved], tail: Tail, attrs: dict[str, Any]
) -> xr.Dataset:
    """Return all rows over (member, row, ...)."""
    rows = max(len(track.steps) for track in tracks.values())

    def stacked(of: Mapping[int, Array], size: tuple[int, ...]) -> Array:
        result = np.full((len(tracks), rows, *size), math.nan)
        for i, values in enumerate(of.values()):
            result[i, : len(values)] = values
        return result

    variables: dict[str, Any] = {}
    series = {member: track.series() for member, track in tracks.items()}
    for name in Ledger.NAMES:
        units, long = MEASURES[name]
        values = stacked({m: s[name] for m, s in series.items()}, (len(quantities),))
        variables[name] = (("member", "row", "quantity"), values, {"units": units, "long_name": long})
    names = next(iter(tracks.values())).signs.names
    wide = {m: _wide(track, len(names), len(tail)) for m, track in tracks.items()}
    about = "fraction of signs that differ from those of the row before that has them"
    changes = stacked({m: w["sign_changes"] for m, w in wide.items()}, (len(names),))
    variables["sign_changes"] = (("member", "row", "parameter"), changes, {"units": "1", "long_name": about})
    for name, other in (("last", "the row before that has it"), ("first", "the first row")):
        turned = stacked({m: w[f"turned_from_{name}"] for m, w in wide.items()}, ())
        long = f"1 - cos of the angle of theta to that of {other}"
        variables[f"turned_from_{name}"] = (("member", "row"), turned, {"units": "1", "long_name": long})
    for name, (units, long) in TAIL.items():
        values = stacked({m: w[name] for m, w in wide.items()}, (len(tail),))
        variables[name] = (("member", "row", "layer"), values, {"units": units, "long_name": long})
    steps = stacked({m: np.array(track.steps, dtype=float) for m, track in tracks.items()}, ())
    times = stacked({m: np.array(track.times) for m, track in tracks.items()}, ())
    about_time = {"units": "t", "long_name": "sum of the step sizes, or time of the flow"}
    return xr.Dataset(
        variables,
        coords={
            "member": list(tracks),
            "row": np.arange(rows),
            "quantity": np.array([q.name for q in quantities], dtype=str),
            "kind": ("quantity", np.array([q.kind for q in quantities], dtype=str)),
            "statement": ("quantity", np.array([", ".join(q.ids) for q in quantities], dtype=str)),
            "parameter": np.array(names, dtype=str),
            "layer": np.array(tail.names, dtype=str),
            "step": (
                ("member", "row"),
                np.where(np.isnan(steps), -1, steps).astype(np.int64),
                {"units": "1", "long_name": "steps taken, -1 where a member has no such row"},
            ),
            "time": (("member", "row"), times, about_time),
        },
        attrs=attrs,
    )


def _wide(track: Track, parameters: int, layers: int) -> dict[str, Array]:
    """Return the series that only some rows have, NaN in the others."""
    rows = len(track.steps)
    shapes = {"sign_changes": (parameters,), "turned_from_last": (), "turned_from_first": ()}
    found = {n: np.full((rows, *s), math.nan) for n, s in (shapes | dict.fromkeys(TAIL, (layers,))).items()}
    signs = track.signs
    for i, row in enumerate(track.wide):
        found["sign_changes"][row] = signs.changed[i]
        found["turned_from_last"][row], found["turned_from_first"][row] = signs.from_last[i], signs.from_first[i]
        if layers:
            found["ratio"][row] = track.ratios[i]
            found["alignment"][row, : layers - 1] = track.alignments[i]
            bounds = track.bounds[i] or ()
            found["operator"][row] = [bound.left for bound in bounds] or math.nan
            found["bound"][row] = [bound.right for bound in bounds] or math.nan
    return found


def table(tracks: Mapping[int, Track], quantities: Sequence[Conserved], about: Mapping[str, Any]) -> str:
    """Describe the last rows in words and a table; of several members, the one with the largest drift."""
    most = {m: float(np.nanmax(_latest(track)["relative"], initial=0.0)) for m, track in tracks.items()}
    member = max(most, key=lambda m: most[m])
    track = tracks[member]
    latest = _latest(track)
    which = f" of member {member}, which drifts most of {len(tracks)}" if len(tracks) > 1 else ""
    clock = "" if math.isnan(track.times[-1]) else f", time {track.times[-1]:.4g}"
    lines = [f"{about['module']}{which}: {len(track.steps)} rows, step {track.steps[-1]}{clock}"]
    rows = []
    for i, q in enumerate(quantities):
        drift = latest["drift"][i]
        row = {"conserved quantity": q.name, "relative drift": f"{latest['relative'][i]:.2e}"}
        shares = {name: _share(latest[key][i], drift) for name, key in SHARES.items()}
        rows.append(row | shares)
    lines.append(text.render(rows))
    if track.ratios:
        ratios = ", ".join(f"{n} {r:.4f}" for n, r in zip(track.tail.names, track.ratios[-1], strict=True))
        lines.append(f"||W||_op^2 / ||W||_F^2 of the linear tail: {ratios}")
    if len(track.signs) > 1:
        counts = sum(f * n for f, n in zip(track.signs.changed[-1], track.signs.sizes, strict=True))
        share = counts / max(1, sum(track.signs.sizes))
        before = track.signs.steps[-2]
        turned = track.signs.from_last[-1]
        lines.append(f"since step {before}: {share:.2%} of the signs changed, theta turned by 1 - cos = {turned:.1e}")
    if about["notes"]:
        lines.append(f"note: {about['notes']}")
    return "\n".join(lines)


def _latest(track: Track) -> dict[str, Array]:
    """Return every measure at the last row that has it, (quantities,)."""
    series = track.series()
    known = ~np.isnan(series["relative"])
    last = np.where(known.any(0), known.shape[0] - 1 - known[::-1].argmax(0), 0)
    return {name: values[last, np.arange(values.shape[1])] for name, values in series.items()}


def _share(part: float, drift: float) -> str:
    if math.isnan(part):
        return "n/a"
    return f"{part / drift:.1%}".replace("-0.0%", "0.0%") if drift > 0 else "-"
