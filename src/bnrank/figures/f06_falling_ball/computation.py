"""The computation of F6: a circular network that predicts a falling ball, and readouts of the ball from its layers."""

import json
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import xarray as xr
from torch import Tensor, nn

from bnrank.figures.harness.training import held_out, relative_error, train_recorded
from bnrank.measures import profile
from bnrank.measures.frequencies import Kept, grid, kept, weight_singular_values
from bnrank.networks import CircularConvolutional
from bnrank.networks.convolutional import in_fourier_space
from bnrank.networks.reading import capture
from bnrank.tasks import Task, falling_ball

PAIRS = 2  # of frequency 1 along each axis: "two freq. 1 pairs", for position and velocity
NOISE = 1e-3  # power of the noise added for readouts, as a share of that of the layer
PROFILED = 300  # samples of a profile
LINEAR = 0.05  # nonlinearity ratio below which a layer counts as nearly linear


@dataclass(frozen=True)
class Setup:
    """A falling ball and the networks that predict it.

    Attributes
    ----------
    size, speed, gravity, width, frames, samples
        Of `bnrank.tasks.falling_ball`.
    channels, depth : int
        Of the circular networks.
    ridge, steps : tuple
        Of successive stages of training.
    optimizer : str
        Of the first stage; the others use L-BFGS.
    tests : int
        Test samples.
    members, seed : int
        Networks, and the seed of the first.
    """

    size: int
    speed: float | None
    gravity: float
    width: float
    samples: int
    channels: int
    depth: int
    ridge: tuple[float, ...]
    steps: tuple[int, ...]
    optimizer: str = "auto"
    frames: int = 2
    tests: int = 2000
    members: int = 2
    seed: int = 0


class Read(NamedTuple):
    """An angle on held-out samples, true and read, in radians; R^2 is 1 - sum (difference)^2 / sum (true)^2."""

    true: np.ndarray
    read: np.ndarray
    r2: float


@dataclass(frozen=True)
class Readout:
    """Position and velocity read from one layer's preactivations at one frequency w along each axis.

    The position q_t is read by a complex linear map from the channels' Fourier coefficients at w to
    exp(-2 pi i w q_t / n), as the phase of its output. The velocity is the difference of two such phases at
    consecutive times.

    Attributes
    ----------
    linear : ndarray
        R^2 of the complex maps for t = -1, 0, 1, ..., the minimum over the axes.
    time : int
        t for which the worse of the maps of t and t + 1 fits best.
    position, velocity : tuple of Read
        Of w q_t and of w (q_{t+1} - q_t), as angles, one per axis.
    """

    linear: np.ndarray
    time: int
    position: tuple[Read, ...]
    velocity: tuple[Read, ...]

    @property
    def known(self) -> tuple[float, float]:
        """R^2 of position and of velocity, the minimum over the axes."""
        return min(part.r2 for part in self.position), min(part.r2 for part in self.velocity)


@dataclass(frozen=True)
class Ball:
    """A trained network and its measurements.

    Attributes
    ----------
    title : str
        The torus, in words.
    task, network : Task, Module
        The data and the network, in float64.
    profile : Dataset
        Of `bnrank.profile`: singular values by frequency, nonlinearity, kept frequencies.
    history : Dataset
        Of the training.
    explained : float
        Share of the variance of the outputs that the network explains, on balls all over the torus.
    readouts, controls : list of Readout
        Of every layer, at frequency 1 and at frequency 2.
    only : float
        ``explained`` where all layers of the bottleneck pass on only the frequencies it keeps.
    without : float
        ``explained`` where a layer of the bottleneck loses the frequencies with |w| = 1, the maximum over the layers.
    every : list of list of int
        The layers of the bottleneck of every member, in the order of their seeds.
    """

    title: str
    task: Task
    network: nn.Module
    profile: xr.Dataset
    history: xr.Dataset
    explained: float
    readouts: list[Readout]
    controls: list[Readout]
    only: float
    without: float
    every: list[list[int]]

    @property
    def spectra(self) -> xr.DataArray:
        """Singular values of the weights, by layer and frequency."""
        return self.profile.frequency_singular_values

    @property
    def held(self) -> Kept:
        """The kept frequencies of the layers with two pairs of frequency 1 along each axis and no higher frequency."""
        return bottleneck(self.spectra)

    @property
    def layers(self) -> list[int]:
        """The layers of the bottleneck, counted from 1."""
        return inside(self.held)

    @property
    def clearest(self) -> int | None:
        """The layer with the best readout, the smaller R^2 of position and velocity, of those below `LINEAR`."""
        bent = self.profile.nonlinearity
        linear = [layer for layer in self.layers if float(bent.sel(layer=layer)) < LINEAR]
        return max(linear, key=lambda layer: min(self.readouts[layer - 1].known), default=None)


