"""Still pictures of spectra per layer, and of the norm against depth (F1, F4); common parts of pictures of spectra."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import xarray as xr
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import BoundaryNorm, ListedColormap
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from bnrank._core import validation
from bnrank._core.axes import OKABE_ITO, axes_for, dress
from bnrank.reporting.sections import SPECTRA, bottleneck


def bottleneck_spectra(profile: xr.Dataset, axes: Any = None, *, top: int = 10) -> Any:
    """Draw the top singular values of activations and weights over the layers, and the nonlinearity ratio (F1).

    Parameters
    ----------
    profile : Dataset
        ``activation_singular_values`` and ``weight_singular_values`` (layer, index), ``nonlinearity`` (layer). The
        layers of the bottleneck (attribute ``bottleneck``) are shaded.
    axes : three Axes, optional
        Where to draw; default: side by side in a new figure.
    top : int
        Largest number of singular values per layer.

    Returns
    -------
    ndarray of Axes, shape (3,)

    Raises
    ------
    ValueError
        If the profile lacks a variable or its dimensions.

    Examples
    --------
    >>> import bnrank
    >>> task = bnrank.tasks.low_rank_map(n=100, d_in=10, d_out=10, latent=4, rank=2, seed=0)
    >>> run = bnrank.train(bnrank.MLP([10] + [20] * 9 + [10]), task, ridge=4e-3, steps=400, seed=0, progress=False)
    >>> [len(ax.lines) for ax in bottleneck_spectra(bnrank.profile(run.network(0), task.x), top=8)]
    [8, 8, 1]
    """
    names = ("activation_singular_values", "weight_singular_values")
    spectra = [variable(profile, name, ("layer", "index"), "profile") for name in names]
    ratio = variable(profile, "nonlinearity", ("layer",), "profile")
    axes = axes_for(axes, (1, 3), (12.5, 3.8))
    top = validation.integer(top, "top")
    layer = profile["layer"].values
    for ax in axes:
        shade(ax, profile)
    for ax, name, spectrum in zip(axes, names, spectra, strict=False):
        kind, _, quantity = SPECTRA[name].partition(", ")
        lines(ax, layer, spectrum[:, :top])
        dress(ax, "layer", quantity, kind.capitalize())
    axes[2].plot(layer, ratio, color=OKABE_ITO[0], marker="o", markersize=4)
    dress(axes[2], "layer", "‖Z − σ(Z)‖ / ‖Z‖  (Frobenius)", "Nonlinearity ratio")
    for ax in axes:
        ax.set_ylim(bottom=0)
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    index_key(axes[1], min(top, max(spectrum.shape[1] for spectrum in spectra)))
    return axes


def norm_versus_depth(
    depths: Any, norms: Any, ranks: Any, costs: Any, cost_threshold: float = 0.1, ax: Axes | None = None
) -> Axes:
    """Draw the parameter norm against depth, colored by the rank of the middle weight (F4a).

    Dots are runs with training cost below the threshold, crosses the others. For each rank attained at two or more
    depths, a least-squares line is drawn through its dots, with the slope in the legend: within a rank range the norm
    is affine in L with slope R0, the rank.

    Parameters
    ----------
    depths, norms, ranks, costs : array, shape (runs,)
        L, ||theta||^2, rank of W_{L/2} and training cost of each run. Runs with a NaN or infinite norm or rank are left
        out.
    cost_threshold : float
        Below it a run counts as fitted.
    ax : Axes, optional
        Where to draw; default: a new figure.

    Returns
    -------
    Axes

    Raises
    ------
    ValueError
        If the arrays are empty or differ in shape, a depth is not finite, or no norm is finite.

    Examples
    --------
    >>> ax = norm_versus_depth([4, 6, 8], [9.0, 13.0, 17.0], [2, 2, 2], [0.0, 0.0, 0.0])
    >>> ax.get_legend().get_texts()[0].get_text()
    'rank 2: slope 2.00 (3 runs)'
    """
    named = {"depths": depths, "norms": norms, "ranks": ranks, "costs": costs}
    runs = {name: validation.numbers(value, name).double().cpu().numpy() for name, value in named.items()}
    for name, value in runs.items():
        if value.ndim != 1 or value.shape != runs["depths"].shape or not value.size:
            expected = f"one entry per run, shape {runs['depths'].shape}"
            raise ValueError(f"{name}: got {validation.describe(value)}, expected {expected}")
    validation.expect(np.isfinite(runs["depths"]).all(), "depths", "NaN or infinite entries", "finite ones")
    validation.expect(np.isfinite(runs["norms"]).any(), "norms", "no finite entry", "at least one")
    runs["norms"] = np.where(np.isfinite(runs["norms"]), runs["norms"], np.nan)
    threshold = validation.number(cost_threshold, "cost_threshold")
    ax = axes_for(ax, (1, 1), (7.2, 4.8), name="ax")[0]
    fitted = runs["costs"] < threshold
    handles = []
    for rank in np.unique(runs["ranks"][np.isfinite(runs["ranks"]) & np.isfinite(runs["norms"])]):
        color = OKABE_ITO[int(rank - 1) % len(OKABE_ITO)]
        mine = (runs["ranks"] == rank) & np.isfinite(runs["norms"])
        label = f"rank {rank:g}"
        for marker, which in (("o", mine & fitted), ("x", mine & ~fitted)):
            ax.scatter(runs["depths"][which], runs["norms"][which], color=color, marker=marker, s=34, zorder=3)
        good = mine & fitted
        fit = len(np.unique(runs["depths"][good])) >= 2
        if fit:
            slope, intercept = np.polyfit(runs["depths"][good], runs["norms"][good], 1)
            ends = np.array([runs["depths"][good].min(), runs["depths"][good].max()])
            ax.plot(ends, slope * ends + intercept, color=color, linewidth=1.6, alpha=0.7)
            label += f": slope {slope:.2f}"
        label += f" ({mine.sum()} run{'s' if mine.sum() != 1 else ''})"
        handles.append(Line2D([], [], color=color, marker="o", linewidth=1.6 if fit else 0, label=label))
    for marker, sign in (("o", "<"), ("x", "≥")):
        key = f"training cost {sign} {threshold:g}"
        handles.append(Line2D([], [], color="0.35", marker=marker, linestyle="none", label=key))
    dress(ax, "depth L", "parameter norm ‖θ‖²", "Norm against depth, by rank of the middle weight")
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.set_ylim(bottom=-0.03 * float(np.nanmax(np.abs(runs["norms"]))))
    ax.legend(handles=handles, frameon=False, fontsize=9, loc="upper left", bbox_to_anchor=(1.01, 1.0))
    return ax


def weight_spectra(trials: Any, axes: Any = None, *, top: int = 10) -> Any:
    """Draw the singular values of the weights over the layers, one panel per trial, on one scale (F4).

    Parameters
    ----------
    trials : mapping or sequence of Datasets or arrays
        Profiles with ``weight_singular_values`` (layer, index), or arrays of that shape; a mapping goes from the
        panel's title to them.
    axes : Axes, optional
        As many as there are trials; default: small multiples in a new figure, four in a row.
    top : int
        Largest number of singular values per layer.

    Returns
    -------
    ndarray of Axes, shape (trials,)

    Raises
    ------
    ValueError
        If there is no trial, or one has the wrong shape.

    Examples
    --------
    >>> import torch, bnrank
    >>> linear = bnrank.constructions.linear(torch.diag(torch.tensor([3.0, 1.0, 0.3])), depth=5)
    >>> drawn = bnrank.MLP([3, 3, 3, 3, 3, 3], seed=0)
    >>> profiles = {"optimal": bnrank.profile(linear), "He's draw": bnrank.profile(drawn)}
    >>> [ax.get_title() for ax in weight_spectra(profiles)]
    ['optimal', "He's draw"]
    """
    if isinstance(trials, Mapping) and not isinstance(trials, xr.Dataset):
        named = {str(title): entry for title, entry in trials.items()}
    else:
        entries = validation.sequence(trials, "trials", "profiles or arrays of shape (layer, index)")
        named = {f"trial {i}": entry for i, entry in enumerate(entries, 1)}
    validation.expect(named, "trials", "none", "at least one profile or array of shape (layer, index)")
    top = validation.integer(top, "top")
    spectra = []
    for title, entry in named.items():
        if isinstance(entry, xr.Dataset):
            values = variable(entry, "weight_singular_values", ("layer", "index"), f"trials[{title!r}]")
            layer = entry["layer"].values
        else:
            values = validation.numbers(entry, f"trials[{title!r}]").double().cpu().numpy()
            validation.expect(values.ndim == 2, f"trials[{title!r}]", values, "shape (layer, index)")
            layer = np.arange(1, len(values) + 1)
        spectra.append((title, layer, values[:, :top]))
    columns = min(len(spectra), 4)
    rows = -(-len(spectra) // columns)
    axes = axes_for(axes, (rows, columns), (3.1 * columns + 0.9, 3.0 * rows + 0.3), count=len(spectra))
    highest = max((float(np.nanmax(values)) for _, _, values in spectra if np.isfinite(values).any()), default=1.0)
    for i, (ax, (title, layer, values)) in enumerate(zip(axes, spectra, strict=True)):
        lines(ax, layer, values)
        dress(ax, "layer", "singular value of W" if i % columns == 0 else "", title)
        ax.set_ylim(0, 1.05 * highest)
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    index_key(axes, max(values.shape[1] for _, _, values in spectra))
    return axes


# what pictures of spectra share --------------------------------------------------------------------------------------


def variable(dataset: xr.Dataset, name: str, dims: tuple[str, ...], argument: str) -> np.ndarray[Any, Any]:
    """Return a variable's values in the order of ``dims``; raise an error if it is missing or has others."""
    validation.kind(dataset, argument, xr.Dataset, "an")
    if not isinstance(name, str) or name not in dataset:
        held = sorted(map(str, dataset.data_vars))
        raise ValueError(f"{argument}: {name}: not in the Dataset, which holds {held}")
    found = dataset[name].dims
    validation.expect(set(found) == set(dims), f"{argument}: {name}", f"dimensions {found}", f"{dims}")
    validation.expect(dataset[name].dtype.kind in "biuf", f"{argument}: {name}", dataset[name].values, "real numbers")
    return np.asarray(dataset[name].transpose(*dims).values, dtype=float)


