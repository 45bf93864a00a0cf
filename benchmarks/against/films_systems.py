"""Films of physical systems whose number of state variables is known, at 32 x 32 pixels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from benchmarks.against.physics_systems import double_pendulum, follow, reaction_diffusion

__all__ = ["SYSTEMS", "Camera", "System", "elastic_double_pendulum", "films", "oscillators", "swing_stick", "vortices"]

SIZE = 32  # pixels along a side
WIDTH = 0.14  # standard deviation of the brightness across a rod or a body, in an image that shows [-1, 1]^2
STEPS = 12  # of Runge-Kutta between two frames


@dataclass(frozen=True)
class System:
    """A system with a known state.

    Attributes
    ----------
    variables : int
        Number of state variables: the dimension of the set of states that are drawn.
    published : str
        The estimate of Chen et al. (2022) for a system of this name, as remembered; "" where there is none.
    states : str
        What is drawn, in words.
    draw : callable
        (n, frames, generator) -> the states (n, frames, m) and images (n, frames, size, size).
    """

    variables: int
    published: str
    states: str
    draw: Callable[[int, int, np.random.Generator], tuple[np.ndarray, np.ndarray]]


def films(name: str, n: int, frames: int, seed: int, noise: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    """Draw a system ``n`` times and film it; the states, the camera and the noise come from the seed.

    Parameters
    ----------
    name : str
        One of ``SYSTEMS``.
    n, frames : int
        Number of films, and of frames in each.
    seed : int
        The same seed gives the same films, with and without noise.
    noise : float
        Standard deviation of independent noise on every pixel; a body is 1 bright.

    Returns
    -------
    tuple of ndarray
        The states (n, frames, m) and the films (n, frames, 32, 32), float32.
    """
    generator = np.random.default_rng([seed, sorted(SYSTEMS).index(name)])
    states, images = SYSTEMS[name].draw(n, frames, generator)
    return states, (images + noise * generator.standard_normal(images.shape)).astype(np.float32)


class Camera:
    """A camera turned by any angle, nearer or farther by 10 percent, off the center by 0.1, of a blur that differs."""

    def __init__(self, generator: np.random.Generator) -> None:
        angle, (zoom, self.blur) = generator.uniform(0, 2 * np.pi), generator.uniform(0.9, 1.1, 2)
        self.turn = zoom * np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
        self.shift = generator.uniform(-0.1, 0.1, 2)

    def see(self, ends: np.ndarray) -> np.ndarray:
        """Return images (..., size, size) of rods from end to end (..., rods, 2 ends, 2); a body has equal ends.

        Brightness falls with the distance from the nearest point of a rod; where rods cross it does not exceed 1.
        """
        line = np.linspace(-1, 1, SIZE, dtype=np.float32)
        pixels = np.stack(np.meshgrid(line, line, indexing="ij"), axis=-1).reshape(-1, 2)
        ends = (ends @ self.turn.T + self.shift).astype(np.float32)
        dark = np.ones((*ends.shape[:-3], SIZE * SIZE), dtype=np.float32)
        for i in range(ends.shape[-3]):
            start, along = ends[..., i, 0, :], ends[..., i, 1, :] - ends[..., i, 0, :]
            square = np.square(along).sum(-1, keepdims=True)
            place = (along @ pixels.T - (along * start).sum(-1, keepdims=True)) / np.maximum(square, 1e-12)
            place = np.clip(place, 0, 1) * (square > 0)
            distance = sum(np.square(pixels[:, j] - start[..., j, None] - place * along[..., j, None]) for j in (0, 1))
            dark *= 1 - np.exp(-distance / (2 * (WIDTH * self.blur) ** 2))
        return (1 - dark).reshape(*ends.shape[:-3], SIZE, SIZE)


def bodies(places: np.ndarray) -> np.ndarray:
    """Return bodies at places (..., bodies, 2) as rods without length, (..., bodies, 2, 2)."""
    return np.stack([places, places], axis=-2)


def motion(start: np.ndarray, field: Callable[[np.ndarray], np.ndarray], interval: float, frames: int) -> np.ndarray:
    """Return the states (n, frames, m) of motions that start at (n, m)."""
    states = [start]
    for _ in range(frames - 1):
        states.append(follow(states[-1], field, interval, STEPS))
    return np.stack(states, axis=1)


def _hanging(angles: np.ndarray) -> np.ndarray:
    return np.stack([np.sin(angles), -np.cos(angles)], axis=-1)


def _circle(n: int, frames: int, generator: np.random.Generator, slowest: float = 0.3, fastest: float = 0.9) -> tuple:
    angle, speed = generator.uniform(0, 2 * np.pi, n), generator.uniform(slowest, fastest, n)
    turned = angle[:, None] + speed[:, None] * np.arange(frames)
    places = 0.6 * np.stack([np.cos(turned), np.sin(turned)], axis=-1)
    states = np.stack([turned, np.broadcast_to(speed[:, None], turned.shape)], axis=-1)
    states = states if slowest < fastest else states[..., :1]
    return states, Camera(generator).see(bodies(places[:, :, None]))


def _steady_circle(n: int, frames: int, generator: np.random.Generator) -> tuple:
    return _circle(n, frames, generator, 0.6, 0.6)


def _spiral(n: int, frames: int, generator: np.random.Generator) -> tuple:
    """Let a rotating spiral wave start at another phase and a smaller amplitude than its own.

    Turning (u, v) at every point by the same angle is a symmetry, so that the spiral's motion is that angle, and the
    amplitude comes back to 1 with time: the states fill an annulus. Only u is seen.
    """
    extent, hand = generator.uniform(8, 12), generator.choice([-1.0, 1.0])
    line = np.linspace(-extent, extent, SIZE)
    radius, angle = np.hypot(line[:, None], line), hand * np.arctan2(line, line[:, None])
    first = np.tanh(radius) * np.stack([np.cos(angle - radius), np.sin(angle - radius)])[None]
    spacing = line[1] - line[0]

    def field(fields: np.ndarray) -> np.ndarray:
        return reaction_diffusion(fields, spacing)

    settled = follow(first, field, 20.0, 400)[0]
    phase, amplitude = generator.uniform(0, 2 * np.pi, n), generator.uniform(0.4, 1.0, n)
    turn = np.array([[np.cos(phase), -np.sin(phase)], [np.sin(phase), np.cos(phase)]])
    fields = np.einsum("abn,bij->naij", amplitude * turn, settled)
    images, states = [], []
    for _ in range(frames):
        images.append(fields[:, 0])
        along, across = (np.einsum("nij,ij->n", fields[:, i], settled[0]) for i in (0, 1))
        states.append(np.stack([along, across], axis=-1))
        fields = follow(fields, field, 0.2, 4)
    return np.stack(states, axis=1), np.stack(images, axis=1)


def pendulum(s: np.ndarray) -> np.ndarray:
    """Return the rate of change of (theta, omega): theta'' = -sin theta."""
    return np.stack([s[:, 1], -np.sin(s[:, 0])], axis=1)


def _pendulum(n: int, frames: int, generator: np.random.Generator) -> tuple:
    """Draw energies up to that of rest at 90 degrees: (2 sin(theta / 2), omega) in a disc."""
    radius, phase = np.sqrt(2 * generator.uniform(size=n)), generator.uniform(0, 2 * np.pi, n)
    start = np.stack([2 * np.arcsin(radius * np.cos(phase) / 2), radius * np.sin(phase)], 1)
    states = motion(start, pendulum, 0.6, frames)
    pivot = np.array([0.0, 0.4])
    end = 0.9 * _hanging(states[..., 0]) + pivot
    return states, Camera(generator).see(np.stack([np.broadcast_to(pivot, end.shape), end], axis=-2)[:, :, None])


def _double_pendulum(n: int, frames: int, generator: np.random.Generator) -> tuple:
    states = motion(generator.uniform(-0.7, 0.7, (n, 4)), double_pendulum, 0.7, frames)
    rods = 0.6 * _hanging(states[..., :2])
    joints = np.cumsum(rods, axis=-2) + np.array([0.0, 0.6])
    return states, Camera(generator).see(np.stack([joints - rods, joints], axis=-2))


def elastic_double_pendulum(s: np.ndarray, stiffness: float = 6.0, length: float = 0.8) -> np.ndarray:
    """Return the rate of change of (theta_1, x, y, omega_1, u, v): a body on a rod, and one on a spring below it.

    Both masses, the rod and g are 1. (x, y) is the place of the second body relative to the pivot, (u, v) its
    velocity. The spring pulls with ``stiffness`` times its extension beyond ``length``.
    """
    angle, place, omega, velocity = s[:, 0], s[:, 1:3], s[:, 3], s[:, 4:]
    spring = place - _hanging(angle)
    extent = np.sqrt(np.square(spring).sum(1, keepdims=True))
    force = -stiffness * (1 - length / extent) * spring  # on the second body
    tangent = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    gravity = np.array([0.0, -1.0])
    turned = ((gravity - force) * tangent).sum(1)
    return np.column_stack([omega, velocity, turned, force + gravity])


def _elastic_double_pendulum(n: int, frames: int, generator: np.random.Generator) -> tuple:
    """Draw two angles, the spring's length, and their rates in a box."""
    stiffness, length = 6.0, 0.8
    angles, rates = generator.uniform(-0.6, 0.6, (2, n, 2))
    extent, stretching = length + 1 / stiffness + generator.uniform(-0.25, 0.25, n), generator.uniform(-0.5, 0.5, n)
    down, across = _hanging(angles), np.stack([np.cos(angles), np.sin(angles)], axis=-1)
    place = down[:, 0] + extent[:, None] * down[:, 1]
    velocity = rates[:, :1] * across[:, 0] + stretching[:, None] * down[:, 1]
    velocity = velocity + (extent * rates[:, 1])[:, None] * across[:, 1]
    start = np.column_stack([angles[:, 0], place, rates[:, 0], velocity])
    states = motion(start, elastic_double_pendulum, 0.6, frames)
    pivot = np.array([0.0, 0.6])
    first = 0.6 * _hanging(states[..., 0]) + pivot
    second = 0.6 * states[..., 1:3] + pivot
    fixed = np.broadcast_to(pivot, first.shape)
    rods = np.stack([np.stack([fixed, first], axis=-2), np.stack([first, second], axis=-2)], axis=2)
    return states, Camera(generator).see(rods)


