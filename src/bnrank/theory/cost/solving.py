"""Networks of small norm that interpolate data."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn

from bnrank._core import validation
from bnrank.networks.chain import as_mlp
from bnrank.networks.functional import check_finite
from bnrank.networks.mlp import MLP, make
from bnrank.tasks import Task
from bnrank.theory.cost.interpolation import Candidate, Interpolation, at, parameters
from bnrank.theory.cost.pruning import prune
from bnrank.theory.cost.rescaling import Arrays
from bnrank.training import train

RIDGES = (1e-1, 1e-2)  # ridges of the two stages, in units of mean ||y||^2 / L
SPREAD = 1e-3  # ratio of the last start's ridge to the first's: large ones lose small directions, small ones are slow
SHORTENING = (1e-2, 1e-3, 1e-4, 1e-5)  # ridges of `shorten`, in units of mean ||y||^2 / L
POLISHED = 3  # number of best starts that are polished
MAX_ENTRIES = 2**27  # entries of the parameter Jacobian: 1 GiB


@dataclass(frozen=True)
class Solution:
    """An interpolating network of small norm.

    Attributes
    ----------
    network : MLP
        The best network found, balanced and pruned, in float64. If no start interpolates, the one with the smallest
        error.
    norm : float
        Its ||theta||^2, biases included: an upper bound on the smallest norm if ``interpolates``.
    error : float
        max_i |f(x_i) - y_i|, over samples and outputs.
    norms : tuple of float
        For each start, the norm at which it interpolates (after polishing, for the best ones); inf if it does not.
    interpolates : bool
        Whether ``error`` <= rtol * max |y|.
    """

    network: MLP
    norm: float
    error: float
    norms: tuple[float, ...]
    interpolates: bool


def solve(
    x: Tensor | np.ndarray,
    y: Tensor | np.ndarray,
    depth: int,
    width: int,
    *,
    slope: float = 0.0,
    bias: bool = True,
    starts: int = 8,
    seed: int = 0,
    rtol: float = 1e-6,
    steps: int = 300,
    polish: int = 100,
) -> Solution:
    r"""Return the interpolating network of smallest norm found, min ||theta||^2 s.t. f(x_i) = y_i (T1).

    The norm found is an upper bound on the minimum over networks of this depth (and on R(f; {x_i}, L) of the function
    found): the problem is not convex, and a global minimum is not certified. A lower bound requires the Jacobian of f
    (T4).

    Method:

    1. All starts are trained as one ensemble on data scaled to unit size, with the loss
       (1/N) sum ||f(x_i) - y_i||^2 + lambda ||theta||^2, in two stages of decreasing ridge. Each start has its own
       ridge.
    2. Gauss-Newton corrections of minimum norm, theta += J^T (J J^T)^+ (y - f), with J the Jacobian of the outputs in
       theta, move every network to an interpolating one. Starts for which this fails are trained further without ridge
       and corrected again.
    3. The interpolating networks are pruned on the samples and balanced.
    4. The best three are polished: a step towards the point of minimum norm that satisfies the linearized constraints,
       J^T (J J^T)^+ (J theta + y - f), then corrections and balancing, while the norm decreases. If the optimum is on
       ReLU kinks at the samples, polishing stops short of it (by 1e-4 of the norm on three points).

    Parameters
    ----------
    x, y : Tensor or ndarray
        Samples, (N, d_in), and values, (N, d_out), floating point. A sample may be repeated with the same y.
    depth : int
        L, number of weight layers.
    width : int
        Width of the hidden layers.
    slope : float
        s in (-1, 1), 0 for ReLU, or 1 for linear networks.
    bias : bool
        Whether the network has biases, which are included in the norm.
    starts : int
        Number of random starts.
    seed : int
        Seed of the first start; the others use consecutive seeds.
    rtol : float
        Largest error relative to max |y| that counts as interpolation.
    steps : int
        Number of evaluations of loss and gradient per stage.
    polish : int
        Largest number of polishing iterations for each of the three best starts.

    Returns
    -------
    Solution
        Network, norm, error, and the norms of all starts.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range, or the same x occurs with different y.

    Examples
    --------
    >>> import torch
    >>> x = torch.linspace(0.1, 1, 5).reshape(-1, 1)
    >>> found = solve(x, x, depth=3, width=4, starts=4, steps=100)      # the identity on R_+ costs L (T29)
    >>> round(found.norm, 5), found.interpolates
    (3.0, True)
    """
    x = validation.samples(x, "x").detach().cpu().double()
    y = validation.samples(y, "y").detach().cpu().double()
    validation.expect(len(x) == len(y), "x, y", f"{len(x)} and {len(y)} samples", "the same number in both")
    depth, width = validation.integer(depth, "depth"), validation.integer(width, "width")
    validation.networks_fit(x.shape[1], y.shape[1], {"depth": depth, "width": width, "starts": 1})
    starts, seed = validation.integer(starts, "starts"), validation.seed(seed)
    steps, polish = validation.integer(steps, "steps"), validation.integer(polish, "polish", 0)
    rtol = validation.number(rtol, "rtol", 0.0)
    size = float(y.abs().max())
    points, values = _distinct(x, y, rtol * size)
    net = make([x.shape[1], *[width] * (depth - 1), y.shape[1]], slope, bias, seed=seed, dtype=torch.float64)
    rows, parameters = y.shape[1] * len(points), sum(p.numel() for p in net.parameters())
    got = f"{len(points)} samples, with {y.shape[1]} outputs and {parameters} parameters, a Jacobian of more than"
    most = f"at most {MAX_ENTRIES // (y.shape[1] * parameters)} samples"
    validation.expect(rows * parameters <= MAX_ENTRIES, "x", f"{got} {MAX_ENTRIES} numbers", most)
    if size == 0:
        zero = prune(net.reset(seed, 0.0)).network
        return Solution(zero, 0.0, 0.0, (0.0,) * starts, True)

    search = Interpolation(points.numpy(), values.numpy(), rtol * size)
    training = _Training(net, points, values, steps)
    found = [search.interpolating(start) for start in training.trained(list(range(seed, seed + starts)))]
    lost = [i for i, start in enumerate(found) if start.norm == math.inf]
    for i, start in zip(lost, training.trained([seed + i for i in lost], stages=(0.0,)), strict=True):
        found[i] = min(found[i], search.interpolating(start))
    for i in sorted(range(starts), key=found.__getitem__)[:POLISHED]:
        found[i] = min(found[i], search.polished(found[i], polish))
    return _solution(min(found), x, y, tuple(start.norm for start in found), rtol * size)


def shorten(
    net: nn.Module,
    x: Tensor | np.ndarray,
    y: Tensor | np.ndarray | None = None,
    *,
    rtol: float = 1e-6,
    steps: int = 300,
    polish: int = 100,
) -> Solution:
    r"""Return a network of lower norm through the same points, found by training from a given one.

    The network is trained with four ridges from mean ||y||^2 / L times 1e-2 down to 1e-5, as in :func:`solve`. The
    results and the network itself are corrected until they interpolate, pruned and polished; the best is returned. The
    widths stay or shrink. The rank in the middle may change. Where x and y are far from unit size, training rarely
    helps.

    Parameters
    ----------
    net : MLP or torch.nn.Sequential
        A chain of linear layers with one activation; it is not modified.
    x : Tensor or ndarray
        Samples, (N, d_in).
    y : Tensor or ndarray, optional
        Values, (N, d_out). Default: the outputs of ``net``.
    rtol : float
        Largest error relative to max |y| that counts as interpolation.
    steps : int
        Number of evaluations of loss and gradient per ridge; 0 for no training.
    polish : int
        Largest number of polishing iterations for each result.

    Returns
    -------
    Solution
        ``norms`` holds those from ``net`` itself and from the four ridges. If nothing interpolates, ``interpolates`` is
        False.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range, the network is not such a chain or x does not fit, or the same x occurs with
        different y.

    Notes
    -----
    Source: T12, Jacot2023a section 4: the norm of rank-one interpolants from
    :func:`~bnrank.constructions.line_interpolant`.

    Examples
    --------
    >>> import torch
    >>> from bnrank import constructions
    >>> x = torch.tensor([[0.0], [0.5], [1.0]], dtype=torch.float64)
    >>> net = constructions.line_interpolant(x, x**2, 5)
    >>> before = sum(float(p.detach().square().sum()) for p in net.parameters())
    >>> shorten(net, x, steps=100).norm < before
    True
    """
    chain = as_mlp(net)
    check_finite(net)
    x = validation.samples(x, "x", features=chain.weights[0].shape[1]).detach().cpu().double()
    with torch.no_grad():
        given = chain.cpu()(x) if y is None else y
    y = validation.samples(given, "y", features=len(chain.weights[-1])).detach().cpu().double()
    validation.expect(len(x) == len(y), "y", f"{len(y)} samples", f"as many as x has, {len(x)}")
    steps, polish = validation.integer(steps, "steps", 0), validation.integer(polish, "polish", 0)
    size = float(y.abs().max())
    points, values = _distinct(x, y, validation.number(rtol, "rtol", 0.0) * size)
    if size == 0:
        zeros = at(Arrays.of(chain), 0 * parameters(Arrays.of(chain)))
        return _solution(Candidate(0.0, 0.0, zeros), x, y, (0.0,), 0.0)
    search = Interpolation(points.numpy(), values.numpy(), rtol * size)
    chains = [Arrays.of(chain)]
    if steps:
        units = [float((data**2).mean().sqrt()) or 1.0 for data in (points, values)]
        repeats = 2 if len(points) == 1 else 1  # training needs two samples
        task = Task((points / units[0]).repeat(repeats, 1), (values / units[1]).repeat(repeats, 1))
        ridges = [part * float((task.y**2).sum(1).mean()) / chain.depth for part in SHORTENING]
        start = rescaled(chains[0], 1 / units[0], 1 / units[1]).balanced()[0].network()
        run = train(
            [start] * len(ridges), task, ridge=ridges, steps=steps, optimizer="kfac-lbfgs",
            dtype=torch.float64, record=steps, progress=False,
        )  # fmt: skip
        chains += [rescaled(Arrays.of(cast(MLP, run.network(i))), *units) for i in range(len(ridges))]
    found = [search.polished(search.interpolating(one), polish) for one in chains]
    return _solution(min(found), x, y, tuple(start.norm for start in found), rtol * size)


def _solution(best: Candidate, x: Tensor, y: Tensor, norms: tuple[float, ...], allowed: float) -> Solution:
    """Return the network of a start as a solution."""
    network = best.chain.network()
    with torch.no_grad():
        error = float((network(x) - y).abs().max())
    return Solution(network, best.chain.norm, error, norms, interpolates=error <= allowed)


def _distinct(x: Tensor, y: Tensor, allowed: float) -> tuple[Tensor, Tensor]:
    """Return the samples without repetitions; raise ValueError if the same x has different y."""
    points, inverse = torch.unique(x, dim=0, return_inverse=True)
    first = torch.full((len(points),), len(x)).scatter_reduce(0, inverse, torch.arange(len(x)), "amin")
    differing = (y - y[first[inverse]]).abs().amax(1) > allowed
    if bool(differing.any()):
        i = int(differing.nonzero()[0])
        pair = f"{int(first[inverse[i]])} and {i}"
        raise ValueError(f"y: got different values at the same x, samples {pair}, expected a function of x")
    return points, y[first]


class _Training:
    """The starts, trained as ensembles on data scaled to unit size."""

    def __init__(self, net: MLP, x: Tensor, y: Tensor, steps: int) -> None:
        self.net, self.steps = net, steps
        self.units = [float((data**2).mean().sqrt()) or 1.0 for data in (x, y)]
        repeats = 2 if len(x) == 1 else 1  # training needs two samples
        self.task = Task((x / self.units[0]).repeat(repeats, 1), (y / self.units[1]).repeat(repeats, 1))
        self.members: dict[int, MLP] = {}

    def trained(self, seeds: list[int], stages: Sequence[float] = RIDGES) -> list[Arrays]:
        """Return the networks of these seeds, trained in stages with ridges in units of mean ||y||^2 / L."""
        ridges = np.geomspace(1.0, SPREAD, len(seeds)) * float((self.task.y**2).sum(1).mean()) / self.net.depth
        for stage in stages if seeds else ():
            run = train(
                self.members.__getitem__ if self.members else self.net,
                self.task,
                ridge=(stage * ridges).tolist(),
                steps=self.steps,
                seed=seeds,
                optimizer="kfac-lbfgs" if self.members else "auto",
                dtype=torch.float64,
                record=self.steps,
                progress=False,
            )
            self.members |= {seed: cast(MLP, run.network(i)) for i, seed in enumerate(seeds)}
        return [rescaled(Arrays.of(self.members[seed]), *self.units) for seed in seeds]


def rescaled(chain: Arrays, x_unit: float, y_unit: float) -> Arrays:
    """Return the network x -> y_unit f(x / x_unit), with equal factors in all layers."""
    factor = (y_unit / x_unit) ** (1 / len(chain.weights))
    biases = [b * x_unit * factor**layer for layer, b in enumerate(chain.biases, 1)]
    return Arrays([w * factor for w in chain.weights], biases, chain.slope)
