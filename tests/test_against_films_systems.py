"""Films of physical systems: motions against their Lagrangians, waves against their equation."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from benchmarks.against import films_systems as systems
from torch import Tensor

RNG = np.random.default_rng(0)


def _hanging(angle: Tensor) -> Tensor:
    return torch.stack([torch.sin(angle), -torch.cos(angle)])


def _energies(place: Callable[[Tensor], Tensor], masses: Tensor) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Return (q, v) -> kinetic energy and height energy of bodies at ``place(q)``, (bodies, 2), g = 1."""

    def energies(q: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        where, velocity = torch.func.jvp(place, (q,), (v,))
        return (masses * velocity.square().sum(1)).sum() / 2, (masses * where[:, 1]).sum()

    return energies


def _double(q: Tensor) -> Tensor:
    first = _hanging(q[0])
    return torch.stack([first, first + _hanging(q[1])])


def _double_lagrangian(q: Tensor, v: Tensor) -> Tensor:
    kinetic, height = _energies(_double, torch.ones(2, dtype=q.dtype))(q, v)
    return kinetic - height


def _elastic_lagrangian(q: Tensor, v: Tensor) -> Tensor:
    """Of (theta_1, x, y)."""

    def place(q: Tensor) -> Tensor:
        return torch.stack([_hanging(q[0]), q[1:]])

    kinetic, height = _energies(place, torch.ones(2, dtype=q.dtype))(q, v)
    first, second = place(q)
    return kinetic - height - 6.0 * ((second - first).norm() - 0.8) ** 2 / 2


def _sticks_lagrangian(q: Tensor, v: Tensor) -> Tensor:
    """Of uniform sticks, each as 200 bodies along it."""
    parts = (torch.arange(200, dtype=q.dtype) + 0.5) / 200 - 0.5

    def place(q: Tensor) -> Tensor:
        down = [_hanging(q[0]), _hanging(q[1])]
        middle = [torch.zeros(2, dtype=q.dtype), -systems.JOINT * down[0]]
        spots = [
            m + (below + length * parts)[:, None] * d
            for m, d, (_, length, below) in zip(middle, down, systems.STICKS, strict=True)
        ]
        return torch.cat(spots)

    masses = torch.cat([torch.full((200,), mass / 200, dtype=q.dtype) for mass, _, _ in systems.STICKS])
    kinetic, height = _energies(place, masses)(q, v)
    return kinetic - height


def _oscillators_lagrangian(q: Tensor, v: Tensor) -> Tensor:
    stored = q.square().sum() / 2 + 0.5 * q.pow(4).sum() / 4 + 0.4 * (q[0] - q[1]) ** 2 / 2
    return v.square().sum() / 2 - stored


MECHANICAL = {
    "double pendulum": (systems.double_pendulum, _double_lagrangian, 2),
    "elastic double pendulum": (systems.elastic_double_pendulum, _elastic_lagrangian, 3),
    "swing stick": (systems.swing_stick, _sticks_lagrangian, 2),
    "coupled oscillators": (systems.oscillators, _oscillators_lagrangian, 2),
}


@pytest.mark.parametrize("name", MECHANICAL)
def test_motions_follow_the_lagrangian(name: str) -> None:
    field, lagrangian, number = MECHANICAL[name]
    generator = np.random.default_rng(1)
    q = generator.uniform(-1, 1, number) + (np.array([0.0, 0.5, -2.0]) if number == 3 else 0.0)
    state = torch.tensor(np.concatenate([q, generator.uniform(-1, 1, number)]))
    q, v = state[:number], state[number:]
    mass = torch.func.hessian(lagrangian, argnums=1)(q, v)
    mixed = torch.func.jacrev(torch.func.grad(lagrangian, argnums=1), argnums=0)(q, v)
    force = torch.func.grad(lagrangian)(q, v)
    expected = torch.cat([v, torch.linalg.solve(mass, force - mixed @ v)])
    found = field(state[None].numpy())[0]
    assert np.allclose(found, expected, atol=1e-4 if name == "swing stick" else 1e-10)  # sticks of 200 bodies


@pytest.mark.parametrize("name", MECHANICAL)
def test_energy_is_conserved_in_the_films(name: str) -> None:
    _, lagrangian, number = MECHANICAL[name]
    states, _ = systems.films(name, 3, 8, seed=1)
    for film in torch.tensor(states):
        energies = []
        for state in film:
            q, v = state[:number], state[number:]
            energies.append(torch.func.grad(lagrangian, argnums=1)(q, v) @ v - lagrangian(q, v))
        assert torch.stack(energies).std() < 1e-4
        assert film.std(0).min() > 1e-2


def test_vortices_keep_their_distance_and_their_center() -> None:
    states, _ = systems.films("vortices", 5, 8, seed=2)
    apart = np.linalg.norm(states[..., 2:] - states[..., :2], axis=-1)
    assert np.allclose(apart, apart[:, :1], rtol=1e-5)
    center = (states[..., :2] + 0.6 * states[..., 2:]) / 1.6
    assert np.allclose(center, center[:, :1], atol=1e-5)


def test_solitary_waves_solve_their_equation() -> None:
    """By finite differences of u = 2 k^2 sech^2 in x, y and t."""
    k, p = 0.8, 0.4

    def u(x: np.ndarray, y: np.ndarray, t: np.ndarray) -> np.ndarray:
        return 2 * k**2 / np.cosh(k * (x + p * y - (4 * k**2 + 3 * p**2) * t)) ** 2

    h = 0.02
    x, y, t = np.meshgrid(np.arange(-4, 4, h), h * np.arange(3), h * np.arange(3) / 4, indexing="ij")
    values = u(x, y, t)

    def dx(f: np.ndarray) -> np.ndarray:
        return np.gradient(f, h, axis=0)

    inner = np.gradient(values, h / 4, axis=2) + 6 * values * dx(values) + dx(dx(dx(values)))
    across = (values[:, 2, 1] - 2 * values[:, 1, 1] + values[:, 0, 1]) / h**2
    residual = dx(inner)[:, 1, 1] + 3 * across
    assert np.abs(residual[8:-8]).max() < 0.02 * np.abs(3 * across).max()


def test_the_waves_in_films_move_as_the_equation_says_and_are_as_high() -> None:
    states, frames = systems.films("solitary waves", 40, 8, seed=3)
    size, tilt, phase = np.moveaxis(states, -1, 0)
    assert np.allclose(np.diff(phase, axis=1) / 0.15, (4 * size**2 + 3 * tilt**2)[:, 1:])
    seen = np.abs(phase) < 1.5
    assert np.allclose(frames.max(axis=(2, 3))[seen], (size**2)[seen], rtol=0.05)


@pytest.mark.parametrize("name", systems.SYSTEMS)
def test_films_show_every_state_differently_and_the_seed_decides(name: str) -> None:
    states, frames = systems.films(name, 12, 5, seed=5)
    assert frames.shape == (12, 5, 32, 32)
    again = systems.films(name, 12, 5, seed=5, noise=0.02)[1]
    assert abs((again - frames).std() - 0.02) < 0.001
    pairs = np.concatenate([frames[:, :-1], frames[:, 1:]], axis=2).reshape(48, -1)
    apart = np.linalg.norm(pairs[:, None] - pairs, axis=2) + 1e9 * np.eye(48)
    scaled = (states[:, :-1] / states.std(axis=(0, 1))).reshape(48, -1)
    nearest = apart.argmin(axis=1)
    distance = np.linalg.norm(scaled[:, None] - scaled, axis=2)
    assert apart.min() > 1e-3
    if "circular" not in name:  # angles are not compared modulo a turn
        assert np.median(distance[np.arange(48), nearest]) < np.median(distance)


@pytest.mark.parametrize("name", systems.SYSTEMS)
def test_the_states_drawn_fill_as_many_dimensions_as_there_are_variables(name: str) -> None:
    states = systems.films(name, 60, 4, seed=6)[0]
    variances = np.linalg.eigvalsh(np.cov(states.reshape(240, -1).T).reshape(states.shape[-1], -1))
    assert states.shape[-1] == systems.SYSTEMS[name].variables
    assert variances.min() > 1e-3
