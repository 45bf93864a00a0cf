"""Valid calls of trainings, sweeps, watches and comparisons: what single functions need beside the values by name."""

from bnrank import training

from .made import Values, checkpoints, mlp, new, normal, watched_csv

OWN: dict[str, Values] = {
    "bnrank.finish": {"max_minutes": lambda: 1.0, "ridge": lambda: 0.1},
    "bnrank.flow": {"t_end": lambda: 0.05, "limits": lambda: training.Limits(max_evaluations=200)},
    "bnrank.sweep": {
        "depths": lambda: [2],
        "steps": lambda: 2,
        "processes": lambda: 1,
        "grid": lambda: {"width": [4]},
        "ridges": lambda: [1e-3],
    },
    "bnrank.train": {"record": lambda: 2},
    "bnrank.training.Range": {"low": lambda: 1e-3, "high": lambda: 0.1},
    "bnrank.training.sample_settings": {"ranges": lambda: {"ridge": training.Range(1e-3, 0.1)}, "n": lambda: 3},
    "bnrank.compare": {"a": mlp, "b": lambda: mlp(seed=1), "x": lambda: normal(6, 3)},
    "bnrank.training.Checkpoints": {"folder": new},
    "bnrank.training.read_checkpoints": {"folder": checkpoints},
    "bnrank.training.read_csv": {"path": watched_csv},
    "bnrank.watch": {"what": lambda: ["weights", "activations"]},
    "bnrank.training.Record": {"every": lambda: 2},
}

OPTIONAL: dict[str, Values] = {
    "Run.open": {"net": mlp},
}
"""Values of optional arguments that the valid call leaves out."""
