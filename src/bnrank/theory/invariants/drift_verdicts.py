"""T44 to T46 and T48 along training, as verdicts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bnrank.theory.invariants.conserved import Conserved
from bnrank.theory.invariants.tail import Tail
from bnrank.theory.invariants.track import Track
from bnrank.theory.verdict import (
    HOLDS,
    INCONCLUSIVE,
    NOT_APPLICABLE,
    VIOLATED,
    Verdict,
    Verdicts,
)

__all__ = ["judge_all"]

DRIFT = "||drift - step size - weight decay|| / ||in + out|| <= tolerance"
BOUND = "(||W||_F^2 - constant) / (2^N M) <= ||W||_op^2"


def judge_all(
    tracks: Mapping[int, Track],
    quantities: Sequence[Conserved],
    tail: Tail,
    *,
    tolerance: float,
    unlike: str,
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
    about : dict
        For the verdicts' heading.
    """
    verdicts = [_drift(i, q, tracks, tolerance, unlike) for i, q in enumerate(quantities)]
    drifted = max((v.left for v in verdicts if math.isfinite(v.left)), default=0.0)
    verdicts += [_bound(j, name, tracks, drifted, tolerance, unlike) for j, name in enumerate(tail.names)]
    return Verdicts(tuple(verdicts), {**about, "tolerance": tolerance, "members": len(tracks)})


def _drift(i: int, q: Conserved, tracks: Mapping[int, Track], tolerance: float, unlike: str) -> Verdict:
    worst, where, estimated = -1.0, "", False
    for member, track in tracks.items():
        series = {name: values[:, i] for name, values in track.series().items()}
        moved = np.where(series["drift"] > 0, series["drift"], np.nan)
        with np.errstate(all="ignore"):  # of a training that diverged: its finite rows count
            left = np.where(series["drift"] == 0, 0.0, series["norm_rest"] * series["relative"] / moved)
        if np.isfinite(left).any() and np.nanmax(left) > worst:
            worst, row = float(np.nanmax(left)), int(np.nanargmax(left))
            measured = np.array(track.steps)[np.isfinite(left)]
            estimated = bool(np.isfinite(series["by_step"][row]) and (np.diff(measured) > 1).any())
            of = f"member {member}, " if len(tracks) > 1 else ""
            where = f"{of}step {track.steps[row]}: drift {series['relative'][row]:.2g} of in + out"
    if worst < 0:
        return Verdict(q.ids[0], q.name, DRIFT, "LeJegelka2022; T49", INCONCLUSIVE, reason="no row has it")
    status = HOLDS if worst <= tolerance else VIOLATED
    reason = ""
    if status == VIOLATED and unlike:
        status, reason = NOT_APPLICABLE, unlike
    elif status == VIOLATED and estimated:
        status, reason = INCONCLUSIVE, "the parts of the steps between rows are estimates; record every step to know"
    return Verdict(
        q.ids[0],
        q.name,
        DRIFT,
        "LeJegelka2022; T49",
        status,
        left=worst,
        right=tolerance,
        slack=tolerance - worst,
        tolerance=tolerance,
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
        if bounds is not None
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
        tolerance=1e-9,
        assumptions=("gradient flow from the first row on",),
        reason=reason,
        note=f"at step {step}, where it is closest",
        vacuous=vacuous,
    )
