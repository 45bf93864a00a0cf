"""Networks moved onto data they should interpolate, at low norm."""

import math
from dataclasses import dataclass, field

import numpy as np

from bnrank._core import validation
from bnrank.theory.cost.pruning import prune
from bnrank.theory.cost.rescaling import Array, Arrays

CORRECTIONS = 30  # largest number of Gauss-Newton corrections
EXACT = 1e-11  # interpolation error while polishing, relative to the largest |y|
GAIN = 1e-10  # smallest relative decrease of the norm per polishing iteration
RANK = 1e-13  # eigenvalues of J J^T above this, relative to the largest, are inverted


@dataclass(frozen=True, order=True)
class Candidate:
    """An intermediate network, its norm (infinite if it does not interpolate) and its error."""

    norm: float
    error: float
    chain: Arrays = field(compare=False)


class Interpolation:
    """Corrects networks until they interpolate the data, and lowers their norm while they interpolate."""

    def __init__(self, x: Array, y: Array, allowed: float) -> None:
        self.x, self.y, self.allowed = x, y, allowed
        self.exact = EXACT * float(np.abs(y).max())

    def interpolating(self, chain: Arrays) -> Candidate:
        """Return the corrected network, pruned and balanced if it interpolates."""
        found = self._corrected(chain)
        return found if found.norm == math.inf else self._tidied(found.chain)

    def polished(self, start: Candidate, iterations: int) -> Candidate:
        """Return an interpolating network of lower norm, as far as one is found."""
        if start.error > self.exact:
            return start
        part, now = 1.0, start
        for _ in range(iterations):
            theta = parameters(now.chain)
            outputs, jacobian = linearized(now.chain, self.x)
            step = shortest(jacobian, jacobian @ theta + (self.y - outputs).ravel()) - theta
            while part > 1e-3:
                trial = self._corrected(at(now.chain, theta + part * step))
                if trial.error <= self.exact:
                    trial = self._start(trial.chain.balanced()[0], trial.error)
                    if trial.norm < now.norm * (1 - GAIN):
                        break
                part /= 2
            else:
                break
            now, part = trial, min(1.0, 2 * part)
        return self._tidied(now.chain)

    def _start(self, chain: Arrays, error: float) -> Candidate:
        return Candidate(chain.norm if error <= self.allowed else math.inf, error, chain)

    def _tidied(self, chain: Arrays) -> Candidate:
        """Return the network pruned on the samples and balanced, with rounding errors corrected."""
        return self._corrected(Arrays.of(prune(chain.network(), self.x).network).balanced()[0])

    def _corrected(self, chain: Arrays) -> Candidate:
        """Return the network after corrections: interpolating, or as close to it as they get."""
        outputs, jacobian = linearized(chain, self.x)
        for _ in range(CORRECTIONS):
            gap = (self.y - outputs).ravel()
            if float(np.abs(gap).max()) <= self.exact / 10:
                break
            theta, step = parameters(chain), shortest(jacobian, gap)
            for part in (1.0, 0.5, 0.25, 0.125):
                nearer = at(chain, theta + part * step)
                with np.errstate(over="ignore", invalid="ignore"):  # too long a step, rejected later
                    found = linearized(nearer, self.x)
                    better = float(np.linalg.norm(self.y - found[0])) < float(np.linalg.norm(gap))
                if better:
                    chain, (outputs, jacobian) = nearer, found
                    break
            else:
                break
        return self._start(chain, float(np.abs(self.y - outputs).max()))


def parameters(chain: Arrays) -> Array:
    """Return the parameters as one vector, the weights and then the biases."""
    return np.concatenate([p.ravel() for p in [*chain.weights, *chain.biases]])


def at(chain: Arrays, theta: Array) -> Arrays:
    """Return the chain with the parameters ``theta``."""
    held = [*chain.weights, *chain.biases]
    pieces = np.split(theta, np.cumsum([p.size for p in held])[:-1])
    parts = [piece.reshape(p.shape) for p, piece in zip(held, pieces, strict=True)]
    return Arrays(parts[: len(chain.weights)], parts[len(chain.weights) :], chain.slope)


def linearized(chain: Arrays, x: Array) -> tuple[Array, Array]:
    """Return the outputs, (N, d_out), and their Jacobian in theta, (N d_out, P)."""
    inputs, slopes = [x], []
    for weight, bias in zip(chain.weights, chain.all_biases, strict=True):
        z = inputs[-1] @ weight.T + bias
        slopes.append(np.where(z > 0, 1.0, chain.slope))
        inputs.append(z * slopes[-1])
    n, d_out = z.shape
    back = [np.broadcast_to(np.eye(d_out), (n, d_out, d_out))]  # J(a~_l -> f), from l = L down
    for weight, d in zip(chain.weights[:0:-1], slopes[-2::-1], strict=True):
        back.append((back[-1] @ weight) * d[:, None, :])
    columns = [b[..., None] * a[:, None, None, :] for b, a in zip(back[::-1], inputs, strict=False)]
    columns += back[::-1] if chain.biases else []
    return z, np.concatenate([c.reshape(n * d_out, -1) for c in columns], 1)


def shortest(jacobian: Array, right: Array) -> Array:
    """Return J^T (J J^T)^+ right, the solution v of J v = right of minimum norm."""
    try:
        values, vectors = np.linalg.eigh(jacobian @ jacobian.T)
    except np.linalg.LinAlgError as error:
        why = "the Jacobian of the networks found is beyond the range of floats"
        raise validation.RangeError(f"x, y: {why}; bring x and y to another scale") from error
    kept = values > RANK * values[-1]
    return jacobian.T @ (vectors[:, kept] @ ((vectors[:, kept].T @ right) / values[kept]))
