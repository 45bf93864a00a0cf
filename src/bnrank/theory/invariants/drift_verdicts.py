"""Verdicts on T44 to T46 and T48 along training."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bnrank.theory.invariants.conserved import Conserved
from bnrank.theory.invariants.squares import Array
from bnrank.theory.invariants.track import Track
from bnrank.theory.verdicts import HOLDS, INCONCLUSIVE, NOT_APPLICABLE, VIOLATED, Verdict

ROUNDINGS = 4  # of a step: what it adds to Q, as a share of in + out, in eps
ESTIMATES = "the parts of the steps between rows are estimates; record every step to know"
ROUNDED = "rounding of the parameters' own precision explains as much"
DRIFT = "||drift - step size - weight decay|| / ||in + out|| <= rtol"
BOUND = "(||W||_F^2 - constant) / (2^N M) <= ||W||_op^2"


@dataclass(frozen=True)
class Conditions:
    """The conditions of verdicts.

    Attributes
    ----------
    rtol : float
        Of the drift that is left unexplained, relative to in + out.
    unlike : str
        Why T49 does not describe the steps that were taken; "" where it does.
    unsure : str
        Why the parts are not exact; "" where they are.
    """

    rtol: float
    unlike: str
    unsure: str


def judge_all(
    tracks: Mapping[int, Track], quantities: Sequence[Conserved], layers: Sequence[str], conditions: Conditions
) -> list[Verdict]:
    """Return a verdict on every quantity and every layer of the tail, at its worst row and member."""
    series = {member: track.series() for member, track in tracks.items()}
    with np.errstate(all="ignore"):  # of a training that diverged: its finite rows count
        drifted = max((float(np.nanmax(s["relative"], initial=0.0)) for s in series.values()), default=0.0)
        drifts = [
            _drift(q, {m: {name: v[:, i] for name, v in s.items()} for m, s in series.items()}, tracks, conditions)
            for i, q in enumerate(quantities)
        ]
    return drifts + [_bound(j, name, tracks.values(), drifted, conditions) for j, name in enumerate(layers)]


def _drift(
    q: Conserved, members: Mapping[int, Mapping[str, Array]], tracks: Mapping[int, Track], conditions: Conditions
) -> Verdict:
    rtol, rounded = conditions.rtol, True
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
        return Verdict(*about, INCONCLUSIVE, reason="no row has it")
    worst, estimated, place = max(found, key=lambda entry: entry[0])
    status, reason = HOLDS if worst <= rtol else VIOLATED, ""
    if status == VIOLATED and conditions.unlike:
        status, reason = NOT_APPLICABLE, conditions.unlike
    elif status == VIOLATED and (conditions.unsure or estimated or rounded):
        status, reason = INCONCLUSIVE, conditions.unsure or (ESTIMATES if estimated else ROUNDED)
    sides = Verdict(*about, status, left=worst, right=rtol, slack=rtol - worst, rtol=rtol)
    return replace(sides, assumptions=(q.assumption,), reason=reason, note=place)


def _bound(j: int, name: str, tracks: Any, drifted: float, conditions: Conditions) -> Verdict:
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
        status = VIOLATED
        if conditions.unlike or drifted > conditions.rtol:
            status = NOT_APPLICABLE
            reason = conditions.unlike or f"the conserved quantities drifted by {drifted:.2g} of in + out"
    elif all(b.right <= 0 for b, _ in found):
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
