"""Tables with a known count, and settings of a quick fit."""

import numpy as np

QUICK = {"ridges": [0.01], "depth": 6, "width": 16, "steps": 150, "n_networks": 1}


def linear_table(rank, noise=0.0, n=150, seed=0):
    generator = np.random.default_rng(seed)
    x = generator.normal(size=(n, 8))
    y = x @ generator.normal(size=(8, rank)) @ generator.normal(size=(rank, 6))
    return x, y + noise * generator.normal(size=y.shape)
