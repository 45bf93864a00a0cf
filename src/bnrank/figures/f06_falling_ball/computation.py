"""The computation of F6: a circular network that predicts a falling ball, and readouts of the ball from its layers."""

import json
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xarray as xr
from torch import Tensor, nn

from bnrank.figures.f06_falling_ball.fourier import in_fourier_space
from bnrank.figures.f06_falling_ball.readouts import Readout, read_out
from bnrank.figures.harness.training import held_out, relative_error, train_recorded
from bnrank.measures import profile
from bnrank.measures.frequencies import Kept, grid, kept
from bnrank.networks import CircularConvolutional
from bnrank.tasks import Task, falling_ball
from bnrank.training import Adam, Run

PROFILED = 300  # samples of a profile
LINEAR = 0.05  # nonlinearity ratio below which a layer counts as nearly linear
KNOWN = 0.95  # share of a variance above which it counts as explained
UNKNOWN = 0.5  # share of a variance below which it counts as not explained
GAP = 20  # smallest ratio of singular values across a gap


@dataclass(frozen=True)
class Setup:
    """A falling ball and the networks that predict it.

    Attributes
    ----------
    size, speed, gravity, width, samples, frames
        Of `bnrank.tasks.falling_ball`.
    channels : int
        Of the circular networks.
    depths, speeds, ridge, steps, lr : tuple
        Of successive stages of training: layers of the network, to which every stage adds identities; largest speed of
        the balls, the last of them that of the task; ridge; steps; step size of Adam (cosine), or 0 for L-BFGS.
    after : int
        The layer after which identities are added.
    pairs : int
        Singular values expected at each |w| = 1: two, of position and velocity, or one, of which the position is the
        phase and the velocity the amplitude.
    tests : int
        Test samples.
    members, seed : int
        Networks, and the seed of the first; their balls are the same, drawn with this seed.
    """

    size: int
    gravity: float
    width: float
    samples: int
    channels: int
    depths: tuple[int, ...]
    speeds: tuple[float, ...]
    ridge: tuple[float, ...]
    steps: tuple[int, ...]
    lr: tuple[float, ...]
    after: int = 2
    pairs: int = 2
    frames: int = 2
    tests: int = 1000
    members: int = 5
    seed: int = 10


@dataclass(frozen=True)
class Ball:
    """A trained network and its measurements.

    Attributes
    ----------
    title : str
        The torus and the speeds, in words.
    pairs : int
        Singular values expected at each |w| = 1.
    seed : int
        Of the start.
    loss : float
        The regularized loss on the training samples.
    task, network : Task, Module
        The data and the network, in float64.
    profile : Dataset
        Of `bnrank.profile`: singular values by frequency, nonlinearity, kept frequencies.
    history : Dataset
        Of the training's last stage.
    explained : float
        Share of the variance of the outputs that the network explains, on balls all over the torus.
    readouts, controls : list of Readout
        Of every layer, at frequency 1 (the velocity of one pair from its amplitude), and at frequency 2 (of one pair
        from frequency 0).
    only : float
        ``explained`` where all layers of the bottleneck pass on only the frequencies it keeps.
    without : float
        ``explained`` where a layer of the bottleneck loses the frequencies with |w| = 1, the maximum over the layers.
    """

    title: str
    pairs: int
    seed: int
    loss: float
    task: Task
    network: nn.Module
    profile: xr.Dataset
    history: xr.Dataset
    explained: float
    readouts: list[Readout]
    controls: list[Readout]
    only: float
    without: float

    @property
    def spectra(self) -> xr.DataArray:
        """Singular values of the weights, by layer and frequency."""
        return self.profile.frequency_singular_values

    @property
    def held(self) -> Kept:
        """The kept frequencies of the layers with the expected values at each |w| = 1 and no higher frequency."""
        return bottleneck(self.spectra, self.pairs)

    @property
    def layers(self) -> list[int]:
        """The layers of the bottleneck, counted from 1."""
        return inside(self.held)

    @property
    def clearest(self) -> int | None:
        """The layer with the widest gap, of those of the bottleneck below `LINEAR`; no readout decides."""
        bent = self.profile.nonlinearity
        linear = [layer for layer in self.layers if float(bent.sel(layer=layer)) < LINEAR]
        return max(linear, key=self.gap, default=None)

    def gap(self, layer: int) -> float:
        """Return the smallest of the expected singular values of a layer over its largest other one at |w| > 0."""
        values = np.nan_to_num(self.spectra.sel(layer=layer).transpose("frequency", ...).values)
        modulus = self.spectra["modulus"].values
        ones, beyond = values[modulus == 1], values[modulus > 1]
        others = max(ones[:, self.pairs :].max(initial=0), beyond.max(initial=0))
        return float(ones[:, : self.pairs].min() / max(others, 1e-12))

    @property
    def shows(self) -> bool:
        """Whether the clearest layer gives position and velocity where expected only, and the network the frames."""
        layer = self.clearest
        if layer is None or not self.explained > KNOWN:
            return False
        wanted, others = self.readouts[layer - 1], self.controls[layer - 1]
        return self.gap(layer) >= GAP and all(r2 > KNOWN for r2 in wanted.known) and others.most < UNKNOWN


