"""Output of a monitor: a dataset of the recorded rows, a table, verdicts and a plot."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from bnrank._core.axes import OKABE_ITO, axes_for, dress
from bnrank._core.content import Part, Table
from bnrank.theory.invariants.conserved import Conserved
from bnrank.theory.invariants.linear_tail import Tail
from bnrank.theory.invariants.squares import Array
from bnrank.theory.invariants.steps import Remarks
from bnrank.theory.invariants.track import Ledger, Track
from bnrank.theory.verdicts import HOLDS, INCONCLUSIVE, NOT_APPLICABLE, VIOLATED, Sides, Verdict, triviality

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.axes import Axes

VARIABLES = {  # name -> dimension, units, long name
    "value": ("quantity", "theta^2", "||Q||"),
    "drift": ("quantity", "theta^2", "||Q - Q at the first row||"),
    "relative": ("quantity", "1", "drift over ||in + out||, the larger of now and at the first row"),
    "by_step": ("quantity", "theta^2", "component along the drift of the part due to the step size"),
    "by_decay": ("quantity", "theta^2", "component along the drift of the part due to weight decay"),
    "rest": ("quantity", "theta^2", "component along the drift of the rest"),
    "norm_by_step": ("quantity", "theta^2", "norm of the part due to the step size"),
    "norm_by_decay": ("quantity", "theta^2", "norm of the part due to weight decay"),
    "norm_rest": ("quantity", "theta^2", "norm of the rest"),
    "sign_changes": ("parameter", "1", "fraction of signs that differ from those of the previous row that has them"),
    "turned_from_last": ("", "1", "1 - cos of the angle between theta and theta at the previous row that has it"),
    "turned_from_first": ("", "1", "1 - cos of the angle between theta and theta at the first row"),
    "ratio": ("layer", "1", "||W||_op^2 / ||W||_F^2"),
    "alignment": ("layer", "1", "|<v, u>| of the first singular vectors, with the next layer"),
    "operator": ("layer", "theta^2", "||W||_op^2"),
    "bound": ("layer", "theta^2", "lower bound of ||W||_op^2 by T48 from the first row's constants"),
}
ROUNDINGS = 4  # rounding error of Q per step, relative to in + out, in units of eps
ESTIMATES = "the parts are estimates for the steps between rows; record every step for exact parts"
ROUNDED = "rounding errors of the parameters' dtype can be this large"
DRIFT = "||drift - step size - weight decay|| / ||in + out|| <= rtol"
BOUND = "(||W||_F^2 - constant) / (2^N M) <= ||W||_op^2"
MOST = 7  # quantities with a color and a label; the others are gray
PARTS = {  # name -> label, color, line
    "drift": ("drift", "#000000", "-"),
    "by_step": ("by step size", OKABE_ITO[0], "--"),
    "by_decay": ("by weight decay", OKABE_ITO[1], "-."),
    "rest": ("rest", OKABE_ITO[2], ":"),
}
SPANS = 30.0  # largest over smallest value from which an axis is logarithmic
DEEP = 1e-6  # smallest value shown, relative to the largest


def dataset(
    tracks: Mapping[int, Track], quantities: Sequence[Conserved], tail: Tail, attrs: dict[str, Any]
) -> xr.Dataset:
    """Return all rows over (member, row, ...)."""
    import xarray as xr

    columns = [track.columns() for track in tracks.values()]
    rows = max(len(found["step"]) for found in columns)

    def stacked(name: str) -> Array:
        result = np.full((len(columns), rows, *columns[0][name].shape[1:]), math.nan)
        for member, found in zip(result, columns, strict=True):
            member[: len(found[name])] = found[name]
        return result

    steps = stacked("step")
    about_steps = {"units": "1", "long_name": "steps taken, -1 if a member has no such row"}
    about_time = {"units": "t", "long_name": "sum of the step sizes, or time of the flow"}
    return xr.Dataset(
        {
            name: (("member", "row", *([dim] if dim else [])), stacked(name), {"units": units, "long_name": long})
            for name, (dim, units, long) in VARIABLES.items()
        },
        coords={
            "member": list(tracks),
            "row": np.arange(rows),
            "quantity": np.array([q.name for q in quantities], dtype=str),
            "kind": ("quantity", np.array([q.kind for q in quantities], dtype=str)),
            "statement": ("quantity", np.array([", ".join(q.ids) for q in quantities], dtype=str)),
            "parameter": np.array(next(iter(tracks.values())).signs.names, dtype=str),
            "layer": np.array(tail.names, dtype=str),
            "step": (("member", "row"), np.where(np.isnan(steps), -1, steps).astype(np.int64), about_steps),
            "time": (("member", "row"), stacked("time"), about_time),
        },
        attrs=attrs,
    )


def content(tracks: Mapping[int, Track], quantities: Sequence[Conserved], about: Mapping[str, Any]) -> list[Part]:
    """Return the last rows as a table with remarks; of several members, the one with the largest drift."""
    latest = {member: track.latest() for member, track in tracks.items()}
    member = max(latest, key=lambda m: float(np.nanmax(latest[m]["relative"], initial=0.0)))
    track, values = tracks[member], latest[member]
    which = f" of member {member}, the one of {len(tracks)} with the largest drift" if len(tracks) > 1 else ""
    clock = "" if math.isnan(track.times[-1]) else f", time {track.times[-1]:.4g}"
    rows = []
    for i, q in enumerate(quantities):
        row = {"conserved quantity": q.name, "relative drift": f"{values['relative'][i]:.2e}"}
        rows.append(row | {PARTS[part][0]: _share(values[part][i], values["drift"][i]) for part in Ledger.PARTS})
    title = f"{about['module']}{which}: {len(track.steps)} rows, step {track.steps[-1]}{clock}"
    lines: list[Part] = [title, Table("Conserved quantities", rows)]
    if track.measured and len(track.tail):
        ratios = ", ".join(f"{n} {r:.4f}" for n, r in zip(track.tail.names, track.measured[-1][0], strict=True))
        lines.append(f"||W||_op^2 / ||W||_F^2 of the linear tail: {ratios}")
    if len(track.signs) > 1:
        share = np.dot(track.signs.changed[-1], track.signs.sizes) / max(1, sum(track.signs.sizes))
        before, turned = track.signs.steps[-2], track.signs.from_last[-1]
        lines.append(f"since step {before}: {share:.2%} of the signs changed, theta turned by 1 - cos = {turned:.1e}")
    if about["notes"]:
        lines.append(f"note: {about['notes']}")
    return lines


def _share(part: float, drift: float) -> str:
    if math.isnan(part):
        return "n/a"
    return f"{part / drift:.1%}".replace("-0.0%", "0.0%") if drift > 0 else "-"


def judge_all(
    tracks: Mapping[int, Track], quantities: Sequence[Conserved], layers: Sequence[str], rtol: float, remarks: Remarks
) -> list[Verdict]:
    """Return a verdict on every quantity and every layer of the tail, at its worst row and member.

    Parameters
    ----------
    tracks : mapping of int to Track
        By member.
    quantities, layers
        The quantities and tail layers that the tracks measure.
    rtol : float
        Tolerance for the unexplained drift, relative to in + out.
    remarks : Remarks
        Reasons why T49 does not describe the steps taken, and why the parts are not exact.
    """
    series = {member: track.series() for member, track in tracks.items()}
    unlike, unsure = "; ".join(remarks.unlike), "; ".join(remarks.unsure)
    with np.errstate(all="ignore"):  # if training diverged, only the finite rows count
        drifted = max((float(np.nanmax(s["relative"], initial=0.0)) for s in series.values()), default=0.0)
        verdicts = []
        for i, q in enumerate(quantities):
            own = {m: {name: v[:, i] for name, v in s.items()} for m, s in series.items()}
            verdicts.append(_drift(q, own, tracks, rtol, unlike, unsure))
    if not unlike and drifted > rtol:
        unlike = f"the conserved quantities drifted by {drifted:.2g} of in + out"
    return verdicts + [_bound(j, name, tracks.values(), unlike) for j, name in enumerate(layers)]


def _drift(
    q: Conserved,
    members: Mapping[int, Mapping[str, Array]],
    tracks: Mapping[int, Track],
    rtol: float,
    unlike: str,
    unsure: str,
) -> Verdict:
    rounded = True
    found: list[tuple[float, bool, str]] = []  # what is left, whether it is estimated, and where
    for member, series in members.items():
        track, drift = tracks[member], series["drift"]
        left = np.where(drift == 0, 0.0, series["norm_rest"] * series["relative"] / np.where(drift > 0, drift, np.nan))
        steps, known = np.array(track.steps), np.isfinite(left)
        rounded &= not bool((left > np.maximum(rtol, ROUNDINGS * track.epsilon * (steps - steps[:1]))).any())
        if known.any():
            row = int(np.nanargmax(left))
            estimated = np.isfinite(series["by_step"][row]) and bool((np.diff(steps[known]) > 1).any())
            of = f"member {member}, " if len(tracks) > 1 else ""
            place = f"{of}step {steps[row]}: drift {series['relative'][row]:.2g} of in + out"
            found.append((float(left[row]), estimated, place))
    about = (q.ids[0], q.name, DRIFT, "LeJegelka2022; T49")
    if not found:
        return Verdict(*about, INCONCLUSIVE, reason="no row contains it")
    worst, estimated, place = max(found, key=lambda entry: entry[0])
    status, reason = HOLDS if worst <= rtol else VIOLATED, ""
    if status == VIOLATED and unlike:
        status, reason = NOT_APPLICABLE, unlike
    elif status == VIOLATED and (unsure or estimated or rounded):
        status, reason = INCONCLUSIVE, unsure or (ESTIMATES if estimated else ROUNDED)
    return Verdict(*about, status, worst, rtol, "<=", rtol - worst, rtol, (q.assumption,), reason, place)


def _bound(j: int, name: str, tracks: Iterable[Track], unlike: str) -> Verdict:
    about = ("T48", f"low rank of {name}", BOUND, "LeJegelka2022 theorem 2")
    found = [
        (bounds[j], track.steps[row])
        for track in tracks
        for bounds, row in zip(track.bounds, track.wide, strict=False)
        if bounds
    ]
    if not found:
        return Verdict(*about, INCONCLUSIVE, reason="no row has singular values")
    bound, step = min(found, key=lambda f: (f[0].left - f[0].right) / max(f[0].frobenius, 1e-300))
    slack = bound.left - bound.right
    status, reason, vacuous = HOLDS, "", ""
    if slack < -1e-9 * max(bound.frobenius, abs(bound.constant)):
        status, reason = (NOT_APPLICABLE, unlike) if unlike else (VIOLATED, "")
    elif all(triviality(Sides(b.right, b.left, least=b.trivial)) for b, _ in found):
        vacuous = "at every row, the bound is at most ||W||_F^2 / min(rows, columns), as for any matrix"
    assumptions = ("gradient flow from the first row on",)
    note = f"at step {step}, where the slack is smallest"
    return Verdict(*about, status, bound.right, bound.left, "<=", slack, 1e-9, assumptions, reason, note, vacuous)


def plot(history: xr.Dataset, axes: Any = None) -> Any:
    """Draw one member of a monitor's history, (row, quantity); return the axes, two or with a linear tail three."""
    has_tail = history.sizes["layer"] > 1 and bool(np.isfinite(history["ratio"]).any())
    panels = 3 if has_tail else 2
    axes = axes_for(axes, (1, panels), (5.2 * panels, 4.0))
    taken = history["step"].values >= 0
    clock = "time" if np.isfinite(history["time"].values[taken]).all() else "step"
    x = np.where(taken, history[clock].values, np.nan)
    label = str(history.attrs["clock"]) if clock == "time" else "step"
    _drifts(axes[0], history, x)
    _parts(axes[1], history, x)
    if has_tail:
        _tail(axes[2], history, x)
    titles = ("Drift of conserved quantities", "Parts of the drift, all quantities", "Linear tail")
    for ax, y, title in zip(axes, ("drift / (in + out)", "drift / (in + out)", ""), titles, strict=False):
        dress(ax, label, y, title)
        _scale(ax, x)
    return axes


