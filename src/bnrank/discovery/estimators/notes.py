"""Notes on the table of a fit."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from bnrank.discovery.columns import texts
from bnrank.discovery.estimators.budget import FEW
from bnrank.discovery.estimators.tables import Data, constant_columns
from bnrank.discovery.estimators.weights import effective

DEAD = 1e-9  # influence, relative to the largest, below which a component does not vary


def remarks(fitted: Any, x: np.ndarray, data: Data) -> Iterator[str]:
    """Yield remarks on the table of a fit, with inputs x as given, and on the limits of what can be concluded."""
    names = texts(fitted.input_columns_, "x")
    if len(dead := np.flatnonzero(constant_columns(x))):
        yield f"constant inputs left out: {', '.join(names[i] for i in dead[:10])}"
    still = np.flatnonzero(fitted.output_scale_ == 0)
    if len(still) and fitted.output_columns_ is not fitted.input_columns_:
        outputs = texts(fitted.output_columns_, "y")
        yield f"constant outputs, always predicted exactly: {', '.join(outputs[i] for i in still[:10])}"
    if data.gap and data.units is not None:
        length = int(np.bincount(data.units).min())
        yield f"consecutive rows depend on each other: blocks of {length} rows or more were held out together"
    elif data.units is not None:
        yield f"rows of a group were held out together: {len(np.unique(data.units))} groups"
    if data.weights is not None:
        together, what = data.groups, "different rows"
        if data.units is not None:
            together, what = data.units, "groups or blocks of rows"
        number = effective(data.weights, together)
        yield f"rows are weighted: {together.max() + 1} {what} are as good as {number:.0f} with equal weights"
    if copies := len(x) - data.distinct:
        yield f"{copies} of {len(x)} rows repeat inputs and outputs of an earlier one; held out together"
    if (points := int(data.inputs.max()) + 1) < data.distinct:
        yield f"{points} different inputs in {len(x)} rows: the result holds at these inputs"
    if data.distinct < FEW and isinstance(fitted.ridges, str):
        yield f"fewer than {FEW} rows that differ: only linear maps were fitted"
    if points <= x.shape[1]:
        yield f"{points} rows for {x.shape[1]} inputs: the count holds on the span of these rows only"
    used = fitted.output_scale_[fitted.output_scale_ > 0]
    if getattr(fitted, "outputs", None) == "auto" and len(used) and (ratio := used.max() / used.min()) > 1 + 1e-9:
        yield f"spreads of the outputs differ by a factor of {ratio:.2g}: each was divided by its spread"
    positive = int((~constant_columns(x) & (x > 0).all(axis=0)).sum())
    if data.outputs == 1 and positive > 1 and fitted.n_input_directions_ > 1:
        yield f"{positive} inputs are positive: bnrank.discovery.dimensionless_groups tries their power products"
    if idle := int((fitted.influence_ < DEAD * fitted.influence_.max(initial=0)).sum()):
        yield f"{idle} of the {fitted.n_components_} components do not vary on these rows: fewer suffice"
