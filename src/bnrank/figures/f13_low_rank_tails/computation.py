"""What F13 computes: networks with linear last layers, their flows for growing time, and the steps of descent."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bnrank.measures import stable_signs
from bnrank.networks import Convolutional, FreeBlock, Stack, Window
from bnrank.tasks import Task, two_digits
from bnrank.theory.invariants import Tail, tail
from bnrank.theory.invariants.conserved import Conserved
from bnrank.theory.invariants.finding import find
from bnrank.training import Limits, Record, Solver
from bnrank.training.gradient_flow import Flow, flow

__all__ = ["ARCHITECTURES", "Course", "Steps", "Watched", "centered", "descend", "follow", "images", "network", "slope"]

Array = np.ndarray[Any, Any]
SIDE = 8  # images are averaged over squares until they are at most so large


def images(digits: tuple[int, int], count: int | None, seed: int) -> Task:
    """Return the images of two digits as (N, 1, s, s), averaged over squares of 4 x 4 pixels where they are larger."""
    task = two_digits(*digits, images=count, images_test=0, seed=seed)
    side = math.isqrt(task.x.shape[1])
    x = task.x.reshape(-1, 1, side, side)
    if side > SIDE:
        x = nn.functional.avg_pool2d(x, 4)
    return Task(x.contiguous(), task.y, loss="logistic", name=f"{task.name}, {x.shape[-1]} x {x.shape[-1]}")


def centered(task: Task, norm: float) -> Task:
    """Return a task with the mean sample taken away, and scaled by one number so that the mean of ||x|| is ``norm``."""
    x = task.x - task.x.mean(0)
    x = x * (norm / float(x.flatten(1).norm(dim=1).mean()))
    return Task(x, task.y, loss="logistic", name=task.name)


def _dense(n_in: int, n_out: int) -> nn.Module:
    return nn.utils.skip_init(nn.Linear, n_in, n_out, bias=False)


def _fully_connected(shape: Sequence[int], width: int) -> list[nn.Module]:
    """Return two ReLU layers, then three linear ones."""
    hidden = [_dense(math.prod(shape), width), nn.ReLU(), _dense(width, width), nn.ReLU()]
    return [nn.Flatten(), *hidden, _dense(width, width), _dense(width, width), _dense(width, 1)]


def _residual(shape: Sequence[int], width: int) -> list[nn.Module]:
    """Return a free block with ReLU, two linear ones, two linear layers."""
    blocks = [FreeBlock(width, width), *(FreeBlock(width, width, slope=1) for _ in range(2))]
    return [nn.Flatten(), _dense(math.prod(shape), width), nn.ReLU(), *blocks, _dense(width, width), _dense(width, 1)]


def _convolutional(shape: Sequence[int], width: int) -> list[nn.Module]:
    """Return a convolution with ReLU, two linear ones, two linear layers."""
    first = Convolutional(shape, [4], window=Window(stride=2))[0]
    linear = [nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.Conv2d(4, 4, 3, stride=2, padding=1, bias=False)]
    left = 4 * math.ceil(shape[-1] / 4) ** 2
    return [first, nn.ReLU(), *linear, nn.Flatten(), _dense(left, width), _dense(width, 1)]


def _mixed(shape: Sequence[int], width: int) -> list[nn.Module]:
    """Return a convolution with ReLU, a linear one, a linear free block, two linear layers."""
    first = Convolutional(shape, [4], window=Window(stride=2))[0]
    linear = nn.Conv2d(4, 4, 3, stride=2, padding=1, bias=False)
    left = 4 * math.ceil(shape[-1] / 4) ** 2
    block = FreeBlock(left, width, slope=1, out=width)
    return [first, nn.ReLU(), linear, nn.Flatten(), block, _dense(width, width), _dense(width, 1)]


ARCHITECTURES: Mapping[str, Callable[[Sequence[int], int], list[nn.Module]]] = {
    "fully connected": _fully_connected,
    "free residual blocks": _residual,
    "convolutions": _convolutional,
    "convolution and free block": _mixed,
}


def network(architecture: str, shape: Sequence[int], width: int, init: float, seed: int) -> Stack:
    """Return a network in float64, its weights ``init`` times those of He et al."""
    net = Stack(*ARCHITECTURES[architecture](shape, width), seed=seed).double().requires_grad_()
    with torch.no_grad():
        for p in net.parameters():
            p.mul_(init)
    return net


class Watched:
    """The conserved quantities of a network along a flow, and what they are of its gradients (a watcher of `flow`)."""

    def __init__(self, quantities: Sequence[Conserved]) -> None:
        self.quantities = quantities
        self.times: list[float] = []
        self.values: dict[str, list[Tensor]] = {q.name: [] for q in quantities}
        self.scales: dict[str, list[float]] = {q.name: [] for q in quantities}
        self.of_gradient: dict[str, list[Tensor]] = {q.name: [] for q in quantities}

    def observe(
        self, *, time: float | None, parameters: Mapping[str, Tensor], gradient: Mapping[str, Tensor] | None, **_: Any
    ) -> None:
        """Compute them at a recorded step."""
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
        widths = torch.tensor(np.diff(self.times))
        result = {}
        for name, values in self.of_gradient.items():
            rows = torch.stack(values)
            means = (rows[1:] + rows[:-1]) / 2
            result[name] = (widths.reshape(-1, *[1] * (means.ndim - 1)) * means).sum(0)
        return result


@dataclass(frozen=True)
class Course:
    """A flow for growing time, and what is measured along it.

    Attributes
    ----------
    title : str
        Architecture and data.
    flow : Flow
        The flow itself.
    tail : Tail
        Its linear last layers.
    times : ndarray, (T,)
        Of the networks that were kept; what follows was measured there.
    ratios, floors : mapping
        Per layer of the tail, ||W||_op^2 / ||W||_F^2 and T48's bound on it, with the constants of the start.
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

    def convergence(self) -> stable_signs.Convergence:
        """Measure how the direction of all weights converges (T43)."""
        return stable_signs.directional_convergence(self.flow.networks, self.times)

    def signs(self) -> dict[str, Array]:
        """Return per weight the fraction of signs that change at time t or later, (T,)."""
        rows = [stable_signs.changed_since(self.flow.networks, self.times, float(t)) for t in self.times]
        return {name: np.array([row[name] for row in rows]) for name in rows[0]}


