"""Still picture of circular convolutions frequency by frequency (F6)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.ticker import MaxNLocator

from bnrank._core import validation
from bnrank._core.axes import axes_for, dress
from bnrank.measures.frequencies import label
from bnrank.reporting.stills.spectra import color_key, colors, shade, variable

_SUBSCRIPT = str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉")
MOST_STEPS = 9  # largest number of discrete steps in the color key of |w|; with more values it is continuous


def frequency_spectra(profile: xr.Dataset, ax: Axes | None = None, *, max_lines: int = 200) -> Axes:
    """Draw the singular values of circular convolutions over the layers, colored by frequency (F6).

    One line for every frequency and channel, dark for |w| = 0. Lines of the frequencies that the bottleneck keeps are
    thick and named at their ends; ± denotes a pair w and -w, whose values are equal. The layers of the bottleneck are
    shaded, and the threshold above which a value counts is dotted.

    Parameters
    ----------
    profile : Dataset
        ``frequency_singular_values`` (layer, frequency, channel), with coordinates ``multiplicity`` and ``modulus``,
        and ``kept_channels``: the result of `bnrank.profile` for a network of circular convolutions.
    ax : Axes, optional
        Where to draw; default: a new figure.
    max_lines : int
        Largest number of lines: kept frequencies first, then those with the largest values.

    Returns
    -------
    Axes

    Raises
    ------
    ValueError
        If the profile lacks the variable or its dimensions, or an argument is out of range.

    Examples
    --------
    >>> import torch, bnrank
    >>> net = bnrank.networks.CircularConvolutional((1, 6), [2, 2, 1])
    >>> ax = frequency_spectra(bnrank.profile(net, torch.randn(5, 1, 6)))
    >>> len(ax.lines), ax.get_xlabel()                                                    # 4 frequencies, 2 channels
    (8, 'layer')
    """
    drawn = frequency_lines(profile, max_lines)
    modulus = np.unique(np.asarray(profile["modulus"].values, dtype=float))
    layer = profile["layer"].values
    ax = axes_for(ax, (1, 1), (7.6, 4.6), name="ax")[0]
    shade(ax, profile)
    named: list[tuple[float, float, str, Any]] = []
    for line in reversed(drawn):
        color = _colors(line.modulus, modulus[-1])
        width, size = (2.0, 4.0) if line.kept else (0.9, 2.0)
        ax.plot(layer, line.values, color=color, linewidth=width, marker="o", markersize=size, zorder=2 + line.kept)
        if line.kept:
            last = int(np.flatnonzero(np.isfinite(line.values))[-1])
            named.append((float(layer[last]), float(line.values[last]), line.label, color))
    if "atol" in profile.attrs:
        threshold = float(profile.attrs["atol"])
        named.append((float(layer[-1]), threshold, f"threshold {threshold:g}", "0.35"))
        ends = ax.get_xlim()[0], float(layer[-1])
        ax.hlines(threshold, *ends, color="0.35", linestyle=":", linewidth=1.0, zorder=1)
    dress(ax, "layer", "singular value of W at one frequency", "Singular values by frequency")
    ax.set_ylim(bottom=0)
    ticks = MaxNLocator(integer=True).tick_values(layer[0], layer[-1])
    ax.set_xticks([tick for tick in ticks if layer[0] <= tick <= layer[-1]])
    _name(ax, named, float(layer[-1]))
    _key(ax, modulus)
    return ax


@dataclass(frozen=True)
class Line:
    """A singular value at one frequency over the layers.

    Attributes
    ----------
    name : str
        Of the frequency, with ± for a pair.
    label : str
        The name, with the number of the value where the bottleneck keeps several.
    modulus : float
        |w|.
    channel : int
        Which singular value, from 1.
    values : ndarray
        One per layer, NaN where there is none.
    kept : bool
        Whether the bottleneck keeps it.
    """

    name: str
    label: str
    modulus: float
    channel: int
    values: np.ndarray[Any, Any]
    kept: bool


def frequency_lines(profile: xr.Dataset, max_lines: int = 200) -> list[Line]:
    """Return the lines to draw, one per frequency and channel: those kept first, then by their largest value.

    Parameters
    ----------
    profile, max_lines
        As in :func:`frequency_spectra`.

    Raises
    ------
    ValueError
        As :func:`frequency_spectra`.
    """
    max_lines = validation.integer(max_lines, "max_lines")
    values = variable(profile, "frequency_singular_values", ("layer", "frequency", "channel"), "profile")
    kept = {name: channels for name, _, channels in kept_frequencies(profile)}
    found = []
    for i, name in enumerate(map(str, profile["frequency"].values)):
        text, count = label(name, int(profile["multiplicity"].values[i])), kept.get(name, 0)
        modulus = float(profile["modulus"].values[i])
        for j in np.flatnonzero(np.isfinite(values[:, i]).any(0)).tolist():
            which = f", s{j + 1}".translate(_SUBSCRIPT) if j < count and count > 1 else ""
            found.append(Line(text, text + which, modulus, j + 1, values[:, i, j], j < count))
    return sorted(found, key=lambda line: (not line.kept, -float(np.nanmax(line.values))))[:max_lines]


def kept_frequencies(profile: xr.Dataset) -> list[tuple[str, int, int]]:
    """Return the frequencies that the bottleneck keeps: name, multiplicity, and how many channels."""
    if "kept_channels" not in profile:
        return []
    columns = (profile[name].values.tolist() for name in ("frequency", "multiplicity", "kept_channels"))
    return [(name, times, channels) for name, times, channels in zip(*columns, strict=True) if channels]


def _key(ax: Axes, every: np.ndarray[Any, Any]) -> None:
    """Add a key from |w| to its color: in steps where there are few values, else continuous."""
    top = float(every[-1])
    if len(every) <= MOST_STEPS:
        bar = color_key(ax, _colors(every, top), [f"{value:.3g}" for value in every], pad=0.02)
    else:
        ticks = MaxNLocator(integer=True, nbins=8)
        bar = color_key(ax, colors(np.linspace(0, 1, 256)), norm=PowerNorm(0.5, 0, top), ticks=ticks, pad=0.02)
    bar.set_label("|w|, cycles per image", fontsize=9)


def _colors(modulus: Any, top: float) -> Any:
    """Return the colors of |w|, dark for 0; a square root separates the low frequencies."""
    return colors(np.sqrt(modulus / (top or 1.0)))


def _name(ax: Axes, named: list[tuple[float, float, str, Any]], right: float) -> None:
    """Write the names at the right of the axes, without overlap, each connected to the end of its line."""
    low, high = ax.get_ylim()
    step = 0.055 * (high - low)
    ends = sorted(named, key=lambda entry: entry[1])
    heights = apart([y for _, y, *_ in ends], step, high - 0.3 * step)
    left = ax.get_xlim()[0]
    span = right - left
    for (x, y, text, color), height in zip(ends, heights, strict=True):
        line = {"arrowstyle": "-", "color": color, "linewidth": 0.7, "shrinkA": 0, "shrinkB": 0}
        ax.annotate("", (right + 0.05 * span, height), (x, y), arrowprops=line)
        ax.text(right + 0.055 * span, height, text, color=color, fontsize=9, va="center", ha="left")
    if named:
        widest = max(len(text) for *_, text, _ in named)
        ax.set_xlim(left, right=right + span * (0.07 + 0.0165 * widest))


def apart(heights: Sequence[float], step: float, top: float) -> list[float]:
    """Return heights at least a step apart and at most ``top``, for heights in ascending order."""
    result: list[float] = []
    for height in heights:
        result.append(max(height, result[-1] + step) if result else height)
    for i in reversed(range(len(result))):  # what is above the top moves down, and pushes those below
        result[i] = min(result[i], result[i + 1] - step if i + 1 < len(result) else top)
    return result