STICKS = ((1.0, 1.0, 0.25), (0.6, 0.8, 0.15))  # of a swing stick: mass, length, center of mass below the pivot
JOINT = 0.5  # distance of the second pivot from the first, along the first stick and above it


def swing_stick(s: np.ndarray) -> np.ndarray:
    """Return the rate of change of (theta_1, theta_2, omega_1, omega_2) of two sticks, g = 1.

    The first turns about a fixed pivot; the second about a point of the first, ``JOINT`` above that pivot. Neither
    pivot is a stick's center of mass. The Lagrangian is a w1^2 / 2 + b w2^2 / 2 - c w1 w2 cos(d) + p cos theta_1
    + q cos theta_2 with d = theta_1 - theta_2, as for a double pendulum whose first rod points upward.
    """
    a, b, c, p, q = swing_stick_constants()
    first, second, w1, w2 = s.T
    cosine, sine = np.cos(first - second), np.sin(first - second)
    right1, right2 = c * w2**2 * sine - p * np.sin(first), -c * w1**2 * sine - q * np.sin(second)
    determinant = a * b - c**2 * cosine**2
    turned1 = (b * right1 + c * cosine * right2) / determinant
    turned2 = (a * right2 + c * cosine * right1) / determinant
    return np.stack([w1, w2, turned1, turned2], axis=1)


