"""Still pictures of training, over its steps: loss, plateaus, spectra (F9, F10)."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from bnrank._core import validation
from bnrank._core.axes import OKABE_ITO, axes_for, dress
from bnrank.reporting.sections import CURVES, evenly
from bnrank.reporting.stills.spectra import index_key, lines, variable


def plateaus(
    history: xr.Dataset,
    member: int = 0,
    layers: Sequence[int] | None = None,
    axes: Any = None,
    *,
    top: int = 10,
    found: Sequence[Any] = (),
    marks: Mapping[str, int] | None = None,
) -> Any:
    """Draw the loss over the steps and, below it, the top singular values of each layer's weight (F9, F10).

    Parameters
    ----------
    history : Dataset
        ``loss`` (member, step) and ``weight_singular_values`` (member, step, layer, index).
    member : int
        Position of the member.
    layers : sequence of int, optional
        Layers to show, counted from 1; default: all, or six of them evenly spaced.
    axes : Axes, optional
        One for the loss and one per layer; default: a new figure.
    top : int
        Largest number of singular values per layer.
    found : sequence of Plateau
        Plateaus of the loss, with rows of this history, to shade and number.
    marks : mapping, optional
        From a label to the row at which to draw a vertical line through all panels.

    Returns
    -------
    ndarray of Axes, shape (1 + layers,)
        The loss first.

    Raises
    ------
    ValueError
        If the history lacks a variable, a layer or the member is not in it, or a mark or plateau is not one of its
        rows.

    Examples
    --------
    >>> import bnrank
    >>> task = bnrank.tasks.low_rank_map(n=50, d_in=5, d_out=5, latent=3, rank=1, seed=0)
    >>> net = bnrank.MLP([5, 10, 10, 5], bias=False, init=1e-2)
    >>> run = bnrank.train(net, task, optimizer="adam", steps=400, record=10, seed=0, progress=False)
    >>> len(plateaus(run.history, top=4))
    4
    """
    loss = variable(history, "loss", ("member", "step"), "history")
    member = _position(history, member)
    loss = loss[member]
    variable(history, "weight_singular_values", ("member", "step", "layer", "index"), "history")
    step = history["step"].values
    found = validation.sequence(found, "found", "plateaus of the loss")
    for p in found:
        validation.expect(hasattr(p, "number") and hasattr(p, "end_row"), "found", p, "plateaus of the loss", TypeError)
    validation.expect(marks is None or isinstance(marks, Mapping), "marks", marks, "a mapping to rows", TypeError)
    lines_at = [(f"marks[{what!r}]", row) for what, row in (marks or {}).items()]
    for what, row in [*lines_at, *((f"found: plateau {p.number}", p.end_row) for p in found)]:
        row = validation.integer(row, what, 0)
        validation.expect(row < len(step), what, f"row {row}", f"a row of the history, 0 to {len(step) - 1}")
    known = history["layer"].values.tolist()
    if layers is None:
        layers = [known[i] for i in evenly(len(known), 6)]
    layers = validation.integers(layers, "layers")
    validation.expect(layers and set(layers) <= set(known), "layers", f"{layers}", f"some of {known}")
    columns = len(layers) if len(layers) in (1, 2, 4) else 3
    rows = -(-len(layers) // columns)
    if axes is None:
        figure = Figure(figsize=(10.5, 2.6 + 2.4 * rows), layout="constrained")
        cells = figure.add_gridspec(rows + 1, columns)
        first = figure.add_subplot(cells[0, :])
        panels = [figure.add_subplot(cells[1 + i // columns, i % columns], sharex=first) for i in range(len(layers))]
        axes = np.array([first, *panels], dtype=object)
    axes = axes_for(axes, (1, 1 + len(layers)), (0, 0))
    axes[0].plot(step, loss, color=OKABE_ITO[0], linewidth=1.6)
    dress(axes[0], "step", "loss  C + λ‖θ‖²", "Training loss")
    _log_if_wide(axes[0], loss)
    for i, (ax, layer) in enumerate(zip(axes[1:], layers, strict=True)):
        spectra_over_steps(history, layer, member, ax, top=top, key=False)
        ax.xaxis.set_major_locator(MaxNLocator(nbins=4))
        ax.set_xlabel("step" if i + columns >= len(layers) else "")
        ax.set_ylabel("singular value of W" if i % columns == 0 else "")
    bottom = max((ax.get_ylim()[1] for ax in axes[1:]), default=1.0)
    for ax in axes[1:]:
        ax.set_ylim(0, bottom)
    index_key(axes[1:], min(top, history.sizes["index"]))
    _stages(axes, step, found, marks or {})
    return axes


def _stages(axes: Any, step: Any, found: Sequence[Any], marks: Mapping[str, int]) -> None:
    """Shade and number plateaus in all panels, and draw labeled lines."""
    for plateau in found:
        begin, end = step[plateau.begin_row], step[plateau.end_row]
        for ax in axes:
            ax.axvspan(begin, end, color="0.93", zorder=0)
        wide = end - begin > 0.1 * (step[-1] - step[0])
        text = f"plateau {plateau.number}" if wide else str(plateau.number)
        top = ((begin + end) / 2, 1)
        style = {"ha": "center", "va": "bottom", "fontsize": 8, "color": "0.35"}
        axes[0].annotate(text, top, (0, 1), ("data", "axes fraction"), "offset points", **style)
    for i, (label, row) in enumerate(marks.items()):
        dash = ("--", ":", "-.")[i % 3]
        for ax in axes:
            ax.axvline(step[row], color=OKABE_ITO[1], linewidth=1.2, linestyle=dash, label=label)
    if marks:
        handles = axes[0].lines[-len(marks) :]
        axes[0].legend(frameon=False, fontsize=8, loc="lower center", handles=handles)
    if found:
        axes[0].set_title(axes[0].get_title(), fontsize=11, pad=14)


def spectra_over_steps(
    history: xr.Dataset, layer: int, member: int = 0, ax: Axes | None = None, *, top: int = 10, key: bool = True
) -> Axes:
    """Draw the top singular values of one layer's weight over the steps of training (F9).

    Parameters
    ----------
    history : Dataset
        ``weight_singular_values`` (member, step, layer, index).
    layer : int
        Which layer, counted from 1.
    member : int
        Position of the member.
    ax : Axes, optional
        Where to draw; default: a new figure.
    top : int
        Largest number of singular values.
    key : bool
        Whether to add the color key.

    Raises
    ------
    ValueError
        If the history lacks the variable, or the layer or the member is not in it.

    Examples
    --------
    >>> import bnrank
    >>> task = bnrank.tasks.low_rank_map(n=50, d_in=5, d_out=5, latent=3, rank=1, seed=0)
    >>> net = bnrank.MLP([5, 10, 10, 5], bias=False, init=1e-2)
    >>> run = bnrank.train(net, task, optimizer="adam", steps=400, record=10, seed=0, progress=False)
    >>> len(spectra_over_steps(run.history, layer=2, top=4).lines)
    4
    """
    top, key, layer = validation.integer(top, "top"), validation.flag(key, "key"), validation.integer(layer, "layer")
    spectra = variable(history, "weight_singular_values", ("member", "step", "layer", "index"), "history")
    member = _position(history, member)
    known = history["layer"].values.tolist()
    validation.expect(layer in known, "layer", f"{layer}", f"one of {known}")
    values = spectra[member, :, known.index(layer), :top]
    recorded = np.isfinite(values).any(1)
    ax = axes_for(ax, (1, 1), (6.4, 3.8), name="ax")[0]
    lines(ax, history["step"].values[recorded], values[recorded], marker=None)
    dress(ax, "step", "singular value of W", f"Layer {layer}")
    ax.set_ylim(bottom=0)
    if key:
        index_key(ax, values.shape[1])
    return ax


def training_curves(
    history: xr.Dataset, quantities: Sequence[str] = ("loss", "cost", "parameter_norm"), axes: Any = None
) -> Any:
    """Draw recorded quantities over the steps of training, one panel each, one line per member.

    Parameters
    ----------
    history : Dataset
        The quantities, each (member, step). A logarithmic axis is used where all values are positive.
    quantities : sequence of str
        Variables of the history.
    axes : Axes, optional
        As many as there are quantities; default: side by side in a new figure.

    Returns
    -------
    ndarray of Axes, shape (quantities,)

    Raises
    ------
    ValueError
        If the history lacks a quantity.

    Examples
    --------
    >>> import bnrank
    >>> task = bnrank.tasks.low_rank_map(n=50, d_in=5, d_out=5, latent=3, rank=1, seed=0)
    >>> net = bnrank.MLP([5, 10, 10, 5])
    >>> run = bnrank.train(net, task, ridge=1e-3, steps=200, record=10, members=3, seed=0, progress=False)
    >>> [len(ax.lines) for ax in training_curves(run.history)]
    [3, 3, 3]
    """
    quantities = validation.sequence(quantities, "quantities", "names of variables of the history")
    validation.expect(quantities, "quantities", "none", "at least one")
    values = [variable(history, name, ("member", "step"), "history, quantities") for name in quantities]
    axes = axes_for(axes, (1, len(values)), (4.2 * len(values), 3.8))
    members = history["member"].values
    status = history.coords["status"].values if "status" in history.coords else [""] * len(members)
    for ax, name, curves in zip(axes, quantities, values, strict=True):
        for i, curve in enumerate(curves):
            color, dash = OKABE_ITO[i % len(OKABE_ITO)], ("-", "--", ":", "-.")[i // len(OKABE_ITO) % 4]
            label = f"member {members[i]}" + (f" ({status[i]})" if status[i] in ("diverged", "interrupted") else "")
            ax.plot(history["step"].values, curve, color=color, linestyle=dash, linewidth=1.4, label=label)
        dress(ax, "step", CURVES.get(name, name), name.replace("_", " ").capitalize())
        _log_if_wide(ax, curves)
    axes[-1].legend(
        frameon=False, fontsize=9, loc="upper left", bbox_to_anchor=(1.01, 1.0), ncols=1 + (len(members) - 1) // 14
    )
    return axes


def _position(history: xr.Dataset, member: object) -> int:
    """Return the position of a member, checked against the history."""
    result = validation.integer(member, "member", 0)
    members = history.sizes.get("member", 0)
    validation.expect(result < members, "member", f"{result}", f"a position below {members}")
    return result


def _log_if_wide(ax: Axes, values: np.ndarray[Any, Any]) -> None:
    """Use a logarithmic y axis if the finite values are positive and span more than a factor of ten."""
    finite = values[np.isfinite(values)]
    if finite.size and 0 < 10 * float(finite.min()) < float(finite.max()):
        ax.set_yscale("log")
