"""The record of a watch: rows over steps and layers, as a dataset, a table and a plot."""

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
from bnrank.training.watching import divergence
from bnrank.training.watching.quantities import LARGEST, LONG_NAMES, QUANTITIES

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr

SHOWN = 12  # layers in a table and lines in a panel
PANELS = (
    ("dimension_95", "dimension of inputs at 95 %"),
    ("stable_rank", "stable rank of W"),
    ("change", "relative change of W"),
    ("update_stable_rank", "stable rank of the change"),
    ("cka", "CKA with the first"),
    ("dead_units", "dead"),
)


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
        The largest singular values of each layer's weight, descending; empty where they were not kept.
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
        found = {f"{name}/{layer}": v for layer, row in self.rows.items() for name, v in row.items()}
        found |= {f"drift/{name}": v for name, v in self.drift.items()}
        return {name: v for name, v in found.items() if not math.isnan(v)}


def dataset(
    measured: Sequence[Measured], layers: Sequence[str], what: Sequence[str], attrs: dict[str, Any]
) -> xr.Dataset:
    """Return measurements over (step, layer); NaN where a layer was not measured.

    Examples
    --------
    >>> rows = [Measured(1, {"0": {"stable_rank": 2.0}})]
    >>> found = dataset(rows, ["0"], ["weights"], {})
    >>> float(found["stable_rank"].sel(step=1, layer="0"))
    2.0
    """
    import xarray as xr

    names = [name for part in what for name in QUANTITIES[part]]
    steps = [m.step for m in measured]
    variables: dict[str, Any] = {}
    for name in names:
        values = [[m.rows.get(layer, {}).get(name, math.nan) for layer in layers] for m in measured]
        array = np.array(values, dtype=float).reshape(len(steps), len(layers))
        variables[name] = (("step", "layer"), array, {"units": "1", "long_name": LONG_NAMES[name]})
    coords: dict[str, Any] = {"step": np.array(steps, dtype=np.int64), "layer": np.array(layers, dtype=str)}
    if "weights" in what:
        array = np.full((len(steps), len(layers), LARGEST), math.nan)
        for i, m in enumerate(measured):
            for j, layer in enumerate(layers):
                largest = m.values.get(layer, ())
                array[i, j, : len(largest)] = largest
        about = {"units": "1", "long_name": "largest singular values of W"}
        variables["singular_values"] = (("step", "layer", "index"), array, about)
        coords["index"] = np.arange(1, LARGEST + 1)
    if drifting := list(dict.fromkeys(name for m in measured for name in m.drift)):
        array = np.array([[m.drift.get(name, math.nan) for name in drifting] for m in measured])
        about = {"units": "1", "long_name": "drift of a conserved quantity over ||in + out||"}
        variables["drift"] = (("step", "quantity"), array, about)
        coords["quantity"] = np.array(drifting, dtype=str)
    found = xr.Dataset(variables, coords, {"bnrank_version": __version__, **attrs})
    found["step"].attrs = {"units": "1", "long_name": "steps taken"}
    found["layer"].attrs = {"long_name": "layer, and the output of the network"}
    return found


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
    def notes(self) -> list[str]:
        """Remarks: since which step which layers are NaN or infinite, what was not measured, which layers collapsed."""
        history = self.history
        return divergence.remarks(history) + [note for note in str(history.attrs.get("notes", "")).split("\n") if note]

    def to_frame(self) -> pd.DataFrame:
        """Return one row per step and layer, the quantities in columns."""
        history = self.history
        flat = [name for name in history.data_vars if history[name].dims == ("step", "layer")]
        return history[flat].to_dataframe().reset_index()

    def summary(self) -> list[dict[str, object]]:
        """Return a row per layer: quantities at the last measurement, and dimensions from the first to the last.

        At the last measurement, NaN stands for weights or inputs that are NaN or infinite, and a dash or None for what
        is undefined or was not measured.
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
        >>> _ = torch.manual_seed(0)
        >>> net = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 2))
        >>> x, optimizer = torch.randn(128, 8), torch.optim.Adam(net.parameters(), weight_decay=1e-2)
        >>> watch = bnrank.watch(net, every=10)
        >>> for _ in range(100):
        ...     optimizer.zero_grad()
        ...     (net(x) - x[:, :2]).square().mean().backward()
        ...     optimizer.step()
        ...     _ = watch.step()
        >>> [ax.get_xlabel() for ax in watch.plot()]
        ['step', 'step', 'step']
        """
        history = self.history
        panels = [(n, t) for n, t in PANELS if n in history and np.isfinite(history[n].values).any()]
        validation.expect(panels, "watch", "no measurements", "at least one, after watch.step()")
        axes = axes_for(axes, (1, len(panels)), (4.2 * len(panels), 3.6))
        for ax, (name, title) in zip(axes, panels, strict=True):
            known = [i for i in range(history.sizes["layer"]) if np.isfinite(history[name].values[:, i]).any()]
            for place, k in enumerate(evenly_spaced(len(known), SHOWN).tolist()):
                layer, y = str(history["layer"].values[known[k]]), history[name].values[:, known[k]]
                style = {"color": OKABE_ITO[place % 7], "linestyle": "-" if place < 7 else "--"}
                ax.plot(history["step"].values, y, marker=".", label=layer, linewidth=1.4, **style)
            ax.set_ylim(bottom=0)
            dress(ax, "step", "", title)
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
        history, rows = self.history, self.summary()
        title = str(history.attrs.get("title", "watch"))
        steps = history["step"].values
        if not len(steps):
            return [f"{title}: nothing measured yet", *self.notes]
        chosen = evenly_spaced(len(rows), SHOWN).tolist()
        diverged = divergence.remarks(history)
        lines: list[Part] = [f"{title}: {self.span}", *diverged]
        shown = Table(f"Layers at step {steps[-1]:,}", [rows[i] for i in chosen])
        lines.append(shown if rows else "no layer with a weight matrix")
        if len(chosen) < len(rows):
            lines.append(f"{len(chosen)} of {len(rows)} layers shown; .history has all")
        if "drift" in history and np.isfinite(history["drift"].values[-1]).any():
            worst = int(np.nanargmax(history["drift"].values[-1]))
            name, value = history["quantity"].values[worst], history["drift"].values[-1, worst]
            lines.append(f"conserved quantities: largest relative drift {value:.2e}, {name}")
        return [*lines, *(note for note in self.notes if note not in diverged)]


