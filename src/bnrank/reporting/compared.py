"""A comparison of two networks on a page: headline, charts and tables."""

from bnrank._core import remarks, text
from bnrank.measures.comparing import Comparison
from bnrank.reporting.blocks import Block, Plot, Text, details, table
from bnrank.reporting.charts.compared import compared_view

ALL_MATRICES = 30  # rows beyond which the table of matrices is collapsed
WORDS = (
    "Change: the norm of the difference of the weights over that of a. Relative rank: singular values above a "
    "hundredth of the largest. Update: the difference; its rank is the number of singular values above what rounding "
    "the stored entries can give, its share that of the largest ones in its squared norm. Overlap: the mean squared "
    "cosine between the leading left (l) and right (r) singular subspaces: 1 for equal ones."
)
SIMILAR = (
    "Dimension: of the centered activations at 95 percent of the variance, corrected for few samples. CKA is 1 for "
    "activations that are equal up to rotation and scale. With fewer samples than features it is near 1 for "
    "any two networks; the debiased estimator is not. Mean CCA: the mean canonical correlation."
)


def compared_blocks(found: Comparison, key: str) -> list[Block]:
    """Return the blocks of a comparison: a sentence, charts, and tables."""
    data = found.data
    view = compared_view(found)
    layers, similar = found.layers(), found.representations()
    others = sorted(zip(data["tensor"].values.tolist(), data["tensor_change"].values.tolist(), strict=True))
    rows = [{"tensor": name, "change": change} for name, change in others]
    blocks: list[Block] = [Text(found.headline, "headline"), Text(_sides(found))]
    blocks += [
        Text(f"{line[0].upper()}{line[1:]}.") for line in found.notes if line.startswith(("matched by", "adapters in"))
    ]
    blocks += [Plot(key, view)] if view.groups[0].charts else []
    matrices = table(layers, f"Weights ({len(layers)})", whole=True)
    matrices += [Text(WORDS, "note")] if layers else []
    blocks += details(f"Weights ({len(layers)})", matrices) if len(layers) > ALL_MATRICES else matrices
    if similar:
        blocks += [*table(similar, "Representations", whole=len(similar) <= ALL_MATRICES), Text(SIMILAR, "note")]
    blocks += details(f"Biases, scales and other tensors ({len(rows)})", table(rows, "Relative change"))
    for dimension, caption in (
        ("unmatched", "Tensors without a partner"),
        ("skipped", "Tensors that are not compared"),
    ):
        left = remarks.rows(data, dimension)
        blocks += table(left, f"{caption} ({len(left)})")
    blocks += table(remarks.rows(data, "note"), "Notes")
    elsewhere = ("title", "name_a", "name_b", "output_change", "output_change_of_spread")
    settings = [{"measured with": k, "value": text.cell(v)} for k, v in data.attrs.items() if k not in elsewhere]
    return blocks + details("Settings of the measurement", table(settings, "Settings of the measurement"))


def _sides(found: Comparison) -> str:
    """Return which network is a and which is b."""
    attrs = found.data.attrs
    samples = f" Representations are those of {attrs['samples']} samples." if "samples" in attrs else ""
    return f"a is {attrs['name_a']}, b is {attrs['name_b']}; changes are from a to b.{samples}"
