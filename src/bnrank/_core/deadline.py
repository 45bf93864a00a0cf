"""The end of the time that a call may take."""

import math
import time

from bnrank._core import validation


class Deadline:
    """A number of minutes from now, or no limit.

    Parameters
    ----------
    minutes : float, optional
        As the argument ``max_minutes`` of public functions.

    Raises
    ------
    TypeError, ValueError
        If it is not a positive number.

    Examples
    --------
    >>> Deadline(None).over()
    False
    """

    def __init__(self, minutes: object = None) -> None:
        self.minutes = math.inf if minutes is None else validation.number(minutes, "max_minutes", 0.0, strict=True)
        self._end = time.monotonic() + 60 * self.minutes

    @property
    def is_set(self) -> bool:
        """Whether there is a limit."""
        return self.minutes < math.inf

    @property
    def missed(self) -> str:
        """Why something was not begun."""
        return f"not reached within max_minutes={self.minutes:g}"

    def cut(self, done: int, samples: int) -> str:
        """Return why something ended after a number of samples, or was not begun."""
        return f"cut off after {done} of {samples} samples, at max_minutes={self.minutes:g}" if done else self.missed

    def over(self) -> bool:
        """Return whether the time has passed."""
        return self.is_set and time.monotonic() > self._end
