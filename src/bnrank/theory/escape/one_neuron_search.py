"""Good directions for one neuron: exact on a circle, by ascent in more dimensions."""

from __future__ import annotations

import math

import numpy as np

__all__ = ["ascend", "best_on_circle", "sizes", "values_at"]

ENTRIES = 2**22  # numbers held at a time: 32 MiB
POLISHED = 4  # ascents that go on with great circles
CIRCLES = 60  # great circles of each, at most
NEAR = 1e-5  # |x . v| below this times |x| is near a kink
ACTIVE = 8  # kinks that a direction is put on, at most, for every dimension


def activate(z: np.ndarray, slope: float) -> np.ndarray:
    """Apply sigma_s(z) = z for z >= 0 and s z otherwise."""
    return np.maximum(z, 0) if slope == 0 else np.where(z >= 0, z, slope * z)


def values_at(x: np.ndarray, g: np.ndarray, v: np.ndarray, slope: float) -> np.ndarray:
    """Return G^T sigma(X v), (k, K), for the columns of v, (d, K); samples go in blocks."""
    result = np.zeros((g.shape[1], v.shape[1]))
    for rows in _blocks(len(x), v.shape[1]):
        result += g[rows].T @ activate(x[rows] @ v, slope)
    return result


def sizes(outputs: np.ndarray, signed: bool = False) -> np.ndarray:
    """Return the norms of the columns of G^T sigma(X v); with one output and ``signed``, the values themselves."""
    return outputs[0] if signed else np.linalg.norm(outputs, axis=0)


