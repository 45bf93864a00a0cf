"""The search for optimal escape directions from many starts at once."""

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
from bnrank.theory.escape.descent import Batch
from bnrank.theory.escape.direction import EscapeDirection, measures
from bnrank.theory.escape.stationarity import Stationarity, of_weights

Array = np.ndarray
STARTS = ("gaussian", "rank one")
CONSTANT = 0.5  # of the steps, before they decay
EVERY = 50  # steps between checks for rest
TRIES = 100  # draws of a start whose gradient is zero
ROUNDS = 3  # of polishing
NOTHING = 1e-13  # times ||X|| ||G||: speed that is rounding error


@dataclass(frozen=True)
class Steps:
    """Projected gradient steps: a length times the gradient over its mean norm per layer.

    The length is constant over the first half of the steps and then decays geometrically; without the decay the
    iterates hover around optima on ReLU kinks.

    Attributes
    ----------
    count : int
        Number of steps.
    first, last : float
        Length of the first and the last step, in units of the norm of a layer; ``last=None``: no decay.
    """

    count: int = 4000
    first: float = 0.05
    last: float | None = 1e-10

    def __post_init__(self) -> None:
        validation.integer(self.count, "steps", 0)
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
    together in projected gradient steps, see :class:`Steps`. The best start is then polished: neurons that died out
    are set to 0 and, in networks of up to 1,200 weights and kinks and few samples, Newton steps bring it onto its
    kinks and to stationarity there.

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
        Each start has its own stream, so more starts extend fewer.
    slope : float
        Slope of the activation: 0 is ReLU, 1 a linear network.
    start : "gaussian" or "rank one"
        Standard normal weights, or W_l = u_l u_{l-1}^T with u_l >= 0 in the hidden layers. The gradient at networks
        of rank one is of that form too: they stay of rank one, and the search is among those.
    steps : int or Steps
        Number of projected steps, or also their lengths; fewer are made once all starts are at rest.
    initial : sequence of modules
        More starts: networks without biases of depth L that are no wider, such as a deepened optimum.
    rtol : float
        Residual up to which the direction counts as converged.
    polish : bool
        Polish the best start.

    Returns
    -------
    EscapeDirection
        The fastest. Its speed is 0, with a warning, if no start finds an output that lowers the loss.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range, x or g is zero, ||X|| ||G|| is no float (RangeError), or the depth is 1.

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
    widths = _widths(depth, width, x_.shape[1], g_.shape[1])
    starts = validation.integer(starts, "starts", 0)
    steps = steps if isinstance(steps, Steps) else Steps(steps)
    slope = validation.slope(slope, linear=True)
    validation.choice(start, "start", STARTS)
    rtol = validation.number(rtol, "rtol", 0.0)
    seeds = np.random.SeedSequence(validation.integer(seed, "seed", 0)).spawn(starts + 1)
    rank_one = start == "rank one"
    given = [_given(net, f"initial[{i}]", widths, slope) for i, net in enumerate(initial)]
    validation.expect(starts + len(given), "starts", "0 and no network in initial", "at least one start")
    validation.expect(not (given and rank_one), "initial", "networks", "none where start is 'rank one'")
    unit_x, unit_g, units = reading.scaled(x_, g_)
    data = _Data(unit_x, unit_g, slope)
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
        found = of_weights(fastest, data.x, data.g, slope)
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
    measured = measures(fastest, data.x, slope)
    return EscapeDirection(
        speed=float(max(speeds[best], 0.0)) * units,
        network=from_layers([torch.from_numpy(w) for w in fastest], slope=slope),
        speeds=speeds * units,
        residual=found.residual if speeds[best] > 0 else math.inf,
        converged=bool(speeds[best] > 0 and found.residual <= rtol),
        weight_rank_one=measured.weight_rank_one,
        activation_rank_one=measured.activation_rank_one,
        nonlinearity=measured.nonlinearity,
        kinks=found.kinks,
        steps=made,
        x=torch.from_numpy(x_),
        g=torch.from_numpy(g_),
    )