def colors(places: Any) -> Any:
    """Return the colors of places between 0, dark, and 1: viridis without its palest part."""
    return colormaps["viridis"](0.88 * np.asarray(places))


def lines(ax: Axes, x: Any, spectrum: np.ndarray[Any, Any], marker: str | None = "o") -> None:
    """Draw a spectrum of shape (len(x), index) as one line per index, the largest on top."""
    for i, color in enumerate(colors(np.linspace(0, 1, spectrum.shape[1]))):
        ax.plot(x, spectrum[:, i], color=color, marker=marker, markersize=3, linewidth=1.4, zorder=3 - 0.01 * i)


def index_key(axes: Any, count: int) -> None:
    """Add a color key from the index of a singular value to its color, at the right of the axes."""
    bar = color_key(axes, colors(np.linspace(0, 1, count)), range(1, count + 1), pad=0.015)
    bar.ax.invert_yaxis()
    bar.ax.set_title("index", fontsize=9)


def color_key(axes: Any, shades: Any, labels: Any = None, norm: Any = None, **options: Any) -> Any:
    """Return a new color key at the right of the axes: one step per label, or continuous by a norm."""
    every = list(np.ravel(axes))
    steps = BoundaryNorm(np.arange(len(shades) + 1) - 0.5, len(shades))
    mappable = ScalarMappable(norm or steps, ListedColormap(shades))
    bar = every[0].figure.colorbar(mappable, ax=every, aspect=30, **options)
    if labels is not None:
        bar.set_ticks(range(len(shades)), labels=labels)
    bar.ax.tick_params(length=0, labelsize=8)
    bar.ax.minorticks_off()
    bar.outline.set_visible(False)
    return bar


def shade(ax: Axes, profile: xr.Dataset) -> None:
    """Shade the layers of the bottleneck, if the profile has found one."""
    found = bottleneck(profile)
    if found["start"] is not None and found["end"] is not None:
        ax.axvspan(found["start"] - 0.5, found["end"] + 0.5, color="0.94", zorder=0, label="bottleneck")
