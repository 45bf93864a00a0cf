"""Stability of minima under gradient descent, and the growth of the NTK of rank-one networks (T26)."""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from bnrank._core import linalg, validation
from bnrank._core.results import Printed
from bnrank.measures import ntk, regions
from bnrank.networks.chain import as_mlp
from bnrank.networks.functional import check_finite
from bnrank.networks.mlp import MLP, from_layers, leaky_relu
from bnrank.theory.symmetry import nearest_rank_one, rank_one_parts
from bnrank.theory.tours import PathBounds, TourBound, tsp_bound

__all__ = ["GrowthBound", "Sharpness", "growth_bound", "largest_trace", "output_error", "sharpness_bound"]


@dataclass(frozen=True)
class Sharpness(Printed):
    """The curvature of the loss at parameters that fit the data, and its limit for a step size.

    Attributes
    ----------
    curvature : float
        (2/N) ||J_theta f(X)||_op^2 + 2 ridge, the largest eigenvalue of the Gauss-Newton matrix of the loss
        (1/N) sum_i ||f(x_i) - y_i||^2 + ridge ||theta||^2; of its Hessian where f(x_i) = y_i and f is differentiable.
    largest_step : float
        2 / curvature: gradient descent with a larger step leaves the minimum; inf if the curvature is 0.
    step : float or None
        As given.
    limit : float
        2 / step; NaN without a step.
    stable : bool or None
        Whether curvature < limit; None without a step.
    """

    curvature: float
    largest_step: float
    step: float | None
    limit: float
    stable: bool | None

    def __str__(self) -> str:
        against = "" if self.step is None else f", {'' if self.stable else 'un'}stable for step {self.step:.4g}"
        return f"curvature {self.curvature:.6g}, largest step {self.largest_step:.4g}{against}"


@dataclass(frozen=True)
class GrowthBound(Printed):
    """A lower bound on the largest Tr Theta(x, x) of a network with rank-one weights.

    Attributes
    ----------
    bound : float
        e^{-c1} TSP^4 sum_{l in S} ||W_l||_op^{-2} / (64 diam^2); infinite beyond the range of floats.
    measured : float
        The largest Tr Theta(x, x) on the segment from ``start`` to ``end``, for weights and biases.
    path : PathBounds
        Bounds on the path through the outputs f(x_i); ``bound`` uses the lower one, minus the rounding error.
    diameter : float
        Diameter of the inputs.
    excess : float
        c1 = ||theta||^2 - L.
    layers : tuple of int
        S, the layers with a weight of rank one, or of rank 0: then f is constant, and the bound is 0.
    start, end : Tensor
        The ends of the segment, two samples.
    network : MLP
        The network with exactly rank-one weights in S, to which the bound applies.
    """

    bound: float
    measured: float
    path: PathBounds
    diameter: float
    excess: float
    layers: tuple[int, ...]
    start: Tensor
    end: Tensor
    network: MLP

    def __str__(self) -> str:
        layers = ", ".join(str(layer) for layer in self.layers)
        return f"max Tr Theta >= {self.bound:.6g} (measured: {self.measured:.6g}), weights of rank one: {layers}"


@dataclass(frozen=True)
class RankOne:
    """A network with its weights that are nearly of rank one made exactly so.

    Attributes
    ----------
    network : MLP
        The network; :attr:`layers` hold their nearest matrices of rank one.
    layers : tuple of int
        The layers l with s_2(W_l) <= rtol s_1(W_l), counted from 1.
    norms, ratios : tuple of float
        ||W_l||_op and s_2 / s_1 of these layers, as given; 0 for a zero matrix.
    """

    network: MLP
    layers: tuple[int, ...]
    norms: tuple[float, ...]
    ratios: tuple[float, ...]


def exactly_rank_one(chain: MLP, rtol: float) -> RankOne:
    """Return a chain with its weights of rank one, up to a relative tolerance, made exactly so.

    Examples
    --------
    >>> import bnrank
    >>> exactly_rank_one(bnrank.MLP([3, 2, 1, 2]), 1e-6).layers
    (2, 3)
    """
    weights, found = [weight.detach() for weight in chain.weights], []
    for number, weight in enumerate(weights, start=1):
        nearest, s = nearest_rank_one(weight)
        if len(s) == 1 or s[1] <= rtol * s[0]:
            weights[number - 1] = nearest
            found.append((number, float(s[0]), float(s[1] / s[0]) if len(s) > 1 and s[0] > 0 else 0.0))
    network = from_layers(weights, [b.detach() for b in chain.biases], chain.slope).to(weights[0].device)
    layers, norms, ratios = zip(*found, strict=True) if found else ((), (), ())
    return RankOne(network, layers, norms, ratios)


