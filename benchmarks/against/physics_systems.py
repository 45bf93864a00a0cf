"""Physical systems seen in small images: two frames in, the next two out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

__all__ = ["SYSTEMS", "Frames", "System", "double_pendulum", "film", "follow", "reaction_diffusion"]

SIZE = 12  # pixels along a side
BLOB = 0.3  # standard deviation of a body in an image that shows [-1, 1]^2
TIMES = (-1.0, 0.0, 1.0, 2.0)  # of the frames; the state is that at time 0
GRID = 32  # points along a side of the reaction-diffusion system
STEPS = 20  # of Runge-Kutta between two frames


@dataclass(frozen=True)
class Frames:
    """What is seen of a system.

    Attributes
    ----------
    states : ndarray
        The true state of every sample at time 0, (n, m).
    x, y : ndarray
        Frames at the times -1 and 0, and at 1 and 2, (n, 2 * size^2).
    """

    states: np.ndarray
    x: np.ndarray
    y: np.ndarray


@dataclass(frozen=True)
class System:
    """A system with a known state.

    Attributes
    ----------
    variables : int
        Number of state variables: the dimension of the set of states that are drawn.
    coordinates : int
        Least number of continuous coordinates that tell these states apart; more than ``variables`` where the set of
        states closes up on itself and does not fit into a flat space of its own dimension.
    states : str
        What is drawn, in words.
    draw : callable
        (n, generator) -> the states (n, m) and, for the frames at ``TIMES``, images (n, 4, size, size).
    """

    variables: int
    coordinates: int
    states: str
    draw: Callable[[int, np.random.Generator], tuple[np.ndarray, np.ndarray]]


def film(name: str, n: int, seed: int, noise: float = 0.0) -> Frames:
    """Draw a system ``n`` times and look at it; the states, the camera and the noise come from the seed.

    Parameters
    ----------
    name : str
        One of ``SYSTEMS``.
    n : int
        Number of samples.
    seed : int
        The same seed gives the same frames, with and without noise.
    noise : float
        Standard deviation of independent noise on every pixel; a body is 1 bright, a wave 1 high.
    """
    generator = np.random.default_rng([seed, sorted(SYSTEMS).index(name)])
    states, images = SYSTEMS[name].draw(n, generator)
    images = images + noise * generator.standard_normal(images.shape)
    return Frames(states, images[:, :2].reshape(n, -1), images[:, 2:].reshape(n, -1))


def follow(
    state: np.ndarray, field: Callable[[np.ndarray], np.ndarray], duration: float, steps: int = STEPS
) -> np.ndarray:
    """Return the state a time later, by Runge and Kutta's fourth-order method; ``duration`` may be negative."""
    h = duration / steps
    for _ in range(steps):
        k1 = field(state)
        k2 = field(state + h / 2 * k1)
        k3 = field(state + h / 2 * k2)
        k4 = field(state + h * k3)
        state = state + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
    return state


