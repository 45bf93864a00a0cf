"""One neuron as a function of its incoming weights, and directions of large speed for it."""

import math
from dataclasses import dataclass

import numpy as np

ENTRIES = 2**22  # numbers held at a time: 32 MiB
POLISHED = 4  # ascents that are continued on great circles
MAX_CIRCLES = 60  # great circles of each
NEAR = 1e-5  # |x . v| below this times |x| is near a kink
MAX_ACTIVE = 8  # kinks per dimension that a direction is put on


@dataclass(frozen=True)
class Neuron:
    """The map v -> G^T sigma(X v) of one neuron, with X, (N, d), and G, (N, k).

    Its size is the norm, or with one output and ``signed`` the value itself.
    """

    x: np.ndarray
    g: np.ndarray
    slope: float
    signed: bool = False

    def outputs(self, v: np.ndarray) -> np.ndarray:
        """Return G^T sigma(X v), (k, K), for the columns of v, (d, K); samples go in blocks."""
        result = np.zeros((self.g.shape[1], v.shape[1]))
        for rows in self.blocks(v.shape[1]):
            result += self.g[rows].T @ self.activate(self.x[rows] @ v)
        return result

    def sizes(self, outputs: np.ndarray) -> np.ndarray:
        """Return the sizes of the columns of G^T sigma(X v)."""
        return outputs[0] if self.signed else np.linalg.norm(outputs, axis=0)

    def size(self, v: np.ndarray) -> float:
        """Return the size at one v, (d,)."""
        return float(self.sizes(self.outputs(v[:, None]))[0])

    def gradient(self, v: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the size and its gradient in v for the columns of v."""
        output = self.outputs(v)
        value = self.sizes(output)
        whole = np.ones_like(output) if self.signed else np.zeros_like(output)
        u = whole if self.signed else np.divide(output, value, out=whole, where=value > 0)
        gradient = np.zeros_like(v)
        for rows in self.blocks(v.shape[1]):
            gradient += self.x[rows].T @ (self.g[rows] @ u * np.where(self.x[rows] @ v > 0, 1.0, self.slope))
        return value, gradient

    def activate(self, z: np.ndarray) -> np.ndarray:
        """Return sigma_s(z): z for z >= 0 and s z otherwise."""
        return np.maximum(z, 0) if self.slope == 0 else np.where(z >= 0, z, self.slope * z)

    def blocks(self, columns: int) -> list[slice]:
        """Return slices of the samples for products with that number of columns."""
        size = max(1, ENTRIES // columns)
        return [slice(first, first + size) for first in range(0, len(self.x), size)]


def best_on_circle(neuron: Neuron) -> float:
    """Return the angle phi at which the size of G^T sigma(P v), v = (cos phi, sin phi), is largest, for P, (N, 2).

    Between the kinks, where v is orthogonal to a point, G^T sigma(P v) = M v and with A = M^T M

        ||M v||^2 = (A_11 + A_22)/2 + (A_11 - A_22)/2 cos 2 phi + A_12 sin 2 phi,

    largest at 2 phi = atan2(2 A_12, A_11 - A_22), where that lies on the arc, or else at one of its ends. M changes by
    g_i p_i^T at a kink; it is recomputed at the first arc of each block of arcs. If ``signed``, M v itself is largest
    at atan2(M_2, M_1) on an arc.
    """
    held, slope = neuron.x.any(1), neuron.slope
    p, w = neuron.x[held], neuron.g[held]
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
        if neuron.signed:
            top, period = np.arctan2(ms[:, 0, 1], ms[:, 0, 0]), 2 * np.pi
        else:
            top, period = np.arctan2(2 * b, a - c) / 2, np.pi
        turned = begins[arcs] + (top - begins[arcs]) % period  # of equal angles, the next on the arc
        tried = np.stack([begins[arcs], ends[arcs], np.minimum(turned, ends[arcs])])
        if neuron.signed:
            values = ms[:, 0, 0] * np.cos(tried) + ms[:, 0, 1] * np.sin(tried)
        else:
            values = (a + c) / 2 + (a - c) / 2 * np.cos(2 * tried) + b * np.sin(2 * tried)
        where = np.unravel_index(values.argmax(), values.shape)
        if values[where] > best:
            best, angle = float(values[where]), float(tried[where])
    return angle


def ascend(neuron: Neuron, starts: int, steps: int, rng: np.random.Generator) -> np.ndarray:
    """Return a unit vector of large size: many ascents, the best ones continued on great circles.

    Starts: the top singular directions of G^T X and X with both signs, and random ones. A step goes from v towards
    the direction of the gradient by a share that decays from 1 to 1e-7; the best v of each ascent is kept.
    """
    v = _starts(neuron, starts, rng)
    best, at = np.full(v.shape[1], -np.inf), v.copy()
    for share in np.concatenate([np.linspace(1, 0.3, steps // 3), np.geomspace(0.3, 1e-7, steps - steps // 3)]):
        value, gradient = neuron.gradient(v)
        better = value > best
        best[better], at[:, better] = value[better], v[:, better]
        norm = np.linalg.norm(gradient, axis=0)
        v = (1 - share) * v + share * np.divide(gradient, norm, out=v.copy(), where=norm > 0)
        length = np.linalg.norm(v, axis=0)
        v = np.divide(v, length, out=at.copy(), where=length > 1e-8)
    polished = [_polish(neuron, at[:, i], rng) for i in np.argsort(-best, kind="stable")[:POLISHED]]
    return max(polished, key=lambda found: found[0])[1]


def _starts(neuron: Neuron, starts: int, rng: np.random.Generator) -> np.ndarray:
    x, few = neuron.x, max(1, starts // 8)
    linear = np.linalg.svd(neuron.g.T @ x, full_matrices=False)[2][:few].T
    main = np.linalg.eigh(x.T @ x)[1][:, ::-1][:, :few]
    whitened = x.T @ rng.normal(size=(len(x), max(1, starts // 4)))  # random, with the spread of the data
    drawn = rng.normal(size=(x.shape[1], starts))
    v = np.concatenate([linear, -linear, main, -main, whitened, drawn], axis=1)[:, :starts]
    return v / np.linalg.norm(v, axis=0)


def _polish(neuron: Neuron, v: np.ndarray, rng: np.random.Generator) -> tuple[float, np.ndarray]:
    """Continue from v on great circles, exactly on each for the current u; the size never falls."""
    x, g, lengths = neuron.x, neuron.g, np.linalg.norm(neuron.x, axis=1)
    value, idle = neuron.size(v), 0
    for turn in range(MAX_CIRCLES):
        before = value
        z = x @ v
        output = g.T @ neuron.activate(z)
        if not output.any():
            break
        c = g[:, 0] if neuron.signed else g @ (output / np.linalg.norm(output))
        gradient = x.T @ (c * np.where(z > 0, 1.0, neuron.slope))
        near = np.abs(z) <= NEAR * lengths
        center, along = v, gradient
        if turn % 3 == 0 and 0 < near.sum() <= MAX_ACTIVE * x.shape[1]:  # along the kinks nearby
            free = _orthogonal_to(x[near])
            center, along = free @ (free.T @ v), free @ (free.T @ gradient)
        elif turn % 3 == 2:
            along = rng.normal(size=v.shape)
        for candidate in _on_great_circle(Neuron(x, c[:, None], neuron.slope, signed=True), center, along):
            new = neuron.size(candidate)
            if new > value:
                value, v = new, candidate
        idle = idle + 1 if value - before <= 1e-14 * abs(value) else 0
        if idle >= 6:
            break
    return value, v


def _on_great_circle(neuron: Neuron, center: np.ndarray, along: np.ndarray) -> list[np.ndarray]:
    """Return the center, on the sphere, and the best v on the great circle through it in a direction."""
    size = np.linalg.norm(center)
    if size < 0.5:
        return []
    center = center / size
    tangent = along - center * (center @ along)
    length = np.linalg.norm(tangent)
    if length <= 1e-12 * np.linalg.norm(along):
        return [center]
    tangent /= length
    points = np.stack([neuron.x @ center, neuron.x @ tangent], 1)
    angle = best_on_circle(Neuron(points, neuron.g, neuron.slope, neuron.signed))
    found = math.cos(angle) * center + math.sin(angle) * tangent
    return [center, found / np.linalg.norm(found)]


def _orthogonal_to(rows: np.ndarray) -> np.ndarray:
    """Return an orthonormal basis, in columns, of the orthogonal complement of the rows."""
    _, s, vt = np.linalg.svd(rows)
    return vt[int((s > 1e-9 * s[0]).sum()) :].T