def tour(net: MLP, x: Tensor) -> TourBound:
    """Return the bounds of T13 from the shortest path through the outputs, minus the rounding error of the outputs.

    Raises
    ------
    RangeError
        If outputs or distances exceed the range of floats.

    Examples
    --------
    >>> import torch, bnrank
    >>> tour(bnrank.networks.from_layers([2 * torch.ones(1, 1)]), torch.tensor([[0.0], [1.0], [3.0]])).path.upper
    6.0
    """
    x = x.double()
    with torch.no_grad():
        outputs, error = net(x), output_error(net, x)
    if not math.isfinite(error):
        raise validation.RangeError("the outputs are beyond the range of floats")
    return tsp_bound(x, outputs, net.depth, atol=error)


def output_error(net: MLP, x: Tensor) -> float:
    """Return a bound on the distance of the outputs computed in float64 from the exact ones, over the samples.

    e_l = ||W_l|| e_{l-1} + (n_{l-1} + 3) eps || |W_l| |a_{l-1}| + |b_l| ||: the activation is 1-Lipschitz, and the
    rounding error of a sum of n terms is at most n eps / 2 times the sum of their absolute values.

    Examples
    --------
    >>> import torch, bnrank
    >>> net = bnrank.networks.from_layers([torch.ones(1, 1)], [torch.tensor([300.0])])
    >>> 1e-14 < output_error(net, torch.zeros(1, 1, dtype=torch.float64)) < 1e-12
    True
    """
    net = validation.kind(net, "net", MLP)
    check_finite(net)
    dtype = net.weights[0].dtype
    validation.expect(dtype.is_floating_point, "net", f"parameters of {dtype}", "floating-point ones", TypeError)
    x = validation.samples(x, "x", features=net.weights[0].shape[1]).detach().to(net.weights[0].device, torch.float64)
    info, weights = torch.finfo(torch.float64), [w.detach().double() for w in net.weights]
    a, error = x, x.new_zeros(len(x))
    for i, weight in enumerate(weights):
        bias = net.biases[i].detach().double() if net.bias else weight.new_zeros(len(weight))
        terms = torch.linalg.vector_norm(a.abs() @ weight.abs().T + bias.abs(), dim=1)
        error = torch.linalg.matrix_norm(weight, 2) * error + (weight.shape[1] + 3) * (info.eps * terms + info.tiny)
        a = leaky_relu(a @ weight.T + bias, net.slope)
    return float(error.nan_to_num(nan=math.inf, posinf=math.inf).max())  # inf - inf and 0 inf bound nothing


def sharpness_bound(
    net: nn.Module, x: Tensor | np.ndarray, step: float | None = None, *, ridge: float = 0.0
) -> Sharpness:
    """Return the largest curvature of the loss at parameters that fit the data, and the limit 2 / step.

    Gradient descent with step eta cannot remain at a minimum with f(x_i) = y_i if (2/N) ||J_theta f||_op^2 > 2 / eta
    (T26; Jacot2023b section 4, with the factor of the loss of docs/theory/notation.md: E14).

    Parameters
    ----------
    net : torch.nn.Module
        Any module.
    x : Tensor or ndarray
        All samples of the loss, (N, ...).
    step : float, optional
        eta > 0.
    ridge : float
        lambda of the loss.

    Returns
    -------
    Sharpness
        The curvature and the largest step.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range, or as :func:`bnrank.ntk.top_eigenvalue`.

    Examples
    --------
    >>> import torch, bnrank
    >>> net = bnrank.MLP([1, 1], bias=False)                      # loss (w - w*)^2 x^2
    >>> found = sharpness_bound(net, torch.tensor([[2.0]]), step=0.2)
    >>> round(found.curvature, 9), found.limit, found.stable
    (8.0, 10.0, True)
    """
    ridge = validation.number(ridge, "ridge", 0.0)
    step = None if step is None else validation.number(step, "step", 0.0, strict=True)
    curvature = 2 * ntk.top_eigenvalue(net, x, normalized=True) + 2 * ridge
    largest = 2 / curvature if curvature else math.inf
    limit, stable = (math.nan, None) if step is None else (2 / step, curvature < 2 / step)
    return Sharpness(curvature, largest, step, limit, stable)


def largest_trace(net: nn.Module, start: Tensor, end: Tensor) -> float:
    """Return the supremum of Tr Theta(x, x) on a segment, over all parameters.

    On each piece of constant activation pattern, the trace is a convex quadratic function of the position (T24), so it
    is largest at an end of the piece. It is evaluated there with the pattern of the piece.

    Parameters
    ----------
    net : torch.nn.Module
        A chain of linear layers.
    start, end : Tensor
        The ends of the segment, (d_in,).

    Returns
    -------
    float
        The supremum.

    Raises
    ------
    TypeError, ValueError
        As :func:`bnrank.regions.along_line`.

    Examples
    --------
    >>> import torch, bnrank
    >>> net = bnrank.networks.mlp.from_layers([torch.ones(1, 1), torch.ones(1, 1)])
    >>> round(largest_trace(net, torch.tensor([-1.0]), torch.tensor([3.0])), 9)       # x^2 + x^2
    18.0
    """
    intervals = regions.along_line(net, start, end, merge=False).intervals
    assert intervals is not None
    quarters = torch.tensor([0.25, 0.5, 0.75], dtype=torch.float64)
    t = intervals[:, :1] + quarters * (intervals[:, 1:] - intervals[:, :1])  # (pieces, 3)
    first, last = (validation.real(end_, name).double().cpu() for end_, name in ((start, "start"), (end, "end")))
    places = first + t.reshape(-1, 1) * (last - first)
    a, b, c = ntk.trace(net, places).reshape(-1, 3).T
    return float(torch.stack([3 * a - 3 * b + c, a - 3 * b + 3 * c, a, b, c]).max())