def _summary(one: xr.Dataset) -> dict[str, object]:
    row: dict[str, object] = {"layer": str(one["layer"].values)}
    if not one.sizes["step"]:
        return row
    last = {name: float(one[name].values[-1]) for name in one.data_vars if one[name].dims == ("step",)}
    if "units" in last:
        row["inputs"] = _whole(last["units"])
        row["dimension (95 %)"] = _range(one, "dimension_95", "nonfinite_units", ".0f")
        row["dead"] = _whole(last["dead_units"])
        constant = last.get("constant_units", math.nan)
        if constant > last["dead_units"]:
            row["constant"] = int(constant)
    if "stable_rank" in last:
        row["stable rank of W"] = _range(one, "stable_rank", "nonfinite", ".3g")
        row["effective rank"], row["tail"] = _known(last["effective_rank"]), _known(last["tail"])
    if "change" in last:
        row["change"], row["of it, stable rank"] = _known(last["change"]), _known(last["update_stable_rank"])
        beyond = last["full_rank"] > one.attrs["top"] and not math.isnan(last["update_share"])  # else all of it is
        row["in top singular values"] = f"{100 * last['update_share']:.3g} %" if beyond else None
    if "cka" in last:
        row["CKA with the first"] = _known(last["cka"])
    if "subnormals" in last:
        row["subnormal"] = _whole(last["subnormals"])
    return row


def _range(one: xr.Dataset, name: str, counted: str, form: str) -> str:
    """Return the value at the first and the last measurement: NaN where the layer is NaN or infinite, else a dash."""
    values = one[name].values
    lost = divergence.ends(one, counted)
    words = ["NaN" if gone else f"{end:{form}}" for gone, end in zip(lost, (values[0], values[-1]), strict=True)]
    words = ["–" if word == "nan" else word for word in words]
    return "–" if set(words) == {"–"} else " to ".join(words)


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value


def _whole(value: float) -> object:
    return None if math.isnan(value) else int(value)
