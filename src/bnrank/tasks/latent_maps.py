"""Maps through few variables: outputs that use few of the latents of the inputs, and compositions y = h(g(x))."""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bnrank._core import validation
from bnrank.tasks.task import Task, Truth, normal, streams, uniform


@dataclass(frozen=True, eq=False)
class ShallowReLU:
    """A ReLU network with one hidden layer: z -> W2 relu(W1 z_{1..k} + b1), on the first k entries of z.

    Computes in float64 and returns the dtype it is given; differentiable.

    Attributes
    ----------
    w1 : Tensor
        W1, shape (width, k), float64.
    b1 : Tensor
        b1, shape (width,), float64.
    w2 : Tensor
        W2, shape (d, width), float64.

    Raises
    ------
    ValueError
        If z has fewer than k entries.

    Examples
    --------
    >>> import torch
    >>> f = ShallowReLU(torch.eye(2).double(), torch.zeros(2).double(), torch.tensor([[1.0, -1.0]]).double())
    >>> f(torch.tensor([[3.0, 1.0, 7.0], [-3.0, 1.0, 7.0]]))
    tensor([[ 2.],
            [-1.]])
    """

    w1: Tensor
    b1: Tensor
    w2: Tensor

    def __call__(self, z: Tensor) -> Tensor:
        """Return the values, shape (..., d), at z of shape (..., latent) with latent >= k."""
        k = self.w1.shape[1]
        validation.expect(z.shape[-1] >= k, "z", f"shape {tuple(z.shape)}", f"(..., latent) with latent >= {k}")
        hidden = torch.relu(z[..., :k].to(self.w1.dtype) @ self.w1.T + self.b1)
        return (hidden @ self.w2.T).to(z.dtype)


def low_rank_map(
    n: int = 300,
    d_in: int = 20,
    d_out: int = 20,
    latent: int = 8,
    rank: int = 2,
    width: int = 50,
    seed: int = 0,
    *,
    n_test: int = 300,
    x_norm_squared: float | None = 9.0,
    y_norm_squared: float | None = 4.0,
    noise: float = 0.0,
    bias: bool = True,
) -> Task:
    """Return a task of known bottleneck rank: x = g(z), y = h(z_1, ..., z_rank), z ~ N(0, I_latent).

    g and h are random shallow ReLU networks W2 relu(W1 z + b1) with W1 ~ N(0, 1/fan_in), W2 ~ N(0, 1/width) and
    b1 ~ N(0, 1). The source specifies only "random parameters". Biases are the default because without them g
    and h are positively homogeneous, all kinks pass through z = 0 and one-dimensional latents give straight rays;
    an output bias would only shift the data. Where g is injective (almost surely for width well
    above 2 latent), x -> y has bottleneck rank ``rank``. The defaults are the data of F4 (Jacot2023b Figure 1,
    which leaves the inner width open); :func:`bottleneck_spectra_map` has those of F1.

    Parameters
    ----------
    n, n_test : int
        Number of training and of test samples; ``n_test`` may be 0.
    d_in, d_out : int
        Dimensions of x and y.
    latent : int
        Number of latents, at most ``d_in`` and ``width``; otherwise g could not be injective.
    rank : int
        Number of leading latents that y depends on, at most ``latent`` and ``d_out``.
    width : int
        Inner width of g and h.
    seed : int
        g, h, the latents and the noise come from separate streams of it: the same seed gives the same g and h, up
        to the two scalars, for all ``n``, ``n_test`` and ``noise``.
    x_norm_squared, y_norm_squared : float or None
        Mean of ||x||^2 and ||y||^2 (sum over features, mean over the training samples, before noise), set by one
        scalar each, folded into W2 of g and h. None: no scaling.
    noise : float
        Standard deviation of Gaussian noise added to each entry of the training outputs; test outputs stay clean.
    bias : bool
        Whether g and h have b1.

    Returns
    -------
    Task
        x (n, d_in), y (n, d_out), float32, loss "mse". ``truth.x_of_latents(truth.latents)`` is bitwise equal to ``x``,
        and likewise for y if ``noise`` is 0; both functions return the dtype of their argument.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range; the message names it.

    Examples
    --------
    >>> import torch, bnrank
    >>> task = bnrank.tasks.low_rank_map(n=100, rank=2, seed=1)
    >>> task.x.shape, task.y.shape, task.truth.rank
    (torch.Size([100, 20]), torch.Size([100, 20]), 2)
    >>> round(task.x.square().sum(1).mean().item(), 4), round(task.y.square().sum(1).mean().item(), 4)
    (9.0, 4.0)
    >>> jacobian = torch.func.jacrev(task.truth.y_of_latents)(task.truth.latents[0].double())
    >>> torch.linalg.matrix_rank(jacobian).item()
    2
    """
    settings = dict(locals())
    n, d_in = validation.integer(n, "n"), validation.integer(d_in, "d_in")
    d_out, width = validation.integer(d_out, "d_out"), validation.integer(width, "width")
    latent = _at_most(latent, "latent", d_in=d_in, width=width)
    rank = _at_most(rank, "rank", latent=latent, d_out=d_out)
    n_test = validation.integer(n_test, "n_test", 0)
    noise, bias = validation.number(noise, "noise", 0.0), validation.flag(bias, "bias")
    count = (n + n_test + width) * (d_in + d_out + latent + rank)
    validation.largest_fits(count, {"n": n, "n_test": n_test, "d_in": d_in, "d_out": d_out, "width": width})
    for_g, for_h, for_z, for_z_test, for_noise = streams(seed, 5)

    z, z_test = normal(for_z, n, latent).float(), normal(for_z_test, n_test, latent).float()
    g = _scaled(_shallow(latent, width, d_in, bias, for_g), z, x_norm_squared, "x_norm_squared")
    h = _scaled(_shallow(rank, width, d_out, bias, for_h), z, y_norm_squared, "y_norm_squared")
    y = (h(z.double()) + noise * normal(for_noise, n, d_out)).float() if noise else None
    return Truth(rank, z, z_test, g, h).task("low_rank_map", settings, y)


