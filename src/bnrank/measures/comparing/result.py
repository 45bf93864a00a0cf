"""What a comparison of two networks found: a dataset, a summary, tables and a plot."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from bnrank._core import remarks, validation
from bnrank._core.axes import OKABE_ITO, axes_for, dress
from bnrank._core.content import Part, Table
from bnrank._core.results import Printed
from bnrank._core.sampling import evenly_spaced
from bnrank.measures.comparing.matching import UNKNOWN
from bnrank.measures.comparing.weights import eps
from bnrank.measures.weights import NOT_FINITE

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr

SHOWN = 20  # rows of a table in text
WIDE = ("shape", "entropy", "upd. entropy")  # columns left out in text


@dataclass(frozen=True, eq=False, repr=False)
class Comparison(Printed):
    """Two networks compared, layer by layer; made by :func:`bnrank.compare`.

    Attributes
    ----------
    data : xarray.Dataset
        The numbers, described at :func:`bnrank.compare`.
    """

    data: xr.Dataset

    @property
    def headline(self) -> str:
        """The comparison in a sentence or two."""
        return " ".join(filter(None, [self._lost(), self._weights(), self._alone(), self._outputs()]))

    @property
    def notes(self) -> list[str]:
        """How tensors were matched, which ones have no partner or were not measured, and remarks."""
        lines = []
        for dimension, key, line in (
            ("note", "note", "{names}: {key}"),
            ("unmatched", "network", "only in {key}: {names}"),
            ("skipped", "reason", "not compared: {times}{key} ({names})"),
        ):
            groups: dict[str, list[str]] = {}  # names by what is said of them
            for row in remarks.rows(self.data, dimension):
                groups.setdefault(row[key], []).append(row["name"])
            for value, names in groups.items():
                times = f"{len(names)} x " if len(names) > 1 else ""
                shown = ", ".join(names[:2]) + (f" and {len(names) - 2} others" if len(names) > 2 else "")
                lines.append(line.format(key=value, times=times, names=shown))
        return lines

    def layers(self) -> list[dict[str, object]]:
        """Return a row per matched matrix: change, ranks of both (a to b), the update, overlap of leading subspaces."""
        data, rows = self.data, []
        columns = {str(name): data[name].values for name in data.data_vars if data[name].dims == ("layer",)}
        both = {str(name): data[name].values for name in data.data_vars if data[name].dims == ("network", "layer")}
        for i in range(data.sizes["layer"]):
            one = {name: float(values[i]) for name, values in columns.items()}
            row: dict[str, object] = {"matrix": f"{i + 1}: {data['layer_name'].values[i]}", "shape": self._shape(i)}
            row["change"] = _known(one["change"])
            for name, heading in (
                ("weight_relative_rank", "rank"),
                ("stable_rank", "stable"),
                ("entropy_rank", "entropy"),
            ):
                row[heading] = _from_to(both[name][0, i], both[name][1, i])
            changed = one["update_norm"] > 0
            row["update rank"] = None if math.isnan(one["update_rank"]) else int(one["update_rank"])
            row["upd. stable"] = _known(one["update_stable_rank"]) if changed else None
            row["upd. entropy"] = _known(one["update_entropy_rank"]) if changed else None
            beyond = changed and both["full_rank"][0, i] > self.top  # else all of it is
            row[f"in top {self.top}"] = f"{100 * one['update_share']:.3g} %" if beyond else None
            row["overlap l, r"] = self._overlap(i)
            rows.append(row)
        return rows

    def representations(self) -> list[dict[str, object]]:
        """Return a row per layer of a: dimensions, CKA with its counterpart in b, and the most similar layer."""
        data = self.data
        if "cka" not in data:
            return []
        partner, rows = self._partners(), []
        for i, name in enumerate(data["layer_a"].values.tolist()):
            j = partner.get(i)
            row: dict[str, object] = {
                "layer of a": f"{i + 1}: {name}",
                "layer of b": None if j is None else self._numbered(j),
            }
            row["dim. a"], row["of"] = _whole(data["dimension_95_a"].values[i]), _whole(data["units_a"].values[i])
            if j is not None:
                row["dim. b"], row["of b"] = _whole(data["dimension_95_b"].values[j]), _whole(data["units_b"].values[j])
            for key, heading in (("cka", "CKA"), ("cka_debiased", "debiased"), ("cca", "mean CCA")):
                row[heading] = None if j is None else _known(float(data[key].values[i, j]))
            values = data["cka"].values[i]
            if np.isfinite(values).any():
                row["most similar"] = self._numbered(int(np.nanargmax(values)))
            rows.append(row)
        return rows

    @property
    def top(self) -> int:
        """Number of leading singular values."""
        return int(self.data.attrs["top"])

    def to_frame(self) -> pd.DataFrame:
        """Return a row per matched matrix, the numbers in columns; those of one network end in _a or _b."""
        import pandas as pd

        data = self.data
        columns: dict[str, Any] = {"layer": data["layer_name"].values} if "layer_name" in data.coords else {}
        for name in data.data_vars:
            if data[name].dims == ("layer",):
                columns[str(name)] = data[name].values
            elif data[name].dims == ("network", "layer"):
                columns |= {f"{name}_{letter}": data[name].values[k] for k, letter in enumerate("ab")}
        return pd.DataFrame(columns)

    def plot(self, axes: Any = None) -> Any:
        """Draw the relative change and the stable ranks by layer and, with samples, CKA; return the axes.

        Parameters
        ----------
        axes : matplotlib axes, optional
            Two for the weights, if any are compared, and one for CKA, if there were samples. Default: new ones.

        Raises
        ------
        ValueError
            If there is nothing to draw, or there are fewer or more axes than panels.

        Examples
        --------
        >>> import torch, bnrank
        >>> nets = [bnrank.MLP([6, 20, 20, 3], seed=seed) for seed in (0, 1)]
        >>> x = torch.randn(100, 6, generator=torch.Generator().manual_seed(0))
        >>> len(bnrank.compare(*nets, x).plot())
        3
        """
        data = self.data
        weights, similar = data.sizes["layer"] > 0, "cka" in data and data["cka"].size > 0
        panels = 2 * weights + similar
        validation.expect(panels, "comparison", "neither matched matrices nor activations", "some")
        axes = axes_for(axes, (1, panels), (4.2 * panels, 3.6))
        left = list(axes)
        if weights:
            x = data["layer"].values
            ax = left.pop(0)
            ax.bar(x, data["change"].values, color=OKABE_ITO[0])
            dress(ax, "layer", "", "relative change of W")
            ax = left.pop(0)
            for k, letter in enumerate("ab"):
                label = f"{letter}: {data.attrs[f'name_{letter}']}"
                ax.plot(x, data["stable_rank"].values[k], marker=".", color=OKABE_ITO[k], label=label)
            ax.plot(x, data["update_stable_rank"].values, marker=".", color=OKABE_ITO[2], label="difference")
            ax.set_ylim(bottom=0)
            ax.legend(fontsize=7, frameon=False)
            dress(ax, "layer", "", "stable rank")
        if similar:
            ax = left.pop(0)
            ax.imshow(data["cka"].values, vmin=0, vmax=1, cmap="cividis", aspect="auto")
            dress(ax, "layer of b", "layer of a", "linear CKA")
        return axes

    def _content(self) -> list[Part]:
        lines: list[Part] = [f"{self.data.attrs['title']}: {self.headline}"]
        weights = [{k: v for k, v in row.items() if k not in WIDE} for row in self.layers()]
        for rows, what in ((weights, "matrices"), (self.representations(), "layers")):
            if rows:
                chosen = evenly_spaced(len(rows), SHOWN).tolist()
                lines.append(Table(what.capitalize(), [rows[i] for i in chosen]))
                if len(chosen) < len(rows):
                    lines.append(f"{len(chosen)} of {len(rows)} {what} shown; .data has all")
        return [*lines, *self.notes]

    def _lost(self) -> str:
        """Return how many tensors are NaN or infinite somewhere, and nothing where none is."""
        rows = [row for row in remarks.rows(self.data, "skipped") if NOT_FINITE in row["reason"]]
        if not rows:
            return ""
        names = ", ".join(row["name"] for row in rows[:2]) + (f" and {len(rows) - 2} others" if len(rows) > 2 else "")
        return f"{_counted(len(rows), 'tensor', 'tensors')} could not be compared, NaN or infinite: {names}."

    def _weights(self) -> str:
        data = self.data
        moved = np.concatenate([data[n].values for n in ("change", "tensor_change") if n in data] or [np.zeros(0)])
        known = moved[~np.isnan(moved)]
        count = data.sizes["layer"]
        if not count and not len(known):
            return "No tensors to compare."
        partners = _counted(count, "matrix", "matrices")
        if not len(known):
            return f"{partners} with a partner, all of another shape."
        norms = data["update_norm"].values if "update_norm" in data else np.zeros(0)
        others = int(np.isnan(norms).sum())
        apart = f" {_counted(others, 'matrix', 'matrices')} with a partner of another shape." if others else ""
        if not known.any():
            many = f"All {len(known)} tensors that were compared are equal."
            return f"{many if len(known) > 1 else 'The only tensor that was compared is equal.'}{apart}"
        changed = norms > 0
        if not changed.any():
            vectors = _counted(int((known > 0).sum()), "vector or other tensor", "vectors and other tensors")
            said = f"changed, {vectors} did" if others < len(norms) else f"was compared, {vectors} changed"
            return f"No matrix {said}.{apart}"
        rounded = changed & (data["update_rank"].values == 0)
        if (rounded == changed).all():
            return f"{int(rounded.sum())} of {partners} changed, {self._rounding(rounded)}{self._moved()}.{apart}"
        if rounded.any():
            apart = f" {_counted(int(rounded.sum()), 'other', 'others')} changed {self._rounding(rounded)}.{apart}"
        changed &= ~rounded
        stable, before = data["update_stable_rank"].values[changed], data["stable_rank"].values[0][changed]
        sizes = _range(data["change"].values[changed])  # infinite from 0
        grown = int(np.isinf(data["change"].values[changed]).sum())
        by = f"by {sizes} times their norm{f', {grown} of them from 0' if grown else ''}" if sizes else "from 0"
        own = _range(before) or "undefined"
        said = f"{int(changed.sum())} of {partners} changed, {by}; "
        said += f"the stable rank of the change is {_range(stable)} (that of the weights {own})"
        large = changed & (data["full_rank"].values[0] > self.top)
        if large.any():
            share = 100 * float(np.median(data["update_share"].values[large]))
            said += f", and {share:.3g} percent of it (median) is in its {self.top} largest singular values"
        return f"{said}.{apart}"

    def _alone(self) -> str:
        """Return how many tensors only one network has; nothing where each is compared, as itself or in another."""
        networks = [row["network"] for row in remarks.rows(self.data, "unmatched") if UNKNOWN in row["reason"]]
        counts = [(networks.count(letter), letter) for letter in "ab" if letter in networks]
        return " ".join(f"{_counted(n, 'tensor is', 'tensors are')} only in {letter}." for n, letter in counts)

    def _rounding(self, which: np.ndarray) -> str:
        """Return by how much matrices changed that did by no more than storing their entries in fewer bits can give."""
        types = " and ".join(dict.fromkeys(self.data["layer_storage"].values[which].tolist()))
        sizes = _range(self.data["change"].values[which])
        return f"by {sizes} times their norm, within the rounding of {types} storage"

    def _moved(self) -> str:
        """Return how many vectors and other tensors changed by more than rounding; nothing if none did."""
        spacing = np.array([eps(name) for name in self.data["tensor_storage"].values.tolist()])
        count = int((self.data["tensor_change"].values > spacing).sum())
        return (
            f", and {_counted(count, 'vector or other tensor', 'vectors and other tensors')} by more" if count else ""
        )

    def _outputs(self) -> str:
        attrs = self.data.attrs
        if "output_change" not in attrs:
            return ""
        parts = [f"{_share(attrs['output_change'])} their norm"]
        if "output_change_of_spread" in attrs:
            parts.append(f"{_share(attrs['output_change_of_spread'])} their spread")
        return f"The outputs change by {' and '.join(parts)}."

    def _numbered(self, j: int) -> str:
        return f"{j + 1}: {self.data['layer_b'].values[j]}"

    def _shape(self, i: int) -> str:
        a, b = (str(self.data[f"layer_shape{end}"].values[i]) for end in ("", "_b"))
        return a if a == b else f"{a} | {b}"

    def _overlap(self, i: int) -> str | None:
        k = self.data["subspace"].values[i]
        if not k > 0:
            return None
        sides = [np.nanmean(np.cos(self.data[f"{side}_angles"].values[i]) ** 2) for side in ("left", "right")]
        return ", ".join(f"{value:.2f}" for value in sides)

    def _partners(self) -> dict[int, int]:
        """Return the layer of b for each layer of a: of the same name, else with the weight matched to its own.

        If there are none, the layer of the same place where there are as many.
        """
        a, b = (self.data[f"layer_{letter}"].values.tolist() for letter in "ab")
        names = [f"layer_name{end}" for end in ("", "_b") if "layer_name_b" in self.data]
        owners = [[name.removesuffix(".weight") for name in self.data[some].values.tolist()] for some in names]
        matched = dict(zip(*owners, strict=True)) if owners else {}
        found = {i: name if name in b else matched.get(name) for i, name in enumerate(a)}
        by_name = {i: b.index(name) for i, name in found.items() if name in b}
        return by_name if by_name or len(a) != len(b) else {i: i for i in range(len(a))}


def _share(value: float) -> str:
    return f"{100 * value:.3g} percent of" if value < 1 else f"{value:.3g} times"


def _from_to(a: float, b: float) -> str | None:
    if math.isnan(a) or math.isnan(b):
        return None
    first, second = (f"{value:.3g}" for value in (a, b))
    return first if first == second else f"{first} to {second}"


def _counted(count: int, one: str, many: str) -> str:
    return f"{count} {one if count == 1 else many}"


def _range(values: np.ndarray) -> str:
    """Return the least and the largest finite value; nothing without any."""
    known = values[np.isfinite(values)]
    if not known.size:
        return ""
    low, high = f"{known.min():.3g}", f"{known.max():.3g}"
    return low if low == high else f"{low} to {high}"


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value


def _whole(value: float) -> int | None:
    return int(value) if math.isfinite(value) else None
