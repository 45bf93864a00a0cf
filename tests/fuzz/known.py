"""What is known and right: NaN that a class documents, and arguments that a function changes on purpose."""

NAN = {
    **{f"Verdict.{side}": "of a verdict that is not applicable" for side in ("left", "right", "slack")},
    "Dataset.bottleneck_rank": "of a network of a sweep without a bottleneck, as sweep says",
    "Dataset.balance_residual": "of a network that is no chain of layers with activations, as Run.history says",
    "Dataset.gradient_norm": "of mini-batches, in all rows but the last, as train says",
    "Dataset.weight_singular_values": "of a sweep, in layers that a network does not have, as sweep says",
    "Dataset.nonlinearity": "of a layer without an activation after it",
    "Expansion.p_value": "without degrees of freedom or sigma",
    "Formulas.to_frame": "of a coordinate, which no linear formula or network is compared with",
    "Found.held_out": "of symmetries where none is found",
    **{f"Gap.{name}": "where there is no gap" for name in ("contrast", "defect", "ratio")},
    "LayerTable.to_frame": "of a layer without an activation after it, and of what was not measured",
    "LayerStructure.distance": "of a layer without singular values outside of the bottleneck",
    "LayerStructure.nonlinearity": "of a layer without an activation after it",
    "LayerStructure.rest": "of a layer without singular values outside of the bottleneck",
    "Node.slope": "of an activation without one slope",
    "Sharpness.limit": "without a step",
    "Spectra.stable_ranks": "of singular values that are all 0",
    "Summary.gap": "without components",
    "Verdicts.to_frame": "of a verdict that is not applicable",
    "result.by_step": "of a first record of Monitor.parts, which has no step before it",
}
"""Fields of results that may be NaN without a warning, with the meaning of NaN."""

MEANT = {
    "bnrank.compare": "padding, and numbers that a layer, a change of 0 or few samples do not have, as documented",
    "bnrank.layer_table": "the values of the given profile",
    "bnrank.reporting.LayerTable": "the values of the given profile",
    "bnrank.similarity.cca": "of a constant representation, as documented",
    "bnrank.similarity.cka": "of a constant representation, as documented",
    "bnrank.nonlinearity": "of a layer without an activation after it, as documented",
    "Run.open": "weights of the given network, which do not matter",
    "bnrank.networks.as_mlp": "weights of the network itself, which are returned",
    "bnrank.reporting.tables.verdict_rows": "the sides of a verdict that is not applicable",
    "bnrank.networks.read": "weights of the network itself, which are returned",
    "bnrank.graph.trace": "a factor in the code of the network",
    "bnrank.figures.Claim": "the value as it was measured, which pages show as NaN",
    "Tail.ratios": "of a layer that is 0, as documented",
    "bnrank.theory.Sides": "a side that could not be computed; the verdict is then inconclusive",
    "bnrank.training.read_checkpoints": "padding of spectra, and quantities of a change of 0",
    "bnrank.spectra.stable_rank": "of singular values that are all 0, as documented",
    "bnrank.training.read_csv": "fields that are empty in the file",
    "bnrank.watch": "weights of the network itself, which is held",
}
"""Functions whose plain result may hold NaN, with its meaning."""

FORMULAS = {
    *("bnrank.tasks.inverted_s", "bnrank.tasks.on_torus", "bnrank.tasks.ball_images"),
    *(f"RankOneFactorization.{name}" for name in ("cost", "step", "trajectory", "statistics", "representative")),
    *("RankOneFactorization.step_statistics", "RankOneFactorization.cost_of_statistics"),
}
"""Differentiable formulas of one tensor, also inside torch.func, where values cannot be looked at: NaN outside their
domain."""

PADDED = {
    "Dataset.weight_singular_values",
    "Dataset.activation_singular_values",
    "Dataset.preactivation_singular_values",
    "Dataset.jacobian_singular_values",
    "DataArray.values",
}
"""Arrays whose shorter rows end in NaN: they may hold it after the last number of a row."""

CHANGES = {
    "bnrank.networks.Stack": "draws the weights of its parts, unless init is None",
    "bnrank.watch": "adds hooks until the first step is measured, and removes them",
}
"""Functions whose arguments change, as documented."""

UNUSED = {
    *("BottleneckAutoencoder.fit(y)", "BottleneckAutoencoder.score(y)"),
    *("StateVariables.fit(y)", "StateVariables.score(y)"),
}
"""Arguments that a function documents as not used: they may be anything, as scikit-learn has it."""

OWNERS = {
    *("BottleneckRegressor.fit", "BottleneckClassifier.fit", "BottleneckAutoencoder.fit", "Accumulator.add"),
    "StateVariables.fit",
    *("Monitor.record", "Monitor.attach", "MLP.reset"),
}
"""Methods whose purpose is to change their object."""

LONG = {"bnrank.cost.solve(steps)"}
"""Arguments that ask for a number of steps, all of which are taken."""

ALIASES = {"bnrank.networks.listing", "bnrank.networks.read_chain", "bnrank.spectra.singular_values"}
"""Functions with an argument ``name`` by which messages call another argument."""

DRAWN = {
    "Certificate.latency": "time that passed",
    "Certificate.latency_before": "time that passed",
    "out": "a new folder",
    "path": "a new file",
    "ridges": "kept as given, as scikit-learn has it",
    "seconds": "time that passed",
}
"""Fields that may differ between calls with equal numbers."""
