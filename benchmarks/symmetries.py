"""How often `symmetries` is right: ``python -m benchmarks.symmetries [closed|nothing|learned|tables] [--seeds ...]``.

Closed forms with a planted group (the count of generators must be that of the group), functions without a symmetry
(untrained and trained networks, with and without held-out targets), networks that learned planted groups, and tables as
scientists have them, fitted by `BottleneckRegressor`. For each: "right", "undetermined" or "WRONG".
"""

import argparse
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

import bnrank
from bnrank.discovery import BottleneckRegressor, NothingFoundWarning, symmetries
from bnrank.discovery.symmetry_search import Symmetries
from bnrank.tasks import Task

FIRST = 200  # the default seeds start here
Row = tuple[str, str, str]  # case, verdict, what was said


class Form(nn.Module):
    """A function of x as a module."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        """Return f(x)."""
        return self.function(x)


def _columns(*values: Tensor) -> Tensor:
    return torch.stack(values, 1)


def _square(x: Tensor, *columns: int) -> Tensor:
    return x[:, list(columns)].square().sum(1)


CLOSED: dict[str, tuple[Callable[[Tensor], Tensor], int, bool, int]] = {
    # name: f, number of columns, whether x is positive, number of generators
    "x1 / x2": (lambda x: _columns(x[:, 0] / x[:, 1]), 2, True, 1),
    "product of three": (lambda x: _columns(x.prod(1)), 3, True, 2),
    "Reynolds number": (lambda x: _columns((x[:, 0] * x[:, 1] * x[:, 2] / x[:, 3]).tanh()), 4, True, 3),
    "two pi groups": (lambda x: _columns(x[:, 0] * x[:, 1] / x[:, 2], x[:, 2] ** 2 / x[:, 3]), 4, True, 2),
    "pi group of squares": (lambda x: _columns(x[:, 0] * x[:, 1] / x[:, 2] ** 2), 3, True, 2),
    "|x|": (lambda x: _columns(x.norm(dim=1)), 4, False, 6),
    "|x1, x2|, x3": (lambda x: _columns(x[:, :2].norm(dim=1), x[:, 2]), 3, False, 1),
    "two planes": (lambda x: _columns(_square(x, 0, 1), _square(x, 2, 3)), 4, False, 2),
    "so(3) and a squeeze": (lambda x: _columns(_square(x, 0, 1, 2), x[:, 3] * x[:, 4]), 5, False, 4),
    "Lorentz (1, 1)": (lambda x: _columns(x[:, 0] ** 2 - x[:, 1] ** 2, x[:, 2]), 3, False, 1),
    "Lorentz (1, 3)": (lambda x: _columns(x[:, 0] ** 2 - _square(x, 1, 2, 3)), 4, False, 6),
    "det of 2 x 2": (lambda x: _columns(x[:, 0] * x[:, 3] - x[:, 1] * x[:, 2]), 4, False, 6),
    "trace and det": (lambda x: _columns(x[:, 0] + x[:, 3], x[:, 0] * x[:, 3] - x[:, 1] * x[:, 2]), 4, False, 3),
    "Kepler's energy": (lambda x: _columns(_square(x, 2, 3) / 2 - 1 / _square(x, 0, 1).sqrt()), 4, False, 2),
    "Kepler's energy and angular momentum": (
        lambda x: _columns(_square(x, 2, 3) / 2 - 1 / _square(x, 0, 1).sqrt(), x[:, 0] * x[:, 3] - x[:, 1] * x[:, 2]),
        4,
        False,
        1,
    ),
    "helix": (
        lambda x: _columns(x[:, 0] * x[:, 2].cos() + x[:, 1] * x[:, 2].sin(), _square(x, 0, 1), x[:, 3]),
        4,
        False,
        1,
    ),
    "spiral": (
        lambda x: _columns((torch.atan2(x[:, 1], x[:, 0]) - x[:, :2].norm(dim=1).log()).sin(), x[:, 2]),
        3,
        False,
        1,
    ),
    "shear": (lambda x: _columns(x[:, 1] - x[:, 0] ** 2 / 2, x[:, 2]), 3, False, 1),
    "difference": (lambda x: _columns((x[:, 0] - x[:, 1]).sin(), x[:, 2] ** 3), 3, False, 1),
    "distance of two points": (lambda x: _columns(_square(x[:, :2] - x[:, 2:], 0, 1)), 4, False, 3),
    "two ignored": (lambda x: _columns(x[:, 0] ** 3 + x[:, 1], x[:, 0] * x[:, 1] ** 2), 4, False, 2),
    "one sine": (lambda x: x[:, :1].sin(), 4, False, 3),
    "homogeneous": (lambda x: x / x.norm(dim=1, keepdim=True), 3, False, 1),
    "squeeze": (lambda x: _columns(x[:, 0] * x[:, 1], x[:, 2], x[:, 3]), 4, False, 1),
    "ellipsoid": (lambda x: _columns(x[:, 0] ** 2 + 4 * x[:, 1] ** 2 + 9 * x[:, 2] ** 2), 3, False, 3),
    "none: identity and squares": (lambda x: _columns(x[:, 0] + x[:, 1] ** 2, x[:, 1] + x[:, 0] ** 3), 2, False, 0),
    "none: cubes": (lambda x: x**3 + 0.5 * x.roll(1, 1) ** 2, 4, False, 0),
}

WITHOUT: dict[str, tuple[Callable[[Tensor], Tensor], int]] = {  # functions without a symmetry: f, number of columns
    "sine and products": (lambda x: x.sin() + 0.5 * x * x.roll(1, 1), 4),
    "cubes and squares": (lambda x: 0.3 * x**3 + 0.5 * x.roll(1, 1) ** 2, 3),
    "bumps": (lambda x: _columns((-_square(x - 0.5, 0, 1)).exp() + x[:, 0], x[:, 1].tanh() + x[:, 0] ** 2), 2),
    "two of five": (lambda x: _columns(*((x[:, i] + x[:, i - 1] ** 2).sin() for i in range(5))), 5),
    "absolute values": (lambda x: (x + 0.3).abs() + 0.5 * x.roll(1, 1), 3),
    "mixed": (lambda x: _columns(x[:, 0].exp() / 2, x[:, 1] ** 2 + x[:, 0], x[:, 2].tanh() + x[:, 1]), 3),
    "waves": (lambda x: (2 * x).sin() + x.roll(1, 1).cos(), 3),
    "cubic map": (lambda x: x + 0.3 * x.roll(1, 1) ** 3, 4),
}

GROUPS: dict[str, tuple[Callable[[Tensor], Tensor], int, tuple[float, float] | None, int]] = {
    # name: f, number of columns, range of uniform x (None: normal), number of generators
    "so(3)": (lambda x: _columns(x[:, :3].norm(dim=1), x[:, 3]), 4, None, 3),
    "so(4)": (lambda x: _columns(_square(x, 0, 1, 2, 3) / 4), 4, None, 6),
    "plane": (lambda x: _columns(x[:, :2].norm(dim=1), x[:, 2]), 3, None, 1),
    "Lorentz (1, 2)": (lambda x: _columns(x[:, 0] ** 2 - x[:, 1] ** 2 - x[:, 2] ** 2), 3, None, 3),
    "squeeze": (lambda x: _columns(x[:, 0] * x[:, 1], x[:, 2]), 3, None, 1),
    "difference": (lambda x: _columns((x[:, 0] - x[:, 1]).sin(), x[:, 2] ** 2), 3, None, 1),
    "two ignored": (lambda x: _columns(x[:, 0] * x[:, 1], x[:, 0] + x[:, 1] ** 2), 4, None, 2),
    "x1 / x2": (lambda x: _columns(x[:, 0] / x[:, 1]), 2, (1.0, 4.0), 1),
}


def _drawn(n: int, d: int, seed: int, span: tuple[float, float] | None = None) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    if span is None:
        return torch.randn(n, d, generator=generator, dtype=torch.float64)
    return span[0] + (span[1] - span[0]) * torch.rand(n, d, generator=generator, dtype=torch.float64)


def _row(name: str, found: Symmetries, truth: int) -> Row:
    """Return a row: right where the count is, wrong where another count is claimed, else undetermined.

    An undetermined result whose interval does not reach the truth is wrong, too.
    """
    if found.status == "undetermined":
        verdict = "undetermined" if found.interval[0] <= truth <= found.interval[1] else "WRONG"
    else:
        verdict = "right" if found.dimension == truth else "WRONG"
    return name, verdict, f"{found.headline}, {found.interval}; {truth} planted; {found.reason}"


def closed(seed: int) -> Iterator[Row]:
    """Yield the results of closed forms."""
    for name, (function, d, positive, truth) in CLOSED.items():
        x = _drawn(400, d, seed)
        found = symmetries(Form(function), x.exp() if positive else x, finite=False, rtol=0.0 if not truth else None)
        yield name, *_row(name, found, truth)[1:]


def _trained(function: Callable[[Tensor], Tensor], x: Tensor, seed: int) -> tuple[list[nn.Module], Task]:
    """Return two networks trained on two thirds of the samples."""
    y, n = function(x), 2 * len(x) // 3
    task = Task(x[:n].float(), y[:n].float(), x[n:].float(), y[n:].float(), name="learned")
    net = bnrank.MLP([x.shape[1], *[40] * 5, y.shape[1]], seed=seed)
    run = bnrank.train(net, task, ridge=1e-4, steps=1200, members=2, seed=seed, progress=False)
    return [run.network(i) for i in range(2)], task


def nothing(seed: int) -> Iterator[Row]:
    """Yield the results of functions without a symmetry, of untrained and trained networks with and without targets."""
    for name, (function, d) in WITHOUT.items():
        networks, task = _trained(function, _drawn(900, d, seed), seed)
        random = bnrank.MLP([d, 40, 40, task.y.shape[1]], seed=seed)
        test = task.x_test, task.y_test
        outputs = random(task.x_test).detach()
        noise = _drawn(*outputs.shape, seed).to(outputs.dtype)
        own = task.x_test, outputs + 0.02 * outputs.std() * noise
        settings = {"finite": False, "seed": seed}
        yield _row(f"{name}, untrained", symmetries(random, task.x, **settings), 0)
        yield _row(
            f"{name}, untrained, with its noisy outputs", symmetries(random, task.x, held_out=own, **settings), 0
        )
        yield _row(f"{name}, trained", symmetries(networks[0], task.x, **settings), 0)
        yield _row(f"{name}, trained, with targets", symmetries(networks[0], task.x, held_out=test, **settings), 0)


def learned(seed: int) -> Iterator[Row]:
    """Yield the results of networks that learned planted groups, judged on held-out targets."""
    for name, (function, d, span, truth) in GROUPS.items():
        networks, task = _trained(function, _drawn(900, d, seed, span), seed)
        found = symmetries(networks, task.x, held_out=(task.x_test, task.y_test), finite=False, seed=seed)
        yield _row(name, found, truth)


@dataclass(frozen=True)
class Table:
    """A table with held-out rows, and the number of generators and of finite maps that must not be reported."""

    x: np.ndarray
    y: np.ndarray
    truth: int
    names: Sequence[str]
    forbidden: Sequence[str] = ()


def _tables(seed: int) -> Iterator[tuple[str, Table]]:
    rng = np.random.default_rng(seed)
    logs = rng.uniform(-0.7, 0.7, (800, 4))
    reynolds = logs @ [1, 1, 1, -1]
    y = np.tanh(0.8 * reynolds) + 0.3 * reynolds
    y = (y + 0.02 * y.std() * rng.normal(size=800))[:, None]
    names = ["density", "velocity", "length", "viscosity"]
    flips = [f"{name} -> -{name}" for name in names]
    yield "Reynolds number", Table(np.exp(logs), y, 3, names, flips)
    yield "Reynolds number, log x", Table(logs, y, 3, names)
    flag, dose, other = rng.integers(0, 2, 800).astype(float), rng.uniform(1, 3, 800), rng.normal(size=800)
    y = np.stack([flag * other + dose, other**2 + flag], 1) + 0.02 * rng.normal(size=(800, 2))
    names = ["flag", "dose", "other"]
    forbidden = ["flag -> -flag", "dose -> -dose", "flag, dose -> -flag, -dose"]
    yield "0/1 and positive columns", Table(np.stack([flag, dose, other], 1), y, 0, names, forbidden)
    x = rng.normal(size=(800, 3))
    y = np.stack([abs(x[:, 0]), x[:, 1] ** 2 + x[:, 2]], 1) + 0.02 * rng.normal(size=(800, 2))
    yield "|x1|, x2^2 + x3", Table(x, y, 1, ["x1", "x2", "x3"], ["x3 -> -x3", "x1 <-> x2"])


def tables(seed: int) -> Iterator[Row]:
    """Yield the results of tables fitted by `BottleneckRegressor` on 500 of their rows."""
    for name, table in _tables(seed):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", NothingFoundWarning)
            fitted = BottleneckRegressor(progress=False).fit(table.x[:500], table.y[:500])
        found = symmetries(fitted, table.x[:500], names=table.names)
        case, verdict, said = _row(name, found, table.truth)
        reported = sorted({test.text for test in found.held} & set(table.forbidden))
        if reported or any(piece.in_data == "violated" for piece in found.pieces) or found.status == "exact":
            verdict = "WRONG"
        yield case, verdict, f"{said}; held: {', '.join(test.text for test in found.held)}"


KINDS = {"closed": closed, "nothing": nothing, "learned": learned, "tables": tables}


def main() -> None:
    """Print a line for every case, and counts for every kind."""
    parser = argparse.ArgumentParser(description="How often symmetries are found, and how often they are invented.")
    parser.add_argument("kinds", nargs="*", help=f"among {', '.join(KINDS)}; default: all")
    parser.add_argument("--seeds", type=int, nargs="+", default=[FIRST], help=f"random seeds (default: {FIRST})")
    arguments = parser.parse_args()
    for kind in arguments.kinds or KINDS:
        counts: Counter[str] = Counter()
        for seed in arguments.seeds:
            for name, verdict, said in KINDS[kind](seed):
                print(f"{kind}, seed {seed}: {name}: {verdict}: {said}", flush=True)
                counts[verdict] += 1
        print(f"{kind}, {counts.total()} cases: {', '.join(f'{n} {verdict}' for verdict, n in sorted(counts.items()))}")


if __name__ == "__main__":
    main()
