"""The networks that are compressed: trained anew from a seed, in seconds, as plain ``nn.Sequential``."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

import bnrank
from benchmarks.against import compression_models as models
from bnrank import tasks
from bnrank.tasks import Task
from bnrank.training import Adam

__all__ = ["CASES", "Case", "Trained"]


@dataclass(frozen=True)
class Trained:
    """A network, the inputs that a method may use, inputs held out, and labels of these where there are classes."""

    net: nn.Module
    x: Tensor
    held_out: Tensor
    labels: Tensor | None
    data: str


@dataclass(frozen=True)
class Case:
    """What is trained, in words, how, and whether rules of the library were chosen on networks like it."""

    about: str
    trained: Callable[[int], Trained]
    tuned: bool = False
    own_tuning: bool = False  # whether bnrank's own fine-tuning is tried, which is slow
    tuning: bool = True  # whether fine-tuning is affordable at all


def norm_and_depth(seed: int) -> Trained:
    """Train on F4's data: rank 2, depth 12, width 100, ridge 1e-3."""
    return _mlp(tasks.low_rank_map(seed=seed), 12, 100, ridge=1e-3, steps=600, seed=seed)


def bottleneck_spectra(seed: int) -> Trained:
    """Train on F1's data: rank 4, depth 13, width 100, ridge 0.05 / L."""
    return _mlp(tasks.bottleneck_spectra_map(rank=4, seed=seed), 13, 100, ridge=0.05 / 13, steps=500, seed=seed)


def another_map(seed: int) -> Trained:
    """Train on a low-rank map with sizes and noise of its own."""
    task = tasks.low_rank_map(500, 30, 10, latent=6, rank=3, width=60, seed=seed, noise=0.05, n_test=500)
    return _mlp(task, 9, 60, ridge=2e-3, steps=600, seed=seed)


def handwritten(seed: int) -> Trained:
    """Train an MLP on handwritten digits with a ridge: mini-batches of 250, Adam."""
    task = tasks.handwritten_digits(n=5000, n_test=5000, seed=seed)
    return _mlp(task, 6, 100, ridge=1e-3, steps=1000, seed=seed, optimizer=Adam(2e-3, "cosine"), batch_size=250)


def without_ridge(seed: int) -> Trained:
    """Train an MLP on the 8 x 8 digits by plain Adam, PyTorch's initial draw, no ridge."""
    task = tasks.digits(seed=seed)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        sizes = [64, 100, 100, 100, 10]
        net = nn.Sequential(*_chain([nn.Linear(a, b) for a, b in itertools.pairwise(sizes)]))
    _plain_adam(net, task.x, task.y, 0.0, 600, seed)
    return _finished(net, task, task.x, task.x_test)


def convolutional(seed: int) -> Trained:
    """Train a small convolutional classifier on the 8 x 8 digits: three convolutions, a ridge through Adam."""
    task = tasks.digits(n=800, seed=seed)
    x, x_test = (some.reshape(-1, 1, 8, 8) for some in (task.x, task.x_test))
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        convolutions = [nn.Conv2d(a, b, 3, padding=1) for a, b in ((1, 8), (8, 16), (16, 16))]
        parts = _chain([*convolutions, nn.Linear(16 * 16, 10)])
    net = nn.Sequential(*parts[:4], nn.AvgPool2d(2), *parts[4:6], nn.Flatten(), parts[6])
    _plain_adam(net, x, task.y, 1e-3, 400, seed)
    return _finished(net, task, x, x_test)


def mnist(make: Callable[[], nn.Module]) -> Callable[[int], Trained]:
    """Train a network on 28 x 28 digits: cross-entropy, 700 steps of Adam with batches of 128."""

    def trained(seed: int) -> Trained:
        task = tasks.handwritten_digits(n=5000, n_test=2000, seed=seed)
        x, x_test = (some.reshape(len(some), 1, 28, 28) for some in (task.x, task.x_test))
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            net = make()
        _plain_adam(net, x, task.y, 0.0, 700, seed)
        return _finished(net, task, x[:1000], x_test)

    return trained


