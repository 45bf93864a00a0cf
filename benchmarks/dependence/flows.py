"""Chaotic systems and their trajectories."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from benchmarks.against.physics_systems import double_pendulum, follow

__all__ = ["FLOWS", "Flow", "bundle", "trajectory"]

BURN = 200  # intervals before the first row


@dataclass(frozen=True)
class Flow:
    """A system of ordinary differential equations.

    Attributes
    ----------
    field : callable
        States (m, dimension) -> rates of change.
    start : tuple of float
        A state from which trajectories are chaotic.
    spread : float
        Of the normal perturbation of ``start``.
    interval : float
        Between two rows.
    seen : callable
        States -> the columns that are measured.
    """

    field: Callable[[np.ndarray], np.ndarray]
    start: tuple[float, ...]
    spread: float
    interval: float
    seen: Callable[[np.ndarray], np.ndarray] = np.asarray


def trajectory(flow: Flow, n: int, generator: np.random.Generator, steps: int = 10) -> np.ndarray:
    """Return n states of one trajectory, at equal intervals and after a transient, (n, dimension)."""
    state = np.array([flow.start]) + flow.spread * generator.normal(size=(1, len(flow.start)))
    state = follow(state, flow.field, BURN * flow.interval, BURN * steps)
    states = [state]
    for _ in range(n - 1):
        states.append(follow(states[-1], flow.field, flow.interval, steps))
    return np.concatenate(states)


def bundle(flow: Flow, count: int, length: int, generator: np.random.Generator, steps: int = 10) -> np.ndarray:
    """Return ``length`` states of ``count`` trajectories from random starts without transient, (count, length, m)."""
    states = [np.array(flow.start) + flow.spread * generator.normal(size=(count, len(flow.start)))]
    for _ in range(length - 1):
        states.append(follow(states[-1], flow.field, flow.interval, steps))
    return np.stack(states, axis=1)


def _columns(*rates: np.ndarray) -> np.ndarray:
    return np.stack(rates, axis=1)


def _lorenz(s: np.ndarray) -> np.ndarray:
    x, y, z = s.T
    return _columns(10 * (y - x), x * (28 - z) - y, x * y - 8 / 3 * z)


def _roessler(s: np.ndarray) -> np.ndarray:
    x, y, z = s.T
    return _columns(-y - z, x + 0.2 * y, 0.2 + z * (x - 5.7))


def _halvorsen(s: np.ndarray) -> np.ndarray:
    x, y, z = s.T
    return _columns(-1.4 * x - 4 * y - 4 * z - y**2, -1.4 * y - 4 * z - 4 * x - z**2, -1.4 * z - 4 * x - 4 * y - x**2)


def _chua(s: np.ndarray) -> np.ndarray:
    """Return the double scroll with alpha = 15.6, beta = 28 and slopes -8/7 and -5/7 of the diode."""
    x, y, z = s.T
    diode = -5 / 7 * x + (-8 / 7 + 5 / 7) / 2 * (np.abs(x + 1) - np.abs(x - 1))
    return _columns(15.6 * (y - x - diode), x - y + z, -28 * y)


def _thomas(s: np.ndarray) -> np.ndarray:
    """Return the weakly damped, cyclically symmetric system with b = 0.18."""
    return np.sin(np.roll(s, -1, axis=1)) - 0.18 * s


def _labyrinth(s: np.ndarray) -> np.ndarray:
    """Return Thomas's system without damping, which preserves volume."""
    return np.sin(np.roll(s, -1, axis=1))


def _nose_hoover(s: np.ndarray) -> np.ndarray:
    """Return an oscillator with a thermostat, which preserves volume."""
    x, y, z = s.T
    return _columns(y, -x - y * z, y**2 - 1)


def _abc(s: np.ndarray) -> np.ndarray:
    """Return the flow of Arnold, Beltrami and Childress with A, B, C = 1, sqrt(2/3), sqrt(1/3): preserves volume."""
    x, y, z = s.T
    a, b, c = 1.0, np.sqrt(2 / 3), np.sqrt(1 / 3)
    return _columns(a * np.sin(z) + c * np.cos(y), b * np.sin(x) + a * np.cos(z), c * np.sin(y) + b * np.cos(x))


def _angles(s: np.ndarray) -> np.ndarray:
    return np.concatenate([np.sin(s[:, :2]), np.cos(s[:, :2]), s[:, 2:]], axis=1)


FLOWS = {
    "Lorenz": Flow(_lorenz, (1.0, 1.0, 25.0), 1.0, 0.08),
    "Roessler": Flow(_roessler, (1.0, 1.0, 0.0), 0.5, 0.4),
    "Halvorsen": Flow(_halvorsen, (-1.5, -1.5, 1.5), 0.1, 0.08),
    "Chua": Flow(_chua, (0.7, 0.0, 0.0), 0.02, 0.1),
    "Thomas": Flow(_thomas, (0.0, 1.0, 2.0), 1.0, 1.0),
    "labyrinth": Flow(_labyrinth, (3.0, 3.0, 3.0), 1.5, 0.6),
    "Nose-Hoover": Flow(_nose_hoover, (0.0, 5.0, 0.0), 0.3, 0.2),
    "Arnold-Beltrami-Childress": Flow(_abc, (3.0, 3.0, 3.0), 1.5, 0.4),
    "double pendulum": Flow(double_pendulum, (2.2, 2.2, 0.0, 0.0), 0.3, 0.3, _angles),
}
