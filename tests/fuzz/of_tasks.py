"""Valid calls of tasks: what single functions need beside the values by name."""

import torch

import bnrank
from bnrank import tasks

from .made import Values, csv, idx, normal

OWN: dict[str, Values] = {
    "bnrank.Task": {"x": lambda: normal(6, 3), "y": lambda: normal(6, 2)},
    "bnrank.tasks.ball_images": {"size": lambda: 4, "width": lambda: 0.5},
    "bnrank.tasks.block_norms": {"x": lambda: normal(3, 4), "inner": lambda: 2},
    "bnrank.tasks.bottleneck_spectra_map": {"rank": lambda: 2},
    "bnrank.tasks.composition": {"d_in": lambda: 4, "d_out": lambda: 4},
    "bnrank.tasks.distances_to_polyline": {"x": lambda: normal(3, 2)},
    "bnrank.tasks.falling_ball": {"n": lambda: 4, "size": lambda: 6, "width": lambda: 1.0},
    "bnrank.tasks.lattice_sum": {"d": lambda: 2, "power": lambda: 4.0},
    "bnrank.tasks.autoencoder": {"task": lambda: bnrank.Task(normal(6, 3), normal(6, 2))},
    "bnrank.tasks.load_table": {"path": csv, "targets": lambda: "c"},
    "bnrank.tasks.low_rank_map": {"latent": lambda: 2, "rank": lambda: 1, "width": lambda: 6},
    "bnrank.tasks.parse_idx": {"path": idx, "magic": lambda: 2049},
    "bnrank.tasks.planar_curve": {"width": lambda: 5},
    "bnrank.tasks.polyline": {
        "g": lambda: tasks.ShallowReLU(normal(4, 1), normal(4), normal(2, 4)),
        "lower": lambda: -1.0,
        "upper": lambda: 1.0,
    },
    "bnrank.tasks.read_table": {"path": csv, "targets": lambda: "c"},
    "bnrank.tasks.torus_map": {"d": lambda: 2, "alphas": lambda: (2.0,), "cutoff": lambda: 5},
    "bnrank.tasks.two_digits": {"images": lambda: 20},
}

OPTIONAL: dict[str, Values] = {
    "bnrank.Task": {"x_test": lambda: normal(4, 3), "y_test": lambda: normal(4, 2), "weights": lambda: torch.ones(6)},
    "Truth.task": {"y": lambda: normal(12, 2)},
}
"""Values of optional arguments that the valid call leaves out."""
