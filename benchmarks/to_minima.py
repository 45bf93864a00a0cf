"""How far optimizers get towards a minimum: ``python -m benchmarks.to_minima --seeds 400 405 [--out FOLDER]``.

From the same network, in float64, on the random problems of ``benchmarks.minima``: evaluations of loss and gradient,
and seconds of processor time, until the relative stationarity is 0.1, 0.001 and 1e-8. It is the least subgradient
(`bnrank.cost.stationarity`), at points where a new neuron is not looked for. Optimizers that do not land on kinks
get the benefit of the doubt: preactivations up to 1e-8 or 1e-4 times their scale count as kinks, whichever makes
the result less. Those with a step size are run with several, which fall to 0 as a cosine, over a fifth of
the budget and over all of it; the best run counts for each target. Looks at the others are a factor of 1.3 apart, so
that their numbers may be larger by as much. An evaluation of `bnrank.finish` may come with an exact Hessian, which
costs more than a gradient: the seconds are what compares.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import itertools
import math
import statistics
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import bnrank
from benchmarks.against.trials import markdown
from benchmarks.minima import draw
from benchmarks.rows import Row, Spread
from benchmarks.stored import writer
from bnrank.measures import second_order

TARGETS = (1e-1, 1e-3, 1e-8)
KINKS = (1e-8, 1e-4)  # preactivations that count as zero, relative to their scale
BUDGET, FIRST, GROWTH = 10_000, 100, 1.3  # evaluations; the first look, and the ratio of successive looks
RATES = (3e-3, 1e-2, 3e-2)
TRAINED = 1000  # evaluations of bnrank's default optimizer before it finishes


class BudgetError(Exception):
    """Raised inside an optimizer when its budget is spent."""


@dataclass
class Progress:
    """Counts evaluations, and looks at the stationarity from time to time with the clock stopped."""

    net: bnrank.MLP
    task: bnrank.Task
    ridge: float
    budget: int
    evaluations: int = 0
    seconds: float = 0.0
    seen: list[tuple[int, float, float]] = field(default_factory=list)  # evaluations, seconds, residual

    def __post_init__(self) -> None:
        self.due, self.began = FIRST, time.process_time()

    def loss(self) -> Tensor:
        """Return C + lambda ||theta||^2, counted."""
        self.evaluations += 1
        x, y = self.task.x.double(), self.task.y.double()
        penalty = torch.stack([parameter.square().sum() for parameter in self.net.parameters()]).sum()
        return (self.net(x) - y).square().sum(1).mean() + self.ridge * penalty

    def look(self, last: bool = False) -> None:
        """Measure the stationarity if it is time to; raise `BudgetError` after the budget."""
        if self.evaluations < self.due and not last:
            return
        self.seconds += time.process_time() - self.began
        self.seen.append((self.evaluations, self.seconds, least_residual(self.net, self.task, self.ridge)))
        self.due = max(self.evaluations + 1, min(math.ceil(self.due * GROWTH), self.budget))
        self.began = time.process_time()
        if self.evaluations >= self.budget or self.seen[-1][2] <= TARGETS[-1]:
            raise BudgetError


def least_residual(net: nn.Module, task: bnrank.Task, ridge: float) -> float:
    """Return the least relative stationarity over the sizes up to which preactivations count as zero."""
    some = (bnrank.cost.stationarity(net, task, ridge, kink_rtol=kinks, births=False).residual for kinks in KINKS)
    return min(some)


Optimizer = Callable[[Progress, float], None]


def _steps(progress: Progress, optimizer: Any) -> None:
    """Take steps until the budget is spent, with step sizes that fall to 0 as a cosine."""
    rates = [group["lr"] for group in optimizer.param_groups]
    while True:
        factor = 0.5 * (1 + math.cos(math.pi * min(progress.evaluations / progress.budget, 1.0)))
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate * factor
        optimizer.zero_grad()
        progress.loss().backward()
        optimizer.step()
        progress.look()


def adam(progress: Progress, rate: float) -> None:
    """Run Adam of PyTorch; the penalty is in the loss."""
    _steps(progress, torch.optim.Adam(progress.net.parameters(), lr=rate))


class _Both:
    """Two optimizers as one."""

    def __init__(self, *optimizers: Any) -> None:
        self.optimizers = optimizers
        self.param_groups = [group for one in optimizers for group in one.param_groups]

    def zero_grad(self) -> None:
        for one in self.optimizers:
            one.zero_grad()

    def step(self) -> None:
        for one in self.optimizers:
            one.step()


def muon(progress: Progress, rate: float) -> None:
    """Run Muon of PyTorch on the weights, and Adam on the biases."""
    weights = [p for p in progress.net.parameters() if p.ndim == 2]
    biases = [p for p in progress.net.parameters() if p.ndim < 2]
    _steps(progress, _Both(torch.optim.Muon(weights, lr=rate, weight_decay=0.0), torch.optim.Adam(biases, lr=rate)))


def soap(progress: Progress, rate: float) -> None:
    """Run SOAP of the package pytorch-optimizer."""
    kind = importlib.import_module("pytorch_optimizer").SOAP
    _steps(progress, kind(progress.net.parameters(), lr=rate, weight_decay=0.0, precondition_frequency=10))


def lbfgs(progress: Progress, rate: float) -> None:
    """Run L-BFGS of PyTorch with its line search, anew where it stalls."""
    while True:
        began = progress.evaluations
        options = {"max_iter": 20, "history_size": 20, "line_search_fn": "strong_wolfe"}
        optimizer = torch.optim.LBFGS(
            progress.net.parameters(), lr=1.0, tolerance_grad=0.0, tolerance_change=0.0, **options
        )

        def closure(optimizer: Any = optimizer) -> Tensor:
            optimizer.zero_grad()
            loss = progress.loss()
            loss.backward()
            return loss

        before = math.inf
        while (now := float(optimizer.step(closure).detach())) < before:  # the loss at the start of the step
            before = now
            progress.look()
        if progress.evaluations - began < 100:  # a fresh start does not help any more
            progress.look(last=True)
            return


def scipy_lbfgs(progress: Progress, rate: float) -> None:
    """Run L-BFGS-B of SciPy."""
    from scipy.optimize import minimize

    parameters = list(progress.net.parameters())

    def put(vector: np.ndarray) -> None:
        nn.utils.vector_to_parameters(torch.from_numpy(vector.copy()), parameters)

    def both(vector: np.ndarray) -> tuple[float, np.ndarray]:
        put(vector)
        for parameter in parameters:
            parameter.grad = None
        loss = progress.loss()
        loss.backward()
        return float(loss), torch.cat([p.grad.flatten() for p in parameters if p.grad is not None]).numpy()

    def after(vector: np.ndarray) -> None:
        put(vector)
        progress.look()

    start = nn.utils.parameters_to_vector(parameters).detach().numpy()
    options = {"maxiter": progress.budget, "maxfun": progress.budget, "maxcor": 20, "ftol": 0.0, "gtol": 0.0}
    found = minimize(both, start, jac=True, method="L-BFGS-B", callback=after, options=options)
    put(found.x)
    progress.look(last=True)


def optax_lbfgs(progress: Progress, rate: float) -> None:
    """Run L-BFGS of optax under JAX, with its zoom line search."""
    jax, optax = importlib.import_module("jax"), importlib.import_module("optax")
    jax.config.update("jax_enable_x64", True)
    numbers, parameters = jax.numpy, list(progress.net.parameters())
    x, y = (numbers.asarray(value.double().numpy()) for value in (progress.task.x, progress.task.y))
    pairs = list(zip(progress.net.weights, progress.net.biases, strict=True))
    theta = [(numbers.asarray(w.detach().numpy()), numbers.asarray(b.detach().numpy())) for w, b in pairs]

    def loss(theta: Any) -> Any:
        value = x
        for number, (weight, bias) in enumerate(theta):
            value = value @ weight.T + bias
            value = jax.nn.relu(value) if number < len(theta) - 1 else value
        penalty = sum((weight**2).sum() + (bias**2).sum() for weight, bias in theta)
        return ((value - y) ** 2).sum(1).mean() + progress.ridge * penalty

    optimizer = optax.lbfgs(memory_size=20)
    gradient = optax.value_and_grad_from_state(loss)

    @jax.jit
    def step(theta: Any, state: Any) -> Any:
        value, slope = gradient(theta, state=state)
        updates, state = optimizer.update(slope, state, theta, value=value, grad=slope, value_fn=loss)
        return optax.apply_updates(theta, updates), state

    state = optimizer.init(theta)
    step(theta, state)  # compiled before the clock starts
    progress.began = time.process_time()
    while True:
        theta, state = step(theta, state)
        tried = int(optax.tree.get(state, "num_linesearch_steps"))
        progress.evaluations += max(1, tried)
        if progress.evaluations >= progress.due:
            flat = np.concatenate([np.asarray(value).ravel() for pair in theta for value in pair])
            order = [p for pair in pairs for p in pair]
            nn.utils.vector_to_parameters(torch.from_numpy(flat), order)
            assert len(order) == len(parameters)
        progress.look()


OPTIMIZERS: dict[str, tuple[Optimizer, Sequence[float], str]] = {
    "Adam, cosine": (adam, RATES, "torch"),
    "Muon, cosine": (muon, RATES, "torch"),
    "SOAP, cosine": (soap, RATES, "pytorch_optimizer"),
    "L-BFGS (PyTorch)": (lbfgs, (1.0,), "torch"),
    "L-BFGS-B (SciPy)": (scipy_lbfgs, (1.0,), "scipy"),
    "L-BFGS (optax)": (optax_lbfgs, (1.0,), "optax"),
}

OURS = "bnrank, default and finish"
Reached = dict[float, tuple[int, float] | None]  # evaluations and seconds until a target, None if it was not reached


def peer(name: str, start: bnrank.MLP, task: bnrank.Task, ridge: float, budget: int) -> tuple[Reached, float]:
    """Return when an optimizer reached the targets, and its least stationarity: the best of its step sizes for each."""
    run, rates, _ = OPTIMIZERS[name]
    tries = []
    lengths = (budget // 5, budget) if len(rates) > 1 else (budget,)
    for rate, length in itertools.product(rates, lengths):
        net = bnrank.MLP(start.widths).double()
        net.load_state_dict(start.state_dict())
        progress = Progress(net, task, ridge, length)
        with contextlib.suppress(BudgetError):
            run(progress, rate)
        tries.append(progress.seen)
    return reached(tries), min(residual for seen in tries for _, _, residual in seen)


def reached(tries: Sequence[Sequence[tuple[int, float, float]]]) -> Reached:
    """Return the least evaluations and seconds over the tries at the first look with each target."""
    found: Reached = {}
    for target in TARGETS:
        firsts = [next(((e, s) for e, s, r in seen if r <= target), None) for seen in tries]
        there = [first for first in firsts if first is not None]
        found[target] = min(there, default=None)
    return found


@contextlib.contextmanager
def counted() -> Iterator[list[int]]:
    """Count the forward passes of `bnrank.finish`."""
    count, original = [0], second_order.Evaluation.__init__

    def counting(self: Any, *args: Any, **options: Any) -> None:
        count[0] += 1
        original(self, *args, **options)

    second_order.Evaluation.__init__ = counting  # type: ignore[method-assign]
    try:
        yield count
    finally:
        second_order.Evaluation.__init__ = original  # type: ignore[method-assign]


def ours(start: bnrank.MLP, task: bnrank.Task, ridge: float) -> tuple[Reached, float]:
    """Return when bnrank's default optimizer with `bnrank.finish` reached the targets, one run for each."""
    found: Reached = {}
    residual = math.inf
    for target in TARGETS:
        began = time.process_time()
        run = bnrank.train(start, task, ridge=ridge, steps=TRAINED, record=TRAINED, progress=False)
        with counted() as count:
            done = bnrank.finish(run.network(0), task, ridge, rtol=target, births=False, progress=False)
        seconds, residual = time.process_time() - began, min(residual, done.stationarity.residual)
        found[target] = (TRAINED + count[0], seconds) if done.stationarity.residual <= target else None
    return found, residual