def bottleneck_spectra_map(rank: int = 4, seed: int = 0, *, n: int = 500, n_test: int = 500) -> Task:
    """Return the data of F1 (Jacot2023a Figure 1): N = 500, d_in = d_out = 50, 15 latents, inner width 100.

    In the text of the source y depends on four latents, in its appendix F on five (E7). Scales are
    those of :func:`low_rank_map`.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range; the message names it.

    Examples
    --------
    >>> import bnrank
    >>> task = bnrank.tasks.bottleneck_spectra_map(rank=5, n_test=0)
    >>> task.x.shape, task.truth.latents.shape, task.truth.rank
    (torch.Size([500, 50]), torch.Size([500, 15]), 5)
    """
    return low_rank_map(n, d_in=50, d_out=50, latent=15, rank=rank, width=100, seed=seed, n_test=n_test)


def block_norms(x: Tensor, inner: int) -> Tensor:
    """Return g(x), (N, inner): ||block||^2 for blocks of coordinates, standardized under x ~ N(0, I).

    Mean and standard deviation are those under x ~ N(0, I): (||b||^2 - n_b) / sqrt(2 n_b) for a block of n_b inputs.
    Blocks are as even as can be, longer ones first. g is unchanged under rotations of every block.

    Raises
    ------
    TypeError, ValueError
        If there are fewer inputs than blocks.

    Examples
    --------
    >>> import torch
    >>> block_norms(torch.tensor([[1.0, 1.0, 3.0, 0.0]]), 2)
    tensor([[0.0000, 3.5000]])
    """
    x = validation.samples(x, "x")
    blocks = x.tensor_split(_at_most(inner, "inner", inputs=x.shape[1]), 1)
    return torch.stack([(b.square().sum(1) - b.shape[1]) / math.sqrt(2 * b.shape[1]) for b in blocks], 1)


