"""What is known and right: NaN that a class documents, and arguments that a function changes on purpose."""

NAN = {
    "verdicts": "the sides of a verdict that is not applicable",
    "left": "a side of a verdict that is not applicable",
    "right": "a side of a verdict that is not applicable",
    "slack": "of a verdict that is not applicable",
    "p_value": "of an expansion without degrees of freedom or sigma",
    "gap": "ratios of a gap that does not exist",
    "nonlinearity": "of a layer without an activation after it",
    "distance": "of a layer without singular values outside of the bottleneck",
    "rest": "of a layer without singular values outside of the bottleneck",
    "by_step": "of a first record, which has no step before it",
    "layers": "ratios of a layer without an activation after it",
    "held_out": "of a trial without a held-out part",
}
"""Fields of results that may be NaN without a warning, with the meaning of NaN."""

PADDED = {
    "weight_singular_values",
    "activation_singular_values",
    "preactivation_singular_values",
    "jacobian_singular_values",
    "values",
}
"""Arrays whose shorter rows end in NaN: they may hold it after the last number of a row."""

CHANGES = {"bnrank.networks.Stack": "draws the weights of its parts, unless init is None"}
"""Functions whose arguments change, as documented."""