def missing_packages() -> dict[str, str]:
    """Return the optimizers that cannot be run, each with the package that is missing or too old."""
    found = {name: package for name, (_, _, package) in OPTIMIZERS.items() if not importlib.util.find_spec(package)}
    return found if hasattr(torch.optim, "Muon") else found | {"Muon, cosine": "torch 2.9"}


def kept(seed: int, name: str, found: tuple[Reached, float]) -> dict[str, Any]:
    """Return a row to store: seed, optimizer, evaluations and seconds to every target or None, least stationarity."""
    when, least = found
    return {"seed": seed, "optimizer": name, "reached": [when[target] for target in TARGETS], "least": least}


def shown(rows: Sequence[dict[str, Any]]) -> str:
    """Return a table: medians and ranges over the problems in which a target was reached."""
    lines = []
    for name in (OURS, *OPTIMIZERS):
        own = [row for row in rows if row["optimizer"] == name]
        if not own:
            continue
        cells = []
        for number in range(len(TARGETS)):
            there = [row["reached"][number] for row in own if row["reached"][number] is not None]
            cell = f"{len(there)} of {len(own)}"
            if there:
                evaluations, seconds = zip(*there, strict=True)
                times = f"{statistics.median(seconds):.1f} s ({min(seconds):.1f} to {max(seconds):.1f})"
                cell += f": {times}, {statistics.median(evaluations):,.0f} evaluations"
            cells.append(cell)
        lines.append([name, *cells, f"{statistics.median(row['least'] for row in own):.1e}"])
    headings = ["optimizer", *(f"{target:g}" for target in TARGETS), "least reached (median)"]
    return markdown(headings, lines)


