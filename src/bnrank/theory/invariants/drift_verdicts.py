"""Verdicts on T44 to T46 and T48 along training."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from bnrank.theory.invariants.conserved import Conserved
from bnrank.theory.invariants.drift import Remarks
from bnrank.theory.invariants.squares import Array
from bnrank.theory.invariants.track import Track
from bnrank.theory.verdicts import HOLDS, INCONCLUSIVE, NOT_APPLICABLE, VIOLATED, Verdict

ROUNDINGS = 4  # of a step: what it adds to Q, as a share of in + out, in eps
ESTIMATES = "the parts of the steps between rows are estimates; record every step to know"
ROUNDED = "rounding of the parameters' own precision explains as much"
DRIFT = "||drift - step size - weight decay|| / ||in + out|| <= rtol"
BOUND = "(||W||_F^2 - constant) / (2^N M) <= ||W||_op^2"


def judge_all(
    tracks: Mapping[int, Track], quantities: Sequence[Conserved], layers: Sequence[str], rtol: float, remarks: Remarks
) -> list[Verdict]:
    """Return a verdict on every quantity and every layer of the tail, at its worst row and member.

    Parameters
    ----------
    tracks : mapping of int to Track
        By member.
    quantities, layers
        What the tracks are of.
    rtol : float
        Of the drift that is left unexplained, relative to in + out.
    remarks : Remarks
        Why T49 does not describe the steps that were taken, and why the parts are not exact.
    """
    series = {member: track.series() for member, track in tracks.items()}
    unlike, unsure = "; ".join(remarks.unlike), "; ".join(remarks.unsure)
    with np.errstate(all="ignore"):  # of a training that diverged: its finite rows count
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
        return Verdict(*about, INCONCLUSIVE, reason="no row has it")
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
    elif all(b.right <= 0 for b, _ in found):
        vacuous = "the bound is not positive at any row"
    assumptions, note = ("gradient flow from the first row on",), f"at step {step}, where it is closest"
    return Verdict(*about, status, bound.right, bound.left, "<=", slack, 1e-9, assumptions, reason, note, vacuous)
