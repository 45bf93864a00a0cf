"""The drift of conserved quantities, and its split into what step size and weight decay explain (T49)."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bnrank.theory.invariants.squares import Array, Forms


@dataclass(frozen=True)
class Increments:
    """What one step adds to Q, or what is added per unit of time.

    Attributes
    ----------
    parts : ndarray
        (2, entries): by the size of the step, and by weight decay; NaN where it does not apply.
    per_time : bool
        Whether it is per unit of time instead of per step.
    lag : float
        Momentum mu; then ``late`` of the parts comes only after the step: mu ``late`` from one step on, and so on.
    late : ndarray, optional
        As ``parts``.
    """

    parts: Array
    per_time: bool = False
    lag: float = 0.0
    late: Array | None = None


class Ledger:
    """Rows of drift of several quantities: what it is since the first row, and the parts that explain it.

    Between two rows that are n steps apart the parts of the steps in between are taken to change linearly, so the sum
    over the n steps is n s + (s' - s) (n - 1) / 2 for s at the first row and s' at the second; for n = 1 that is s.
    Of what momentum spreads over later steps, the part that has not come yet is taken off. What is left of the drift is
    the rest.
    """

    PARTS = ("by_step", "by_decay", "rest")
    NAMES = ("value", "drift", "relative", *PARTS, *(f"norm_{name}" for name in PARTS))

    def __init__(self, forms: Forms) -> None:
        self.forms = forms
        size = sum(forms.sizes)
        self.first = self.last = np.zeros(size)
        self.first_scale = self.last_scale = np.zeros(len(forms.sizes))
        self.sums, self.late = np.zeros((2, size)), np.zeros((2, size))  # by step and by decay
        self.row: tuple[int, int, float] | None = None  # number, step and time of the last one
        self.since = (0, 0.0)  # steps and time from the row before to the last one
        self.before: Increments | None = None
        self.now: Increments | None = None
        self._rows: dict[int, dict[str, Array]] = {}

    def add(self, number: int, step: int, time: float, value: Array, scale: Array) -> None:
        """Add a row: Q there, and per quantity the norm of in + out; :meth:`complete` may follow.

        What passed since the row before is added as if each step added what the first one did.
        """
        self._close()
        self.last, self.last_scale = value, scale
        self.before, self.now = self.now, None
        if self.row is None:
            self.first, self.first_scale = value, scale
        else:
            steps, passed = self.since = (step - self.row[1], time - self.row[2])
            before = self.before or Increments(np.full_like(self.sums, np.nan))
            self.sums += before.parts * (passed if before.per_time else steps)
            self.late *= before.lag**steps
            if before.late is not None:
                self.late += before.late * (before.lag ** np.arange(steps)).sum()
        self.row = (number, step, time)

    def complete(self, increments: Increments) -> None:
        """Add the increments of the step after the last row."""
        before, self.now = self.before, increments
        if before is None:
            return
        steps, time = self.since
        self.sums += (increments.parts - before.parts) / 2 * (time if before.per_time else steps - 1)
        if before.late is not None and increments.late is not None and before.lag:
            weights = before.lag ** np.arange(steps)
            mean = weights @ (1 - np.arange(1, steps + 1) / steps)  # the last step counts in full and is nearly now
            self.late += (increments.late - before.late) * mean

    @property
    def rows(self) -> dict[int, dict[str, Array]]:
        """All measures, `NAMES`, by the number of the row; each (quantities,)."""
        self._close()
        return self._rows

    def vectors(self) -> dict[str, Array]:
        """Return the drift and its `PARTS` at the last row, all entries."""
        drift, parts = self.last - self.first, self.sums - self.late
        by_step, by_decay = np.where(np.isnan(parts), 0.0, parts)
        return {"drift": drift, "by_step": parts[0], "by_decay": parts[1], "rest": drift - (by_step + by_decay)}

    def _close(self) -> None:
        if self.row is None:
            return
        vectors = self.vectors()
        drift, parts = vectors["drift"], np.stack([vectors[name] for name in self.PARTS])
        sums = self.forms.sums(np.concatenate([[self.last**2, drift**2], parts * drift, parts**2]))
        value, size = np.sqrt(sums[0]), np.sqrt(sums[1])
        scale = np.maximum(self.last_scale, self.first_scale)
        relative = np.divide(size, scale, out=np.zeros_like(size), where=scale > 0)
        found = {"value": value, "drift": size, "relative": relative}
        for i, name in enumerate(self.PARTS):
            found[name] = sums[2 + i] / np.where(size > 0, size, 1.0)
            found[f"norm_{name}"] = np.sqrt(sums[2 + len(self.PARTS) + i])
        self._rows[self.row[0]] = found


@dataclass
class Remarks:
    """Remarks on the steps that were taken.

    Attributes
    ----------
    notes : list of str
        Shown with the table.
    unlike : list of str
        Why T49 does not describe the steps.
    unsure : list of str
        Why the parts are not exact.
    """

    notes: list[str] = field(default_factory=list)
    unlike: list[str] = field(default_factory=list)
    unsure: list[str] = field(default_factory=list)

    def add(self, note: str = "", unlike: str = "", unsure: str = "") -> None:
        """Add what is not empty and not there yet."""
        for text, texts in ((note, self.notes), (unlike, self.unlike), (unsure, self.unsure)):
            if text and text not in texts:
                texts.append(text)


@dataclass(frozen=True)
class StepRule:
    """How an optimizer's step splits.

    Attributes
    ----------
    decay : mapping
        c by parameter: eta weight_decay / (1 - mu).
    momentum : float
        mu of gradient descent.
    nesterov : bool
        Whether it is Nesterov's.
    rate : float
        eta where Delta' is -eta times the gradient, or Delta is -eta times the buffer of momentum; NaN where it has to
        be told from the parameters before and after the step.
    """

    decay: Mapping[str, float]
    momentum: float = 0.0
    nesterov: bool = False
    rate: float = math.nan


def rule_of(optimizer: torch.optim.Optimizer, names: Mapping[int, str], remarks: Remarks) -> StepRule | None:
    """Return how the step that a torch optimizer is about to take splits, None where it does not.

    Parameters
    ----------
    optimizer : torch.optim.Optimizer
        With the settings of that step.
    names : mapping of int to str
        Names of the parameters by their ids.
    remarks : Remarks
        Receives what is not split, and why the step is not one of gradient descent or its parts are not exact.
    """
    kind = type(optimizer).__name__
    if isinstance(optimizer, torch.optim.LBFGS):
        remarks.add(f"{kind} takes several steps in one: they are not split", f"{kind} is not gradient descent")
        return None
    plain = isinstance(optimizer, torch.optim.SGD)
    decay: dict[str, float] = {}
    notes: list[str] = []
    momenta: set[tuple[float, bool]] = set()
    rates: set[float] = set()
    for group in optimizer.param_groups:
        held = [names[id(p)] for p in group["params"] if id(p) in names]
        if not held:
            continue
        rate, amount = float(group["lr"]), float(group.get("weight_decay", 0.0))
        mu = float(group["momentum"]) if plain else 0.0
        # torch damps the gradient from the second step on
        begun = plain and any(optimizer.state.get(p, {}).get("momentum_buffer") is not None for p in group["params"])
        damping = float(group["dampening"]) if mu and begun else 0.0
        if not plain and amount and not _is_decoupled(optimizer, group):
            notes.append(f"{kind} rescales its weight decay with the gradient, so it is in the rest")
            amount = 0.0
        momenta.add((mu, bool(plain and group["nesterov"])))
        rates.add(rate * (1 - damping))
        decay |= dict.fromkeys(held, rate * amount * (1 - damping) / (1 - mu) if mu < 1 else 0.0)
    unlike = "" if plain else f"{kind} is not gradient descent"
    if plain and len(rates) > 1:
        unlike = "step sizes that differ between parameters are not gradient descent"
    mu, nesterov = next(iter(momenta), (0.0, False))
    if len(momenta) > 1 or not 0 <= mu < 1:
        notes.append("momentum that is 1 or more, or differs between parameters: what it does is in the rest")
        remarks.add("; ".join(notes), unlike or notes[-1])
        return StepRule(decay)
    same_decay = len(set(decay.values())) == 1
    unsure = "" if same_decay or not decay else "weight decay differs between parameters"
    if type(optimizer) is not torch.optim.SGD:
        unsure = f"{kind} is not torch's own SGD: what its steps do is not known"
    remarks.add("; ".join(notes), unlike, unsure)
    known = type(optimizer) is torch.optim.SGD and not nesterov and same_decay and len(optimizer.param_groups) == 1
    known = known and not any(group.get("fused") for group in optimizer.param_groups)  # may rescale the gradient
    return StepRule(decay, mu, nesterov, float(optimizer.param_groups[0]["lr"]) if known else math.nan)


def _is_decoupled(optimizer: torch.optim.Optimizer, group: Mapping[str, Any]) -> bool:
    """Return whether weight decay is lr * weight_decay * theta, apart from the gradient."""
    known = [getattr(torch.optim, name, None) for name in ("AdamW", "Adafactor", "Muon")]
    return bool(group.get("decoupled_weight_decay")) or any(k is not None and isinstance(optimizer, k) for k in known)


def split(
    optimizer: torch.optim.Optimizer,
    rule: StepRule,
    before: Mapping[str, Tensor],
    after: Mapping[str, Tensor],
    wanted: Sequence[tuple[Forms, Array]],
) -> list[Increments]:
    r"""Return what a step that has just been taken added, for several forms and their Q(theta) before it.

    Without momentum, Delta' = theta' - (1 - c) theta: by step Q(Delta'), by decay (c^2 - 2 c) Q(theta).

    With the heavy ball, Delta_t = mu Delta_{t-1} - eta (g_t + w theta_t) and B(theta_t, g_t) = 0, so b_t = B(theta_t,
    Delta_t) = mu (b_{t-1} + Q(Delta_{t-1})) - eta w Q(theta_t), and Q(theta_{t+1}) - Q(theta_t) = 2 b_t + Q(Delta_t).
    Hence a step adds (1 + mu) / (1 - mu) Q(Delta_t) - 2 c Q(theta_t) in all, c = eta w / (1 - mu), of which 2 mu /
    (1 - mu) Q(Delta_t) and -2 c mu Q(theta_t) come later, mu times as much every step. With Nesterov's, Delta_t =
    mu V_t - eta (g_t + w theta_t) and V_t = mu V_{t-1} - eta (g_t + w theta_t), it is Q(Delta_t) + 2 mu^2 / (1 - mu)
    B(Delta_t, V_t) - 2 c Q(theta_t), of which the second term and -2 c mu^2 Q(theta_t) come later. Exact for a constant
    step size and the same decay for all parameters. ``before`` may be empty where the rule has a rate.
    """
    mu = rule.momentum
    decays = {name: rule.decay.get(name, 0.0) for name in after}
    moved = {name: _moved(optimizer, p, mu) for name, p in after.items()} if math.isfinite(rule.rate) else {}
    keep = {name: 1.0 if mu else 1 - c for name, c in decays.items()}
    velocity = {name: _velocity(optimizer, after[name]) for name in before} if rule.nesterov else {}
    found = []
    for forms, value in wanted:
        if len(set(decays.values())) > 1:  # what is not decayed stays
            decay = forms.of({name: p * (1 - decays[name]) for name, p in before.items()}) - value
        else:
            c = next(iter(decays.values()))
            decay = ((0 if mu else c**2) - 2 * c) * value
        by_step = rule.rate**2 * forms.of(moved) if moved else forms.of_step(before, after, keep)
        if not mu:
            found.append(Increments(np.stack([by_step, decay])))
            continue
        late = 2 * mu / (1 - mu) * by_step
        if velocity:
            delta = {name: after[name] - before[name] for name in before}
            plus = forms.of({name: v + delta[name] for name, v in velocity.items()})
            minus = forms.of({name: v - delta[name] for name, v in velocity.items()})
            late = mu**2 / (1 - mu) * (plus - minus) / 2
        later = decay * (mu**2 if velocity else mu)
        found.append(Increments(np.stack([by_step + late, decay]), lag=mu, late=np.stack([late, later])))
    return found


def _moved(optimizer: torch.optim.Optimizer, parameter: Tensor, mu: float) -> Tensor:
    """Return what the step subtracted eta times of, decay aside: the gradient, or the buffer of momentum."""
    found = optimizer.state.get(parameter, {}).get("momentum_buffer") if mu else parameter.grad
    return torch.zeros_like(parameter) if found is None else found


def _velocity(optimizer: torch.optim.Optimizer, parameter: Tensor) -> Tensor:
    """Return V = -eta times the buffer of torch's SGD with momentum."""
    buffer = optimizer.state.get(parameter, {}).get("momentum_buffer")
    rate = next(float(g["lr"]) for g in optimizer.param_groups if any(p is parameter for p in g["params"]))
    return torch.zeros_like(parameter) if buffer is None else buffer * -rate


def predicted(
    forms: Forms, value: Array, gradient: Mapping[str, Tensor] | None, lr: float | None, ridge: float
) -> Increments:
    """Return what the next step of gradient descent adds (T49), or, without ``lr``, a flow per unit of time."""
    unknown = np.full_like(value, np.nan)
    if lr is None:
        return Increments(np.stack([unknown, -4 * ridge * value]), per_time=True)
    c, by_step = 2 * lr * ridge, unknown if gradient is None else lr**2 * forms.of(gradient)
    return Increments(np.stack([by_step, (c**2 - 2 * c) * value]))