def swing_stick_constants() -> tuple[float, float, float, float, float]:
    """Return a, b, c, p, q of :func:`swing_stick`: moments of inertia, their coupling, and the weights' levers."""
    (m1, l1, d1), (m2, l2, d2) = STICKS
    a = m1 * l1**2 / 12 + m1 * d1**2 + m2 * JOINT**2
    b = m2 * l2**2 / 12 + m2 * d2**2
    return a, b, m2 * JOINT * d2, m1 * d1 - m2 * JOINT, m2 * d2


def _swing_stick(n: int, frames: int, generator: np.random.Generator) -> tuple:
    turned = generator.uniform(-0.7, 0.7, (n, 4)) + np.array([np.pi, 0.0, 0.0, 0.0])
    states = motion(turned, swing_stick, 0.5, frames)
    scale = 0.9
    first, second = _hanging(states[..., 0]), _hanging(states[..., 1])
    joint = -JOINT * first
    rods = []
    for middle, direction, (_, length, below) in ((0 * joint, first, STICKS[0]), (joint, second, STICKS[1])):
        center = middle + below * direction
        rods.append(np.stack([center - length / 2 * direction, center + length / 2 * direction], axis=-2))
    return states, Camera(generator).see(scale * np.stack(rods, axis=2))


def oscillators(s: np.ndarray) -> np.ndarray:
    """Return the rate of change of (x_1, x_2, v_1, v_2): two masses on springs that stiffen, and one between them."""
    x, v = s[:, :2], s[:, 2:]
    return np.column_stack([v, -x - 0.5 * x**3 - 0.4 * (x - x[:, ::-1])])


