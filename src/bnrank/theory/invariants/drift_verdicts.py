"""T44 to T46 and T48 along training, as verdicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bnrank.theory.invariants.conserved import Conserved
from bnrank.theory.invariants.linear_tail import Tail
from bnrank.theory.invariants.squares import Array
from bnrank.theory.invariants.track import Track
from bnrank.theory.verdicts import (
    HOLDS,
    INCONCLUSIVE,
    NOT_APPLICABLE,
    VIOLATED,
    Verdict,
    Verdicts,
)

ROUNDINGS = 4  # of a step: what it adds to Q, as a share of in + out, in eps
ESTIMATES = "the parts of the steps between rows are estimates; record every step to know"

DRIFT = "||drift - step size - weight decay|| / ||in + out|| <= tolerance"
BOUND = "(||W||_F^2 - constant) / (2^N M) <= ||W||_op^2"


def judge_all(
    tracks: Mapping[int, Track],
    quantities: Sequence[Conserved],
    tail: Tail,
    *,
    tolerance: float,
    unlike: str,
    unsure: str,
    about: dict[str, Any],
) -> Verdicts:
    """Judge every quantity and layer at its worst row and member.

    Parameters
    ----------
    tracks, quantities, tail
        What was recorded.
    tolerance : float
        Of the drift that is left unexplained, relative to in + out.
    unlike : str
        Why T49 does not describe the steps that were taken; "" where it does.
    unsure : str
        Why the parts are not exact; "" where they are.
    about : dict
        For the verdicts' heading.
    """
    series = {member: track.series() for member, track in tracks.items()}
    verdicts = [_drift(i, q, tracks, series, tolerance, unlike, unsure) for i, q in enumerate(quantities)]
    with np.errstate(all="ignore"):
        drifted = max((float(np.nanmax(s["relative"], initial=0.0)) for s in series.values()), default=0.0)
    verdicts += [_bound(j, name, tracks, drifted, tolerance, unlike) for j, name in enumerate(tail.names)]
    return Verdicts(tuple(verdicts), {**about, "tolerance": tolerance, "members": len(tracks)})


def _drift(
    i: int,
    q: Conserved,
    tracks: Mapping[int, Track],
    all_series: Mapping[int, Mapping[str, Array]],
    tolerance: float,
    unlike: str,
    unsure: str,
) -> Verdict:
    worst, where, estimated, rounded = -1.0, "", False, True
    for member, track in tracks.items():
        series = {name: values[:, i] for name, values in all_series[member].items()}
        moved = np.where(series["drift"] > 0, series["drift"], np.nan)
        with np.errstate(all="ignore"):  # of a training that diverged: its finite rows count
            left = np.where(series["drift"] == 0, 0.0, series["norm_rest"] * series["relative"] / moved)
            steps = np.array(track.steps)
            beyond = left > np.maximum(tolerance, ROUNDINGS * track.epsilon * (steps - steps[:1]))
        rounded = rounded and not bool(beyond.any())
        if np.isfinite(left).any() and np.nanmax(left) > worst:
            worst, row = float(np.nanmax(left)), int(np.nanargmax(left))
            measured = steps[np.isfinite(left)]
            estimated = bool(np.isfinite(series["by_step"][row]) and (np.diff(measured) > 1).any())
            of = f"member {member}, " if len(tracks) > 1 else ""
            where = f"{of}step {track.steps[row]}: drift {series['relative'][row]:.2g} of in + out"
    if worst < 0:
        return Verdict(q.ids[0], q.name, DRIFT, "LeJegelka2022; T49", INCONCLUSIVE, reason="no row has it")
    status, reason = (HOLDS, "") if worst <= tolerance else (VIOLATED, "")
    if status == VIOLATED and unlike:
        status, reason = NOT_APPLICABLE, unlike
    elif status == VIOLATED and (unsure or estimated or rounded):
        status = INCONCLUSIVE
        reason = unsure or (ESTIMATES if estimated else "rounding of the parameters' own precision explains as much")
    return Verdict(
        q.ids[0],
        q.name,
        DRIFT,
        "LeJegelka2022; T49",
        status,
        left=worst,
        right=tolerance,
        slack=tolerance - worst,
        rtol=tolerance,
        assumptions=(q.assumption,),
        reason=reason,
        note=where,
    )


def _bound(j: int, name: str, tracks: Mapping[int, Track], drifted: float, tolerance: float, unlike: str) -> Verdict:
    about = ("T48", f"low rank of {name}", BOUND, "LeJegelka2022 theorem 2")
    found = [
        (bounds[j], track, track.steps[row])
        for track in tracks.values()
        for bounds, row in zip(track.bounds, track.wide, strict=False)
        if bounds
    ]
    if not found:
        return Verdict(*about, INCONCLUSIVE, reason="no row has singular values")
    bound, _, step = min(found, key=lambda f: (f[0].left - f[0].right) / max(f[0].frobenius, 1e-300))
    slack = bound.left - bound.right
    status, reason, vacuous = HOLDS, "", ""
    if slack < -1e-9 * max(bound.frobenius, abs(bound.constant)):
        status = VIOLATED
        if unlike or drifted > tolerance:
            status = NOT_APPLICABLE
            reason = unlike or f"the conserved quantities drifted by {drifted:.2g} of in + out"
    elif all(b.right <= 0 for b, _, _ in found):
        vacuous = "the bound is not positive at any row"
    return Verdict(
        *about,
        status,
        left=bound.right,
        right=bound.left,
        slack=slack,
        rtol=1e-9,
        assumptions=("gradient flow from the first row on",),
        reason=reason,
        note=f"at step {step}, where it is closest",
        vacuous=vacuous,
    )