def follow(
    architecture: str,
    task: Task,
    progress: bool,
    *,
    width: int,
    init: float,
    seed: int,
    time: float,
    rtol: float = 1e-8,
    kinks: float = 1e-5,
) -> Course:
    """Follow the flow of the logistic loss until t = ``time`` and measure its tail, in relative arc length.

    ||theta|| grows like a power of log t, so steps of equal relative length take t through its decades. ``kinks``
    bounds Heun's steps along kinks of ReLUs, where the flow slides. Such a step adds (h/2)^2 Q(g_1 - g_0) to a
    conserved Q, g_0 and g_1 the gradients at both ends: at most ``kinks``^2 ||theta||^2.
    """
    net = network(architecture, task.x.shape[1:], width, init, seed)
    x, y = task.x.double(), task.y.double()
    watched = Watched([q for q in find(net, x[:2]) if q.kind != "pair"])
    path = flow(
        net,
        (x, y, "logistic"),
        time,
        solver=Solver(rtol=rtol, kink_rtol=kinks, time="arc"),
        record=Record(every=5, watch=watched),
        limits=Limits(max_networks=160),
        progress=progress,
    )
    end = tail(net, x[:2])
    start = end.constants(path.networks[0])
    inside = {name for layer in end.layers for name in layer.parameters}
    trunk = [name for name, p in net.named_parameters() if p.ndim > 1 and name not in inside]
    before: dict[str, list[float]] = {name: [] for name in trunk}
    ratios: dict[str, list[float]] = {name: [] for name in end.names}
    floors: dict[str, list[float]] = {name: [] for name in end.names}
    alignments: dict[str, list[float]] = {}
    for now in path.networks:
        for name, value in zip(end.names, end.ratios(now), strict=True):
            ratios[name].append(value)
        for bound in end.bounds(now, start):
            floors[bound.layer].append(bound.right / bound.frobenius)
        for pair in end.alignments(now, start):
            alignments.setdefault(", ".join(pair.layers), []).append(pair.value)
        for name in trunk:
            values = torch.linalg.svdvals(now.get_parameter(name).detach().flatten(1)).square()
            before[name].append(float(values[0] / values.sum()))
    return Course(
        f"{architecture}; {task.name}",
        path,
        end,
        path.times[path.network_rows],
        {name: np.array(values) for name, values in ratios.items()},
        {name: np.array(values) for name, values in floors.items()},
        {name: np.array(values) for name, values in alignments.items()},
        {name: np.array(values) for name, values in before.items()},
        np.array(watched.times),
        watched.drift(),
    )


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
        Quantity -> what is left of the drift less eta^2 Q(grad C(theta_0)), or less eta times the integral, relative to
        these, (S,); as matrices, not only their norms.
    """

    sizes: Array
    time: float
    once: Mapping[str, Array]
    over: Mapping[str, Array]
    square: Mapping[str, float]
    integral: Mapping[str, float]
    off_once: Mapping[str, Array]
    off_over: Mapping[str, Array]


def descend(
    architecture: str,
    task: Task,
    *,
    width: int,
    init: float,
    seed: int,
    time: float,
    sizes: Sequence[float],
    kinks: float = 1e-5,
) -> Steps:
    """Take gradient descent over a fixed time with several step sizes, and compare its drift with T49.

    One step adds eta^2 Q(grad C) to a conserved Q, exactly: the cross term -2 eta B(theta, grad C) is zero. Over the
    T / eta steps up to time T these add up to eta times a Riemann sum of int_0^T Q(grad C(theta(t))) dt, and the steps
    follow the flow to O(eta): the drift is eta times this integral up to O(eta^2). Layer quantities are left out: they
    are traces of the others, in which the integral may cancel, so that O(eta^2) is what is left.
    """
    net = network(architecture, task.x.shape[1:], width, init, seed)
    x, y = task.x.double(), task.y.double()
    quantities = [q for q in find(net, x[:2]) if q.kind in ("vertex", "matrix")]

    def run(solver: Solver) -> Watched:
        watched = Watched(quantities)
        flow(net, (x, y, "logistic"), time, solver=solver, record=Record(watch=watched), limits=Limits(max_networks=2))
        return watched

    exact = run(Solver(rtol=1e-8, kink_rtol=kinks))
    integral = exact.integral()
    names = [q.name for q in quantities]
    square = {name: exact.of_gradient[name][0] for name in names}
    made: list[dict[str, list[float]]] = [{name: [] for name in names} for _ in range(4)]
    for size in sizes:
        taken = run(Solver("euler", step=size, max_relative_step=1e9))
        for name in names:
            first, last = (taken.values[name][row] - taken.values[name][0] for row in (1, -1))
            for norms, left, change, expected in (
                (made[0], made[2], first, size**2 * square[name]),
                (made[1], made[3], last, size * integral[name]),
            ):
                norms[name].append(float(change.norm()))
                left[name].append(float((change - expected).norm() / expected.norm()))
    arrays = [{name: np.array(values) for name, values in one.items()} for one in made]
    wanted = [{name: float(value.norm()) for name, value in one.items()} for one in (square, integral)]
    return Steps(np.array(sizes), time, arrays[0], arrays[1], wanted[0], wanted[1], arrays[2], arrays[3])


def slope(sizes: Array, values: Array) -> float:
    """Return the exponent p of values ~ sizes^p, by least squares of the logarithms.

    Examples
    --------
    >>> round(slope(np.array([0.1, 0.2, 0.4]), 3 * np.array([0.1, 0.2, 0.4]) ** 2), 6)
    2.0
    """
    return float(np.polyfit(np.log(sizes), np.log(values), 1)[0])
