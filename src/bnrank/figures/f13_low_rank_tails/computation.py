"""The computation of F13: flows of networks with linear last layers, and steps of gradient descent."""

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bnrank.networks import Convolutional, FreeBlock, Stack, Window
from bnrank.tasks import Task, two_digits
from bnrank.theory.invariants import Tail, tail
from bnrank.theory.invariants.conserved import Conserved
from bnrank.theory.invariants.finding import find
from bnrank.training import Limits, Record, Solver
from bnrank.training.gradient_flow import Flow, flow

Array = np.ndarray[Any, Any]
ARCHITECTURES = ("fully connected", "free residual blocks", "convolutions", "convolution and free block")
SIDE = 8  # largest side of an image that is not averaged over squares


def images(digits: tuple[int, int], count: int | None, seed: int) -> Task:
    """Return the images of two digits as (N, 1, s, s), averaged over squares of 4 x 4 pixels if larger than 8 x 8."""
    task = two_digits(*digits, images=count, images_test=0, seed=seed)
    side = math.isqrt(task.x.shape[1])
    x = task.x.reshape(-1, 1, side, side)
    if side > SIDE:
        x = nn.functional.avg_pool2d(x, 4)
    return replace(task, x=x.contiguous(), name=f"{task.name}, {x.shape[-1]} x {x.shape[-1]}")


def centered(task: Task, norm: float) -> Task:
    """Return a task with centered samples, scaled by one number so that the mean of ||x|| is ``norm``."""
    x = task.x - task.x.mean(0)
    return replace(task, x=x * (norm / float(x.flatten(1).norm(dim=1).mean())))


def _layers(architecture: str, shape: Sequence[int], width: int) -> list[nn.Module]:
    """Return the layers of one of `ARCHITECTURES` for samples of a shape."""
    dense = functools.partial(nn.utils.skip_init, nn.Linear, bias=False)
    if architecture == "fully connected":  # two ReLU layers, then three linear ones
        hidden = [dense(math.prod(shape), width), nn.ReLU(), dense(width, width), nn.ReLU()]
        return [nn.Flatten(), *hidden, dense(width, width), dense(width, width), dense(width, 1)]
    if architecture == "free residual blocks":  # one with ReLU, two linear ones, two linear layers
        blocks = [FreeBlock(width, width), *(FreeBlock(width, width, slope=1) for _ in range(2))]
        return [nn.Flatten(), dense(math.prod(shape), width), nn.ReLU(), *blocks, dense(width, width), dense(width, 1)]
    first = [Convolutional(shape, [4], window=Window(stride=2))[0], nn.ReLU()]
    convolution = functools.partial(nn.utils.skip_init, nn.Conv2d, 4, 4, 3, padding=1, bias=False)
    halving = convolution(stride=2)
    left = 4 * math.ceil(shape[-1] / 4) ** 2
    if architecture == "convolutions":  # one with ReLU, two linear ones, two linear layers
        return [*first, convolution(), halving, nn.Flatten(), dense(left, width), dense(width, 1)]
    block = FreeBlock(left, width, slope=1, out=width)  # after two convolutions, before two linear layers
    return [*first, halving, nn.Flatten(), block, dense(width, width), dense(width, 1)]


def network(architecture: str, shape: Sequence[int], width: int, init: float, seed: int) -> Stack:
    """Return a network in float64, its weights ``init`` times those of He et al."""
    net = Stack(*_layers(architecture, shape, width), seed=seed).double().requires_grad_()
    with torch.no_grad():
        for p in net.parameters():
            p.mul_(init)
    return net


class Watched:
    """The conserved quantities of a network and of its gradients along a flow (a watcher of `flow`)."""

    def __init__(self, quantities: Sequence[Conserved]) -> None:
        self.quantities = quantities
        self.times: list[float] = []
        self.values: dict[str, list[Tensor]] = {q.name: [] for q in quantities}
        self.scales: dict[str, list[float]] = {q.name: [] for q in quantities}
        self.of_gradient: dict[str, list[Tensor]] = {q.name: [] for q in quantities}

    def observe(self, *, time: float | None, parameters: Any, gradient: Any, **_: Any) -> None:
        """Record the quantities at a step."""
        self.times.append(float(time or 0.0))
        for q in self.quantities:
            self.values[q.name].append(q.of(parameters))
            self.scales[q.name].append(float(q.scale(parameters).norm()))
            if gradient is not None:
                self.of_gradient[q.name].append(q.of(gradient))

    def drift(self) -> dict[str, Array]:
        """Return ||Q(t) - Q(0)|| / ||in + out|| at t per row and quantity."""
        return {
            name: np.array([float((v - values[0]).norm()) for v in values]) / np.array(self.scales[name])
            for name, values in self.values.items()
        }

    def integral(self) -> dict[str, Tensor]:
        """Return the integral of Q(grad C) over time, by the trapezoidal rule."""
        times = torch.tensor(self.times)
        return {name: torch.trapezoid(torch.stack(rows), times, dim=0) for name, rows in self.of_gradient.items()}