def _oscillators(n: int, frames: int, generator: np.random.Generator) -> tuple:
    """Film the masses on two parallel tracks."""
    states = motion(generator.uniform(-1, 1, (n, 4)), oscillators, 0.6, frames)
    along = 0.5 * states[..., :2]
    across = np.broadcast_to(np.array([0.35, -0.35]), along.shape)
    return states, Camera(generator).see(bodies(np.stack([along, across], axis=-1)))


def _solitary_waves(n: int, frames: int, generator: np.random.Generator) -> tuple:
    """Film one solitary wave of shallow water, of any height, place and direction within limits.

    u = 2 k^2 sech^2(k (x + p y - (4 k^2 + 3 p^2) t) - phase) solves (u_t + 6 u u_x + u_xxx)_x + 3 u_yy = 0 (the
    Kadomtsev-Petviashvili equation). Heights are shown relative to that of k = 1.
    """
    size, tilt = generator.uniform(0.7, 1.0, n), generator.uniform(-0.5, 0.5, n)
    phase = generator.uniform(-2.5, 0, n)
    camera, line = Camera(generator), np.linspace(-1, 1, SIZE)
    pixels = np.stack(np.meshgrid(line, line, indexing="ij"), axis=-1) - camera.shift
    x, y = np.moveaxis(pixels @ np.linalg.inv(camera.turn).T * 6, -1, 0)  # the image shows [-6, 6]^2
    time = 0.15 * np.arange(frames)
    moved = (4 * size**2 + 3 * tilt**2)[:, None] * time + phase[:, None]
    shape = (slice(None), None, None, None)
    argument = size[shape] * (x + tilt[shape] * y - moved[..., None, None])
    held = [np.broadcast_to(value[:, None], moved.shape) for value in (size, tilt)]
    return np.stack([*held, moved], axis=-1), size[shape] ** 2 / np.cosh(argument) ** 2


def vortices(s: np.ndarray, strengths: tuple[float, float] = (1.0, 0.6)) -> np.ndarray:
    """Return the rate of change of (x_1, y_1, x_2, y_2): two point vortices, each carried by the flow of the other."""
    apart = s[:, 2:] - s[:, :2]
    turned = np.stack([-apart[:, 1], apart[:, 0]], axis=1) / np.square(apart).sum(1, keepdims=True)
    return np.column_stack([-strengths[1] * turned, strengths[0] * turned])


def _vortices(n: int, frames: int, generator: np.random.Generator) -> tuple:
    """Film the vorticity, smoothed, of two vortices that start in the left and the right half."""
    start = generator.uniform(-0.3, 0.3, (n, 4)) + np.array([-0.35, 0, 0.35, 0])
    states = motion(start, vortices, 0.1, frames)
    camera = Camera(generator)
    seen = [camera.see(bodies(states[..., None, 2 * i : 2 * i + 2])) for i in (0, 1)]
    return states, seen[0] + 0.6 * seen[1]


SYSTEMS = {
    "circular motion, one speed": System(1, "", "angle, all the way round", _steady_circle),
    "circular motion": System(2, "2.2", "angle, all the way round; angular velocity", _circle),
    "reaction-diffusion spiral": System(2, "2.2", "phase, all the way round; amplitude", _spiral),
    "pendulum": System(2, "2.1", "angle and angular velocity, in a disc", _pendulum),
    "solitary waves": System(3, "", "height, direction and place, in a box", _solitary_waves),
    "double pendulum": System(4, "4.7", "two angles and their velocities", _double_pendulum),
    "swing stick": System(4, "4.9", "two angles and their velocities", _swing_stick),
    "coupled oscillators": System(4, "", "two displacements and their velocities", _oscillators),
    "vortices": System(4, "", "places of two point vortices", _vortices),
    "elastic double pendulum": System(6, "5.3", "two angles, a length, and their rates", _elastic_double_pendulum),
}