@dataclass(frozen=True)
class _Data:
    """X and G, each scaled to norm 1, and the activation."""

    x: Array
    g: Array
    slope: float


def _widths(depth: int, width: int | Sequence[int], inputs: int, outputs: int) -> list[int]:
    if isinstance(width, Sequence | np.ndarray) and not isinstance(width, str):
        if len(width) != depth - 1:
            raise ValueError(
                f"width: got {len(width)} widths, expected one number, or {depth - 1}: one per hidden layer"
            )
        hidden = [validation.integer(w, f"width[{i}]") for i, w in enumerate(width)]
    else:
        hidden = [validation.integer(width, "width")] * (depth - 1)
    return [inputs, *hidden, outputs]


def _given(net: nn.Module, name: str, widths: list[int], slope: float) -> list[Array]:
    """Return the layers of a network with zeros for the neurons it lacks."""
    try:
        weights, its_slope = reading.network(net, widths[0], widths[-1])
    except (TypeError, ValueError) as error:
        raise type(error)(f"{name}: {error}") from error
    has = [weights[0].shape[1], *(len(w) for w in weights)]
    if len(has) != len(widths) or any(a > b for a, b in zip(has, widths, strict=True)) or its_slope != slope:
        expected = f"depth {len(widths) - 1}, widths up to {widths} and slope {slope:g}"
        raise ValueError(f"{name}: got widths {has} and slope {its_slope:g}, expected {expected}")
    return [
        np.pad(w, ((0, b - len(w)), (0, a - w.shape[1])))
        for w, (a, b) in zip(weights, itertools.pairwise(widths), strict=True)
    ]


def _draw(rng: np.random.Generator, widths: list[int], data: _Data, rank_one: bool) -> list[Array]:
    """Return one start, drawn again while its gradient is zero."""
    for _ in range(TRIES):
        weights = [rng.normal(size=(b, a)) for a, b in itertools.pairwise(widths)]
        if rank_one:
            weights[1:-1] = [np.abs(w) if data.slope == 0 else w for w in weights[1:-1]]
        batch = Batch(data.x, data.g, [w[None] for w in weights], data.slope)
        batch.speeds()
        last = batch.ascent[-1][0]
        if rank_one and last.any():
            weights[-1] = last  # the best output of this neuron
        if any(d.any() for d in batch.ascent):
            break
    return weights


def _descend(weights: list[Array], data: _Data, steps: Steps) -> tuple[list[Array], Array, int]:
    """Return weights, speeds and the number of steps made."""
    batch = Batch(data.x, data.g, weights, data.slope)
    made = 0
    for made, size in enumerate(steps.lengths(), start=1):
        if made % EVERY == 0 and batch.at_rest():
            break
        batch.step(size)
    speeds = batch.speeds()
    return [w.copy() for w in batch.weights], speeds, made


def _polish(weights: list[Array], data: _Data, steps: Steps, rtol: float) -> tuple[list[Array], Stationarity, int]:
    """Alternate Newton steps and, until they converge, projected steps that get shorter every round."""
    made = 0
    best, found = polishing.snap(weights, data.x, data.g, data.slope)
    for number in range(1, ROUNDS):
        if found.residual <= rtol:
            break
        shorter = Steps(steps.count, 10.0 ** (-1 - number), 1e-12)
        moved, _, more = _descend([w[None] for w in best], data, shorter)
        made += more
        weights, now = polishing.snap([w[0] for w in moved], data.x, data.g, data.slope)
        if now.speed >= found.speed * (1 - 1e-9) and (now.residual < found.residual or now.speed > found.speed):
            best, found = weights, now
    return best, found, made


def _widened(chain: list[Array], widths: list[int], rng: np.random.Generator) -> list[Array]:
    """Return the network of rank one, W_l = u_l w_l u_{l-1}^T, that computes what a chain of single neurons does."""
    factors = [np.abs(rng.normal(size=(w, 1))) for w in widths[1:-1]]
    factors = [u / np.linalg.norm(u) for u in factors]
    return polishing.grow(chain, [np.eye(widths[0]), *factors, np.eye(widths[-1])])
