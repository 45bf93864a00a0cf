"""Valid calls of networks and constructions: what single functions need beside the values by name."""

import torch
from torch import nn

from bnrank import networks

from .made import Values, circle, mlp, normal, saddle, weights_file

_IMAGE: Values = {"shape": lambda: (1, 6, 6), "channels": lambda: [2], "d_out": lambda: 2, "seed": lambda: 0}
_CIRCLE: Values = {"net": saddle, "x": lambda: circle().x, "g": lambda: -circle().y}

OWN: dict[str, Values] = {
    "bnrank.load": {"path": weights_file},
    "bnrank.save": {"result": mlp},
    "bnrank.constructions.bottleneck": {
        "h": lambda: mlp(2, 4, 1),
        "g": lambda: mlp(3, 5, 2),
        "depth": lambda: 8,
        "lower": lambda: torch.full((2,), -9.0),
    },
    "bnrank.constructions.compose": {"h": lambda: mlp(2, 4, 1), "g": lambda: mlp(3, 5, 2)},
    "bnrank.constructions.add": {"f": lambda: mlp(3, 5, 2), "g": lambda: mlp(3, 4, 2)},
    "bnrank.constructions.completely_positive": {"a": lambda: torch.eye(2), "x": lambda: normal(5, 2).abs() + 0.1},
    "bnrank.constructions.deepen": {"depth": lambda: 5},
    "bnrank.constructions.line_interpolant": {
        "x": lambda: torch.linspace(0, 1, 4)[:, None],
        "y": lambda: torch.tensor([[0.0], [1.0], [0.5], [2.0]]),
    },
    "bnrank.constructions.max_of_affine": {"b": lambda: normal(2)},
    "bnrank.constructions.wavering": {"t": lambda: 2.0},
    "bnrank.constructions.with_slope": {"slope": lambda: 0.1},
    "bnrank.networks.Convolutional": {**_IMAGE, "channels": lambda: [2]},
    "bnrank.networks.LinearConvolutional": {**_IMAGE, "channels": lambda: [2]},
    "bnrank.networks.load": {"path": weights_file},
    "bnrank.networks.load_module": {"spec": lambda: "torch.nn:ReLU"},
    "bnrank.networks.Stack": {"parts": lambda: [networks.FreeBlock(3, 4, seed=0), nn.Linear(3, 2)]},
}

OPTIONAL: dict[str, Values] = {
    "bnrank.constructions.completely_positive": {"inner": lambda: torch.eye(2), "outer": lambda: torch.eye(2)},
    "bnrank.constructions.deepen": {"x": lambda: normal(6, 3)},
    "bnrank.constructions.max_of_affine": {"signs": lambda: torch.ones(1)},
    "bnrank.networks.from_layers": {"biases": lambda: [torch.zeros(4), torch.zeros(2)]},
    "bnrank.networks.read": {"x": lambda: normal(6, 3)},
    "bnrank.load": {"net": mlp},
    "LayerGraph.neurons": {"net": mlp},
}
"""Values of optional arguments that the valid call leaves out."""