def _drifts(ax: Axes, history: xr.Dataset, x: Array) -> None:
    """Draw one line per quantity, the largest drifts in color."""
    relative = history["relative"].values
    order = np.argsort(-np.fmax.reduce(relative, axis=0, initial=0.0), kind="stable")
    few = len(order) <= MOST + 1  # a single gray line is drawn in color instead
    shown = order if few else order[:MOST]
    for i in order[len(shown) :][::-1]:
        _line(ax, x, relative[:, i], color="0.75", linewidth=0.9, zorder=1.5)
    for place, i in enumerate(shown):
        color = OKABE_ITO[place % len(OKABE_ITO)]
        name = str(history["quantity"].values[i])
        _line(ax, x, relative[:, i], color=color, linewidth=1.6, label=name, linestyle="-" if place < 7 else "--")
    if not few:
        ax.plot([], [], color="0.75", linewidth=0.9, label=f"{len(order) - MOST} others")
    _log(ax, relative[:, shown])
    ax.legend(fontsize=8, frameon=False, ncols=1)


def _parts(ax: Axes, history: xr.Dataset, x: Array) -> None:
    """Draw the norms of the drift and of its parts over all quantities but the whole matrices and the layers."""
    own = history["kind"].values == "vertex"
    chosen = history.isel(quantity=np.flatnonzero(own if own.any() else np.ones_like(own)))
    drift, relative = chosen["drift"].values, chosen["relative"].values
    with np.errstate(all="ignore"):  # of a training that diverged
        each = np.divide(drift, relative, out=np.zeros_like(drift), where=relative > 0)
        scale = np.sqrt(np.nansum(each**2, axis=1))
    drawn: list[Array] = []
    for name, (label, color, line) in PARTS.items():
        if name == "rest" and len(drawn) < 2:  # nothing is split, so the rest equals the drift
            break
        values = chosen["drift" if name == "drift" else f"norm_{name}"].values
        with np.errstate(all="ignore"):
            total = np.sqrt(np.sum(values**2, axis=1))
            part = np.divide(total, scale, out=np.full_like(total, np.nan), where=scale > 0)
        if (part > 0).any():
            _line(ax, x, part, color=color, linestyle=line, linewidth=2.2 if name == "drift" else 1.6, label=label)
            drawn.append(part)
    if drawn:
        _log(ax, np.stack(drawn, axis=1))
        ax.legend(fontsize=8, frameon=False)


