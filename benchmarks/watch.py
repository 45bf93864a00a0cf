"""What a watch costs in a loop of torch, against the same loop without."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator

import torch
from torch import nn

import bnrank
from benchmarks.rows import Row
from benchmarks.timing import in_turn

__all__ = ["measure"]

BATCH, EVERY = 128, 100  # the default rate
CLASSES = 10


class Block(nn.Module):
    """A residual block of two convolutions."""

    def __init__(self, c_in: int, c_out: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(c_in, c_out, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(c_out, c_out, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(c_out), nn.BatchNorm2d(c_out)])
        same = stride == 1 and c_in == c_out
        self.short = nn.Identity() if same else nn.Conv2d(c_in, c_out, 1, stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.norms[1](self.second(self.norms[0](self.first(x)).relu()))
        return (out + self.short(x)).relu()


def _resnet() -> tuple[nn.Module, torch.Tensor]:
    """Return ResNet-18 for images of 32 x 32, 11 million parameters."""
    widths = [64, 64, 64, 128, 128, 256, 256, 512, 512]
    blocks = [Block(a, b, 1 if a == b else 2) for a, b in itertools.pairwise(widths)]
    stem = [nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, CLASSES)]
    return nn.Sequential(*stem, *blocks, *head), torch.randn(BATCH, 3, 32, 32)


def _transformer() -> tuple[nn.Module, torch.Tensor]:
    """Return an encoder of 10.6 million parameters, and 16 sequences of 64 vectors."""
    layer = nn.TransformerEncoderLayer(384, 6, 1536, dropout=0.1, batch_first=True)
    body = nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)
    return nn.Sequential(body, nn.Linear(384, CLASSES)), torch.randn(16, 64, 384)


NETWORKS: dict[str, Callable[[], tuple[nn.Module, torch.Tensor]]] = {
    f"ResNet-18, 32 x 32, batch {BATCH}": _resnet,
    "transformer, 10.6 million parameters, 16 x 64 tokens": _transformer,
}


def measure(quick: bool) -> Iterator[Row]:
    """Time single steps with and without a measurement in turn, and convert to the default rate."""
    for name, make in NETWORKS.items():
        yield _cost(name, make, rounds=2 if quick else 5)


def _cost(name: str, make: Callable[[], tuple[nn.Module, torch.Tensor]], rounds: int) -> Row:
    torch.manual_seed(0)
    net, x = make()
    y = torch.randint(CLASSES, x.shape[: x.ndim - 1] if x.ndim == 3 else (len(x),))
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3, momentum=0.9)

    def step(found: bnrank.training.Watch | None) -> float:
        began = time.perf_counter()
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x).flatten(0, -2), y.flatten()).backward()
        optimizer.step()
        if found is not None:
            found.step()
        return time.perf_counter() - began

    def measured() -> float:
        with bnrank.watch(net) as found:  # the first step is measured
            return step(found)

    def unmeasured() -> float:
        with bnrank.watch(net) as found:
            found.steps = 1
            found._arm()
            return step(found)

    times = in_turn({"without": lambda: step(None), "between": unmeasured, "measured": measured}, rounds)

    def cost(t: dict[str, float]) -> float:
        extra = (t["measured"] - t["without"]) / EVERY
        return 100 * extra / t["without"]

    best = cost({key: min(t[key] for t in times) for key in ("without", "measured")})
    spread = times.spread(cost)
    plain = times.spread(lambda t: t["without"]).median
    more = times.spread(lambda t: t["measured"] - t["without"]).median
    between = times.spread(lambda t: 100 * (t["between"] / t["without"] - 1)).median
    return Row(
        "watch",
        f"watch, {name}, every {EVERY} steps",
        "the same loop without",
        type(spread)(spread.median, spread.low, spread.high, best),
        at_most=2.0,
        unit="%",
        note=f"a step takes {plain:.2f} s, a measurement {more:.2f} s more; steps between: {between:+.1f} %",
    )