def composition(
    n: int = 500,
    d_in: int = 10,
    d_out: int = 10,
    inner: int = 1,
    seed: int = 0,
    *,
    n_test: int = 2000,
    frequency: float = 2.0,
) -> Task:
    """Return a composition with a small inner dimension that no linear map of the inputs reveals (F7; Jacot2023c).

    x ~ N(0, I), z = g(x) as in :func:`block_norms`, y_j = sqrt(2 / d_out) cos(frequency w_j . z + p_j) with w_j from
    N(0, I) and p_j uniform. All inputs are equally important, and within a block all directions are equivalent: this is
    the example of the slides, f(Rx) = f(x) for rotations R, which is not equal to any function h(Ax) of fewer inputs. A
    scalar y is a function of one variable (itself) for every ``inner``; with d_out > inner the inner dimension is
    ``inner``.

    Parameters
    ----------
    n, n_test : int
        Number of training and of test samples; ``n_test`` may be 0.
    d_in, d_out : int
        Dimensions of x and y.
    inner : int
        Dimension of z, at most ``d_in``.
    seed : int
        h, training and test inputs come from separate streams of it.
    frequency : float
        Frequency of h, > 0, per standard deviation of z.

    Returns
    -------
    Task
        x (n, d_in), y (n, d_out), float32, loss "mse"; no noise.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range; the message names it.

    Examples
    --------
    >>> import bnrank
    >>> task = bnrank.tasks.composition(n=100, d_in=12, inner=2)
    >>> task.x.shape, task.y.shape
    (torch.Size([100, 12]), torch.Size([100, 10]))
    """
    settings = dict(locals())
    n, n_test = validation.integer(n, "n"), validation.integer(n_test, "n_test", 0)
    d_in, d_out = validation.integer(d_in, "d_in"), validation.integer(d_out, "d_out")
    inner = _at_most(inner, "inner", d_in=d_in)
    frequency = validation.number(frequency, "frequency", 0.0, strict=True)
    count = (n + n_test + inner) * (d_in + d_out)
    validation.largest_fits(count, {"n": n, "n_test": n_test, "d_in": d_in, "d_out": d_out})
    for_h, train, test = streams(seed, 3)
    w, phases = frequency * normal(for_h, d_out, inner), 2 * math.pi * uniform(for_h, d_out)

    def draw(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        x = normal(generator, count, d_in).float()
        y = math.sqrt(2 / d_out) * torch.cos(block_norms(x.double(), inner) @ w.T + phases)
        return x, y.float()

    x_test, y_test = draw(n_test, test) if n_test else (None, None)
    return Task(*draw(n, train), x_test, y_test, name="composition", settings=settings)


def _at_most(value: int, name: str, **limits: int) -> int:
    value = validation.integer(value, name)
    for limit_name, limit in limits.items():
        validation.expect(value <= limit, name, f"{value}", f"at most {limit_name} = {limit}")
    return value


def _shallow(inputs: int, width: int, outputs: int, bias: bool, generator: torch.Generator) -> ShallowReLU:
    w1 = normal(generator, width, inputs) / inputs**0.5
    w2 = normal(generator, outputs, width) / width**0.5
    b1 = normal(generator, width) if bias else torch.zeros(width, dtype=torch.float64)
    return ShallowReLU(w1, b1, w2)


def _scaled(function: ShallowReLU, z: Tensor, target: float | None, name: str) -> ShallowReLU:
    """Return the function with W2 scaled so that its mean squared norm over z is the target."""
    if target is None:
        return function
    target = validation.number(target, name, 0.0, strict=True)
    drawn = float(function(z.double()).square().sum(1).mean())
    if drawn == 0:
        raise ValueError(f"{name}: the drawn function is 0 on all samples, expected a larger width or another seed")
    return replace(function, w2=function.w2 * (target / drawn) ** 0.5)
