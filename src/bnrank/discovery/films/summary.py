"""The result of a fit to films, as text and as data."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd

from bnrank._core.content import Part, Table
from bnrank._core.results import Printed

MAX_VALUES = 8  # shown of a spectrum


@dataclass(frozen=True)
class FilmSummary(Printed):
    """The result of a fit to films: a page of text when printed, with the data of the figures as attributes.

    Attributes
    ----------
    films, frames, windows : int
        Number of films, of all their frames, and of windows of four frames.
    shape : tuple of int
        (H, W, C) of a frame.
    stride : int
        Frames from one frame of a window to the next.
    encoder : str
        "linear" or "conv".
    components, component_share
        Number of principal components of a frame that networks predict, and their share of its variance.
    state_dimension : int
        Number of state variables: the local dimension of the set of states.
    interval, undetermined, reason
        Of the state dimension.
    coordinates_needed : int
        Least number of coordinates, from the state dimension on, that predict nearly as well as all; 0 if none.
    coordinates_needed_interval : tuple of int
        Its interval; see ``coordinates_needed_interval_``.
    unexplained : ndarray
        Share of the next frames' variance that each network leaves unexplained, on held-out windows.
    unexplained_by_coordinates : ndarray
        (tried, 2): number of coordinates, and the share that a network through so many leaves unexplained.
    dimensions : tuple of int
        The state dimension of each network.
    neighbors : tuple of int
        Sizes of neighborhoods.
    spectrum : ndarray
        Median local variances in the best network's bottleneck, in units of the largest, (sizes, latent).
    coordinates : ndarray
        At most 1,000 rows of what ``transform`` returns for the films of the fit.
    notes : tuple of str
        Remarks on the films and on the limits of what can be concluded.
    """

    films: int
    frames: int
    windows: int
    shape: tuple[int, int, int]
    stride: int
    encoder: str
    components: int
    component_share: float
    state_dimension: int
    interval: tuple[int, int]
    undetermined: bool
    reason: str
    coordinates_needed: int
    coordinates_needed_interval: tuple[int, int]
    unexplained: np.ndarray
    unexplained_by_coordinates: np.ndarray
    dimensions: tuple[int, ...]
    neighbors: tuple[int, ...]
    spectrum: np.ndarray
    coordinates: np.ndarray
    notes: tuple[str, ...]

    def to_frame(self) -> pd.DataFrame:
        """Return the numbers and texts as a DataFrame of one row, so that ``pandas.concat`` joins several fits.

        ``low`` and ``high`` are the ends of the interval, ``coordinates_low`` and ``coordinates_high`` those of the
        coordinates needed, ``unexplained`` the least of all networks, ``notes`` one
        text.
        """
        row = {name: value for name, value in vars(self).items() if isinstance(value, bool | int | float | str)}
        height, width, channels = self.shape
        row |= {"low": self.interval[0], "high": self.interval[1], "height": height, "width": width}
        row |= dict(zip(("coordinates_low", "coordinates_high"), self.coordinates_needed_interval, strict=True))
        row |= {"channels": channels, "unexplained": self.unexplained.min(initial=1.0), "notes": "; ".join(self.notes)}
        return pd.DataFrame([row])

    @property
    def needed(self) -> str:
        """The number of coordinates needed, with its interval, in words."""
        low, high = self.coordinates_needed_interval
        return f"{self.coordinates_needed or 'none of those tried suffices'} (interval {low} to {high})"

    def _content(self) -> Iterator[Part]:
        height, width, channels = self.shape
        low, high = self.interval
        sure = "undetermined" if self.undetermined else f"interval {low} to {high}"
        colors = f" x {channels}" if channels > 1 else ""
        yield f"StateVariables: {self.films} film(s), {self.frames} frames of {height} x {width}{colors} pixels"
        yield f"state dimension: {self.state_dimension} ({sure})"
        yield f"  {self.reason}"
        if len(self.unexplained_by_coordinates):
            yield f"coordinates needed: {self.needed}"
        if len(self.unexplained_by_coordinates):
            rows = [{"coordinates": int(k), "unexplained": f"{u:.2%}"} for k, u in self.unexplained_by_coordinates]
            best = {"coordinates": "all of the bottleneck", "unexplained": f"{self.unexplained.min():.2%}"}
            yield Table("Unexplained on held-out films, by number of coordinates", [*rows, best])
        if len(self.spectrum):
            yield "median local variances in the bottleneck, relative to the largest"
            shown = self.spectrum[:, :MAX_VALUES]
            rows = [
                {"neighbors": size} | {str(j + 1): f"{value:.2g}" for j, value in enumerate(values)}
                for size, values in zip(self.neighbors, shown, strict=True)
            ]
            yield Table("Local variances", rows)
        yield from (f"note: {note}" for note in self.notes)
