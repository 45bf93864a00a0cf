"""Synthetic histories and profiles with a planted bottleneck: what a trained ensemble looks like, in milliseconds."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import xarray as xr

from bnrank.discovery import Summary, Trial


def make_history(members=4, depth=6, rank=2, steps=120, top=12, seed=0, name="depth 6"):
    """Rank grows by one at a time (saddle to saddle); member 2 diverges after a third of the steps."""
    rng = np.random.default_rng(seed)
    step = np.arange(steps) * 50
    time = np.linspace(0, 1, steps)
    spectra = np.full((members, steps, depth, top), np.nan)
    for m in range(members):
        onsets = np.sort(rng.uniform(0.1, 0.55, rank + 4))
        for layer in range(depth):
            edge = min(layer, depth - 1 - layer)
            width = min(top, 8 + 2 * (layer == 0))
            for i in range(width):
                planted = 1.25 - 0.03 * i if i < rank else 0.75 * np.exp(-1.1 * edge) * 0.8 ** (i - rank)
                onset = onsets[i] if i < rank else 0.6
                rise = 1 / (1 + np.exp(-(time - onset) * 45))
                spectra[m, :, layer, i] = planted * rise + 0.02 * np.exp(-0.4 * i) + 1e-4 * rng.random(steps)
    spectra = np.where(np.isnan(spectra), np.nan, -np.sort(-np.nan_to_num(spectra, nan=-1), axis=-1))
    norm = np.nansum(spectra**2, axis=(2, 3))
    drops = np.nansum(spectra[:, :, depth // 2, :rank], axis=-1) / (1.25 * rank)
    cost = 2.0 * (1 - 0.96 * np.clip(drops, 0, 1)) * (1 + 0.02 * rng.random((members, steps)))
    variables = {
        "loss": cost + 1e-3 * norm,
        "cost": cost,
        "parameter_norm": norm,
        "gradient_norm": np.abs(np.gradient(cost, axis=1)) * 30 + 1e-4,
        "balance_residual": 0.05 * np.exp(-3 * time)[None] * (1 + np.arange(members))[:, None],
    }
    status = ["converged", "finished", "diverged", "interrupted"]
    dataset = xr.Dataset(
        {key: (("member", "step"), value) for key, value in variables.items()}
        | {"weight_singular_values": (("member", "step", "layer", "index"), spectra)},
        coords={
            "member": np.arange(members),
            "step": step,
            "layer": np.arange(1, depth + 1),
            "index": np.arange(1, top + 1),
            "seed": ("member", np.arange(members)),
            "ridge": ("member", np.full(members, 1e-3)),
            "lr": ("member", 3e-3 * 2.0 ** -np.arange(members)),
            "status": ("member", [status[m % 4] for m in range(members)]),
        },
        attrs={
            "settings": json.dumps(
                {"steps": 6000, "optimizer": "adam", "task": {"name": "low_rank_map", "n": 300, "rank": rank}}
            ),
            "bnrank_version": "0.1.0",
            "depth": depth,
            "name": name,
        },
    )
    if members > 2:
        stopped = xr.where((dataset.member == 2) & (dataset.step > step[steps // 3]), np.nan, 1.0)
        for key in dataset.data_vars:
            dataset[key] = dataset[key] * stopped
    return dataset


def make_profile(depth=13, rank=4, samples=60, top=15, seed=0, name="depth 13"):
    """F1: many dimensions in the first and last layers, ``rank`` of them, linear, in the middle."""
    rng = np.random.default_rng(seed)
    layer = np.arange(1, depth + 1)
    edge = np.minimum(layer - 1, depth - layer)[:, None]
    index = np.arange(top)[None]
    small = 0.9 * np.exp(-0.9 * edge) * 0.85**index + 0.004 * rng.random((depth, top))
    weights = -np.sort(-np.where(index < rank, 1.25 - 0.02 * index + 0.05 * rng.random((depth, top)), small), axis=1)
    jacobian = np.exp(0.1 * rng.standard_normal((samples, top))) * np.where(np.arange(top) < rank, 1.0, 2e-4)
    jacobian[:, 10:] = np.nan
    width = [50, *[100] * (depth - 1), 50]
    return xr.Dataset(
        {
            "weight_singular_values": (("layer", "index"), weights),
            "activation_singular_values": (("layer", "index"), weights * (2.2 - 0.05 * index)),
            "preactivation_singular_values": (("layer", "index"), weights * (2.3 - 0.05 * index)),
            "nonlinearity": (("layer",), 0.55 * np.exp(-0.8 * edge[:, 0]) + 0.01),
            "weight_rank": (("layer",), (weights > 0.1).sum(1)),
            "parameter_norm": (("layer",), (weights**2).sum(1)),
            "jacobian_singular_values": (("sample", "index"), -np.sort(-jacobian, axis=1)),
            "log_pseudo_determinant": (("sample",), np.log(jacobian[:, :rank]).sum(1)),
            "ntk_trace": (("sample",), 300 + 20 * rng.standard_normal(samples)),
        },
        coords={
            "layer": layer,
            "layer_name": ("layer", [f"layers.{i}" for i in range(depth)]),
            "skipped_name": ("skipped", ["norm1"]),
            "skipped_type": ("skipped", ["BatchNorm1d"]),
            "skipped_reason": ("skipped", ["not positively homogeneous"]),
            "note_name": ("note", ["layers.0"]),
            "note_note": ("note", ["taken as it is"]),
        },
        attrs={
            "bottleneck_rank": rank,
            "bottleneck_start": min(4, depth),
            "bottleneck_end": max(depth - 3, min(4, depth)),
            "bottleneck_gap": 14.2,
            "bottleneck_reason": "",
            "atol": 0.1,
            "jacobian_rtol": 1e-6,
            "widths": width,
            "title": name,
        },
    )


def make_summary(k=2, d_in=5, d_out=3, rows=60, classes=(), seed=0, **changes):
    """What a fit of ``k`` components says: outputs that depend on them, or classes by the signs of the first."""
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(rows, k))
    y = z @ rng.normal(size=(k, d_out)) + 0.1 * rng.normal(size=(rows, d_out))
    observed, predicted = y, y + 0.2 * rng.normal(size=y.shape)
    if classes:
        observed = np.array(classes)[rng.integers(len(classes), size=rows)]
        predicted = np.where(rng.random(rows) < 0.8, observed, classes[0])
    most = len(classes) - 1 if classes else min(d_in, d_out)
    parts = {
        "estimator": "BottleneckClassifier" if classes else "BottleneckRegressor",
        "model": "network" if k else "constant",
        "n_components": k,
        "interval": (k, k),
        "undetermined": False,
        "reason": f"5 of 5 networks within one standard error of the best have {k}"
        if k
        else "nothing was found: no better than the mean",
        "state_dimension": k,
        "state_dimension_interval": (k, k),
        "state_undetermined": False,
        "state_reason": f"neighborhoods extend in {k} direction(s)",
        "bound": most,
        "rows": rows,
        "inputs": tuple(f"x{i}" for i in range(d_in)),
        "input_columns": pd.Index([f"x{i}" for i in range(d_in)]),
        "outputs": 1 if classes else d_out,
        "output_names": tuple(map(str, classes)) or tuple(f"y{i}" for i in range(d_out)),
        "ridge": 0.01,
        "score": 0.9,
        "held_out": np.where(np.arange(most + 1) < k, 4.0 - np.arange(most + 1), 0.5 if k else 4.0),
        "held_out_error": np.full(most + 1, 0.1),
        "stability": tuple(
            Trial(ridge, 12, seed, fold, k + (ridge < 0.005), None, 1.0, np.nan if fold is None else 0.5, ridge > 0.005)
            for ridge in (0.01, 0.003)
            for seed, fold in ((0, 0), (1, 1), (2, 2), (1000, None))
        ),
        "spectrum": np.r_[np.linspace(2, 1, k), 0.05, 0.01] if k else np.zeros(0),
        "influence": np.linspace(1.5, 1.0, k),
        "sensitivity": rng.random((k, d_in)),
        "n_input_directions": min(k, d_in),
        "n_input_directions_interval": (min(k, d_in), min(k, d_in)),
        "input_directions_undetermined": False,
        "input_directions_reason": f"5 of 5 networks have {min(k, d_in)}" if k else "nothing was found: no better",
        "input_directions": np.eye(d_in)[: min(k, d_in)],
        "input_weights": np.eye(d_in)[: min(k, d_in)],
        "input_held_out": np.linspace(4.0, 0.5, d_in + 1),
        "input_held_out_error": np.full(d_in + 1, 0.1),
        "input_spectrum": np.linspace(1.0, 0.1, d_in),
        "coordinates": z,
        "observed": observed,
        "predicted": predicted,
        "data": ("0" * 64, "0" * 64),
        "notes": (),
    }
    return Summary(**parts | changes)


@pytest.fixture
def history():
    return make_history()


@pytest.fixture
def profile():
    return make_profile()


@pytest.fixture
def claims():
    return [
        SimpleNamespace(name="rank 4 in the middle", passed=True, measured=4, expected="k = 4"),
        SimpleNamespace(name="nonlinearity vanishes", passed=False, measured=0.3125, expected="below 0.05"),
        SimpleNamespace(name="slope equals rank", passed=None, measured="–", expected="2 ± 0.1"),
    ]


@pytest.fixture
def run(history):
    return SimpleNamespace(history=history, settings={"steps": 6000, "optimizer": "adam"})