def growth_bound(net: nn.Module, x: Tensor | np.ndarray, *, rtol: float = 1e-6) -> GrowthBound:
    r"""Return a lower bound on the NTK of networks of rank one, with the largest trace measured.

    Let W_l have rank one for l in S, and let T be a lower bound on the length of the shortest path through f(x_1), ...,
    f(x_N). Then some segment between two samples contains a point with

        Tr Theta(x, x) >= e^{-c1} T^4 sum_{l in S} ||W_l||_op^{-2} / (64 diam^2),    c1 = ||theta||^2 - L.

    With T of order N^{1 - 1/k} and near-isometric W_l this is Jacot2023b Thm 10, c'' L e^{-c1} N^{4 - 4/k} (T26), with
    its constant, and without the condition on the depth. Proof: W_l = s u v^T makes f = h_l o z_l, z_l = v . a_{l-1}.
    Take the segment on which z of the first such layer goes from its smallest to its largest value over the samples. Of
    its image, at least T long, the part with |z_l| < T / (4 H_l), H_l = ||W_l|| ... ||W_L||, covers at most half; so
    where |z_l| is larger, f moves by at least T / 2, for each l. Average ||Jf|| over the segment, with the number of
    such l as weight, and use Tr Theta >= sum_l z_l^2 ||J(a~_l -> f)||_F^2,
    ||J(a~_l -> f)|| >= ||Jf u|| / (||W_1|| ... ||W_l||) and prod ||W_l||^2 <= e^{c1}.

    Parameters
    ----------
    net : torch.nn.Module
        A chain of linear layers, at least one weight of rank one.
    x : Tensor or ndarray
        Samples, (N, d_in).
    rtol : float
        A weight has rank one if s_2 <= ``rtol`` s_1; its remainder is set to 0, and the bound applies to this network.

    Returns
    -------
    GrowthBound
        The bound and the largest trace measured on the segment.

    Raises
    ------
    TypeError, ValueError
        If the network is not such a chain or x does not fit.
    RangeError
        If outputs or distances exceed the range of floats.

    Examples
    --------
    >>> import torch, bnrank
    >>> net = bnrank.networks.mlp.from_layers([torch.ones(1, 1)] * 4)
    >>> found = growth_bound(net, torch.linspace(0, 8, 9)[:, None])
    >>> round(found.bound, 9), round(found.measured, 9)                     # 4 8^4 / (64 8^2), 4 8^2
    (4.0, 256.0)
    """
    check_finite(net)
    chain, rtol = as_mlp(net), validation.rtol(rtol)
    samples = validation.samples(x, "x", ndim=None).detach().flatten(1).double().to(chain.weights[0].device)
    inputs = chain.weights[0].shape[1]
    fits = samples.shape[1] == inputs
    validation.expect(fits, "x", f"{samples.shape[1]} columns", f"{inputs}, the inputs of the network")
    exact = exactly_rank_one(chain, rtol)
    validation.expect(exact.layers, "net", "no weight of rank one", "at least one layer with s_2 <= rtol s_1")
    return growth_along(exact, samples, tour(exact.network, samples))


def growth_along(exact: RankOne, samples: Tensor, found: TourBound) -> GrowthBound:
    """Return :func:`growth_bound` of a network with weights of rank one, from the :func:`tour` of its outputs."""
    network, layers, path, width = exact.network, exact.layers, found.path, found.diameter
    norms = [norm or math.inf for norm in exact.norms]
    excess = sum(float((p.detach() ** 2).sum()) for p in network.parameters()) - network.depth
    z, _ = rank_one_parts(network, samples, layers[0])
    start, end = samples[int(z.argmin())].cpu(), samples[int(z.argmax())].cpu()
    bound = 0.0
    if path.lower > 0 and width > 0:
        inverse = float(torch.tensor([-2 * math.log(norm) for norm in norms], dtype=torch.float64).logsumexp(0))
        power = -excess + 4 * math.log(path.lower) - 2 * math.log(width) + inverse - math.log(64)
        bound = linalg.exp(power)
    same = bool((start == end).all())
    measured = float(ntk.trace(network, start[None])) if same else largest_trace(network, start, end)
    return GrowthBound(bound, measured, path, width, excess, layers, start, end, network)