def follow(dimensions: int, setup: Setup, out: Path, progress: bool) -> Ball:
    """Train circular networks on a falling ball, and return the measurements of the member with the lowest loss.

    The training balls start within one pixel: network and data commute with translations, so translated samples are
    redundant. Test balls are spread over the whole torus. With several ridges, each stage starts where the previous one
    ended; with a large ridge from the start, only the mean image is learned.
    """
    s, size = setup, setup.size
    ball: dict[str, Any] = {"speed": s.speed, "width": s.width, "within": "pixel", "n_test": s.tests}
    task = falling_ball(s.samples, size, dimensions, s.frames, s.gravity, s.seed, **ball)
    widths = [s.channels] * (s.depth - 1) + [s.frames]
    seeds = range(s.seed, s.seed + s.members)
    nets = {seed: CircularConvolutional(task.x.shape[1:], widths, kernel=size, seed=seed) for seed in seeds}
    options: dict[str, Any] = {"members": s.members, "seed": s.seed, "records": 50}
    for stage, (ridge, steps) in enumerate(zip(s.ridge, s.steps, strict=True), 1):
        options |= {"ridge": ridge, "steps": steps, "optimizer": s.optimizer if stage == 1 else "lbfgs"}
        run = train_recorded(lambda seed: in_fourier_space(nets[seed]), task, out / f"{stage}", progress, **options)
        for i, net in enumerate(nets.values()):
            net.load_state_dict(run.network(i).state_dict())
    network = nets[s.seed + int(run.summary.loss.argmin("member"))].double()
    settings = json.loads(run.history.attrs["settings"])  # of the network itself, instead of the one in Fourier space
    settings["network"] = f"{type(network).__name__}({network.extra_repr()}), trained in Fourier space"
    attributes = {"settings": json.dumps(settings, indent=1), "depth": s.depth, "skipped": "[]"}
    every = [inside(bottleneck(weight_singular_values(net, size=size))) for net in nets.values()]
    x, y = (part.double() for part in held_out(task))
    measured = profile(network, x[:PROFILED], y[:PROFILED], max_jacobian_samples=2)
    places, held = grid([size] * dimensions), bottleneck(measured.frequency_singular_values)
    layers, names = inside(held), [each.frequency for each in held.frequencies]
    whole = [w for w, length in zip(places.vectors, places.modulus, strict=True) if length != 1]
    only = [w for w, name in zip(places.vectors, places.names, strict=True) if name in names]
    return Ball(
        (f"ring of {size} pixels" if dimensions == 1 else f"torus of {size} x {size} pixels")
        + (f", lowest loss of {s.members}" if s.members > 1 else ""),
        task,
        network,
        measured,
        run.history.assign_attrs(attributes),
        1 - relative_error(kept_only(network, x, (), ()), y),
        read_out(network, task, 1),
        read_out(network, task, 2),
        1 - relative_error(kept_only(network, x, only, layers), y) if layers else math.nan,
        max((1 - relative_error(kept_only(network, x, whole, [layer]), y) for layer in layers), default=math.nan),
        every,
    )


def bottleneck(values: xr.DataArray, atol: float = 0.1, near: tuple[float, float] = (0.5, 2.0)) -> Kept:
    """Return the longest run of layers with two pairs of frequency 1 along each axis and no higher frequency (T27).

    At each |w| = 1 two singular values lie in ``near``, and all others at |w| > 0 are at most ``atol``. Frequency 0 is
    ignored: it contains no information on the position, and offsets images to be non-negative. Its channels are still
    counted.
    """
    modulus = values["modulus"].values
    ones, others = np.nan_to_num(values.values[:, modulus == 1]), np.nan_to_num(values.values[:, modulus > 1])
    low, high = near
    clear = ((ones[..., :PAIRS] >= low) & (ones[..., :PAIRS] <= high)).all((1, 2))
    clear &= (ones[..., PAIRS:] <= atol).all((1, 2)) & (others <= atol).all((1, 2))
    marked = zip(values["layer"].values.tolist(), clear, strict=True)
    runs = [[layer for layer, _ in run] for key, run in groupby(marked, itemgetter(1)) if key]
    longest = max(runs, key=len, default=[])
    if not longest:
        return Kept(None, None, (), f"no layer has {PAIRS} values near 1 at each |w| = 1 and none beyond")
    return kept(values, longest[0], longest[-1], atol=atol)