def _seen(bodies: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Return images (n, frames, size, size) of bodies at (n, frames, bodies, 2), by a camera that is drawn.

    It is turned by any angle, nearer or farther by 10 percent, off the center by 0.1, and sees bodies of a width that
    differs by 10 percent.
    """
    angle, (zoom, blur) = generator.uniform(0, 2 * np.pi), generator.uniform(0.9, 1.1, 2)
    turn = zoom * np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    places = bodies @ turn.T + generator.uniform(-0.1, 0.1, 2)
    pixels = np.linspace(-1, 1, SIZE)
    bumps = np.exp(-((pixels - places[..., None]) ** 2) / (2 * (BLOB * blur) ** 2))  # (n, frames, bodies, 2, size)
    return np.einsum("nfbi,nfbj->nfij", bumps[..., 0, :], bumps[..., 1, :])


def _motion(
    states: np.ndarray,
    field: Callable[[np.ndarray], np.ndarray],
    interval: float,
    bodies: Callable[[np.ndarray], np.ndarray],
) -> np.ndarray:
    """Return the places (n, frames, bodies, 2) of bodies of a mechanical system at ``TIMES``, in units of interval."""
    return np.stack([bodies(follow(states, field, t * interval) if t else states) for t in TIMES], axis=1)


def _circle(n: int, generator: np.random.Generator, slowest: float = 0.3, fastest: float = 0.9) -> tuple:
    angle = generator.uniform(0, 2 * np.pi, n)
    speed = generator.uniform(slowest, fastest, n)
    turned = angle[:, None] + speed[:, None] * np.array(TIMES)
    places = 0.6 * np.stack([np.cos(turned), np.sin(turned)], axis=-1)
    states = np.stack([angle, speed], 1) if slowest < fastest else angle[:, None]
    return states, _seen(places[:, :, None], generator)


def _steady_circle(n: int, generator: np.random.Generator) -> tuple:
    return _circle(n, generator, 0.6, 0.6)


def _pendulum(n: int, generator: np.random.Generator) -> tuple:
    """Theta'' = -sin theta, with energy up to that of rest at 90 degrees: (2 sin(theta / 2), omega) in a disc."""
    radius, phase = np.sqrt(2 * generator.uniform(size=n)), generator.uniform(0, 2 * np.pi, n)
    states = np.stack([2 * np.arcsin(radius * np.cos(phase) / 2), radius * np.sin(phase)], 1)

    def field(s: np.ndarray) -> np.ndarray:
        return np.stack([s[:, 1], -np.sin(s[:, 0])], 1)

    def bodies(s: np.ndarray) -> np.ndarray:
        return 0.8 * np.stack([np.sin(s[:, :1]), -np.cos(s[:, :1])], -1) + np.array([0.0, 0.4])

    return states, _seen(_motion(states, field, 0.6, bodies), generator)


def double_pendulum(s: np.ndarray) -> np.ndarray:
    """Return the rate of change of (theta_1, theta_2, omega_1, omega_2) for equal masses, rods of length 1, g = 1.

    The equations of motion, of the Lagrangian omega_1^2 + omega_2^2 / 2 + omega_1 omega_2 cos(d) + 2 cos theta_1
    + cos theta_2 with d = theta_1 - theta_2, solved for the accelerations.
    """
    first, second, w1, w2 = s.T
    cosine, sine = np.cos(first - second), np.sin(first - second)
    right1 = -(w2**2) * sine - 2 * np.sin(first)
    right2 = w1**2 * sine - np.sin(second)
    determinant = 2 - cosine**2
    return np.stack(
        [w1, w2, (right1 - cosine * right2) / determinant, (2 * right2 - cosine * right1) / determinant], axis=1
    )


def _double_pendulum(n: int, generator: np.random.Generator) -> tuple:
    states = generator.uniform(-0.6, 0.6, (n, 4))

    def bodies(s: np.ndarray) -> np.ndarray:
        rods = 0.5 * np.stack([np.sin(s[:, :2]), -np.cos(s[:, :2])], -1)
        return np.cumsum(rods, axis=1) + np.array([0.0, 0.7])

    return states, _seen(_motion(states, double_pendulum, 0.7, bodies), generator)


def _thrown(n: int, generator: np.random.Generator) -> tuple:
    """Throw a ball from anywhere in view to anywhere in view: its places in the first and the last frame are drawn."""
    first, last = generator.uniform(-0.6, 0.6, (2, n, 2))
    duration, fall = TIMES[-1] - TIMES[0], np.array([0.0, -0.1])
    t = np.array(TIMES)[:, None] - TIMES[0]
    start = (last - first) / duration - fall * duration / 2
    places = first[:, None] + t * start[:, None] + fall * t**2 / 2
    states = np.hstack([places[:, 1], start - fall * TIMES[0]])
    return states, _seen(places[:, :, None], generator)


def reaction_diffusion(fields: np.ndarray, spacing: float) -> np.ndarray:
    """Return the rate of change of (u, v) = fields[:, 0], fields[:, 1] on a square grid without flux at its sides.

    The lambda-omega system u' = (1 - r^2) u + r^2 v + 0.1 Lap u, v' = (1 - r^2) v - r^2 u + 0.1 Lap v, r^2 = u^2 + v^2
    (Champion, Lusch, Kutz and Brunton 2019).
    """
    wide = np.pad(fields, ((0, 0), (0, 0), (1, 1), (1, 1)), mode="edge")
    laplacian = wide[..., 2:, 1:-1] + wide[..., :-2, 1:-1] + wide[..., 1:-1, 2:] + wide[..., 1:-1, :-2] - 4 * fields
    square = np.square(fields).sum(axis=1, keepdims=True)
    turned = np.stack([fields[:, 1], -fields[:, 0]], axis=1)
    return (1 - square) * fields + square * turned + 0.1 * laplacian / spacing**2


def _waves(n: int, generator: np.random.Generator) -> tuple:
    """Let a rotating spiral go at another phase and a smaller amplitude than its own.

    Turning (u, v) at every point by the same angle is a symmetry, so that the spiral's motion is that angle, and the
    amplitude comes back to 1 with time: the states fill an annulus. Only u is seen, at every other point.
    """
    extent, hand = generator.uniform(8, 12), generator.choice([-1.0, 1.0])
    line = np.linspace(-extent, extent, GRID)
    radius, angle = np.hypot(line[:, None], line), hand * np.arctan2(line, line[:, None])
    start = np.tanh(radius) * np.stack([np.cos(angle - radius), np.sin(angle - radius)])[None]
    spacing = line[1] - line[0]

    def field(fields: np.ndarray) -> np.ndarray:
        return reaction_diffusion(fields, spacing)

    settled = follow(start, field, 20.0, 400)[0]
    phase, amplitude = generator.uniform(0, 2 * np.pi, n), generator.uniform(0.4, 1.0, n)
    turn = np.array([[np.cos(phase), -np.sin(phase)], [np.sin(phase), np.cos(phase)]])
    fields = np.einsum("abn,bij->naij", amplitude * turn, settled)
    images = []
    for _ in TIMES:
        images.append(fields[:, 0, ::2, ::2])
        fields = follow(fields, field, 0.2, 4)
    return np.stack([phase, amplitude], 1), np.stack(images, axis=1)


SYSTEMS = {
    "circular motion, one speed": System(1, 2, "angle, all the way round", _steady_circle),
    "circular motion": System(2, 2, "angle, all the way round; angular velocity", _circle),
    "pendulum": System(2, 2, "angle and angular velocity, in a disc", _pendulum),
    "reaction-diffusion spiral": System(2, 2, "phase, all the way round; amplitude", _waves),
    "double pendulum": System(4, 4, "two angles and their velocities, in a box", _double_pendulum),
    "falling ball": System(4, 4, "position and velocity, in a box", _thrown),
}
