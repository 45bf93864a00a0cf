"""Valid calls of estimators, compression and adapters: what single functions need beside the values by name."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from bnrank.discovery import BottleneckAutoencoder, BottleneckClassifier, BottleneckRegressor, StateVariables, Timing

from .made import Radius, Values, films, new, normal

OWN: dict[str, Values] = {
    "bnrank.compress": {
        "x": lambda: normal(40, 3),
        "y": lambda: None,
        "tol": lambda: 0.05,
        "timing": lambda: Timing(batch_size=8, repeats=2),
    },
    "bnrank.discovery.dimensionless_groups": {
        "X": lambda: normal(20, 3).double().exp().numpy(),
        "y": lambda: normal(20, 3).double().exp().numpy()[:, 0] ** 2,
    },
    "bnrank.lora_ranks": {"budget": lambda: 40, "steps": lambda: 4},
    "bnrank.discovery.symmetries": {"net": lambda: Radius(), "x": lambda: normal(40, 3), "y": lambda: None},
}


@dataclass(frozen=True)
class Adapter:
    """A call that takes several public steps: its room and its function."""

    room: str
    call: Callable[..., Any]


def _fit(kind: type) -> Callable[..., Any]:
    parameters = dict(inspect.signature(kind).parameters)

    def fit(**options: Any) -> Any:
        data = [options.pop(name) for name in ("X", "y", "frames") if name in options]
        return kind(**options).fit(*data)

    names = ["X"] if kind is BottleneckAutoencoder else ["frames"] if kind is StateVariables else ["X", "y"]
    first = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in names]
    options = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in parameters.values()]
    fit.__signature__ = inspect.Signature([*first, *options])  # type: ignore[attr-defined]
    return fit


ADAPTERS = {
    f"bnrank.discovery.{kind.__name__}": Adapter("discovery", _fit(kind))
    for kind in (BottleneckRegressor, BottleneckClassifier, BottleneckAutoencoder, StateVariables)
}
OWN["bnrank.discovery.StateVariables"] = {
    "frames": lambda: films(),
    "n_latent": lambda: 4,
    "width": lambda: 8,
    "steps": lambda: 5,
    "n_networks": lambda: 1,
    "n_coordinates": lambda: 1,
    "stride": lambda: 1,
    "out": lambda: new("states"),
    "progress": lambda: False,
}
for _name in ADAPTERS.keys() - OWN.keys():
    OWN[_name] = {
        "X": lambda: normal(30, 3).double().numpy(),
        "y": (lambda: np.arange(30) % 2) if "Classifier" in _name else (lambda: normal(30, 2).double().numpy()),
        "n_components": lambda: 1,
        "ridges": lambda: [1e-2],
        "depth": lambda: 3,
        "width": lambda: 8,
        "n_networks": lambda: 1,
        "steps": lambda: 10,
        "progress": lambda: False,
    }


def estimator(name: str) -> Any:
    """Return a fitted estimator."""
    return ADAPTERS[name].call(**{key: make() for key, make in OWN[name].items()})


OPTIONAL: dict[str, Values] = {
    "bnrank.compress": {"y": lambda: normal(40, 2), "held_out": lambda: normal(10, 3)},
    "bnrank.discovery.symmetries": {"y": lambda: normal(40, 3)[:, :2].square().sum(1, keepdim=True)},
}
"""Values of optional arguments that the valid call leaves out."""