def _tail(ax: Axes, history: xr.Dataset, x: Array) -> None:
    names = [str(name) for name in history["layer"].values]
    for i, name in enumerate(names):
        color = OKABE_ITO[i % len(OKABE_ITO)]
        _line(ax, x, history["ratio"].values[:, i], color=color, label=f"ratio, {name}")
        if i < len(names) - 1:
            text = f"alignment, {name} to {names[i + 1]}"
            _line(ax, x, history["alignment"].values[:, i], color=color, linestyle="--", label=text)
    ax.set_ylim(0, 1.03)
    ax.legend(fontsize=8, frameon=False)


def _line(ax: Axes, x: Array, y: Array, **style: Any) -> None:
    known = np.isfinite(x) & np.isfinite(y)
    ax.plot(x[known], y[known], **style)


def _log(ax: Axes, values: Array) -> None:
    """Make y logarithmic if the positive values span more than a factor of `SPANS`."""
    positive = values[np.isfinite(values) & (values > 0)]
    if positive.size and positive.max() > SPANS * positive.min():
        ax.set_yscale("log")
        ax.set_ylim(bottom=max(0.5 * float(positive.min()), DEEP * float(positive.max())))


def _scale(ax: Axes, x: Array) -> None:
    """Make x logarithmic if most rows would be crowded at its beginning."""
    positive = x[np.isfinite(x) & (x > 0)]
    if positive.size > 4 and positive.max() > SPANS * np.median(positive):
        ax.set_xscale("log")
