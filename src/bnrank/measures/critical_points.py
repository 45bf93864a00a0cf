"""How far a network is from a local minimum of C + lambda ||theta||^2, with one-sided derivatives at kinks."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import nn

from bnrank._core import validation
from bnrank._core.results import Printed
from bnrank.measures.one_neuron import fastest
from bnrank.measures.second_order import Array, Evaluation, Problem, join
from bnrank.measures.subgradients import KINK_RTOL, least
from bnrank.networks.chain import as_mlp
from bnrank.tasks.task import Task, as_task

DEPENDENT = 1e-9  # singular values of the kinks' gradients, relative to the largest, that count as 0
FLAT = 1e-7  # least curvature, relative to 2 lambda, that counts as positive
INSIDE = 1e-6  # least distance of a slope from the ends of its range that counts as strictly inside
EFFECT = 1e-9  # |dC/da| at a kink, relative to the largest of its layer, below which it counts as 0
LARGEST = 6000  # largest number of live parameters for which the curvature is computed
BIRTH_RTOL = 1e-6  # a new neuron must exceed 2 lambda by this factor


@dataclass(frozen=True)
class Birth:
    """What a new neuron in a layer with room for one would do.

    Attributes
    ----------
    layer : int
        The hidden layer, from 1.
    lower, upper : float
        Bracket of max over unit u of ||sum_i sigma(u . a~_i) delta_i|| / (2 lambda), with a~_i the layer's input
        (with a 1 for the bias) and delta_i the derivative of C with respect to the next layer's preactivations. Above
        1, a neuron of small weights lowers the loss. It is 1 for neurons parallel to live ones of the layer.
    incoming, outgoing : ndarray
        The unit weights of the neuron that attains ``lower``.
    """

    layer: int
    lower: float
    upper: float
    incoming: Array
    outgoing: Array


@dataclass(frozen=True)
class Stationarity(Printed):
    """How far a network is from a stationary point and from a local minimum of C + lambda ||theta||^2.

    Attributes
    ----------
    kind : str
        "not stationary"; "stationary"; "local minimum of the live network": stationary, with positive curvature along
        the kinks and slopes strictly inside their range, without the dead neurons; "local minimum": no new neuron
        lowers the loss either; "local minimum, as far as searched": none was found that does.
    residual : float
        The least ||grad C + 2 lambda theta|| over the derivatives of the activation at kinks, from the activation's
        slope to 1, divided by ||grad C|| + ||2 lambda theta||.
    plain : float
        The same with the derivatives that PyTorch takes, the slope at kinks.
    loss : float
        C + lambda ||theta||^2.
    layers, neurons, samples : ndarray of int, (K,)
        The kinks: hidden layers from 1, neurons and samples from 0.
    slopes : ndarray, (K,)
        The derivatives at the kinks that attain ``residual``.
    margin : float or None
        The least distance of a slope from the ends of its range; None without kinks.
    independent : bool
        Whether the gradients of the kinks' preactivations are linearly independent. If they are not, not every choice
        of slopes is a subgradient, and ``residual`` may be too small.
    curvature : float or None
        The least eigenvalue of the Hessian along directions that keep the kinks, divided by 2 lambda; None if it was
        not computed (the residual is above rtol, or the live network has more than 6,000 parameters).
        Directions in which the loss is constant because neurons of one layer that are active on the same samples,
        without kinks, can be rotated among each other are left out.
    symmetries : int
        Dimension of these rotations.
    flat : int
        Number of eigenvalues that are zero up to 1e-7 of 2 lambda.
    live : tuple of int
        Neurons per hidden layer whose incoming and outgoing weights are not both zero.
    births : tuple of Birth
        One per hidden layer with dead neurons, if the residual is at most rtol.
    """

    kind: str
    residual: float
    plain: float
    loss: float
    layers: Array
    neurons: Array
    samples: Array
    slopes: Array
    margin: float | None
    independent: bool
    curvature: float | None
    symmetries: int
    flat: int
    live: tuple[int, ...]
    births: tuple[Birth, ...]

    def __str__(self) -> str:
        lines = [
            f"{self.kind}: loss {self.loss:.10g}, relative gradient {self.residual:.2g} "
            f"({self.plain:.2g} with PyTorch's derivatives at kinks)",
            f"live neurons {list(self.live)}",
        ]
        if self.margin is not None:
            dependent = "" if self.independent else ", their gradients dependent"
            kinks = f"{len(self.slopes)} kink{'' if len(self.slopes) == 1 else 's'}"
            lines.append(f"{kinks}, slopes at least {self.margin:.2g} inside their range{dependent}")
        if self.curvature is not None:
            flat = f", {self.flat} flat directions" if self.flat else ""
            rotations = f", besides {self.symmetries} rotations of neurons" if self.symmetries else ""
            lines.append(f"least curvature {self.curvature:.3g} (in units of 2 lambda){flat}{rotations}")
        for birth in self.births:
            bracket = f"{birth.lower:.4f} to {birth.upper:.4f}"
            lines.append(f"a new neuron in layer {birth.layer}: {bracket} (lowers the loss above 1)")
        return "\n".join(lines)


def stationarity(
    net: nn.Module,
    task: Task | tuple[Any, ...],
    ridge: float,
    *,
    rtol: float = 1e-8,
    kink_rtol: float = KINK_RTOL,
    births: bool = True,
    seed: int = 0,
) -> Stationarity:
    r"""Return how far a network is from a local minimum of C(f_theta) + lambda ||theta||^2.

    The loss of a ReLU network has creases: points where a preactivation is zero on a sample, and where many minima lie.
    There the gradient PyTorch returns need not be small. A point is stationary (Clarke) if 0 is a subgradient, that is,
    if derivatives of the activation between its slope and 1 at the kinks make the gradient zero.

    Parameters
    ----------
    net : nn.Module
        A chain of linear layers with one activation of slope in (-1, 1), such as `bnrank.MLP`, or 1.
    task : Task or tuple
        Data and loss: (x, y) for the squared error, or (x, y, loss).
    ridge : float
        lambda > 0, of both weights and biases.
    rtol : float
        Largest residual of a stationary point.
    kink_rtol : float
        A preactivation counts as 0 up to this times ||w|| ||a|| (with b and 1 appended).
    births : bool
        Whether to search for new neurons that would lower the loss, in layers with dead ones.
    seed : int
        Random seed of this search.

    Returns
    -------
    Stationarity
        The residual, the kinks with their slopes, the curvature, and the kind of point.

    Raises
    ------
    TypeError, ValueError
        If the network is not such a chain, the sizes of network and task differ, or ridge is not positive.

    Notes
    -----
    Without dead neurons, that is, on the live network: stationary with linearly independent kinks, slopes strictly
    inside their range, nonzero derivatives of C with respect to the activations there and positive curvature along the
    kinks imply a strict local minimum, up to rotations of linear neurons. With dead neurons, the condition on births,
    |sum_i sigma(u . a~_i) delta_i| <= 2 lambda for every unit u, is necessary for a local minimum among all networks of
    the given widths, and ``kind`` calls a point that fulfills both (up to 1e-6) a local minimum. That these together
    are sufficient is not proved: copies of live neurons attain equality. Source: T14 assumes such points.

    Examples
    --------
    >>> import bnrank, torch
    >>> net = bnrank.networks.from_layers([torch.tensor([[1.0]]), torch.tensor([[1.0]])])
    >>> at = bnrank.cost.stationarity(net, (torch.ones(2, 1), torch.full((2, 1), 1.5)), ridge=0.5)
    >>> at.residual < 1e-12, at.kind
    (True, 'local minimum')
    """
    ridge = validation.number(ridge, "ridge", 0.0, strict=True)
    rtol = validation.number(rtol, "rtol", 0.0)
    kink_rtol, births = validation.number(kink_rtol, "kink_rtol", 0.0), validation.flag(births, "births")
    task, chain = as_task(task, weighted=True), as_mlp(net)
    problem = Problem.of(chain, task, ridge)
    problem.refuse_infinite(problem.layers(chain))
    return of_layers(problem, problem.layers(chain), rtol, kink_rtol, births=births, seed=validation.seed(seed))


def of_layers(
    problem: Problem, layers: Sequence[Array], rtol: float, kink_rtol: float, *, births: bool = True, seed: int = 0
) -> Stationarity:
    """Return the stationarity of layers W_l with the bias as last column; see :func:`stationarity`."""
    found = least(problem, layers, kink_rtol)
    small, best, live, slopes = found.layers, found.best, found.live, found.slopes
    number, neurons, samples = found.kinks
    residual = best.relative_gradient
    rows = best.preactivation_gradients(number, neurons, samples)
    independent = _independent(rows)
    margin = float(np.minimum(slopes - problem.slope, 1 - slopes).min()) if len(slopes) else None
    forces = np.array([best.below[a][c, b] for a, b, c in zip(number, neurons, samples, strict=True)])
    curvature: float | None = None
    flat, symmetries = 0, 0
    stationary = residual <= rtol
    if stationary and rows.shape[1] <= LARGEST:
        orbits = _rotations(small, best.first, (number, neurons))
        held = np.concatenate([rows, orbits])
        symmetries = len(orbits)
        basis = _complement(held)
        hessian = best.hessian()
        if basis is not None:
            hessian = basis.T @ hessian @ basis
        values = np.linalg.eigvalsh(hessian) / (2 * problem.ridge) if len(hessian) else np.array([np.inf])
        curvature, flat = float(values[0]), int((np.abs(values) <= FLAT).sum())
    born = _births(problem, best, live, seed) if stationary and births else ()
    sizes = np.array([np.abs(below).max(initial=0) for below in best.below])
    inside = margin is None or margin > INSIDE
    strict = inside and bool((forces > EFFECT * sizes[number]).all())
    proper = independent and strict and curvature is not None and curvature > FLAT
    return Stationarity(
        kind=_kind(stationary, proper, born if births else None, all(mask.all() for mask in live)),
        residual=residual,
        plain=found.plain.relative_gradient,
        loss=found.plain.loss,
        layers=number + 1,
        neurons=found.neurons,
        samples=np.array([int(np.flatnonzero(problem.rows == c)[0]) for c in samples], dtype=int),
        slopes=slopes,
        margin=margin,
        independent=independent,
        curvature=curvature,
        symmetries=symmetries,
        flat=flat,
        live=tuple(int(mask.sum()) for mask in live),
        births=born,
    )


def _kind(stationary: bool, proper: bool, births: tuple[Birth, ...] | None, full: bool) -> str:
    if not stationary:
        return "not stationary"
    if not proper:
        return "stationary"
    if full or (births and all(birth.upper <= 1 + BIRTH_RTOL for birth in births)):
        return "local minimum"
    if births and all(birth.lower <= 1 + BIRTH_RTOL for birth in births):
        return "local minimum, as far as searched"
    return "local minimum of the live network"


def _independent(rows: Array) -> bool:
    """Return whether the rows are independent."""
    if not len(rows):
        return True
    if len(rows) > rows.shape[1]:
        return False
    singular = np.linalg.svd(np.linalg.qr(rows.T, mode="r"), compute_uv=False)
    return bool(singular[-1] > DEPENDENT * singular[0])


def _complement(rows: Array) -> Array | None:
    """Return an orthonormal basis of the vectors orthogonal to the rows, or None without rows."""
    if not len(rows):
        return None
    _, singular, vt = np.linalg.svd(rows, full_matrices=True)
    rank = int((singular > DEPENDENT * singular[0]).sum())
    return vt[rank:].T


def _rotations(layers: Sequence[Array], first: Sequence[Array], kinks: tuple[Array, Array]) -> Array:
    """Return an orthonormal basis of the rotations of neurons with equal patterns and without kinks, one per row."""
    found = []
    for number, (low, high, values) in enumerate(zip(layers, layers[1:], first, strict=False)):
        free = np.setdiff1d(np.arange(len(low)), kinks[1][kinks[0] == number])
        for i, j in itertools.combinations(free, 2):
            if (values[:, i] == values[:, j]).all():
                turned = [np.zeros_like(layer) for layer in layers]
                turned[number][i], turned[number][j] = low[j], -low[i]
                turned[number + 1][:, i], turned[number + 1][:, j] = high[:, j], -high[:, i]
                found.append(join(turned))
    if not found:
        return np.zeros((0, sum(layer.size for layer in layers)))
    _, singular, vt = np.linalg.svd(np.array(found), full_matrices=False)
    return vt[singular > DEPENDENT * singular[0]]


def _births(problem: Problem, best: Evaluation, live: Sequence[Array], seed: int) -> tuple[Birth, ...]:
    """Return the new neurons of largest effect in layers with dead ones."""
    result = []
    for number, mask in enumerate(live):
        if mask.all():
            continue
        a, delta = best.inputs[number], best.deltas[number + 1]
        unit = 2 * problem.ridge
        found = fastest(a, delta, problem.slope, seed=seed, rank_rtol=1e-12)
        # The derivative along the neuron is sum_i sigma(u . a_i) delta_i; the best outgoing weights point against it.
        outgoing = found.output.numpy()
        result.append(Birth(number + 1, found.lower / unit, found.upper / unit, found.direction.numpy(), outgoing))
    return tuple(result)
