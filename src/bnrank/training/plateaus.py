"""Plateaus of a loss curve: time intervals in which the loss is nearly constant."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from bnrank._core import validation

__all__ = ["Plateau", "find"]

Array = np.ndarray
FLATNESS = 0.05  # share of the adjacent drops by which the loss may change on a plateau
MIN_REST = 0.4  # shortest plateau, in units of the durations of the adjacent drops
BINS = 4  # levels per smallest relevant drop
SWING = 4.0  # smallest ratio of the time in a candidate level to that in the fastest levels next to it
SPIKE = 10.0  # robust standard deviations from the running median of 11 rows beyond which a row is a spike
NOISE = 5.0  # drops below this many standard deviations of the noise do not count


@dataclass(frozen=True)
class Plateau:
    """One time interval in which the loss is nearly constant.

    Attributes
    ----------
    number : int
        1 for the first plateau of the curve.
    start, end : float
        Times of arrival and escape, interpolated between rows; ``end`` is inf for a last plateau that is not left.
    begin_row, end_row : int
        First and last row inside.
    row : int
        Row inside with the smallest gradient norm, or without norms the slowest decrease.
    time, loss, gradient_norm : float
        Values in that row; the norm is NaN if none is given.
    ranks : tuple of int
        Rank of every layer on the plateau, if set by the caller (:meth:`bnrank.spectra.Spectra.ranks`).
    """

    number: int
    start: float
    end: float
    begin_row: int
    end_row: int
    row: int
    time: float
    loss: float
    gradient_norm: float = math.nan
    ranks: tuple[int, ...] = ()

    @property
    def left(self) -> bool:
        """Whether the plateau is left before the curve ends."""
        return math.isfinite(self.end)

    @property
    def duration(self) -> float:
        """``end - start``; inf where it is not left."""
        return self.end - self.start


def find(
    times: Sequence[float] | Array | Tensor,
    loss: Sequence[float] | Array | Tensor,
    gradient_norm: Sequence[float] | Array | Tensor | None = None,
    *,
    min_drop: float = 0.01,
    window: int = 1,
) -> tuple[Plateau, ...]:
    """Return the plateaus of a loss curve.

    A curve that increases anywhere is first made non-increasing. Spikes of up to 5 rows, 10 robust standard deviations
    from the median of the surrounding 11 rows, are replaced by that median. A running mean over ``window`` rows and
    isotonic regression (the nearest non-increasing sequence in least squares) follow, which average out noise on
    plateaus. Longer spikes can hide plateaus. The range of the curve is divided into levels: a level at which the curve
    stays long, between fast ones, is a candidate C*. Let D be the drop to a candidate from the previous one (or from
    the first row) and D' the drop to the next one (or to the last row). The plateau lasts from the time when the loss
    is C* + 0.05 D to the time when it is C* - 0.05 D'. Candidates are discarded, the weakest first,
    until

    - every drop is at least ``min_drop`` of the total drop, and at least 5 standard deviations of the noise;
    - every plateau lasts at least 0.4 times as long as the drop before it and the drop after it.

    The result does not depend on the units of loss and time. Times may be uneven, span many decades, or count steps. A
    first plateau begins in the first row, a last one that is not left has ``end`` inf. A curve that never decreases is
    one plateau; a straight line has none.

    Parameters
    ----------
    times : array, shape (T,)
        Finite, in non-decreasing order.
    loss : array, shape (T,)
        Finite.
    gradient_norm : array, shape (T,), optional
        Non-negative. It only determines ``row``.
    min_drop : float
        Minimum drop between two plateaus, as a share of the total drop, in [0.001, 1).
    window : int
        Rows of the running mean, for mini-batches; 1 for none. An even number counts as the next odd one.

    Returns
    -------
    tuple of Plateau
        In order of time, with ``ranks`` empty.

    Raises
    ------
    TypeError, ValueError
        If the arrays differ in length, are empty, not finite or not in order, or an option is out of range.

    Notes
    -----
    Source: saddle-to-saddle, T41; Bantzis2025, Figure 1.

    Examples
    --------
    >>> t = np.linspace(0, 40, 401)
    >>> stairs = 2 - 1 / (1 + np.exp(10 - t) ** 2) - 1 / (1 + np.exp(25 - t) ** 2)
    >>> for p in find(t, stairs):
    ...     print(f"{p.number}: from {p.start:.1f} to {p.end:.1f} at {p.loss:.2f}")
    1: from 0.0 to 8.5 at 2.00
    2: from 11.5 to 23.5 at 1.00
    3: from 26.5 to inf at 0.00
    """
    when = _rows(times, "times")
    values = _rows(loss, "loss", len(when))
    norms = None if gradient_norm is None else _rows(gradient_norm, "gradient_norm", len(when))
    validation.expect(norms is None or (norms >= 0).all(), "gradient_norm", "a negative number", "numbers >= 0")
    validation.expect((np.diff(when) >= 0).all(), "times", "a decrease", "numbers in non-decreasing order")
    min_drop, window = validation.number(min_drop, "min_drop", 0.001), validation.integer(window, "window")
    validation.expect(min_drop < 1, "min_drop", f"{min_drop:g}", "a number below 1")
    curve = _monotone(when, values, min_drop, window)
    norms = None if norms is None else _running_mean(norms, window)
    if curve.loss[0] - curve.loss[-1] <= curve.min_drop:
        levels = [float(np.median(curve.loss))]
    else:
        levels = _distinct(curve, *_slow_levels(curve, max(BINS, math.ceil(BINS / min_drop))))
    result: list[Plateau] = []
    for start, end in _extents(curve, levels):
        begin = min(int(np.searchsorted(when, start)), len(when) - 1)
        last = max(int(np.searchsorted(when, end, side="right")) - 1, begin)
        row = _slowest(curve, begin, last) if norms is None else begin + int(norms[begin : last + 1].argmin())
        at = float(when[row]), float(values[row]), math.nan if norms is None else float(norms[row])
        result.append(Plateau(len(result) + 1, start, end, begin, last, row, *at))
    return tuple(result)


def _rows(value: object, name: str, rows: int | None = None) -> Array:
    array = validation.real(value, name, "numbers, shape (T,)").double().cpu().numpy()
    validation.expect(array.ndim == 1 and array.size, name, array, "one number per row, shape (T,)")
    validation.expect(rows in (None, len(array)), name, f"{len(array)} rows", f"as many as times has, {rows}")
    return array


@dataclass(frozen=True)
class _Curve:
    """A non-increasing loss over time, and the smallest drop that counts."""

    times: Array
    loss: Array
    min_drop: float

    def crossing(self, level: float) -> float:
        """Return the first time at which the loss is at most ``level``, interpolated linearly between rows."""
        row = int(np.searchsorted(-self.loss, -level))
        if row in (0, len(self.loss)):
            return float(self.times[max(row - 1, 0)])
        above, below = self.loss[row - 1], self.loss[row]
        share = (above - level) / (above - below)
        return float(self.times[row - 1] + share * (self.times[row] - self.times[row - 1]))

    def drops(self, levels: Sequence[float]) -> Array:
        """Return the drops before, between and after levels."""
        return np.maximum(-np.diff([self.loss[0], *levels, self.loss[-1]]), 0.0)


def _monotone(times: Array, loss: Array, min_drop: float, window: int) -> _Curve:
    fitted, noise = loss, 0.0
    if np.any(np.diff(loss) > 0) or window > 1:
        from sklearn.isotonic import isotonic_regression  # here, as it takes a second to import

        averaged = _running_mean(_without_spikes(loss), window)
        fitted = np.asarray(isotonic_regression(averaged, increasing=False), dtype=np.float64)
        noise = float(np.std(averaged - fitted))
    return _Curve(times, fitted, max(min_drop * float(fitted[0] - fitted[-1]), NOISE * noise))


def _running_mean(values: Array, window: int) -> Array:
    """Return the means over ``window`` rows (one more if even) around each row, over fewer near the ends."""
    import pandas as pd

    if window < 2:
        return values
    return np.asarray(pd.Series(values).rolling(window // 2 * 2 + 1, center=True, min_periods=1).mean())


def _without_spikes(loss: Array) -> Array:
    """Return the loss with spikes replaced by the running median: least squares would spread them over earlier rows."""
    from scipy.ndimage import median_filter

    padded = np.pad(np.pad(loss, (5, 0), "edge"), (0, 5), "reflect")  # a drop after the first row is not a spike
    off = loss - median_filter(padded, 11)[5:-5]
    return np.where(np.abs(off) > SPIKE * 1.4826 * np.median(np.abs(off)), loss - off, loss)


def _slow_levels(curve: _Curve, bins: int) -> tuple[list[float], list[float]]:
    """Return the levels of the loss that last SWING times longer than some level on each side, and their times."""
    edges = np.linspace(curve.loss[0], curve.loss[-1], bins + 1)
    reached = np.array([curve.crossing(level) for level in edges])
    reached[-1] = curve.times[-1]  # the last level lasts to the end
    dwell = np.maximum(np.diff(reached), np.finfo(float).tiny)
    slow, levels = _maxima(np.log(dwell), math.log(SWING)), []
    for i in slow:
        inside = np.flatnonzero((curve.loss <= edges[i]) & (curve.loss >= edges[i + 1]))
        middle = (edges[i] + edges[i + 1]) / 2
        levels.append(float(curve.loss[_slowest(curve, int(inside[0]), int(inside[-1]))] if len(inside) else middle))
    return levels, dwell[slow].tolist()


def _maxima(values: Array, swing: float) -> list[int]:
    """Return the maxima, ends included, that stand out by ``swing`` from the minima on both sides."""
    found: list[int] = []
    high = low = 0
    rising: bool | None = None
    for i, value in enumerate(values):
        high = i if value > values[high] else high
        low = i if value < values[low] else low
        if rising is not False and value <= values[high] - swing:
            found.append(high)
            rising, low = False, i
        elif rising is not True and value >= values[low] + swing:
            rising, high = True, i
    return [*found, high] if rising else found


def _slowest(curve: _Curve, first: int, last: int) -> int:
    """Return the row, from ``first`` to ``last``, around which the loss decreases most slowly."""
    rows = np.arange(first, last + 1)
    before, after = np.maximum(rows - 1, first), np.minimum(rows + 1, last)
    time, fall = curve.times[after] - curve.times[before], curve.loss[before] - curve.loss[after]
    rate = np.divide(fall, time, out=np.full(len(rows), np.inf), where=time > 0)
    ties = rows[rate == rate.min()]
    return int(ties[len(ties) // 2])


def _extents(curve: _Curve, levels: Sequence[float]) -> list[tuple[float, float]]:
    """Return the times at which each level is reached and left; the first time, or inf, if no drop counts there."""
    shares = [FLATNESS * drop if drop >= curve.min_drop > 0 else math.inf for drop in curve.drops(levels)]
    return [
        (curve.crossing(level + before), curve.crossing(level - after) if math.isfinite(after) else math.inf)
        for level, before, after in zip(levels, shares[:-1], shares[1:], strict=True)
    ]


def _distinct(curve: _Curve, levels: list[float], dwell: list[float]) -> list[float]:
    """Return the levels left after discarding the weakest until drops are large and plateaus long enough."""
    while len(levels) > 1:
        between = curve.drops(levels)[1:-1]
        i = int(between.argmin())
        if between[i] >= curve.min_drop:
            break
        weaker = i if dwell[i] < dwell[i + 1] else i + 1
        del levels[weaker], dwell[weaker]
    while levels:
        lengths = _lengths(curve, levels)
        i = int(lengths.argmin())
        if lengths[i] >= MIN_REST:
            break
        del levels[i]
    return levels


def _lengths(curve: _Curve, levels: Sequence[float]) -> Array:
    """Return the duration of each level, in units of the longer of the two adjacent drops."""
    extents = np.clip(_extents(curve, levels), None, curve.times[-1])
    starts, ends = np.append(extents[:, 0], curve.times[-1]), np.append(curve.times[0], extents[:, 1])
    drops = np.where(curve.drops(levels) < curve.min_drop, 0.0, starts - ends)
    rests, longest = ends[1:] - starts[:-1], np.maximum(drops[:-1], drops[1:])
    return np.divide(rests, longest, out=np.where(rests > 0, np.inf, 0.0), where=longest > 0)
