"""The strong baseline: an encoder and a decoder x -> k -> y, trained for every k, the count by cross-validation."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

__all__ = ["sweep", "train_members"]

WIDTH = 64
LARGEST = 8  # latent width
FOLDS = 3
BATCH = 128
STEPS = 600
EVERY = 20  # steps between looks at the held-out rows
RATE = 3e-3
DECAYS = (1.0, 3.0)  # of AdamW, the better by the held-out rows
SEEDS = 3

Function = Callable[[np.ndarray], np.ndarray]


class Members(torch.nn.Module):
    """M networks d -> 64 -> 64 -> k -> 64 -> 64 -> outputs side by side, member m with ``latents[m]`` latents."""

    def __init__(self, sizes: tuple[int, int], latents: list[int], generator: torch.Generator) -> None:
        super().__init__()
        widths = [sizes[0], WIDTH, WIDTH, LARGEST, WIDTH, WIDTH, sizes[1]]
        self.weights, self.biases = torch.nn.ParameterList(), torch.nn.ParameterList()
        counts = torch.tensor(latents).view(-1, 1, 1)
        for i, (into, out) in enumerate(pairwise(widths)):
            variance = (1 if i in (2, 5) else 2) / (counts if i == 3 else torch.tensor(into))
            self.weights.append(variance.sqrt() * torch.randn(len(latents), into, out, generator=generator))
            self.biases.append(torch.zeros(len(latents), 1, out))
        keep = torch.arange(LARGEST)[None, None] < counts
        self.register_buffer("keep", keep.float())

    def encode(self, x: Tensor) -> Tensor:
        """Return the latents, (M, rows, 8), those beyond a member's width 0, at x of (M, rows, d)."""
        for i in range(2):
            x = torch.relu(torch.baddbmm(self.biases[i], x, self.weights[i]))
        return torch.baddbmm(self.biases[2], x, self.weights[2]) * self.keep

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs, (M, rows, outputs)."""
        x = self.encode(x)
        for i in range(3, 5):
            x = torch.relu(torch.baddbmm(self.biases[i], x, self.weights[i]))
        return torch.baddbmm(self.biases[5], x, self.weights[5])


def train_members(
    x: Tensor,
    y: Tensor,
    latents: list[int],
    rows: list[Tensor],
    held_out: list[Tensor] | None,
    steps: int,
    seed: int,
    decay: float,
) -> tuple[Members, Tensor, Tensor]:
    """Train one member per entry of ``latents`` with AdamW, on its rows.

    Returns
    -------
    Members
        After the last step.
    Tensor
        Squared error on the held-out rows of each member, (M, rows), where its mean was least; empty without them.
    Tensor
        The step at which that was, (M,).
    """
    generator = torch.Generator().manual_seed(seed)
    members = Members((x.shape[1], y.shape[1]), latents, generator)
    optimizer = torch.optim.AdamW(members.parameters(), lr=RATE, weight_decay=decay)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    best, when = torch.empty(len(latents), 0), torch.zeros(len(latents), dtype=torch.long)
    batch = min(BATCH, *(len(r) for r in rows))
    for step in range(1, steps + 1):
        chosen = torch.stack([r[torch.randint(len(r), (batch,), generator=generator)] for r in rows])
        optimizer.zero_grad()
        (members(x[chosen]) - y[chosen]).square().mean((1, 2)).sum().backward()
        optimizer.step()
        schedule.step()
        if held_out is not None and (step % EVERY == 0 or step == steps):
            least = min(len(h) for h in held_out)
            test = torch.stack([h[:least] for h in held_out])
            with torch.no_grad():
                errors = (members(x[test]) - y[test]).square().sum(2)
            if not best.shape[1]:
                best = torch.full_like(errors, torch.inf)
            better = errors.mean(1) < best.mean(1)
            best[better], when[better] = errors[better], step
    return members, best, when


def sweep(
    x: np.ndarray, y: np.ndarray, seed: int, choose: Callable[[np.ndarray], int]
) -> tuple[int, Function | None, Function]:
    """Train latent widths 1 to 8 on three folds with early stopping, choose k from the errors, train it on all rows.

    The weight decay is the one of two whose best width predicts held-out rows better.

    ``choose`` takes held-out squared errors (9, rows), k = 0 being the mean, and returns k. The final networks, three
    seeds, take the median of the folds' best steps; predictions are their mean, coordinates those of the first.

    Returns
    -------
    int, function or None, function
        k, x -> z (None for k = 0) and x -> y.
    """
    x_center, x_scale, y_center = x.mean(0), x.std(0) + 1e-12, y.mean(0)
    y_scale = np.sqrt(y.var(0).mean())
    inputs = torch.tensor((x - x_center) / x_scale, dtype=torch.float32)
    outputs = torch.tensor((y - y_center) / y_scale, dtype=torch.float32)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    parts = [order[i::FOLDS] for i in range(FOLDS)]
    rest = [torch.cat([p for j, p in enumerate(parts) if j != i]) for i in range(FOLDS)]
    latents = [k for k in range(1, LARGEST + 1) for _ in range(FOLDS)]
    tried = [
        (decay, *train_members(inputs, outputs, latents, rest * LARGEST, parts * LARGEST, STEPS, seed, decay)[1:])
        for decay in DECAYS
    ]
    decay, errors, when = min(tried, key=lambda t: float(t[1].reshape(LARGEST, -1).mean(1).min()))
    least = errors.shape[1]
    pairs = zip(parts, rest, strict=True)
    means = torch.cat([(outputs[part[:least]] - outputs[r].mean(0)).square().sum(1) for part, r in pairs])
    k = choose(torch.vstack([means[None], errors.reshape(LARGEST, FOLDS * least)]).double().numpy())
    if not k:
        return 0, None, lambda new: np.broadcast_to(y_center, (len(new), y.shape[1]))
    steps = int(when.reshape(LARGEST, FOLDS)[k - 1].median())
    final, *_ = train_members(inputs, outputs, [k] * SEEDS, [order] * SEEDS, None, steps, seed + 1, decay)

    def shared(new: np.ndarray) -> Tensor:
        return torch.tensor((new - x_center) / x_scale, dtype=torch.float32).expand(SEEDS, -1, -1)

    @torch.no_grad()
    def encode(new: np.ndarray) -> np.ndarray:
        return final.encode(shared(new))[0, :, :k].double().numpy()

    @torch.no_grad()
    def predict(new: np.ndarray) -> np.ndarray:
        return y_center + y_scale * final(shared(new)).mean(0).double().numpy()

    return k, encode, predict
