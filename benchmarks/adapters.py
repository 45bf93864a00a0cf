"""``python -m benchmarks.adapters [seed ...]``: adapters with ranks of `bnrank.lora_ranks` against uniform ranks.

A network of widths 16-32-32-32-8 with random weights is pretrained; the new task is the same network with updates of
given ranks added to its weights, each of half the norm of the weights. 500 samples train, 1,000 test. Uniform rank is
2; the other ranks have the same number of parameters or fewer. Adapters are trained by 400 steps of Adam.
"""

from __future__ import annotations

import copy
import statistics
import sys
from itertools import pairwise

import torch
from torch import Tensor, nn

import bnrank

WIDTHS = (16, 32, 32, 32, 8)
UNIFORM = 2
PLANTED = {
    "ranks 0, 6, 0, 1": (0, 6, 0, 1),
    "ranks 4, 0, 0, 0": (4, 0, 0, 0),
    "ranks 0, 2, 5, 0": (0, 2, 5, 0),
    "ranks 2, 2, 2, 2": (2, 2, 2, 2),
    "no relation (noise added to the outputs)": None,
}


def pretrained(seed: int) -> nn.Sequential:
    """Return the network."""
    draw = torch.Generator().manual_seed(seed)
    layers: list[nn.Module] = []
    for n_in, n_out in pairwise(WIDTHS):
        layer = nn.Linear(n_in, n_out)
        layer.weight.data = torch.randn(n_out, n_in, generator=draw) * (2 / n_in) ** 0.5
        layer.bias.data = 0.1 * torch.randn(n_out, generator=draw)
        layers += [layer, nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def linear(net: nn.Sequential) -> list[nn.Linear]:
    """Return the linear layers."""
    return [layer for layer in net if isinstance(layer, nn.Linear)]


def updated(net: nn.Sequential, ranks: tuple[int, ...], seed: int) -> nn.Sequential:
    """Return the network with random updates of given ranks, of half the norm of the weights."""
    draw, made = torch.Generator().manual_seed(seed + 7777), copy.deepcopy(net)
    for layer, rank in zip(linear(made), ranks, strict=True):
        if rank:
            n_out, n_in = layer.weight.shape
            update = torch.randn(n_out, rank, generator=draw) @ torch.randn(rank, n_in, generator=draw)
            layer.weight.data += update * 0.5 * layer.weight.norm() / update.norm()
    return made


def data(net: nn.Sequential, planted: tuple[int, ...] | None, seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return x, y of 500 training and 1,000 test samples."""
    draw = torch.Generator().manual_seed(seed + 99)
    x, x_test = torch.randn(500, WIDTHS[0], generator=draw), torch.randn(1000, WIDTHS[0], generator=draw)
    with torch.no_grad():
        if planted is not None:
            teacher = updated(net, planted, seed)
            return x, teacher(x), x_test, teacher(x_test)
        spread = net(x).std(0)
        made = [net(part) + spread * torch.randn(len(part), WIDTHS[-1], generator=draw) for part in (x, x_test)]
    return x, made[0], x_test, made[1]


def adapted(net: nn.Sequential, ranks: list[int], x: Tensor, y: Tensor, steps: int = 400) -> nn.Sequential:
    """Return the network with adapters of these ranks, trained and merged."""
    draw, layers = torch.Generator().manual_seed(1), linear(net)
    down = [torch.randn(r, w.weight.shape[1], generator=draw) / w.weight.shape[1] ** 0.5 for r, w in zip(ranks, layers)]  # noqa: B905
    up = [torch.zeros(len(w.weight), r) for r, w in zip(ranks, layers, strict=True)]
    weights = [layer.weight.detach() for layer in layers]
    trained = [factor.requires_grad_() for factor in (*up, *down)]
    names = [f"{name}.weight" for name, layer in net.named_children() if isinstance(layer, nn.Linear)]

    def merged() -> dict[str, Tensor]:
        return {n: w + b @ a for n, w, b, a in zip(names, weights, up, down, strict=True)}

    optimizer = torch.optim.Adam(trained, lr=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(steps):
        optimizer.zero_grad()
        (torch.func.functional_call(net, merged(), (x,)) - y).square().sum(1).mean().backward()
        optimizer.step()
        schedule.step()
    made = copy.deepcopy(net)
    made.load_state_dict({n: p.detach() for n, p in merged().items()}, strict=False)
    return made


def loss(net: nn.Module, x: Tensor, y: Tensor) -> float:
    """Return the mean squared error, summed over outputs."""
    with torch.no_grad():
        return float((net(x) - y).square().sum(1).mean())


def compared(seed: int, planted: tuple[int, ...] | None) -> tuple[float, float, float, list[int]]:
    """Return the test losses without adapters, with uniform ranks and with those of `lora_ranks`, and the latter."""
    net = pretrained(seed)
    x, y, x_test, y_test = data(net, planted, seed)
    budget = UNIFORM * sum(sum(layer.weight.shape) for layer in linear(net))
    pattern = bnrank.lora_ranks(net, x, y, budget=budget)
    ranks = [pattern.ranks[name] for name, layer in net.named_children() if isinstance(layer, nn.Linear)]
    ours, uniform = (adapted(net, r, x, y) for r in (ranks, [UNIFORM] * len(ranks)))
    return loss(net, x_test, y_test), loss(uniform, x_test, y_test), loss(ours, x_test, y_test), ranks


def main() -> None:
    """Print, for each case, the median test losses in percent of that without adapters, and how often either wins."""
    seeds = [int(text) for text in sys.argv[1:]] or list(range(20, 30))
    print("case | uniform, % | lora_ranks, % | better, equal, worse | median ratio, least, greatest | ranks")
    for name, planted in PLANTED.items():
        rows = [compared(seed, planted) for seed in seeds]
        uniform, ours = ([100 * row[k] / row[0] for row in rows] for k in (1, 2))
        ratio = [b / a for a, b in zip(uniform, ours, strict=True)]
        wins = f"{sum(r < 1 for r in ratio)}, {sum(r == 1 for r in ratio)}, {sum(r > 1 for r in ratio)}"
        spread = f"{statistics.median(ratio):.2f}, {min(ratio):.2f}, {max(ratio):.2f}"
        numbers = f"{statistics.median(uniform):.3g} | {statistics.median(ours):.3g}"
        print(f"{name} | {numbers} | {wins} | {spread} | {rows[0][3]}", flush=True)


if __name__ == "__main__":
    main()
