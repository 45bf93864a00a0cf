"""Phase diagrams: the mean of a result of a sweep over two of its axes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from bnrank._core import validation
from bnrank._core.axes import axes_for, dress

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr

ANNOTATED = 150  # largest number of cells with numbers in them
NARROW = 8  # largest ratio of values on a linear scale


@dataclass(frozen=True)
class Diagram:
    """A result over two axes.

    Attributes
    ----------
    x, y, value : str
        Names of the axes and of the result.
    xs, ys : list
        Values of the axes, sorted.
    means : ndarray
        Means over the networks of a cell that have the result, (len(ys), len(xs)); NaN where there is none.
    counts : ndarray of int
        Numbers of these networks.
    """

    x: str
    y: str
    value: str
    xs: list[Any]
    ys: list[Any]
    means: np.ndarray
    counts: np.ndarray

    @property
    def logarithmic(self) -> bool:
        """Whether the means are positive and far apart."""
        known = self.means[np.isfinite(self.means)]
        return bool(known.size and known.min() > 0 and known.max() > NARROW * known.min())

    @property
    def title(self) -> str:
        """What is shown."""
        known = self.counts[self.counts > 0]
        if not known.size:
            return f"{words(self.value)}: no network has one"
        low, high = int(known.min()), int(known.max())
        of = f"{low}" if low == high else f"{low} to {high}"
        return f"{words(self.value)}, mean of {of} network{'' if (low, high) == (1, 1) else 's'} per cell"

    def draw(self, axes: Any = None) -> Any:
        """Draw the diagram as a heat map into axes, default new ones, and return them."""
        from matplotlib import colormaps
        from matplotlib.colors import LogNorm

        (ax,) = axes_for(axes, (1, 1), (1.8 + 0.7 * min(len(self.xs), 14), 1.6 + 0.5 * min(len(self.ys), 14)))
        scale = {"norm": LogNorm()} if self.logarithmic else {}
        colors = colormaps["viridis_r"].with_extremes(bad="0.93")
        image = ax.imshow(self.means, origin="lower", aspect="auto", cmap=colors, interpolation="nearest", **scale)
        dress(ax, words(self.x), words(self.y), self.title)
        ax.grid(visible=False)
        for axis, values in ((ax.xaxis, self.xs), (ax.yaxis, self.ys)):
            every = -(-len(values) // 14)
            axis.set_ticks(range(0, len(values), every), [short(value) for value in values[::every]])
        if self.counts.any():
            ax.figure.colorbar(image, ax=ax, aspect=30, pad=0.02)
        if self.means.size <= ANNOTATED:
            for (i, j), value in np.ndenumerate(self.means):
                if np.isfinite(value):
                    ink = "white" if image.norm(value) > 0.55 else "black"
                    ax.text(j, i, short(value), ha="center", va="center", fontsize=8, color=ink)
        return ax


def phase_diagram(results: xr.Dataset | pd.DataFrame, x: str, y: str, value: str) -> Diagram:
    """Return the mean of a result over two axes, over all networks that have it.

    Parameters
    ----------
    results : xarray.Dataset or pandas.DataFrame
        What `bnrank.sweep` returned, or `Sweep.to_frame()`.
    x, y : str
        Two axes, such as "depth" and "ridge".
    value : str
        A result with one number per network, such as "loss" or "bottleneck_rank".

    Raises
    ------
    TypeError, ValueError
        If the results are something else, have no such axes or result, or the result is no number.

    Examples
    --------
    >>> import pandas as pd
    >>> table = pd.DataFrame({"depth": [2, 2, 3], "ridge": [0.1, 0.1, 0.1], "loss": [1.0, 3.0, 5.0]})
    >>> phase_diagram(table, "depth", "ridge", "loss").means
    array([[2., 5.]])
    """
    import pandas as pd
    import xarray as xr

    for name, text in (("x", x), ("y", y), ("value", value)):
        validation.text(text, name)
    if isinstance(results, xr.Dataset):
        validation.expect(value in results, "value", repr(value), f"one of {', '.join(map(str, results.data_vars))}")
        many = [str(name) for name in ("layer", "index") if name in results[value].dims]
        validation.expect(not many, "value", f"{value!r}, over {' and '.join(many)}", "one number per network")
        results = results[[value]].to_dataframe().reset_index()
    validation.expect(isinstance(results, pd.DataFrame), "results", results, "a Dataset or a DataFrame", TypeError)
    for name, column in (("x", x), ("y", y), ("value", value)):
        validation.expect(column in results, name, repr(column), f"one of {', '.join(map(str, results.columns))}")
    validation.expect(len({x, y, value}) == 3, "y", f"{(x, y, value)}", "three different columns")
    values = pd.to_numeric(results[value], errors="coerce")
    got = f"{value!r}, which holds texts or no numbers"
    validation.expect(values.notna().any() or results[value].isna().all(), "value", got, "numbers")
    cells = values.groupby([results[y], results[x]], sort=False).agg(["mean", "count"])
    xs, ys = (_ordered(results[name].dropna().unique().tolist()) for name in (x, y))
    means, counts = (cells[name].unstack().reindex(index=ys, columns=xs).to_numpy() for name in ("mean", "count"))
    return Diagram(x, y, value, xs, ys, means.astype(float), np.nan_to_num(counts).astype(int))


def _ordered(values: list[Any]) -> list[Any]:
    """Return values sorted, numbers before texts."""
    return sorted(values, key=lambda value: (isinstance(value, str), value))


def words(name: str) -> str:
    """Return the name of a column in words."""
    return name.replace("_", " ")


def short(value: Any) -> str:
    """Return a value of an axis, or a mean, in few characters."""
    return f"{value:.3g}" if isinstance(value, float) else str(value)