def problem(seed: int) -> tuple[bnrank.MLP, bnrank.Task, float]:
    """Return the initial network in float64, the task and the ridge of a random problem of `benchmarks.minima`."""
    task, net, ridge = draw(seed)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return bnrank.MLP(net.widths).double(), task, ridge


def measure(quick: bool, seed: int = 400) -> Iterator[Row]:
    """Compare the evaluations to each target on one problem."""
    if quick:
        yield Row("optimizer", "evaluations to a minimum", "others", None, note="skipped: left out by --quick")
        return
    start, task, ridge = problem(seed)
    own, _ = ours(start, task, ridge)
    missing = missing_packages()
    for name in OPTIMIZERS:
        if name in missing:
            note = f"skipped: {missing[name]} is not installed"
            yield Row("optimizer", "evaluations to a minimum", name, None, note=note)
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            theirs, least = peer(name, start, task, ridge, BUDGET)
        for target in TARGETS:
            mine, other = own[target], theirs[target]
            label = f"evaluations to relative stationarity {target:g}"
            if mine is None or other is None:
                note = f"bnrank: {_words(mine)}; {name}: {_words(other)}, at least {least:.1e}"
                yield Row("optimizer", label, name, None, note=note)
            else:
                share = mine[0] / other[0]
                note = f"bnrank {_words(mine)}, {name} {_words(other)}"
                yield Row("optimizer", label, name, Spread(share, share, share), note=note)