@dataclass(frozen=True)
class Course:
    """A flow and the measurements along it.

    Attributes
    ----------
    title : str
        Architecture and data.
    flow : Flow
        The flow itself.
    tail : Tail
        Its linear last layers.
    times : ndarray, (T,)
        Of the recorded networks, at which the rest is measured.
    ratios, floors : mapping
        Per layer of the tail, ||W||_op^2 / ||W||_F^2 and T48's bound on it, with the constants of the initial weights.
    alignments : mapping
        Per pair of neighbors in the tail, |<v_{j+1}, u_j>|.
    before : mapping
        Per weight before the tail, ||W||_op^2 / ||W||_F^2.
    since, drift : (R,) and mapping
        Times of all rows, and the relative drift of every conserved quantity there.
    """

    title: str
    flow: Flow = field(repr=False)
    tail: Tail = field(repr=False)
    times: Array = field(repr=False)
    ratios: Mapping[str, Array] = field(repr=False)
    floors: Mapping[str, Array] = field(repr=False)
    alignments: Mapping[str, Array] = field(repr=False)
    before: Mapping[str, Array] = field(repr=False)
    since: Array = field(repr=False)
    drift: Mapping[str, Array] = field(repr=False)

    @property
    def inner(self) -> tuple[str, ...]:
        """The layers of the tail without the last one, which has one row."""
        return tuple(self.ratios)[:-1]

    def convergence(self) -> tuple[Array, float]:
        """Return ||theta / ||theta|| - u||, (T,), u the last direction, and the smallest |entry| of u (T43)."""
        rows = torch.stack([nn.utils.parameters_to_vector(net.parameters()).detach() for net in self.flow.networks])
        directions = rows / rows.norm(dim=1, keepdim=True)
        return (directions - directions[-1]).norm(dim=1).numpy(), float(directions[-1].abs().min())

    def signs(self) -> dict[str, Array]:
        """Return per weight the fraction of signs that change at time t or later, (T,)."""
        weights = zip(*(net.named_parameters() for net in self.flow.networks), strict=True)
        return {path[0][0]: _later_changes(torch.stack([w.detach() for _, w in path])) for path in weights}


def _later_changes(values: Tensor) -> Array:
    """Return the fraction of entries whose sign changes in a row or later, (T,), of values (T, ...)."""
    signs = values.flatten(1).sign().numpy()
    changed = np.concatenate([np.zeros_like(signs[:1], bool), signs[1:] != signs[:-1]])
    return np.asarray(np.logical_or.accumulate(changed[::-1])[::-1].mean(1))


@dataclass(frozen=True)
class Follow:
    """Width and initial scale of a network, time of its flow, largest error at the kinks of ReLUs."""

    width: int
    init: float
    time: float
    kink_rtol: float = 1e-5


def follow(architecture: str, task: Task, progress: bool, settings: Follow, seed: int) -> Course:
    """Return the flow of the logistic loss up to a time, with measurements of its tail, in relative arc length.

    ||theta|| grows like a power of log t, so steps of equal relative length pass through many decades of t.
    ``kink_rtol`` bounds Heun's steps along kinks of ReLUs, where the flow slides. Such a step adds (h/2)^2 Q(g_1 - g_0)
    to a conserved Q, g_0 and g_1 the gradients at both ends: at most ``kink_rtol``^2 ||theta||^2.
    """
    net = network(architecture, task.x.shape[1:], settings.width, settings.init, seed)
    x, y = task.x.double(), task.y.double()
    watched = Watched([q for q in find(net, x[:2]) if q.kind != "pair"])
    solver = Solver(rtol=1e-8, kink_rtol=settings.kink_rtol, time="arc")
    record, limits = Record(every=5, watch=watched), Limits(max_networks=160)
    path = flow(net, (x, y, "logistic"), settings.time, solver=solver, record=record, limits=limits, progress=progress)
    end = tail(net, x[:2])
    start = end.constants(path.networks[0])
    inside = {name for layer in end.layers for name in layer.parameters}
    trunk = [name for name, p in net.named_parameters() if p.ndim > 1 and name not in inside]

    def share(w: Tensor) -> float:
        squares = torch.linalg.svdvals(w.detach().flatten(1)).square()
        return float(squares[0] / squares.sum())

    nets = path.networks
    title = f"{architecture}; {task.name}"
    times = path.times[path.network_rows]
    ratios = _columns([dict(zip(end.names, end.ratios(now), strict=True)) for now in nets])
    floors = _columns(
        [{bound.layer: bound.right / bound.frobenius for bound in end.bounds(now, start)} for now in nets]
    )
    aligned = _columns([{", ".join(pair.layers): pair.value for pair in end.alignments(now, start)} for now in nets])
    before = _columns([{name: share(now.get_parameter(name)) for name in trunk} for now in nets])
    since = np.array(watched.times)
    return Course(title, path, end, times, ratios, floors, aligned, before, since, watched.drift())


