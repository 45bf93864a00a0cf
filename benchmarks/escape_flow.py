"""Time to the first escape from small weights: plateau skipped, adaptive without skipping, plain gradient descent."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from benchmarks.rows import Row, Spread
from benchmarks.timing import Rounds
from bnrank.networks import MLP
from bnrank.tasks import handwritten_digits
from bnrank.training import Limits, SkipPlateau
from bnrank.training.gradient_flow import Flow, flow

__all__ = ["measure"]

DEPTH, WIDTH, N = 4, 20, 200
INITS = (1e-2, 1e-3, 1e-4)
SMALLER = (1e-2, 1e-4, 1e-6, 1e-8)
FALL = 0.9  # of C at the origin: the loss at which the first saddle counts as left
STEP = 0.1  # of gradient descent
MOST = {True: 20_000, False: 200_000}  # steps that gradient descent is given, quick and not
NEVER = 1e300  # no limit on the time t
WHAT = f"digits, depth {DEPTH}, width {WIDTH}, N {N}"


@dataclass(frozen=True)
class Escape:
    """What one way to the first escape took."""

    seconds: float
    evaluations: int
    time: float


def measure(quick: bool) -> Iterator[Row]:
    """Compare the three at several initializations, then the cost of skipping at ever smaller ones."""
    x, y = _data()
    rounds = 1 if quick else 5
    for init in INITS:
        timed, last = Rounds(), {}
        for number in range(rounds + 1):
            last = {name: _follow(init, x, y, skip=name == "skipped") for name in _turns(number)}
            if number:
                timed.append({name: found.seconds for name, found in last.items()})
        skipped, adaptive = last["skipped"], last["adaptive"]
        apart = abs(skipped.time / adaptive.time - 1)
        yield Row(
            "escape_flow",
            f"time to the first escape, init {init:g}, {WHAT}",
            "adaptive flow, plateau not skipped",
            timed.ratio("adaptive", "skipped"),
            note=f"{skipped.evaluations} against {adaptive.evaluations} evaluations; escape times {skipped.time:.4g} "
            f"and {adaptive.time:.4g}, {apart:.1g} apart",
        )
        yield _against_descent(init, x, y, skipped, MOST[quick])
    found = {init: _follow(init, x, y, skip=True) for init in SMALLER}
    first = found[SMALLER[0]].evaluations
    yield Row(
        "escape_flow",
        f"evaluations to the first escape, init {SMALLER[-1]:g}, skipped",
        f"init {SMALLER[0]:g}, skipped",
        Spread.of([found[SMALLER[-1]].evaluations / first]),
        at_most=1.5,
        note="; ".join(f"{init:g}: {e.evaluations} evaluations, {e.seconds:.2g} s" for init, e in found.items()),
    )


def _turns(number: int) -> tuple[str, ...]:
    return ("skipped", "adaptive") if number % 2 else ("adaptive", "skipped")


def _data() -> tuple[torch.Tensor, torch.Tensor]:
    task = handwritten_digits(N, n_test=0)
    return task.x.double(), task.y


def _network(init: float, inputs: int) -> MLP:
    return MLP([inputs, *[WIDTH] * (DEPTH - 1), 10], bias=False, init=init, seed=0, dtype=torch.float64)


def _level(y: torch.Tensor) -> float:
    """Return the loss at which the first saddle counts as left."""
    zero = torch.zeros(len(y), 10, dtype=torch.float64)
    return FALL * float(torch.nn.functional.cross_entropy(zero, y))


def _follow(init: float, x: torch.Tensor, y: torch.Tensor, skip: bool) -> Escape:
    level, net = _level(y), _network(init, x.shape[1])
    began = time.perf_counter()
    found: Flow = flow(
        net,
        (x, y, "cross_entropy"),
        None if skip else NEVER,
        plateau=SkipPlateau(t_after=NEVER) if skip else None,
        limits=Limits(stop=lambda row: row.loss < level, max_networks=2),
    )
    took = time.perf_counter() - began
    if found.status != "stopped":
        raise RuntimeError(f"init {init:g}, skip {skip}: ended {found.status!r} before the loss was {level:.3g}")
    return Escape(took, found.evaluations, float(found.times[-1]))


def _against_descent(init: float, x: torch.Tensor, y: torch.Tensor, skipped: Escape, most: int) -> Row:
    """Run gradient descent with a fixed step where it can end; else say how many steps it needs."""
    name = f"time to the first escape, init {init:g}, {WHAT}"
    against = f"gradient descent, step {STEP:g}, full batch"
    needed = skipped.time / STEP  # a step of gradient descent is STEP of the time of the flow
    if needed > most:
        per_step = _descend(init, x, y, 500)[0] / 500
        would = needed * per_step
        note = f"not run: the escape time takes {needed:.2g} steps, {would:.2g} s at {1e3 * per_step:.2g} ms each"
        return Row("escape_flow", name, f"{against}, extrapolated", Spread.of([would / skipped.seconds]), note=note)
    took, steps = _descend(init, x, y, 2 * most)
    note = f"{steps} steps, {skipped.evaluations} evaluations; the flow's escape time says {needed:.4g} steps"
    return Row("escape_flow", name, against, Spread.of([took / skipped.seconds]), note=note)


def _descend(init: float, x: torch.Tensor, y: torch.Tensor, most: int) -> tuple[float, int]:
    """Descend by hand-written backpropagation until the first escape; return seconds and steps."""
    level = _level(y)
    hot = torch.nn.functional.one_hot(y, 10).double()
    weights = [w.detach() for w in _network(init, x.shape[1]).weights]
    began, steps = time.perf_counter(), 0
    with torch.no_grad():
        for steps in range(1, most + 1):  # noqa: B007
            active = [x]
            for w in weights[:-1]:
                active.append((active[-1] @ w.T).relu_())
            log_p = torch.log_softmax(active[-1] @ weights[-1].T, 1)
            if -float((log_p * hot).sum()) / len(y) < level:
                break
            delta = (log_p.exp() - hot) / len(y)
            for l in range(len(weights) - 1, -1, -1):  # noqa: E741
                below = delta @ weights[l]
                weights[l] -= STEP * delta.T @ active[l]
                delta = below * (active[l] > 0) if l else below
    return time.perf_counter() - began, steps
