"""Search for optimal escape directions from many starts at once."""

import itertools
import math
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from bnrank._core import validation
from bnrank.networks.mlp import from_layers
from bnrank.theory.escape import polishing, reading
from bnrank.theory.escape.direction import EscapeDirection, measures
from bnrank.theory.escape.stationarity import Stationarity, of_weights

Array = np.ndarray
Data = tuple[Array, Array, float]  # X and G, each of norm 1, and the slope of the activation
STARTS = ("gaussian", "rank one")
CONSTANT = 0.5  # share of the steps with constant length
MAX_STEPS = 10**9
EVERY = 50  # steps between checks for convergence
TRIES = 100  # largest number of draws of a start, repeated while its gradient is zero
ROUNDS = 3  # rounds of polishing
NOTHING = 1e-13  # speeds up to this times ||X|| ||G|| are rounding error
BLOCK = 1 << 22  # entries of all hidden activations that are held at a time
TINY = np.finfo(float).tiny


class Batch:
    """Networks of one shape, every layer of Frobenius norm 1, and the gradients of their speeds.

    The speed of a member is s = -sum(G * f_theta(X)), with theta on the product of unit spheres, a subset of the sphere
    of radius sqrt(L). The samples are processed in blocks, so that memory does not grow with N.

    Parameters
    ----------
    weights : list of ndarray
        W_1, ..., W_L of all members, (members, n_l, n_{l-1}). Copied and scaled to norm 1.
    x, g : ndarray
        X, (N, d_in), and G, (N, d_out), float64.
    slope : float
        s of the activation: z for z >= 0 and s z otherwise.

    Attributes
    ----------
    weights, ascent : list of ndarray
        W_l, and -dL0/dW_l at the last call of :meth:`speeds`, (members, n_l, n_{l-1}).
    """

    def __init__(self, weights: list[Array], x: Array, g: Array, slope: float) -> None:
        self.slope, self.depth, self.members = slope, len(weights), len(weights[0])
        self.weights = [np.array(w, dtype=float, order="C") for w in weights]
        self.ascent = [np.zeros_like(w) for w in self.weights]
        size = max(1, BLOCK // (self.members * sum(w.shape[1] for w in self.weights[:-1])))
        self._blocks = [(np.ascontiguousarray(x[i : i + size].T), g[i : i + size]) for i in range(0, len(x), size)]
        self.normalize()

    def normalize(self) -> None:
        """Scale every layer to norm 1; a layer of zeros remains unchanged."""
        for w in self.weights:
            w /= np.maximum(np.sqrt(np.einsum("mij,mij->m", w, w)), TINY)[:, None, None]

    def speeds(self) -> Array:
        """Return s of all members, (members,), and store the gradients in ``ascent``."""
        self.ascent = self._block(*self._blocks[0])
        for block in self._blocks[1:]:
            self.ascent = [total + part for total, part in zip(self.ascent, self._block(*block), strict=True)]
        return np.einsum("mij,mij->m", self.weights[-1], self.ascent[-1])

    def at_rest(self, rtol: float = 1e-12) -> bool:
        """Return whether grad L0 = -s theta for all members, up to a relative ``rtol`` and ignoring kinks."""
        speeds = self.speeds()
        off = [d - speeds[:, None, None] * w for w, d in zip(self.weights, self.ascent, strict=True)]
        return not any((np.einsum("mij,mij->m", d, d) > (rtol * speeds) ** 2).any() for d in off)

    def step(self, size: float, *, scaled: bool = True) -> None:
        """Move all members by ``size`` times the gradient, divided by its mean norm per layer if ``scaled``.

        Each member has one scale, so small steps follow the gradient flow of the source up to a change of time. The
        source itself does not scale.
        """
        self.speeds()
        scale: Array | float = size
        if scaled:
            squares = sum(np.einsum("mij,mij->m", d, d) for d in self.ascent)
            scale = (size / np.maximum(np.sqrt(squares / self.depth), TINY))[:, None, None]
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


@dataclass(frozen=True)
class Steps:
    """Projected gradient steps: a length times the gradient divided by its mean norm per layer.

    The length is constant over the first half of the steps and then decays geometrically; without the decay the
    iterates oscillate around optima on ReLU kinks.

    Attributes
    ----------
    count : int
        Number of steps.
    first, last : float
        Length of the first and the last step, in units of the norm of a layer; no decay if ``last`` is None.
    """

    count: int = 4000
    first: float = 0.05
    last: float | None = 1e-10

    def __post_init__(self) -> None:
        validation.integer(self.count, "count", 0, MAX_STEPS)
        validation.number(self.first, "first", 0.0, strict=True)
        if self.last is not None:
            validation.number(self.last, "last", 0.0, strict=True)

    def lengths(self) -> Iterator[float]:
        """Iterate over the lengths of the steps."""
        constant = self.count if self.last is None else round(CONSTANT * self.count)
        for made in range(1, self.count + 1):
            decay = max(made - constant, 0) / max(self.count - constant, 1)
            yield self.first * ((self.last or self.first) / self.first) ** decay


def find(
    x: Tensor | Array,
    g: Tensor | Array,
    depth: int,
    width: int | Sequence[int],
    *,
    starts: int = 64,
    seed: int = 0,
    slope: float = 0.0,
    start: str = "gaussian",
    steps: int | Steps = 4000,
    initial: Sequence[nn.Module] = (),
    rtol: float = 1e-8,
    polish: bool = True,
) -> EscapeDirection:
    """Return the fastest escape direction found: a maximum of s = -L0 = -sum(G * f_theta(X)) on ||theta||^2 = L (T36).

    At a maximum all layers have ||W_l||_F = 1, so the search is on the product of unit spheres. All starts move
    together in projected gradient steps, see :class:`Steps`. The best start is then polished: dead neurons are set to 0
    and, for networks with up to 1,200 weights and kinks and few samples, Newton steps move it onto its kinks and make
    it stationary there.

    A global maximum is not certified; more starts and wider networks find faster directions more often.

    Parameters
    ----------
    x : Tensor or ndarray
        X, (N, d_in).
    g : Tensor or ndarray
        G, (N, d_out), the gradient of the loss at zero output (:func:`output_gradient`).
    depth : int
        L, at least 2.
    width : int or sequence of int
        Width of all hidden layers, or of each of the L - 1.
    starts : int
        Number of random starts; may be 0 if ``initial`` is not empty.
    seed : int
        Random seed. Each start has its own random stream, so increasing ``starts`` keeps the earlier ones.
    slope : float
        Slope of the activation: 0 is ReLU, 1 a linear network.
    start : "gaussian" or "rank one"
        Standard normal weights, or W_l = u_l u_{l-1}^T with u_l >= 0 in the hidden layers. The gradient at rank-one
        networks has the same form, so they remain of rank one, and the search is restricted to such networks.
    steps : int or Steps
        Number of projected steps, or a :class:`Steps` that also sets their lengths. The search stops early if all
        starts converge.
    initial : sequence of modules
        More starts: networks without biases of depth L that are no wider, such as a deepened optimum.
    rtol : float
        Largest residual at which the direction counts as converged.
    polish : bool
        Polish the best start.

    Returns
    -------
    EscapeDirection
        The fastest direction. Its speed is 0, with a warning, if no start finds an output that lowers the loss.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range, x or g is zero, ||X|| ||G|| is out of the range of float64 (RangeError), or the
        depth is 1.

    Notes
    -----
    Source: T36, T40; Bantzis2025, sections 2.2 and 4. With unscaled steps of constant length: F11.

    Examples
    --------
    >>> import bnrank, torch
    >>> from bnrank.theory.escape.search import find
    >>> task = bnrank.tasks.circle(dtype=torch.float64)
    >>> found = find(task.x, -task.y, depth=3, width=16, starts=16, steps=2000)
    >>> round(found.speed, 6), found.converged
    (0.5, True)
    >>> chain = find(task.x, -task.y, depth=3, width=16, starts=16, steps=2000, start="rank one")
    >>> round(chain.speed, 6)
    0.414214
    """
    x_, g_ = reading.data(x, g)
    depth = reading.check_depth(depth)
    starts = validation.integer(starts, "starts", 0)
    if isinstance(width, int | np.integer):
        sizes = {"depth": depth, "width": validation.integer(width, "width"), "starts": max(starts, 1)}
        validation.networks_fit(x_.shape[1], g_.shape[1], sizes)
    widths = _widths(depth, width, x_.shape[1], g_.shape[1])
    steps = steps if isinstance(steps, Steps) else Steps(validation.integer(steps, "steps", 0, MAX_STEPS))
    slope = validation.slope(slope, linear=True)
    validation.choice(start, "start", STARTS)
    rtol, polish = validation.number(rtol, "rtol", 0.0), validation.flag(polish, "polish")
    seeds = np.random.SeedSequence(validation.seed(seed, bits=128)).spawn(starts + 1)
    rank_one = start == "rank one"
    given = [
        _given(net, f"initial[{i}]", widths, slope)
        for i, net in enumerate(validation.sequence(initial, "initial", "networks"))
    ]
    validation.expect(starts + len(given), "starts", "0 and no network in initial", "at least one start")
    validation.expect(not (given and rank_one), "initial", "networks", "none where start is 'rank one'")
    unit_x, unit_g, units = reading.scaled(x_, g_)
    data = (unit_x, unit_g, slope)
    shape = [widths[0], *[1] * (len(widths) - 2), widths[-1]] if rank_one else widths
    drawn = [_draw(np.random.default_rng(s), shape, data, rank_one) for s in seeds[:starts]]
    members = [np.stack(layers) for layers in zip(*drawn, *given, strict=True)]
    weights, speeds, made = _descend(members, data, steps)
    best = int(speeds.argmax())
    fastest = [w[best] for w in weights]
    if polish and speeds[best] > NOTHING:
        fastest, found, more = _polish(fastest, data, steps, rtol)
        speeds[best] = found.speed
        made += more
    else:
        found = of_weights(fastest, *data)
    if rank_one:
        fastest = _widened(fastest, widths, np.random.default_rng(seeds[-1]))
    speeds = np.where(np.abs(speeds) > NOTHING, speeds, 0.0)
    if speeds[best] <= 0:
        warnings.warn(
            "escape.find: no start found a direction along which the loss falls, the speed is 0; the outputs of such "
            "networks do not correlate with -G on these samples",
            UserWarning,
            stacklevel=2,
        )
    return EscapeDirection(
        speed=float(max(speeds[best], 0.0)) * units,
        network=from_layers([torch.from_numpy(w) for w in fastest], slope=slope),
        speeds=speeds * units,
        residual=found.residual if speeds[best] > 0 else math.inf,
        converged=bool(speeds[best] > 0 and found.residual <= rtol),
        kinks=found.kinks,
        steps=made,
        x=torch.from_numpy(x_),
        g=torch.from_numpy(g_),
        **measures(fastest, unit_x, slope),
    )


def _widths(depth: int, width: int | Sequence[int], inputs: int, outputs: int) -> list[int]:
    several = isinstance(width, Sequence | np.ndarray) and not isinstance(width, str)
    hidden = validation.integers(width, "width") if several else [validation.integer(width, "width")] * (depth - 1)
    expected = f"one number, or {depth - 1}: one per hidden layer"
    validation.expect(len(hidden) == depth - 1, "width", f"{len(hidden)} widths", expected)
    return [inputs, *hidden, outputs]


def _given(net: nn.Module, name: str, widths: list[int], slope: float) -> list[Array]:
    """Return the layers of a network, padded with zeros to the given widths."""
    try:
        weights, its_slope = reading.network(net, widths[0], widths[-1])
    except (TypeError, ValueError) as error:
        raise type(error)(f"{name}: {error}") from error
    has = [weights[0].shape[1], *(len(w) for w in weights)]
    fits = len(has) == len(widths) and all(a <= b for a, b in zip(has, widths, strict=True)) and its_slope == slope
    expected = f"depth {len(widths) - 1}, widths up to {widths} and slope {slope:g}"
    validation.expect(fits, name, f"widths {has} and slope {its_slope:g}", expected)
    return [
        np.pad(w, ((0, b - len(w)), (0, a - w.shape[1])))
        for w, (a, b) in zip(weights, itertools.pairwise(widths), strict=True)
    ]


def _draw(rng: np.random.Generator, widths: list[int], data: Data, rank_one: bool) -> list[Array]:
    """Return one random start, redrawn while its gradient is zero."""
    for _ in range(TRIES):
        weights = [rng.normal(size=(b, a)) for a, b in itertools.pairwise(widths)]
        if rank_one:
            weights[1:-1] = [np.abs(w) if data[2] == 0 else w for w in weights[1:-1]]
        batch = Batch([w[None] for w in weights], *data)
        batch.speeds()
        last = batch.ascent[-1][0]
        if rank_one and last.any():
            weights[-1] = last  # the best output of this neuron
        if any(d.any() for d in batch.ascent):
            break
    return weights


def _descend(weights: list[Array], data: Data, steps: Steps) -> tuple[list[Array], Array, int]:
    """Return weights, speeds and the number of steps made."""
    batch = Batch(weights, *data)
    made = 0
    for made, size in enumerate(steps.lengths(), start=1):
        if made % EVERY == 0 and batch.at_rest():
            break
        batch.step(size)
    speeds = batch.speeds()
    return [w.copy() for w in batch.weights], speeds, made


def _polish(weights: list[Array], data: Data, steps: Steps, rtol: float) -> tuple[list[Array], Stationarity, int]:
    """Return the result of rounds of Newton steps and, until they converge, ever shorter projected steps."""
    made = 0
    best, found = polishing.snap(weights, *data)
    for number in range(1, ROUNDS):
        if found.residual <= rtol:
            break
        shorter = Steps(steps.count, 10.0 ** (-1 - number), 1e-12)
        moved, _, more = _descend([w[None] for w in best], data, shorter)
        made += more
        weights, now = polishing.snap([w[0] for w in moved], *data)
        if now.speed >= found.speed * (1 - 1e-9) and (now.residual < found.residual or now.speed > found.speed):
            best, found = weights, now
    return best, found, made


def _widened(chain: list[Array], widths: list[int], rng: np.random.Generator) -> list[Array]:
    """Return a rank-one network, W_l = u_l w_l u_{l-1}^T, with the function of a chain of single neurons."""
    factors = [np.abs(rng.normal(size=(w, 1))) for w in widths[1:-1]]
    factors = [u / np.linalg.norm(u) for u in factors]
    return polishing.grow(chain, [np.eye(widths[0]), *factors, np.eye(widths[-1])])