def _columns(rows: Sequence[Mapping[str, float]]) -> dict[str, Array]:
    """Return one array per key of equal mappings."""
    return {key: np.array([row[key] for row in rows]) for key in rows[0]}


@dataclass(frozen=True)
class Steps:
    """The drift of conserved quantities under gradient descent, over step sizes (S,) (T49).

    Attributes
    ----------
    sizes : ndarray
        Step sizes eta, descending.
    time : float
        T, over which there are T / eta steps.
    once, over : mapping
        Quantity -> ||Q - Q(theta_0)|| after one step and after T / eta steps, (S,).
    square, integral : mapping
        Quantity -> ||Q(grad C(theta_0))|| and ||int_0^T Q(grad C(theta(t))) dt|| along the flow: ``once`` is eta^2
        times the first, ``over`` is eta times the second up to O(eta^2).
    off_once, off_over : mapping
        Quantity -> relative difference of the drift from eta^2 Q(grad C(theta_0)) and from eta times the integral,
        (S,); of the matrices, not only of their norms.
    """

    sizes: Array
    time: float
    once: Mapping[str, Array]
    over: Mapping[str, Array]
    square: Mapping[str, float]
    integral: Mapping[str, float]
    off_once: Mapping[str, Array]
    off_over: Mapping[str, Array]


def descend(architecture: str, task: Task, settings: Follow, sizes: Sequence[float], seed: int) -> Steps:
    """Return the drift of gradient descent over a fixed time with several step sizes, compared with T49.

    One step adds eta^2 Q(grad C) to a conserved Q, exactly: the cross term -2 eta B(theta, grad C) is zero. Over the
    T / eta steps up to time T these add up to eta times a Riemann sum of int_0^T Q(grad C(theta(t))) dt, and the steps
    follow the flow to O(eta): the drift is eta times this integral up to O(eta^2). Layer quantities are excluded: they
    are traces of the others, in which the integral may cancel and leave O(eta^2).
    """
    net = network(architecture, task.x.shape[1:], settings.width, settings.init, seed)
    x, y = task.x.double(), task.y.double()
    quantities = [q for q in find(net, x[:2]) if q.kind in ("vertex", "matrix")]

    def run(solver: Solver) -> Watched:
        watched, limits = Watched(quantities), Limits(max_networks=2)
        flow(net, (x, y, "logistic"), settings.time, solver=solver, record=Record(watch=watched), limits=limits)
        return watched

    exact = run(Solver(rtol=1e-8, kink_rtol=settings.kink_rtol))
    names, integral = [q.name for q in quantities], exact.integral()
    square = {name: exact.of_gradient[name][0] for name in names}
    once, over, off_once, off_over = ({name: np.empty(len(sizes)) for name in names} for _ in range(4))
    for i, size in enumerate(sizes):
        taken = run(Solver("euler", step=size, max_relative_step=1e9))
        for name in names:
            first, last = (taken.values[name][row] - taken.values[name][0] for row in (1, -1))
            once[name][i], off_once[name][i] = _change(first, size**2 * square[name])
            over[name][i], off_over[name][i] = _change(last, size * integral[name])
    squares, integrals = ({name: float(v.norm()) for name, v in one.items()} for one in (square, integral))
    return Steps(np.array(sizes), settings.time, once, over, squares, integrals, off_once, off_over)


def _change(found: Tensor, expected: Tensor) -> tuple[float, float]:
    """Return the norm of a change, and its relative difference from the expected one."""
    return float(found.norm()), float((found - expected).norm() / expected.norm())


def slope(sizes: Array, values: Array) -> float:
    """Return the exponent p of values ~ sizes^p, by least squares of the logarithms.

    Examples
    --------
    >>> round(slope(np.array([0.1, 0.2, 0.4]), 3 * np.array([0.1, 0.2, 0.4]) ** 2), 6)
    2.0
    """
    return float(np.polyfit(np.log(sizes), np.log(values), 1)[0])
