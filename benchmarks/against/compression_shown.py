"""What the pages show of the comparison of compressions: bnrank and the best of the others, network by network."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from benchmarks.against import trials

__all__ = ["condensed", "each", "place", "short"]

ORDER = ("MNIST, MLP", "MNIST, CNN", "ViT", "BERT", "silero-vad")
CHANGES = ("0.01", "0.02", "0.05")

Row = dict[str, Any]


def condensed(lines: Sequence[Row]) -> list[Row]:
    """Return a row per network, seed and target: parameters of bnrank, of the best other, and of the network.

    Nothing is fine-tuned. Of a cell that was measured twice, the last counts.
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
            sizes = {other["method"]: _size(other["best"][target].get("cut"), dense) for other in others}
            first = min(sizes, key=lambda method: sizes[method])
            rows.append(
                {
                    "network": cell["cell"]["case"],
                    "seed": cell["cell"]["seed"],
                    "target": target,
                    "network parameters": dense,
                    "bnrank": _size(best.get("cut"), dense),
                    "other": sizes[first],
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
    for found in stored.values():
        for network in dict.fromkeys(row["network"] for row in found):
            some = [_chosen(found, network, target) for target in CHANGES]
            left = " / ".join(_left(few, "bnrank") for few in some)
            ratios = " / ".join(f"{median(_ratios(few)):.2f}" for few in some)
            rows.append([network, left, ratios, " / ".join(_ahead(few) for few in some)])
    return trials.markdown(["network", "left", "ratio", "fewer or equal"], rows)


def _chosen(rows: Sequence[Row], network: str, target: str) -> list[Row]:
    return [row for row in rows if (row["network"], row["target"]) == (network, target)]


def _left(rows: Sequence[Row], who: str) -> str:
    return f"{median(row[who] / row['network parameters'] for row in rows):.3f}"


def _ratios(rows: Sequence[Row]) -> list[float]:
    return [row["bnrank"] / row["other"] for row in rows]


def _ahead(rows: Sequence[Row]) -> str:
    return f"{sum(ratio <= 1 for ratio in _ratios(rows))} of {len(rows)}"
