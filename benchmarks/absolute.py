"""Absolute times of training, measuring and compressing on a device."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator

import torch
from torch import nn

import bnrank
from benchmarks.configurations import LR, RIDGE, THREE, Configuration
from benchmarks.rows import Row, Spread
from bnrank._core import devices
from bnrank.training import Adam

__all__ = ["checked", "measure", "named"]

WIDE = [100, 1000, 1000, 1000, 100]
SAMPLES = 1000


def checked(name: str) -> torch.device:
    """Return a device of this machine.

    Raises
    ------
    ValueError
        If there is none of this name, or it cannot compute.
    """
    try:
        device = torch.device(name)
        torch.ones(2, device=device).sum().item()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        first = str(error).splitlines()[0]
        raise ValueError(f"--device: got {name!r}, expected a device of this machine: {first}") from error
    return torch.device(device.type, 0) if device.type != "cpu" and device.index is None else device


def named(device: torch.device) -> str:
    """Return the name of a device, with that of its model where there is one."""
    return f"{device}, {torch.cuda.get_device_name(device)}" if device.type == "cuda" else str(device)


def measure(quick: bool, device: torch.device) -> Iterator[Row]:
    """Time each call after one that warms up; nothing is compared with anything."""
    rounds = 2 if quick else 7
    for configuration, _ in THREE:
        yield _step(configuration, device, rounds)
    net, x = bnrank.MLP(WIDE, seed=0).to(device), torch.randn(SAMPLES, WIDE[0], generator=_generator()).to(device)
    about = f"depth {len(WIDE) - 1} × width {max(WIDE)}, N {SAMPLES}"
    convolutions = _convolutions().to(device)
    images = torch.randn(64, 3, 32, 32, generator=_generator()).to(device)
    calls: dict[str, Callable[[], object]] = {
        f"weight spectra, {about}": lambda: bnrank.spectra.weight_singular_values(net),
        f"activation spectra, {about}": lambda: bnrank.spectra.activation_singular_values(net, x),
        f"Jacobian singular values, {about}": lambda: bnrank.Jacobian(net, x).singular_values,
        f"NTK trace, {about}": lambda: bnrank.ntk.trace(net, x),
        "weight spectra, 4 convolutions of 64 channels, 32 × 32": lambda: bnrank.spectra.weight_singular_values(
            convolutions, images
        ),
    }
    targets = torch.randn(SAMPLES, WIDE[-1], generator=_generator()).to(device)
    budget = 2 * sum(sum(layer.weight.shape) for layer in net.layers)
    calls[f"ranks of adapters, {about}"] = lambda: bnrank.lora_ranks(net, x, targets, budget=budget, steps=40)
    for name, call in calls.items():
        yield Row("absolute", name, "", _times(call, device, rounds), unit="s")


def _step(configuration: Configuration, device: torch.device, rounds: int) -> Row:
    def train(steps: int) -> Callable[[], object]:
        options = {"members": configuration.members, "seed": 0, "ridge": RIDGE, "optimizer": Adam(LR)}
        net = configuration.net().to(device)
        return lambda: bnrank.train(
            net, configuration.task, steps=steps, record=max(1, steps), progress=False, **options
        )

    one, many = (_times(train(steps), device, rounds) for steps in (1, configuration.steps + 1))
    steps = configuration.steps
    spread = Spread((many.median - one.median) / steps, (many.low - one.low) / steps, (many.high - one.low) / steps)
    return Row("absolute", f"Adam step, {configuration}", "", spread, unit="s", note="all members at once")


def _times(call: Callable[[], object], device: torch.device, rounds: int) -> Spread:
    taken = []
    for _ in range(rounds + 1):
        devices.synchronize(device)
        began = time.perf_counter()
        call()
        devices.synchronize(device)
        taken.append(time.perf_counter() - began)
    return Spread.of(taken[1:])


def _convolutions() -> nn.Module:
    torch.manual_seed(0)
    channels = [3, 64, 64, 64, 64]
    layers = [nn.Conv2d(a, b, 3, padding=1, padding_mode="circular") for a, b in itertools.pairwise(channels)]
    return nn.Sequential(*layers)


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)