def best_on_circle(points: np.ndarray, g: np.ndarray, slope: float, signed: bool = False) -> float:
    """Return the angle phi at which ||G^T sigma(P v)||, v = (cos phi, sin phi), is largest.

    P, (N, 2). Between the kinks, where v is orthogonal to a point, G^T sigma(P v) = M v and with A = M^T M

        ||M v||^2 = (A_11 + A_22)/2 + (A_11 - A_22)/2 cos 2 phi + A_12 sin 2 phi,

    largest at 2 phi = atan2(2 A_12, A_11 - A_22), where that lies on the arc, or else at one of its ends. M changes by
    g_i p_i^T at a kink; it is summed up anew at the first arc of each block of arcs. With one output and ``signed``,
    the angle at which G^T sigma(P v) = M v itself is largest, atan2(M_2, M_1) on an arc.
    """
    held = np.hypot(points[:, 0], points[:, 1]) > 0
    p, w = points[held], g[held]
    if not len(p):
        return 0.0
    middle = np.arctan2(p[:, 1], p[:, 0])
    kinks = np.concatenate([middle - np.pi / 2, middle + np.pi / 2]) % (2 * np.pi)
    order = np.argsort(kinks, kind="stable")
    begins = kinks[order]
    ends = np.append(begins[1:], begins[0] + 2 * np.pi)
    sample = order % len(p)
    sign = np.where(order < len(p), 1.0, -1.0) * (1 - slope)  # a neuron switches on at its first kink
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    on, off = place[: len(p)], place[len(p) :]
    best, angle = -math.inf, 0.0
    size = max(1, ENTRIES // (2 * w.shape[1]))
    for first in range(0, len(begins), size):
        arcs = slice(first, min(first + size, len(begins)))
        active = np.where(on < off, (on <= first) & (first < off), (on <= first) | (first < off))
        m = (w * np.where(active, 1.0, slope)[:, None]).T @ p
        i = sample[arcs][1:]
        changes = sign[arcs][1:, None, None] * w[i][:, :, None] * p[i][:, None, :]
        ms = np.concatenate([m[None], m + np.cumsum(changes, axis=0)])  # (arcs, k, 2)
        a, b, c = (ms[..., 0] ** 2).sum(1), (ms[..., 0] * ms[..., 1]).sum(1), (ms[..., 1] ** 2).sum(1)
        if signed:
            top, period = np.arctan2(ms[:, 0, 1], ms[:, 0, 0]), 2 * np.pi
        else:
            top, period = np.arctan2(2 * b, a - c) / 2, np.pi
        turned = begins[arcs] + (top - begins[arcs]) % period  # of equal angles, the next on the arc
        tried = np.stack([begins[arcs], ends[arcs], np.minimum(turned, ends[arcs])])
        if signed:
            values = ms[:, 0, 0] * np.cos(tried) + ms[:, 0, 1] * np.sin(tried)
        else:
            values = (a + c) / 2 + (a - c) / 2 * np.cos(2 * tried) + b * np.sin(2 * tried)
        where = np.unravel_index(values.argmax(), values.shape)
        if values[where] > best:
            best, angle = float(values[where]), float(tried[where])
    return angle


def ascend(
    x: np.ndarray,
    g: np.ndarray,
    slope: float,
    starts: int,
    steps: int,
    rng: np.random.Generator,
    signed: bool = False,
) -> np.ndarray:
    """Return a unit vector at which ||G^T sigma(X v)|| is large: many ascents, the best ones on great circles.

    Starts: the top singular directions of G^T X and X with both signs, and random ones. A step goes from v towards
    the direction of the gradient by a share that decays from 1 to 1e-7; the best v of each ascent is kept.
    """
    v = _starts(x, g, starts, rng)
    best, at = np.full(v.shape[1], -np.inf), v.copy()
    shares = np.concatenate([np.linspace(1, 0.3, steps // 3), np.geomspace(0.3, 1e-7, steps - steps // 3)])
    for share in shares:
        value, gradient = _value_and_gradient(x, g, v, slope, signed)
        better = value > best
        best[better], at[:, better] = value[better], v[:, better]
        norm = np.linalg.norm(gradient, axis=0)
        v = (1 - share) * v + share * np.divide(gradient, norm, out=v.copy(), where=norm > 0)
        length = np.linalg.norm(v, axis=0)
        v = np.divide(v, length, out=at.copy(), where=length > 1e-8)
    order = np.argsort(-best, kind="stable")[:POLISHED]
    polished = [_polish(x, g, slope, at[:, i], rng, signed) for i in order]
    return max(polished, key=lambda found: found[0])[1]


def _starts(x: np.ndarray, g: np.ndarray, starts: int, rng: np.random.Generator) -> np.ndarray:
    rank = x.shape[1]
    few = max(1, starts // 8)
    linear = np.linalg.svd(g.T @ x, full_matrices=False)[2][:few].T
    main = np.linalg.eigh(x.T @ x)[1][:, ::-1][:, :few]
    whitened = x.T @ rng.normal(size=(len(x), max(1, starts // 4)))  # random, with the spread of the data
    drawn = rng.normal(size=(rank, starts))
    v = np.concatenate([linear, -linear, main, -main, whitened, drawn], axis=1)[:, :starts]
    return v / np.linalg.norm(v, axis=0)


def _value_and_gradient(
    x: np.ndarray, g: np.ndarray, v: np.ndarray, slope: float, signed: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Return ||G^T sigma(X v)|| and its gradient in v for the columns of v."""
    output = values_at(x, g, v, slope)
    value = sizes(output, signed)
    u = np.ones_like(output) if signed else np.divide(output, value, out=np.zeros_like(output), where=value > 0)
    gradient = np.zeros_like(v)
    for rows in _blocks(len(x), v.shape[1]):
        weights = g[rows] @ u
        weights *= np.where(x[rows] @ v > 0, 1.0, slope)
        gradient += x[rows].T @ weights
    return value, gradient


def _polish(
    x: np.ndarray, g: np.ndarray, slope: float, v: np.ndarray, rng: np.random.Generator, signed: bool
) -> tuple[float, np.ndarray]:
    """Go on from v over great circles, exactly on each for the present u; the value never falls."""
    lengths = np.linalg.norm(x, axis=1)
    value = float(sizes(values_at(x, g, v[:, None], slope), signed)[0])
    idle = 0
    for turn in range(CIRCLES):
        before = value
        z = x @ v
        output = g.T @ activate(z, slope)
        if not output.any():
            break
        c = g[:, 0] if signed else g @ (output / np.linalg.norm(output))
        gradient = x.T @ (c * np.where(z > 0, 1.0, slope))
        near = np.abs(z) <= NEAR * lengths
        if turn % 3 == 0 and 0 < near.sum() <= ACTIVE * x.shape[1]:  # along the kinks nearby
            free = _orthogonal_to(x[near])
            center, along = free @ (free.T @ v), free @ (free.T @ gradient)
        elif turn % 3 == 2:
            center, along = v, rng.normal(size=v.shape)
        else:
            center, along = v, gradient
        for candidate in _on_great_circle(x, c, slope, center, along):
            new = float(sizes(values_at(x, g, candidate[:, None], slope), signed)[0])
            if new > value:
                value, v = new, candidate
        idle = idle + 1 if value - before <= 1e-14 * abs(value) else 0
        if idle >= 6:
            break
    return value, v


def _on_great_circle(
    x: np.ndarray, c: np.ndarray, slope: float, center: np.ndarray, along: np.ndarray
) -> list[np.ndarray]:
    """Return the center, on the sphere, and the best v on the great circle through it in a direction, weights c."""
    size = np.linalg.norm(center)
    if size < 0.5:
        return []
    center = center / size
    tangent = along - center * (center @ along)
    length = np.linalg.norm(tangent)
    if length <= 1e-12 * np.linalg.norm(along):
        return [center]
    tangent /= length
    angle = best_on_circle(np.stack([x @ center, x @ tangent], 1), c[:, None], slope, signed=True)
    found = math.cos(angle) * center + math.sin(angle) * tangent
    return [center, found / np.linalg.norm(found)]


def _orthogonal_to(rows: np.ndarray) -> np.ndarray:
    """Return an orthonormal basis, in columns, of what is orthogonal to the rows."""
    _, s, vt = np.linalg.svd(rows)
    return vt[int((s > 1e-9 * s[0]).sum()) :].T


def _blocks(samples: int, columns: int) -> list[slice]:
    size = max(1, ENTRIES // columns)
    return [slice(first, first + size) for first in range(0, samples, size)]