def trained(
    dimensions: int, setup: Setup, out: Path, progress: bool
) -> tuple[Task, Run, dict[int, CircularConvolutional]]:
    """Train circular networks on a falling ball; return the data and the run of the last stage, and nets by seed.

    The training balls start within one pixel: network and data commute with translations, so translated samples are
    redundant. Test balls are spread over the whole torus. Each stage starts where the previous one ended, deeper by
    layers that change nothing: from the usual start, deep networks learn slowly, or only the mean image.
    """
    s, d = setup, dimensions
    ball: dict[str, Any] = {"width": s.width, "within": "pixel", "n_test": s.tests}
    tasks = [falling_ball(s.samples, s.size, d, s.frames, s.gravity, s.seed, speed=v, **ball) for v in s.speeds]
    seeds = range(s.seed, s.seed + s.members)
    nets = {seed: circular(tasks[0], s.depths[0], s.channels, s.frames, seed) for seed in seeds}
    stages = zip(tasks, s.depths, s.ridge, s.steps, s.lr, strict=True)
    for stage, (task, depth, ridge, steps, lr) in enumerate(stages, 1):
        nets = {seed: deepened(net, depth, s.after) for seed, net in nets.items()}
        options: dict[str, Any] = {"ridge": ridge, "steps": steps, "records": 50}
        options["optimizer"] = Adam(lr, "cosine") if lr else "lbfgs"
        starts = [in_fourier_space(net) for net in nets.values()]
        run = train_recorded(starts, task, out / f"{stage}", progress, **options)
        for i, net in enumerate(nets.values()):
            net.load_state_dict(run.network(i).state_dict())
    return task, run, nets


def follow(dimensions: int, setup: Setup, out: Path, progress: bool) -> list[Ball]:
    """Train circular networks on a falling ball, and return the measurements of all members, lowest loss first."""
    s = setup
    task, run, nets = trained(dimensions, setup, out, progress)
    losses, balls = run.summary.loss.values.tolist(), []
    for i, (seed, net) in enumerate(nets.items()):
        balls.append(_measured(s, seed, losses[i], task, net.double(), run.history.isel(member=[i])))
    return sorted(balls, key=lambda ball: ball.loss)


