"""The record of a watch: quantities over steps and layers, as a dataset, a table and a plot."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from bnrank._core import validation
from bnrank._core.axes import OKABE_ITO, axes_for, dress
from bnrank._core.content import Part, Table
from bnrank._core.results import Printed
from bnrank._core.sampling import evenly_spaced
from bnrank._version import __version__
from bnrank.training.watching.quantities import LARGEST, LONG_NAMES, NONFINITE, QUANTITIES

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr

SHOWN = 12  # layers in a table, and lines in a panel
NAMED = 6  # layers in a remark
PANELS = ("dimension_95", "stable_rank", "change", "update_stable_rank", "cka", "dead_units")
COLUMNS = {
    "units": "inputs",
    "dimension_95": "dimension (95 %)",
    "dead_units": "dead",
    "constant_units": "constant",
    "stable_rank": "stable rank of W",
    "effective_rank": "effective rank",
    "tail": "tail",
    "change": "change",
    "update_stable_rank": "of it, stable rank",
    "update_share": "in top singular values",
    "cka": "CKA with the first",
    "subnormals": "subnormal",
}
RANGES = {"dimension_95": ".0f", "stable_rank": ".3g"}  # shown from the first to the last measurement, in a format


@dataclass(frozen=True)
class Measured:
    """One measurement of a watch.

    Attributes
    ----------
    step : int
        Steps that the optimizer has taken.
    rows : mapping
        Quantities by layer, ``rows[layer][quantity]``; NaN or missing where one is unknown.
    values : mapping
        The largest singular values of each layer's weight, descending.
    drift : mapping
        Drift of each conserved quantity, where the watch has a monitor.
    """

    step: int
    rows: Mapping[str, Mapping[str, float]]
    values: Mapping[str, Sequence[float]] = field(default_factory=dict)
    drift: Mapping[str, float] = field(default_factory=dict)

    def flat(self) -> dict[str, float]:
        """Return the measurement as ``{"quantity/layer": value}`` without NaN.

        Examples
        --------
        >>> import bnrank
        >>> bnrank.training.Measured(1, {"0": {"stable_rank": 2.0}}).flat()
        {'stable_rank/0': 2.0}
        """
        values = {f"{name}/{layer}": value for layer, row in self.rows.items() for name, value in row.items()}
        values |= {f"drift/{name}": value for name, value in self.drift.items()}
        return {name: value for name, value in values.items() if not math.isnan(value)}


def dataset(
    measured: Sequence[Measured], layers: Sequence[str], what: Sequence[str], attrs: Mapping[str, Any]
) -> xr.Dataset:
    """Return measurements over (step, layer); NaN where a layer was not measured.

    Examples
    --------
    >>> history = dataset([Measured(1, {"0": {"stable_rank": 2.0}})], ["0"], ["weights"], {})
    >>> float(history["stable_rank"].sel(step=1, layer="0"))
    2.0
    """
    import xarray as xr

    dims, shape = ("step", "layer"), (len(measured), len(layers))
    variables: dict[str, Any] = {}
    for name in [name for part in what for name in QUANTITIES[part]]:
        values = [[m.rows.get(layer, {}).get(name, math.nan) for layer in layers] for m in measured]
        array = np.array(values, dtype=float).reshape(shape)
        variables[name] = (dims, array, {"units": "1", "long_name": LONG_NAMES[name]})
    coords: dict[str, Any] = {
        "step": ("step", np.array([m.step for m in measured], dtype=np.int64), {"units": "1", "long_name": "steps"}),
        "layer": ("layer", np.array(layers, dtype=str), {"long_name": "layer, and the output of the network"}),
    }
    if "weights" in what:
        array = np.full((*shape, LARGEST), math.nan)
        for i, m in enumerate(measured):
            for layer, largest in m.values.items():
                array[i, layers.index(layer), : len(largest)] = largest
        about = {"units": "1", "long_name": "largest singular values of W"}
        variables["singular_values"] = ((*dims, "index"), array, about)
        coords["index"] = np.arange(1, LARGEST + 1)
    if conserved := list(dict.fromkeys(name for m in measured for name in m.drift)):
        array = np.array([[m.drift.get(name, math.nan) for name in conserved] for m in measured])
        about = {"units": "1", "long_name": "drift of a conserved quantity over ||in + out||"}
        variables["drift"] = (("step", "quantity"), array, about)
        coords["quantity"] = np.array(conserved, dtype=str)
    return xr.Dataset(variables, coords, {"bnrank_version": __version__, **attrs})


class Record(Printed):
    """Measurements over steps and layers.

    Attributes
    ----------
    history : xarray.Dataset
        Quantities over (step, layer).
    """

    def __init__(self, history: xr.Dataset) -> None:
        self._history = history

    @property
    def history(self) -> xr.Dataset:
        """The measurements over (step, layer)."""
        return self._history

    @property
    def diverged(self) -> list[str]:
        """Remarks: since which step which layers are NaN or infinite, and which were so and are finite again.

        Examples
        --------
        >>> rows = [{"0": {"nonfinite": 0.0}}, {"0": {"nonfinite": 3.0}}]
        >>> Record(dataset([Measured(i, row) for i, row in enumerate(rows)], ["0"], ["weights"], {})).diverged
        ['NaN or infinite since step 1: weights of 0']
        """
        history = self.history
        layers: dict[str, dict[str, list[str]]] = {}
        for quantity, kind in NONFINITE.items():
            for name in history["layer"].values.tolist() if quantity in history else ():
                counts = history[quantity].sel(layer=name).dropna("step")
                bad, good = (counts["step"].values[mask] for mask in (counts.values > 0, counts.values == 0))
                since = bad[bad > good.max(initial=-1)]
                if len(bad):
                    past = f"last at step {bad[-1]:,}, finite later"
                    when = f"since step {since[0]:,}" if len(since) else past
                    layers.setdefault(when, {}).setdefault(kind, []).append(name)
        return [
            f"NaN or infinite {when}: {', '.join(f'{kind} {shortened(names)}' for kind, names in kinds.items())}"
            for when, kinds in layers.items()
        ]

    @property
    def notes(self) -> list[str]:
        """Remarks: since which step which layers are NaN or infinite, what was not measured, which layers collapsed."""
        return self.diverged + [note for note in str(self.history.attrs.get("notes", "")).split("\n") if note]

    def to_frame(self) -> pd.DataFrame:
        """Return one row per step and layer, the quantities in columns."""
        history = self.history
        return (
            history[[name for name in history if history[name].dims == ("step", "layer")]].to_dataframe().reset_index()
        )

    def summary(self) -> list[dict[str, object]]:
        """Return a row per layer: the quantities at the last measurement; ranges are from the first to the last.

        A dash or None stands for what is NaN, undefined or not measured.
        """
        return [_summary(self.history.isel(layer=i)) for i in range(self.history.sizes["layer"])]

    def plot(self, axes: Any = None) -> Any:
        """Draw dimensions, stable ranks and dead units over steps, a line per layer; return the axes.

        Parameters
        ----------
        axes : matplotlib axes, optional
            One per quantity that was measured. Default: new ones.

        Raises
        ------
        ValueError
            If nothing was measured yet, or there are fewer or more axes than quantities.

        Examples
        --------
        >>> import torch, bnrank
        >>> net, x = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU()), torch.randn(128, 8)
        >>> watch = bnrank.watch(net, x=x)
        >>> measured = watch.step()
        >>> [ax.get_title() for ax in watch.plot()]
        ['dimension (95 %)', 'stable rank of W', 'dead']
        """
        history = self.history
        panels = [name for name in PANELS if name in history and np.isfinite(history[name]).any()]
        validation.expect(panels, "watch", "no measurements", "at least one, after watch.step()")
        axes = axes_for(axes, (1, len(panels)), (4.2 * len(panels), 3.6))
        for ax, name in zip(axes, panels, strict=True):
            lines = history[name].dropna("layer", how="all")
            for place, k in enumerate(evenly_spaced(lines.sizes["layer"], SHOWN).tolist()):
                style = {"color": OKABE_ITO[place % 7], "linestyle": "-" if place < 7 else "--"}
                label = str(lines["layer"].values[k])
                ax.plot(lines["step"].values, lines.values[:, k], marker=".", label=label, linewidth=1.4, **style)
            ax.set_ylim(bottom=0)
            dress(ax, "step", "", COLUMNS[name])
        axes[0].legend(fontsize=7, frameon=False)
        return axes

    @property
    def span(self) -> str:
        """How many measurements there are, and of which steps."""
        steps = self.history["step"].values
        if len(steps) < 2:
            return f"1 measurement, at step {steps[0]:,}" if len(steps) else "nothing measured yet"
        return f"{len(steps)} measurements, steps {steps[0]:,} to {steps[-1]:,}"

    def _content(self) -> list[Part]:
        history, rows, diverged = self.history, self.summary(), self.diverged
        lines: list[Part] = [f"{history.attrs.get('title', 'watch')}: {self.span}", *diverged]
        if history.sizes["step"]:
            shown = evenly_spaced(len(rows), SHOWN).tolist()
            lines.append(Table(f"Layers at step {history['step'].values[-1]:,}", [rows[i] for i in shown]))
            lines += [f"{len(shown)} of {len(rows)} layers shown; .history has all"] if len(shown) < len(rows) else []
        if "drift" in history and (drift := history["drift"][-1].dropna("quantity")).size:
            worst = drift[drift.values.argmax()]
            lines.append(f"conserved quantities: largest relative drift {float(worst):.2e}, {worst['quantity'].item()}")
        return [*lines, *self.notes[len(diverged) :]]


def shortened(names: Sequence[str]) -> str:
    """Return the first names, and how many others there are."""
    more = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {more} other{'s' * (more > 1)}" if more > 0 else "")


def _summary(one: xr.Dataset) -> dict[str, object]:
    row: dict[str, object] = {"layer": str(one["layer"].values)}
    for name, title in COLUMNS.items() if one.sizes["step"] else ():
        if name in RANGES and name in one:
            ends = ["–" if math.isnan(value) else f"{value:{RANGES[name]}}" for value in one[name].values[[0, -1]]]
            row[title] = "–" if set(ends) == {"–"} else " to ".join(ends)
        elif name in one:
            value = float(one[name].values[-1])
            row[title] = None if math.isnan(value) else int(value) if value.is_integer() else value
    share = row.get(COLUMNS["update_share"])
    if isinstance(share, int | float):  # that of all singular values of a small matrix is not shown
        row[COLUMNS["update_share"]] = f"{100 * share:.3g} %" if one["full_rank"][-1] > one.attrs["top"] else None
    return row