def masked(seed: int) -> Trained:
    """Train a two-layer encoder to predict one masked character of 24, with 1,000 steps of Adam."""
    x, y = models.characters(12_000, seed)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        net = models.Characters()
    _plain_adam(net, x[:9000], y[:9000], 0.0, 1000, seed)
    return Trained(net.eval().requires_grad_(False), x[9000:10000], x[11000:], y[11000:], "characters")


def voice(seed: int) -> Trained:
    """Load silero-vad; sounds are synthetic."""
    x, x_test = models.sounds(1500, 64 + 512 * 4, seed), models.sounds(400, 64 + 512 * 4, seed + 1000)
    return Trained(models.Voice().eval().requires_grad_(False), x, x_test, None, "synthetic")


def _mlp(task: Task, depth: int, width: int, *, seed: int, **settings: object) -> Trained:
    net = bnrank.MLP([task.d_in, *[width] * (depth - 1), task.classes or task.d_out])
    run = bnrank.train(net, task, seed=seed, record=settings["steps"], progress=False, **settings)  # type: ignore[arg-type]
    found = run.network(0)
    made = [nn.Linear(*weight.shape[::-1]) for weight in found.weights]
    with torch.no_grad():
        for layer, weight, bias in zip(made, found.weights, found.biases, strict=True):
            layer.weight.copy_(weight)
            layer.bias.copy_(bias)
    return _finished(nn.Sequential(*_chain(made)), task, task.x, task.x_test)


def _chain(made: list[nn.Module]) -> list[nn.Module]:
    """Return the layers with ReLU between."""
    return [part for layer in made for part in (layer, nn.ReLU())][:-1]


def _plain_adam(net: nn.Module, x: Tensor, y: Tensor, ridge: float, steps: int, seed: int) -> None:
    """Minimize the cross-entropy plus ridge ||theta||^2 over mini-batches of 128."""
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3, weight_decay=2 * ridge)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        rows = torch.randint(len(x), (128,), generator=generator)
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x[rows]), y[rows]).backward()
        optimizer.step()


def _finished(net: nn.Module, task: Task, x: Tensor, held_out: Tensor | None) -> Trained:
    assert held_out is not None
    labels = task.y_test if task.classes else None
    return Trained(net.eval().requires_grad_(False), x, held_out, labels, task.name)


CASES = {
    "F4": Case("F4's map of rank 2, 12 layers of width 100, ridge 0.001", norm_and_depth, tuned=True, own_tuning=True),
    "F1": Case("F1's map of rank 4, 13 layers of width 100, ridge 0.05/13", bottleneck_spectra, tuned=True),
    "another map": Case(
        "30 -> 10, rank 3, noise 0.05, 9 layers of width 60, ridge 0.002", another_map, own_tuning=True
    ),
    "digits, ridge": Case("5,000 handwritten digits, 784-100x5-10, ridge 0.001, Adam", handwritten, tuned=True),
    "digits, no ridge": Case("8 x 8 digits, 64-100x3-10, plain Adam without ridge", without_ridge, own_tuning=True),
    "digits, convolutions": Case(
        "800 of the 8 x 8 digits, convolutions 8-16-16 and 256-10, ridge 0.001, Adam", convolutional
    ),
    "MNIST, MLP": Case("5,000 images of MNIST, 784-300-100-10, Adam without ridge", mnist(models.perceptron)),
    "MNIST, CNN": Case(
        "5,000 images of MNIST, convolutions 16-32, 1568-64-10, Adam without ridge", mnist(models.convolutional)
    ),
    "ViT": Case(
        "5,000 images of MNIST, nn.TransformerEncoder of 3 layers, width 64, 4 heads, patches of 7 x 7",
        mnist(models.Vision),
    ),
    "BERT": Case("characters of Python's standard library, 2 layers, width 48, 4 heads, one character masked", masked),
    "silero-vad": Case("voice detector of silero-vad, four steps, on synthetic harmonic sounds and noise", voice),
}
