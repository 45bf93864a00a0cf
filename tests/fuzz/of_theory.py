"""Valid calls of costs, escape directions, invariants and statements."""

import torch

from bnrank import escape, networks, theory

from .made import Values, circle, flow, found, mlp, monitored, normal, saddle

_CIRCLE: Values = {"net": saddle, "x": lambda: circle().x, "g": lambda: -circle().y}
_JOIN: Values = {
    "net": lambda: networks.from_layers([torch.tensor([[1.0, 0.0], [0.0, 1e-3]]), torch.tensor([[1.0, 1e-3]])]),
    "x": lambda: torch.eye(2),
    "y": lambda: torch.ones(2, 1),
    "starts": lambda: 2,
}
_LAW: Values = {"r0": lambda: 0.1, "speed": lambda: 0.5, "depth": lambda: 3}

OWN: dict[str, Values] = {
    "bnrank.check": {"only": lambda: ["T4", "T14"]},
    "bnrank.cost.bracket": {"net": lambda: mlp(2, 3, 2), "x": lambda: normal(4, 2)},
    "bnrank.cost.completely_positive": {"x": lambda: normal(4, 2).abs()},
    "bnrank.cost.diagonal": {"w": lambda: [1.0, 2.0]},
    "bnrank.cost.lower_bound": {"net": lambda: mlp(2, 3, 2), "x": lambda: normal(4, 2)},
    "bnrank.cost.r1_lower_bound": {"net": lambda: mlp(2, 3, 2), "x": lambda: normal(4, 2)},
    "bnrank.cost.shorten": {
        "net": lambda: mlp(2, 3, 2),
        "x": lambda: normal(4, 2),
        "y": lambda: None,
        "steps": lambda: 5,
    },
    "bnrank.cost.least_linear_loss": {"ridge": lambda: 0.1, "depth": lambda: 3},
    "bnrank.cost.linear_tradeoff": {"ridge": lambda: 0.1},
    "bnrank.cost.solve": {"depth": lambda: 2},
    "bnrank.cost.solve_depths": {"depths": lambda: [2, 3]},
    "bnrank.cost.solved_tradeoff": {
        "x": lambda: normal(3, 3).abs(),
        "y": lambda: normal(3, 3).abs()[:, :1],
        "ridge": lambda: 0.1,
        "depths": lambda: [2, 3, 4],
        "width": lambda: 6,
        "steps": lambda: 20,
    },
    "bnrank.cost.subadditivity": {
        "depths": lambda: [3, 4, 6, 8, 12],
        "first": lambda: [3.5, 4.4, 6.3, 8.3, 12.2],
        "second": lambda: [3.4, 4.3, 6.2, 8.2, 12.1],
        "whole": lambda: [3.6, 4.6, 6.5, 8.5, 12.4],
    },
    "bnrank.cost.two_point": {"y": lambda: normal(6, 3)},
    "bnrank.cost.tangent_bound": {"a": lambda: torch.eye(2), "b": lambda: torch.eye(2)},
    "bnrank.cost.tsp_bound": {
        "x": lambda: torch.linspace(0, 1, 5)[:, None],
        "y": lambda: torch.tensor([[0.0], [1.0], [0.0], [1.0], [0.0]]),
    },
    "bnrank.escape.Steps": {"count": lambda: 5},
    "bnrank.escape.blow_up_time": _LAW,
    "bnrank.escape.check": {"found": found},
    "bnrank.escape.deepen": {**_CIRCLE, "depth": lambda: 6},
    "bnrank.escape.examine": _CIRCLE,
    "bnrank.escape.exit_time": _JOIN,
    "bnrank.escape.find": {**_CIRCLE, "depth": lambda: 3, "start": lambda: "gaussian", "polish": lambda: False},
    "bnrank.escape.first_escape": {
        "flow": flow,
        "x": lambda: torch.tensor([[1.0], [0.5]]).double(),
        "g": lambda: escape.output_gradient("mse", torch.tensor([[2.0], [1.0]]).double()),
    },
    "bnrank.escape.join_rate": _JOIN,
    "bnrank.escape.norm_at": {**_LAW, "t": lambda: 2.0},
    "bnrank.escape.one_neuron_speed": {"directions": lambda: normal(4, 3)},
    "bnrank.escape.rank_one_speed": {"x": lambda: circle().x, "g": lambda: circle().y},
    "bnrank.escape.residual": _CIRCLE,
    "bnrank.escape.speed": _CIRCLE,
    "bnrank.escape.time_to": {**_LAW, "r": lambda: 1.0},
    "bnrank.invariants.Monitor": {"net": monitored},
    "bnrank.theory.Sides": {"left": lambda: 1.0, "right": lambda: 2.0},
    "bnrank.theory.Statement": {
        **{name: (lambda name=name: name) for name in ("id", "name", "formula", "source")},
        "sides": lambda: lambda facts: theory.Sides(0.0, facts.parameter_norm),
    },
    "bnrank.theory.feature_convergence": {"ridge": lambda: 0.1},
    "bnrank.theory.assume": {"condition": lambda: True, "assumption": lambda: "order"},
    "bnrank.theory.assuming": {"assumption": lambda: "order"},
    "bnrank.theory.kernels.jacobian_ranks": {
        "x": lambda: normal(12, 3),
        "y": lambda: normal(12, 2),
        "kernel": lambda: "rbf",
    },
    "bnrank.theory.kernels.select": {
        "x": lambda: normal(15, 2),
        "y": lambda: normal(15, 1),
        "kernels": lambda: ["rbf"],
        "ridges": lambda: (1e-2, 1.0),
        "scales": lambda: (1.0,),
        "folds": lambda: 3,
    },
    "bnrank.theory.stability.growth_bound": {
        "net": lambda: networks.from_layers([torch.ones(1, 1)] * 4),
        "x": lambda: torch.linspace(0, 8, 9)[:, None],
    },
    "bnrank.theory.statement": {name: (lambda name=name: name) for name in ("id", "name", "formula", "source")},
    "bnrank.theory.structure.activation_bound": {"x": lambda: normal(1, 3)},
    "bnrank.theory.structure.preactivation_bound": {
        "net": lambda: mlp(3, 4, 4, 4, 4, 3, seed=1),
        "x": lambda: normal(6, 3).abs(),
        "rank": lambda: 1,
    },
    "bnrank.theory.structure.weight_structure": {"x": lambda: normal(1, 3)},
    "bnrank.theory.symmetry.projection": {"net": lambda: mlp(3, 4, 3)},
    "bnrank.theory.stability.largest_trace": {"net": lambda: mlp(3, 4, 2)},
    "bnrank.theory.stability.sharpness_bound": {"step": lambda: 0.1},
    "bnrank.theory.symmetry.classes_on_line": {
        "net": lambda: networks.from_layers([torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0], [1.0], [2.0]])]),
        "x": lambda: torch.tensor([[0.0, 0.0], [5.0, 0.0]]),
    },
    "bnrank.theory.symmetry.nearest_rank_one": {"weight": lambda: normal(2, 3)},
    "bnrank.theory.symmetry.rank_bound": {"generators": lambda: [(torch.zeros(3, 3), torch.tensor([0.0, 1.0, 0.0]))]},
}

OPTIONAL: dict[str, Values] = {
    "bnrank.check": {"statements": lambda: [s for s in theory.STATEMENTS if s.id in ("T4", "T14")]},
    "bnrank.cost.bracket": {"domain": lambda: torch.tensor([[-1.0, -1.0], [1.0, 1.0]])},
    "bnrank.cost.lower_bound": {"domain": lambda: torch.tensor([[-1.0, -1.0], [1.0, 1.0]])},
    "bnrank.cost.r1_lower_bound": {"domain": lambda: torch.tensor([[-1.0, -1.0], [1.0, 1.0]])},
    "bnrank.cost.prune": {"x": lambda: normal(6, 3)},
    "bnrank.escape.find": {"initial": lambda: [mlp(2, 3, 3, 1, bias=False)]},
    "bnrank.theory.kernels.jacobian_ranks": {"points": lambda: normal(4, 3)},
}
"""Values of optional arguments that the valid call leaves out."""