def inside(found: Kept) -> list[int]:
    """Return the layers of a bottleneck, counted from 1."""
    return [] if found.start is None or found.end is None else list(range(found.start, found.end + 1))


def kept_only(network: nn.Module, x: Tensor, frequencies: Collection[Sequence[int]], layers: Collection[int]) -> Tensor:
    """Return the outputs if the preactivations of some layers keep only the given frequencies w (and -w)."""
    names = {f"conv{layer}" for layer in layers}
    with torch.no_grad():
        for name, part in network.named_children():
            x = part(x)
            if name in names:
                space = tuple(range(2, x.ndim))
                mask = torch.zeros(x.shape[2:], dtype=x.dtype)
                for w in frequencies:
                    mask[tuple(w)] = mask[tuple(-a for a in w)] = 1
                x = torch.fft.ifftn(torch.fft.fftn(x, dim=space) * mask, dim=space).real
    return x


def read_out(network: nn.Module, task: Task, frequency: int) -> list[Readout]:
    """Return position and velocity read out from all layers; maps are fitted on half of the test samples.

    White noise of `NOISE` times the power of the layer is added to every coefficient, so that much weaker components
    are not detected.
    """
    x = held_out(task)[0].double()
    places = angles(task, frequency)
    (flow,) = capture(network, x, chunk_size=len(x))
    return [_read(images, places, frequency) for images in flow.preactivations]


def angles(task: Task, frequency: int = 1) -> Tensor:
    """Return the angles 2 pi w q_t / n of the test balls at t = -1, 0, ..., shape (time, sample, axis)."""
    assert task.truth is not None
    d, n = task.x.ndim - 2, task.x.shape[-1]
    cosine, sine, velocity = task.truth.latents_test.split(d, 1)
    fall = torch.tensor([float(task.settings["gravity"]), 0.0][:d], dtype=torch.float64)
    t = torch.arange(-1, task.y.shape[1] // n**d + 1, dtype=torch.float64)[:, None, None]
    fallen = 2 * math.pi / n * (t * velocity + t * (t + 1) / 2 * fall)
    return frequency * torch.atan2(sine, cosine).add(fallen)


def _read(images: Tensor, places: Tensor, frequency: int) -> Readout:
    samples, axes = places.shape[1:]
    half = samples // 2
    transformed = torch.fft.fftn(images, dim=tuple(range(2, images.ndim)), norm="ortho")
    noise = NOISE * float(images.square().flatten(1).sum(1).mean())
    generator = torch.Generator().manual_seed(0)
    wanted, read = torch.exp(-1j * places), torch.zeros(places.shape, dtype=torch.complex128)
    for axis in range(axes):
        at = [0] * axes
        at[axis] = frequency
        z = transformed[(slice(None), slice(None), *at)]
        z = z + math.sqrt(noise) * torch.randn(z.shape, dtype=z.dtype, generator=generator)
        read[:, :, axis] = (z @ torch.linalg.lstsq(z[:half], wanted[:, :half, axis].T).solution).T
    error = (read - wanted).abs().square()
    fitted, linear = (1 - part.mean(1).amax(1) for part in (error[:, :half], error[:, half:]))
    first = int(torch.minimum(fitted[:-1], fitted[1:]).argmax())
    before, after = read[first, half:], read[first + 1, half:]
    position, step = places[first, half:], (places[first + 1] - places[first])[half:]
    return Readout(
        linear.numpy(),
        first - 1,
        tuple(_compare(position[:, k], -before[:, k].angle()) for k in range(axes)),
        tuple(_compare(step[:, k], (before[:, k] * after[:, k].conj()).angle()) for k in range(axes)),
    )


def _compare(true: Tensor, read: Tensor) -> Read:
    """Return true and read angles, both in (-pi, pi] around the circular mean of the true ones, and R^2."""
    middle = torch.exp(1j * true).mean().angle()
    true = _wrapped(true - middle)
    apart = _wrapped(read - middle - true)
    r2 = 1 - float(apart.square().sum() / true.square().sum())
    return Read(true.numpy(), (true + apart).numpy(), r2)


def _wrapped(angle: Tensor) -> Tensor:
    return torch.remainder(angle + math.pi, 2 * math.pi) - math.pi
