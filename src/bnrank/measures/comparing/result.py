"""What a comparison of two networks found: a dataset, a summary, tables and a plot."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from bnrank._core import remarks, validation
from bnrank._core.axes import OKABE_ITO, axes_for, dress
from bnrank._core.content import Part, Table
from bnrank._core.results import Printed
from bnrank._core.sampling import evenly_spaced
from bnrank.measures.weights import NOT_FINITE

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr

SHOWN = 20  # rows of a table in text
RANKS = ("weight_relative_rank", "stable_rank", "entropy_rank")
WIDE = ("shape", "entropy rank a", "entropy rank b", "update entropy rank")  # columns left out in text


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
        """The comparison in a few sentences."""
        data, frame = self.data, self.to_frame()
        lost = [row["name"] for row in remarks.rows(data, "skipped") if NOT_FINITE in row["reason"]]
        changes = [*(frame["change"] if len(frame) else ()), *data["tensor_change"].values]
        apart, moved = np.isnan(changes).sum(), np.nansum(changes) > 0
        networks = [row["network"] for row in remarks.rows(data, "unmatched")]
        outputs = {
            name: data.attrs.get(f"output_change{end}") for name, end in (("norm", ""), ("spread", "_of_spread"))
        }
        sizes = [f"{100 * size:.3g} percent of their {name}" for name, size in outputs.items() if size is not None]
        sentences = [
            f"{_counted(len(lost), 'tensor')} not compared, NaN or infinite: {remarks.some(lost)}." if lost else "",
            *(self._changes() if moved else [f"No difference in {_counted(len(changes) - apart, 'compared tensor')}."]),
            f"{_counted(apart, 'matrix', 'matrices')} with a partner of another shape." if apart else "",
            *(f"{_counted(networks.count(n), 'tensor')} only in {n}." for n in "ab" if n in networks),
            f"The outputs change by {' and '.join(sizes)}." if sizes else "",
        ]
        return " ".join(filter(None, sentences))

    def _changes(self) -> list[str]:
        """Return sentences on the matrices that changed, and on other tensors."""
        frame, sentences = self.to_frame(), []
        if len(frame) and (frame["change"] > 0).any():
            changed = frame[frame["change"] > 0].assign(types=self.data["layer_storage"].values[frame["change"] > 0])
            large, small = changed[changed["update_rank"] > 0], changed[changed["update_rank"] == 0]
            text = f"{len(changed)} of {_counted(len(frame), 'matrix', 'matrices')} changed, by "
            text += f"{_range(changed['change'])} times their norm"
            if len(small):
                text += f", {len(small)} within the rounding of {' and '.join(small['types'].unique())} storage"
            if len(large):
                text += (
                    f"; the stable rank of the change is {_range(large['update_stable_rank'])} (that of the weights "
                )
                text += f"{_range(large['stable_rank_a'])})"
            share = large["update_share"][large["full_rank_a"] > self.top].median()
            if np.isfinite(share):
                text += f", and {100 * share:.3g} percent of it (median) is in its {self.top} largest singular values"
            sentences.append(f"{text}.")
        others, rounding = self.data["tensor_change"].values, self.data["tensor_rounding"].values
        if (others > 0).any():
            many = _counted(len(others), "other tensor")
            sentences.append(f"{(others > rounding).sum()} of {many} changed by more than rounding.")
        return sentences

    @property
    def notes(self) -> list[str]:
        """How tensors were matched, which ones have no partner or were not measured, and remarks."""
        data = self.data
        lines = [f"{names}: {note}" for note, names in remarks.grouped(data, "note", "note").items()]
        lines += [f"only in {n}: {names}" for n, names in remarks.grouped(data, "unmatched", "network").items()]
        skipped = remarks.grouped(data, "skipped", "reason")
        return lines + [f"not compared: {reason} ({names})" for reason, names in skipped.items()]

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

    def overlaps(self) -> np.ndarray:
        """Return the mean squared cosines of the left and right angles, (2, layers); NaN without angles."""
        if "left_angles" not in self.data:  # no layers are matched
            return np.empty((2, 0))
        angles = np.stack([self.data[f"{side}_angles"].values for side in ("left", "right")])
        count = np.isfinite(angles).sum(2)
        return np.asarray(np.nansum(np.cos(angles) ** 2, axis=2) / np.where(count > 0, count, np.nan))

    def layers(self) -> list[dict[str, object]]:
        """Return a row per matched matrix: change, ranks of both, the update, overlap of leading subspaces."""
        frame, data = self.to_frame(), self.data
        if frame.empty:
            return []
        shapes = zip(data["layer_shape"].values.tolist(), data["layer_shape_b"].values.tolist(), strict=True)
        frame["matrix"] = [f"{i}: {name}" for i, name in enumerate(frame["layer"], 1)]
        frame["shape"] = [" | ".join(dict.fromkeys(pair)) for pair in shapes]
        frame["overlap_l"], frame["overlap_r"] = self.overlaps()
        frame["update_share"] = frame["update_share"].where(frame["full_rank_a"] > self.top)  # else all of it
        names = ["matrix", "shape", "change", *(f"{rank}_{n}" for rank in RANKS for n in "ab"), "update_rank"]
        names += ["update_stable_rank", "update_entropy_rank", "update_share", "overlap_l", "overlap_r"]
        headings = {name: name.removeprefix("weight_").replace("_", " ") for name in names}
        rows: list[dict[str, object]] = frame[names].rename(columns=headings).to_dict("records")
        return rows

    def representations(self) -> list[dict[str, object]]:
        """Return a row per layer of a: dimensions, CKA with its counterpart in b, and the most similar layer.

        The counterpart has the weight that is matched to that of the layer, or the same name.
        """
        data, rows = self.data, []
        if "cka" not in data:
            return []
        names = data["layer_b"].values.tolist()
        partners = dict(zip(names, names, strict=True))
        if "layer_name" in data.coords:
            partners |= dict(zip(data["layer_name"].values.tolist(), data["layer_name_b"].values.tolist(), strict=True))
        for i, name in enumerate(data["layer_a"].values.tolist()):
            row: dict[str, object] = {"layer of a": f"{i + 1}: {name}", "layer of b": None}
            row |= {"dim. a": data["dimension_95_a"].values[i], "of": data["units_a"].values[i]}
            if partners.get(name) in names:
                j = names.index(partners[name])
                row["layer of b"] = f"{j + 1}: {names[j]}"
                row |= {"dim. b": data["dimension_95_b"].values[j], "of b": data["units_b"].values[j]}
                for heading, key in (("CKA", "cka"), ("debiased", "cka_debiased"), ("mean CCA", "cca")):
                    row[heading] = data[key].values[i, j]
            if data["cka"][i].notnull().any():
                j = int(np.nanargmax(data["cka"].values[i]))
                row["most similar"] = f"{j + 1}: {names[j]}"
            rows.append(row)
        return rows

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
        data, frame = self.data, self.to_frame()
        similar = "cka" in data and data["cka"].size > 0
        panels = 2 * (len(frame) > 0) + similar
        validation.expect(panels, "comparison", "neither matched matrices nor activations", "some")
        axes = axes_for(axes, (1, panels), (4.2 * panels, 3.6))
        if len(frame):
            axes[0].bar(data["layer"], frame["change"], color=OKABE_ITO[0])
            dress(axes[0], "layer", "", "relative change of W")
            labels = {f"stable_rank_{n}": f"{n}: {data.attrs[f'name_{n}']}" for n in "ab"}
            for color, (key, label) in enumerate({**labels, "update_stable_rank": "difference"}.items()):
                axes[1].plot(data["layer"], frame[key], marker=".", color=OKABE_ITO[color], label=label)
            axes[1].set_ylim(bottom=0)
            axes[1].legend(fontsize=7, frameon=False)
            dress(axes[1], "layer", "", "stable rank")
        if similar:
            axes[-1].imshow(data["cka"].values, vmin=0, vmax=1, cmap="cividis", aspect="auto")
            dress(axes[-1], "layer of b", "layer of a", "linear CKA")
        return axes

    def _content(self) -> list[Part]:
        lines: list[Part] = [f"{self.data.attrs['title']}: {self.headline}"]
        weights = [{k: v for k, v in row.items() if k not in WIDE} for row in self.layers()]
        for rows, what in ((weights, "matrices"), (self.representations(), "layers")):
            chosen = evenly_spaced(len(rows), SHOWN).tolist() if rows else []
            lines.append(Table(what.capitalize(), [rows[i] for i in chosen]))
            if len(chosen) < len(rows):
                lines.append(f"{len(chosen)} of {len(rows)} {what} shown; .data has all")
        return [*lines, *self.notes]


def _counted(count: int, one: str, many: str = "") -> str:
    return f"{count} {one if count == 1 else many or one + 's'}"


def _range(values: pd.Series) -> str:
    """Return the least and the largest value in words."""
    known = values.dropna()
    return " to ".join(dict.fromkeys(f"{end:.3g}" for end in (known.min(), known.max()))) if len(known) else "undefined"
