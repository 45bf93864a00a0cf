"""Valid calls of measures: what single functions need beside the values by name."""

import torch

import bnrank
from bnrank import networks

from .made import Values, cnn, mlp, normal

_BOX: Values = {"net": lambda: mlp(2, 4, 2), "box": lambda: (-1.0, 1.0), "max_regions": lambda: 500}
_CONV: Values = {"net": cnn, "x": lambda: normal(4, 1, 6)}

OWN: dict[str, Values] = {
    "bnrank.Jacobian": {"net": mlp, "x": lambda: normal(4, 3)},
    "bnrank.profile": {"x": lambda: normal(6, 3)},
    "bnrank.cost.stationarity": {"ridge": lambda: 0.1},
    "bnrank.similarity.cca": {"a": lambda: normal(12, 3), "b": lambda: normal(12, 3, seed=1)},
    "bnrank.similarity.cka": {"a": lambda: normal(6, 3), "b": lambda: normal(6, 4, seed=1)},
    "bnrank.similarity.principal_angles": {"a": lambda: normal(6, 2), "b": lambda: normal(6, 2, seed=1)},
    "bnrank.frequencies.grid": {"size": lambda: (3, 4)},
    "bnrank.frequencies.kept": {
        "values": lambda: bnrank.frequencies.weight_singular_values(
            networks.CircularConvolutional((1, 6), [4, 4, 1]), size=6
        )
    },
    "bnrank.frequencies.label": {"name": lambda: "1", "multiplicity": lambda: 2},
    "bnrank.frequencies.rank": {"values": lambda: bnrank.frequencies.weight_singular_values(cnn(), size=6)},
    "bnrank.frequencies.weight_singular_values": _CONV,
    "bnrank.measures.usage.centered_dimension": {"activations": lambda: normal(8, 5)},
    "bnrank.measures.usage.subnormals": {"tensor": lambda: torch.tensor([1.0, 1e-40])},
    "bnrank.measures.usage.variance_dimension": {
        "eigenvalues": lambda: torch.tensor([2.0, 1.0]),
        "samples": lambda: 8,
        "features": lambda: 5,
    },
    "bnrank.regions.along_lines": {"starts": lambda: torch.zeros(2, 3), "ends": lambda: normal(2, 3)},
    "bnrank.regions.enumerate": _BOX,
    "bnrank.regions.tripoints": {"net": lambda: mlp(3, 4, 3)},
}

OPTIONAL: dict[str, Values] = {
    "bnrank.spectra.weight_singular_values": {"x": lambda: normal(6, 3)},
}
"""Values of optional arguments that the valid call leaves out."""
