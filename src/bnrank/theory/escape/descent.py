"""Projected steps on a product of spheres for many networks at once."""

import numpy as np

Array = np.ndarray
BLOCK = 1 << 22  # entries of all hidden activations that are held at a time
TINY = np.finfo(float).tiny


class Batch:
    """Networks of one shape, every layer of Frobenius norm 1, and the gradients of their speeds.

    The speed of a member is s = -sum(G * f_theta(X)), with theta on the product of unit spheres, a subset of the sphere
    of radius sqrt(L). The samples are taken in blocks, so that memory does not grow with N.

    Parameters
    ----------
    x, g : ndarray
        X, (N, d_in), and G, (N, d_out), float64.
    weights : list of ndarray
        W_1, ..., W_L of all members, (members, n_l, n_{l-1}). Copied and scaled to norm 1.
    slope : float
        s of the activation: z for z >= 0 and s z otherwise.

    Attributes
    ----------
    weights, ascent : list of ndarray
        W_l, and -dL0/dW_l at the last call of :meth:`speeds`, (members, n_l, n_{l-1}).
    """

    def __init__(self, x: Array, g: Array, weights: list[Array], slope: float) -> None:
        self.slope, self.depth, self.members = slope, len(weights), len(weights[0])
        self.weights = [np.array(w, dtype=float, order="C") for w in weights]
        self.ascent = [np.zeros_like(w) for w in self.weights]
        size = max(1, BLOCK // (self.members * sum(w.shape[1] for w in self.weights[:-1])))
        self._blocks = [(np.ascontiguousarray(x[i : i + size].T), g[i : i + size]) for i in range(0, len(x), size)]
        self.normalize()

    def normalize(self) -> None:
        """Scale every layer to norm 1; a layer of zeros is left as it is."""
        for w in self.weights:
            w /= np.maximum(np.sqrt(np.einsum("mij,mij->m", w, w)), TINY)[:, None, None]

    def speeds(self) -> Array:
        """Return s of all members, (members,), and leave the gradients in ``ascent``."""
        self.ascent = self._block(*self._blocks[0])
        for block in self._blocks[1:]:
            self.ascent = [total + part for total, part in zip(self.ascent, self._block(*block), strict=True)]
        return np.einsum("mij,mij->m", self.weights[-1], self.ascent[-1])

    def at_rest(self, rtol: float = 1e-12) -> bool:
        """Return whether all members have grad L0 = -s theta up to ``rtol`` of it, without regard to kinks."""
        speeds = self.speeds()
        off = [d - speeds[:, None, None] * w for w, d in zip(self.weights, self.ascent, strict=True)]
        return not any((np.einsum("mij,mij->m", d, d) > (rtol * speeds) ** 2).any() for d in off)

    def step(self, size: float) -> Array:
        """Move all members by ``size`` times the gradient over its mean norm per layer; return the speeds before it.

        The scale is one per member, so that small steps follow the gradient flow of the source in another time.
        """
        speeds = self.speeds()
        squares = sum(np.einsum("mij,mij->m", d, d) for d in self.ascent)
        self._move((size / np.maximum(np.sqrt(squares / self.depth), TINY))[:, None, None])
        return speeds

    def step_unscaled(self, size: float) -> Array:
        """Move all members by ``size`` times the gradient, as the source does; return the speeds before it."""
        speeds = self.speeds()
        self._move(size)
        return speeds

    def _move(self, scale: Array | float) -> None:
        for w, d in zip(self.weights, self.ascent, strict=True):
            w += scale * d
        self.normalize()

    def _block(self, x: Array, g: Array) -> list[Array]:
        """Return the gradients on one block of samples, x (d_in, n) and g (n, d_out)."""
        m, n, w = self.members, len(g), self.weights
        inputs, slopes = [x], []
        for layer, weight in enumerate(w[:-1]):
            # one product for all members where they share a factor
            z = weight @ inputs[-1] if layer else (weight.reshape(-1, len(x)) @ x).reshape(m, -1, n)
            slopes.append(np.where(z > 0, 1.0, self.slope) if self.slope else z > 0)
            inputs.append(z * slopes[-1])
        ascent = [-(inputs[-1].reshape(-1, n) @ g).reshape(m, -1, g.shape[1]).transpose(0, 2, 1)]
        delta = -(w[-1].transpose(0, 2, 1) @ g.T)
        for layer in reversed(range(len(slopes))):
            delta *= slopes[layer]
            if layer:
                ascent.append(delta @ inputs[layer].transpose(0, 2, 1))
                delta = w[layer].transpose(0, 2, 1) @ delta
            else:
                ascent.append((delta.reshape(-1, n) @ x.T).reshape(m, -1, len(x)))
        return ascent[::-1]