def _measured(s: Setup, seed: int, loss: float, task: Task, network: Any, history: xr.Dataset) -> Ball:
    """Return the measurements of one trained network."""
    settings = json.loads(history.attrs["settings"])  # of the network itself, instead of the one in Fourier space
    settings["network"] = f"{type(network).__name__}({network.extra_repr()}), trained in Fourier space"
    attributes = {"settings": json.dumps(settings, indent=1), "depth": s.depths[-1], "skipped": "[]"}
    x, y = (part.double() for part in held_out(task))
    measured, net = profile(network, x[:PROFILED], y[:PROFILED], max_jacobian_samples=2), in_fourier_space(network)
    places, held = grid(list(x.shape[2:])), bottleneck(measured.frequency_singular_values, s.pairs)
    layers, names = inside(held), [each.frequency for each in held.frequencies]
    whole = [w for w, length in zip(places.vectors, places.modulus, strict=True) if length != 1]
    only = [w for w, name in zip(places.vectors, places.names, strict=True) if name in names]
    torus = f"ring of {s.size} pixels" if x.ndim == 3 else f"torus of {s.size} x {s.size} pixels"
    return Ball(
        f"{torus}, velocities {'on a circle' if 2 * s.speeds[-1] >= s.size else f'up to {s.speeds[-1]:g}'}",
        s.pairs,
        seed,
        loss,
        task,
        network,
        measured,
        history.assign_attrs(attributes),
        1 - relative_error(kept_only(net, x, (), ()), y),
        read_out(net, task, 1, "phases" if s.pairs == 2 else "amplitude"),
        read_out(net, task, 2, "phases" if s.pairs == 2 else "means"),
        1 - relative_error(kept_only(net, x, only, layers), y) if layers else math.nan,
        max((1 - relative_error(kept_only(net, x, whole, [layer]), y) for layer in layers), default=math.nan),
    )


def circular(task: Task, depth: int, channels: int, frames: int, seed: int) -> CircularConvolutional:
    """Return a circular network with kernels as large as the image."""
    shape = task.x.shape[1:]
    return CircularConvolutional(shape, [channels] * (depth - 1) + [frames], kernel=shape[-1], seed=seed)


def deepened(net: CircularConvolutional, depth: int, after: int) -> CircularConvolutional:
    """Return the same function as a network of more layers: identities after a hidden layer (Jacot2023a).

    An identity after an activation changes nothing, as the ReLU of a non-negative image is the image itself.
    """
    given, channels = net.state_dict(), net.settings["channels"]
    first, extra = given["conv1.weight"], depth - len(channels)
    longer = [*channels[:-1], *channels[-2:-1] * extra, channels[-1]]
    found = CircularConvolutional(**{**net.settings, "channels": longer}, dtype=first.dtype)
    middle = tuple((k - 1) // 2 for k in first.shape[2:])
    state = {}
    for name, value in found.state_dict().items():
        layer, kind = int(name.removeprefix("conv").split(".")[0]), name.split(".")[1]
        if after < layer <= after + extra:
            state[name] = torch.zeros_like(value)
            if kind == "weight":
                state[name][(slice(None), slice(None), *middle)] = torch.eye(len(value), dtype=value.dtype)
        else:
            state[name] = given[f"conv{layer if layer <= after else layer - extra}.{kind}"]
    found.load_state_dict(state)
    return found


def bottleneck(values: xr.DataArray, pairs: int, atol: float = 0.1, near: tuple[float, float] = (0.5, 2.0)) -> Kept:
    """Return the longest run of layers with so many pairs of frequency 1 along each axis and no higher frequency (T27).

    At each |w| = 1 ``pairs`` singular values lie in ``near``, and all others at |w| > 0 are at most ``atol``. Frequency
    0 is ignored: it contains no information on the position, and offsets images to be non-negative. Its channels are
    still counted.
    """
    modulus = values["modulus"].values
    ones, others = np.nan_to_num(values.values[:, modulus == 1]), np.nan_to_num(values.values[:, modulus > 1])
    low, high = near
    clear = ((ones[..., :pairs] >= low) & (ones[..., :pairs] <= high)).all((1, 2))
    clear &= (ones[..., pairs:] <= atol).all((1, 2)) & (others <= atol).all((1, 2))
    marked = zip(values["layer"].values.tolist(), clear, strict=True)
    runs = [[layer for layer, _ in run] for key, run in groupby(marked, itemgetter(1)) if key]
    longest = max(runs, key=len, default=[])
    if not longest:
        return Kept(None, None, (), f"no layer has {pairs} value(s) near 1 at each |w| = 1 and none beyond")
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
