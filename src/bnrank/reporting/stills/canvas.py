"""What the plots share: colors of singular values, checks of the Datasets they draw."""

from typing import Any

import numpy as np
import xarray as xr
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import BoundaryNorm, ListedColormap

from bnrank._core import validation
from bnrank.reporting.sections import bottleneck


def variable(dataset: xr.Dataset, name: str, dims: tuple[str, ...]) -> np.ndarray[Any, Any]:
    """Return a variable's values in the order of ``dims``; raise ValueError if it is missing or has others."""
    if name not in dataset:
        raise ValueError(f"{name}: not in the Dataset, which holds {sorted(map(str, dataset.data_vars))}")
    if set(dataset[name].dims) != set(dims):
        raise ValueError(f"{name}: got dimensions {dataset[name].dims}, expected {dims}")
    return np.asarray(dataset[name].transpose(*dims).values, dtype=float)


def position(history: xr.Dataset, member: object) -> int:
    """Return the position of a member, checked against the history."""
    result = validation.integer(member, "member", 0)
    members = history.sizes.get("member", 0)
    validation.expect(result < members, "member", f"{result}", f"a position below {members}")
    return result


def colors(count: int) -> list[Any]:
    """Return one color per singular value, dark for the largest (viridis without its palest part)."""
    return [colormaps["viridis"](position) for position in np.linspace(0, 0.88, count)]


def lines(ax: Axes, x: Any, spectrum: np.ndarray[Any, Any], marker: str | None = "o") -> None:
    """Draw a spectrum of shape (len(x), index) as one line per index, the largest on top."""
    shades = colors(spectrum.shape[1])
    for i in range(spectrum.shape[1]):
        ax.plot(x, spectrum[:, i], color=shades[i], marker=marker, markersize=3, linewidth=1.4, zorder=3 - 0.01 * i)


def index_key(axes: Any, count: int) -> None:
    """Add a color key from the index of a singular value to its color, at the right of the axes."""
    bounds = np.arange(0.5, count + 1)
    norm = BoundaryNorm(bounds, count)
    mappable = ScalarMappable(norm=norm, cmap=ListedColormap(colors(count)))
    every = list(axes) if isinstance(axes, np.ndarray) else [axes]
    bar = every[0].figure.colorbar(mappable, ax=every, ticks=range(1, count + 1), aspect=30, pad=0.015)
    bar.ax.invert_yaxis()
    bar.ax.tick_params(length=0, labelsize=8)
    bar.ax.minorticks_off()
    bar.ax.set_title("index", fontsize=9)
    bar.outline.set_visible(False)


def shade(ax: Axes, profile: xr.Dataset) -> None:
    """Shade the layers of the bottleneck, if the profile has found one."""
    found = bottleneck(profile)
    if found["start"] is not None and found["end"] is not None:
        ax.axvspan(found["start"] - 0.5, found["end"] + 0.5, color="0.94", zorder=0, label="bottleneck")


def log_if_wide(ax: Axes, values: np.ndarray[Any, Any]) -> None:
    """Use a logarithmic y axis if the finite values are positive and span more than a factor of ten."""
    finite = values[np.isfinite(values)]
    if finite.size and 0 < 10 * float(finite.min()) < float(finite.max()):
        ax.set_yscale("log")
