"""Tables of planted count: x, y with noise, the numbers z that y is a function of, and clean test rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import bnrank

__all__ = ["FAMILIES", "Case", "draw"]

OUTPUTS = 20
TEST_ROWS = 1000

Function = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Case:
    """Rows to fit on and clean rows to judge by: y is k numbers z, mapped smoothly, plus noise.

    Attributes
    ----------
    x, y, z : ndarray
        (N, d), (N, 20) with noise, (N, k).
    x_test, y_test, z_test : ndarray
        1,000 more rows, y without noise.
    seed : int
        Seed of the methods that draw.
    """

    x: np.ndarray
    y: np.ndarray
    z: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray
    z_test: np.ndarray
    seed: int


def draw(cell: dict[str, Any]) -> Case:
    """Draw the case of a cell: ``family``, ``k``, ``d``, ``noise`` (share of the spread of y), ``n`` and ``seed``.

    The spread of y is the root mean square of its entries minus their column means, before noise.
    """
    generator = np.random.default_rng([cell["seed"], list(FAMILIES).index(cell["family"])])
    n = cell["n"]
    x, z, y = FAMILIES[cell["family"]](n + TEST_ROWS, cell["d"], cell["k"], cell["seed"], generator)
    spread = np.sqrt(y[:n].var(axis=0).mean())
    noisy = y[:n] + cell["noise"] * spread * generator.normal(size=(n, OUTPUTS))
    return Case(x[:n], noisy, z[:n], x[n:], y[n:], z[n:], cell["seed"])


def low_rank_map(n: int, d: int, k: int, seed: int, generator: np.random.Generator) -> tuple[np.ndarray, ...]:
    """Draw `bnrank.tasks.low_rank_map`: x and y are random ReLU networks of 8 latents, y of the first k."""
    task = bnrank.tasks.low_rank_map(n=n, d_in=d, d_out=OUTPUTS, latent=8, rank=k, seed=seed, n_test=0)
    assert task.truth is not None
    return task.x.double().numpy(), task.truth.latents[:, :k].double().numpy(), task.y.double().numpy()


def smooth(n: int, d: int, k: int, seed: int, generator: np.random.Generator) -> tuple[np.ndarray, ...]:
    """Draw x ~ N(0, I), z_j = (u_j + g_j(v_j)) / sqrt(2) of 2 k orthonormal directions u, v, and y = h(z).

    g_j(v) is (v^2 - 1) / sqrt(2) and sqrt(2) sin(1.5 v) by turns. y needs 2 k linear combinations of x, but k numbers.
    """
    axes = np.linalg.qr(generator.normal(size=(d, 2 * k)))[0]
    h = smooth_map(k, generator)
    x = generator.normal(size=(n, d))
    u, v = np.split(x @ axes, 2, axis=1)
    bent = np.where(np.arange(k) % 2 == 0, (v**2 - 1) / np.sqrt(2), np.sqrt(2) * np.sin(1.5 * v))
    z = (u + bent) / np.sqrt(2)
    return x, z, h(z)


def directions(n: int, d: int, k: int, seed: int, generator: np.random.Generator) -> tuple[np.ndarray, ...]:
    """Draw x ~ N(0, I), z = k orthonormal directions of x, and y = h(z): what SIR and SAVE assume."""
    axes = np.linalg.qr(generator.normal(size=(d, k)))[0]
    h = smooth_map(k, generator)
    x = generator.normal(size=(n, d))
    return x, x @ axes, h(x @ axes)


def linear(n: int, d: int, k: int, seed: int, generator: np.random.Generator) -> tuple[np.ndarray, ...]:
    """Draw x ~ N(0, I), z = k orthonormal directions of x, and y linear in z: what reduced-rank regression assumes."""
    axes = np.linalg.qr(generator.normal(size=(d, k)))[0]
    decoder = generator.normal(size=(k, OUTPUTS))
    x = generator.normal(size=(n, d))
    return x, x @ axes, x @ axes @ decoder


def surface(n: int, d: int, k: int, seed: int, generator: np.random.Generator) -> tuple[np.ndarray, ...]:
    """Draw z uniform on [-1.5, 1.5]^k, x = g(z) and y = h(z): x fills a surface of dimension k without noise."""
    g, h = smooth_map(k, generator, d), smooth_map(k, generator)
    z = generator.uniform(-1.5, 1.5, size=(n, k))
    return g(z), z, h(z)


def smooth_map(k: int, generator: np.random.Generator, outputs: int = OUTPUTS) -> Function:
    """Draw z -> C z / sqrt(k) + sin(1.5 A z / sqrt(k) + phases), with normal C and A."""
    linear_part, inner = generator.normal(size=(2, k, outputs)) / np.sqrt(k)
    phases = generator.uniform(0, 2 * np.pi, size=outputs)
    return lambda z: z @ linear_part + np.sin(1.5 * z @ inner + phases)


FAMILIES: dict[str, Callable[..., tuple[np.ndarray, ...]]] = {
    "low_rank_map": low_rank_map,
    "smooth": smooth,
    "directions": directions,
    "linear": linear,
    "surface": surface,
}
