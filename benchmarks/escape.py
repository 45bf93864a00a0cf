"""Escape directions: starts per second of `escape.find`'s batch against plain loops over the starts."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import numpy as np
import torch

import bnrank
from benchmarks.rows import Row
from benchmarks.timing import in_turn, seconds
from bnrank.theory.escape.search import Batch

__all__ = ["measure"]

DEPTH, WIDTH, STARTS, STEP = 3, 16, 64, 0.05
SAME = 1e-10


def starts(count: int) -> list[np.ndarray]:
    """Return standard normal weights of all starts, layer by layer."""
    rng = np.random.default_rng(0)
    widths = [2, *[WIDTH] * (DEPTH - 1), 1]
    return [rng.normal(size=(count, b, a)) for a, b in itertools.pairwise(widths)]


def batch(x: np.ndarray, g: np.ndarray, weights: list[np.ndarray], steps: int) -> np.ndarray:
    """Return the speeds after projected steps of all starts at once."""
    members = Batch(weights, x, g, 0.0)
    for _ in range(steps):
        members.step(STEP, scaled=False)
    return members.speeds()


def with_autograd(x: np.ndarray, g: np.ndarray, weights: list[np.ndarray], steps: int) -> np.ndarray:
    """Return the same one start after another, with PyTorch's autograd."""
    x_, g_ = torch.from_numpy(x), torch.from_numpy(g)

    def speed(layers: list[torch.Tensor]) -> torch.Tensor:
        a = x_
        for w in layers[:-1]:
            a = torch.relu(a @ w.T)
        return -(g_ * (a @ layers[-1].T)).sum()

    result = []
    for number in range(len(weights[0])):
        layers = [torch.from_numpy(w[number] / np.linalg.norm(w[number])).requires_grad_() for w in weights]
        for _ in range(steps):
            gradients = torch.autograd.grad(speed(layers), layers)
            with torch.no_grad():
                for w, d in zip(layers, gradients, strict=True):
                    w += STEP * d
                    w /= w.norm()
        result.append(speed(layers).item())
    return np.array(result)


def by_hand(x: np.ndarray, g: np.ndarray, weights: list[np.ndarray], steps: int) -> np.ndarray:
    """Return the same one start after another, in NumPy with the gradient written out."""
    result = []
    for number in range(len(weights[0])):
        layers = [w[number] / np.linalg.norm(w[number]) for w in weights]
        for k in range(steps + 1):
            inputs = [x.T]
            for w in layers[:-1]:
                inputs.append(np.maximum(w @ inputs[-1], 0))
            delta = -g.T
            gradients = []
            for w, a in zip(layers[::-1], inputs[::-1], strict=True):
                gradients.append(delta @ a.T)
                delta = (w.T @ delta) * (a > 0)
            if k < steps:
                moved = [w + STEP * d for w, d in zip(layers, gradients[::-1], strict=True)]
                layers = [w / math.sqrt((w * w).sum()) for w in moved]
        result.append(float((layers[-1] * gradients[0]).sum()))
    return np.array(result)


def measure(quick: bool) -> Iterator[Row]:
    """Check that all give the same speeds, then time them in turn."""
    task = bnrank.tasks.circle(dtype=torch.float64)
    x, g = task.x.numpy(), -task.y.numpy()
    weights = starts(STARTS)
    steps = 50 if quick else 200
    for name, plain in (
        ("a loop over the starts, PyTorch with autograd", with_autograd),
        ("a loop over the starts, NumPy with the gradient by hand", by_hand),
    ):
        title = f"escape directions, starts per second, depth {DEPTH} × width {WIDTH}, {STARTS} starts"
        apart = float(np.abs(batch(x, g, weights, 20) - plain(x, g, weights, 20)).max())
        if not apart <= SAME:
            yield Row("escape", title, name, None, note=f"not the same numbers: they differ by {apart:.1g}")
            continue

        def timed(function, count):  # type: ignore[no-untyped-def]
            return lambda: seconds(lambda: function(x, g, weights, count)) / count

        times = in_turn({"ours": timed(batch, 10 * steps), "theirs": timed(plain, steps)}, 3 if quick else 7)
        per_second = {key: STARTS / (4000 * min(t[key] for t in times)) for key in ("ours", "theirs")}
        yield Row(
            "escape",
            title,
            name,
            times.ratio("theirs", "ours"),
            note=f"{per_second['ours']:.3g} and {per_second['theirs']:.3g} starts of 4,000 steps per second; "
            f"the same to {apart:.0e} after 20 steps",
        )
