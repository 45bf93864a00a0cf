"""Projected steps on a product of spheres for many networks at once, with the gradient written out by hand."""

from __future__ import annotations

import numpy as np

__all__ = ["Batch"]

Array = np.ndarray
BLOCK = 1 << 22  # entries of all hidden activations that are held at a time
TINY = np.finfo(float).tiny


class Batch:
    """Networks of one shape, every layer of Frobenius norm 1, and the gradients of their speeds.

    s = -sum(G * f_theta(X)) of each member, theta on the product of unit spheres, which is in the sphere of radius
    sqrt(L). The samples are taken in blocks, so that memory does not grow with N.

    Parameters
    ----------
    x, g : ndarray
        X, (N, d_in), and G, (N, d_out), float64.
    weights : list of ndarray
        W_1, ..., W_L of all members, (members, n_l, n_{l-1}). Copied and scaled to norm 1.
    slope : float
        s of the activation: z for z >= 0 and s z otherwise.
    """

    def __init__(self, x: Array, g: Array, weights: list[Array], slope: float) -> None:
        self.slope = slope
        self.members = len(weights[0])
        self.depth = len(weights)
        # the last layer transposed, so that all members share one product with the data at either end
        copies = [np.array(w, dtype=float, order="C") for w in weights[:-1]]
        self._weights = [*copies, np.array(weights[-1].transpose(0, 2, 1), dtype=float, order="C")]
        self._ascent = [np.empty_like(w) for w in self._weights]
        per_sample = self.members * sum(w.shape[1] for w in self._weights[:-1])
        size = min(len(x), max(1, BLOCK // per_sample))
        self._blocks = [
            (np.ascontiguousarray(x[i : i + size]), np.ascontiguousarray(g[i : i + size]))
            for i in range(0, len(x), size)
        ]
        self._buffers: dict[int, list[list[Array]]] = {}
        self._extra = [np.empty_like(w) for w in self._weights] if len(self._blocks) > 1 else None
        self.normalize()

    @property
    def weights(self) -> list[Array]:
        """W_1, ..., W_L, (members, n_l, n_{l-1}); views."""
        return [*self._weights[:-1], self._weights[-1].transpose(0, 2, 1)]

    @property
    def ascent(self) -> list[Array]:
        """-dL0/dW_l of what :meth:`speeds` was last called on, as the weights; views."""
        return [*self._ascent[:-1], self._ascent[-1].transpose(0, 2, 1)]

    def normalize(self) -> None:
        """Scale every layer to norm 1; a layer of zeros stays so."""
        for w in self._weights:
            norm = np.sqrt(np.einsum("mij,mij->m", w, w))
            w /= np.maximum(norm, TINY, out=norm)[:, None, None]

    def speeds(self) -> Array:
        """Return s of all members, (members,), and leave the gradients in :attr:`ascent`."""
        self._block(*self._blocks[0], self._ascent)
        if self._extra is not None:
            for x, g in self._blocks[1:]:
                self._block(x, g, self._extra)
                for total, part in zip(self._ascent, self._extra, strict=True):
                    total += part
        return np.einsum("mij,mij->m", self._weights[-1], self._ascent[-1])

    def at_rest(self, tolerance: float = 1e-12) -> bool:
        """Say whether all members have grad L0 = -s theta up to ``tolerance`` of it, without regard to kinks."""
        speeds = self.speeds()
        for w, d in zip(self._weights, self._ascent, strict=True):
            off = d - speeds[:, None, None] * w
            if (np.einsum("mij,mij->m", off, off) > (tolerance * speeds) ** 2).any():
                return False
        return True

    def step(self, size: float) -> Array:
        """Move all members by ``size`` times the gradient over its mean norm per layer; return the speeds before it.

        The scale is one per member, so that small steps follow the gradient flow of the source in another time.
        """
        speeds = self.speeds()
        squares = sum(np.einsum("mij,mij->m", d, d) for d in self._ascent)
        scale = size / np.maximum(np.sqrt(squares / self.depth), TINY)
        self._move(scale[:, None, None])
        return speeds

    def step_unscaled(self, size: float) -> Array:
        """Move all members by ``size`` times the gradient, as the source does; return the speeds before it."""
        speeds = self.speeds()
        self._move(size)
        return speeds

    def _move(self, scale: Array | float) -> None:
        for w, d in zip(self._weights, self._ascent, strict=True):
            d *= scale
            w += d
        self.normalize()

    def _block(self, x: Array, g: Array, out: list[Array]) -> None:
        """Write the gradients on one block of samples to ``out``."""
        m, w = self.members, self._weights
        values, slopes = self._hidden(len(x))
        for layer, (a, d) in enumerate(zip(values, slopes, strict=True)):
            if layer:
                np.matmul(w[layer], values[layer - 1], out=a)
            else:
                np.matmul(w[0].reshape(-1, w[0].shape[2]), x.T, out=a.reshape(-1, len(x)))
            self._activate(a, d)
        last = values[-1]
        np.matmul(last.reshape(-1, len(x)), g, out=out[-1].reshape(m * last.shape[1], -1))
        np.negative(out[-1], out=out[-1])
        # from here on ``values`` of a layer are overwritten by minus its loss gradients, once nothing needs them
        delta = self._spare(len(x))
        np.matmul(w[-1].reshape(-1, g.shape[1]), g.T, out=delta[-1].reshape(-1, len(x)))
        np.negative(delta[-1], out=delta[-1])
        for layer in reversed(range(len(values))):
            if self.slope != 1:
                delta[layer] *= slopes[layer]
            if layer:
                np.matmul(delta[layer], values[layer - 1].transpose(0, 2, 1), out=out[layer])
                np.matmul(w[layer].transpose(0, 2, 1), delta[layer], out=delta[layer - 1])
            else:
                np.matmul(delta[0].reshape(-1, len(x)), x, out=out[0].reshape(-1, x.shape[1]))

    def _activate(self, a: Array, d: Array) -> None:
        """Apply the activation in place and store its derivative."""
        if self.slope == 0:
            np.maximum(a, 0, out=a)
            np.greater(a, 0, out=d)
        elif self.slope != 1:
            np.greater(a, 0, out=d)
            d *= 1 - self.slope
            d += self.slope
            a *= d

    def _hidden(self, n: int) -> list[list[Array]]:
        if n not in self._buffers:
            shapes = [(self.members, w.shape[1], n) for w in self._weights[:-1]]
            self._buffers[n] = [[np.empty(shape) for shape in shapes] for _ in range(3)]
        return self._buffers[n][:2]

    def _spare(self, n: int) -> list[Array]:
        return self._buffers[n][2]