def _words(reached: tuple[int, float] | None) -> str:
    return "not reached" if reached is None else f"{reached[0]:,} in {reached[1]:.1f} s"


def main() -> None:
    """Print the table after every problem."""
    parser = argparse.ArgumentParser("python -m benchmarks.to_minima", description=__doc__)
    parser.add_argument("--seeds", type=int, nargs=2, default=(400, 405), metavar=("FIRST", "END"))
    parser.add_argument("--budget", type=int, default=BUDGET, help="evaluations of each optimizer")
    parser.add_argument("--out", type=Path, help="folder to whose minima_optimizers.jsonl a row is appended per run")
    given = parser.parse_args()
    missing = missing_packages()
    for name, package in missing.items():
        print(f"{name}: skipped, {package} is not installed")
    append = writer(given.out, "minima_optimizers", "benchmarks.to_minima")
    rows: list[dict[str, Any]] = []
    for seed in range(*given.seeds):
        start, task, ridge = problem(seed)
        found = {OURS: ours(start, task, ridge)}
        for name in (name for name in OPTIMIZERS if name not in missing):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found[name] = peer(name, start, task, ridge, given.budget)
        for name, one in found.items():
            rows.append(kept(seed, name, one))
            append(rows[-1])
        print(f"after seed {seed}\n{shown(rows)}\n", flush=True)


if __name__ == "__main__":
    main()
