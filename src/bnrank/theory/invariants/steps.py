"""Steps of an optimizer: how each splits (T49), and the hooks and callbacks that record them for a monitor."""

import importlib
import math
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bnrank.theory.invariants.conserved import Tensors
from bnrank.theory.invariants.track import Increments, Ledger, Track

PENDING = "momentum from before the first row: its later effects are in the rest"
CHANGED = "step size, momentum or decay changed between steps with momentum: the parts are exact for constant ones"
CLIPPED = "gradients seem clipped by value (their largest entry occurs more than once): T49 needs the full gradient"


@dataclass
class Remarks:
    """Remarks on the steps taken.

    Attributes
    ----------
    notes : list of str
        Notes shown with the table.
    unlike : list of str
        Reasons why T49 does not describe the steps.
    unsure : list of str
        Reasons why the parts are not exact.
    """

    notes: list[str] = field(default_factory=list)
    unlike: list[str] = field(default_factory=list)
    unsure: list[str] = field(default_factory=list)

    def add(self, note: str = "", unlike: str = "", unsure: str = "") -> None:
        """Add the remarks that are not empty and not yet present."""
        for text, texts in ((note, self.notes), (unlike, self.unlike), (unsure, self.unsure)):
            if text and text not in texts:
                texts.append(text)


@dataclass(frozen=True)
class StepRule:
    """The rule by which the effect of an optimizer's step is split.

    Attributes
    ----------
    decay : mapping
        c by parameter: eta weight_decay / (1 - mu).
    momentum : float
        mu of gradient descent.
    nesterov : bool
        Whether it is Nesterov's.
    rate : float
        eta if Delta' is -eta times the gradient, or Delta is -eta times the momentum buffer; NaN if Delta has to be
        computed from the parameters before and after the step.
    """

    decay: Mapping[str, float]
    momentum: float = 0.0
    nesterov: bool = False
    rate: float = math.nan


def rule_of(optimizer: torch.optim.Optimizer, names: Mapping[int, str], remarks: Remarks) -> StepRule | None:
    """Return the rule by which the next step of a torch optimizer is split, or None if it cannot be split.

    Parameters
    ----------
    optimizer : torch.optim.Optimizer
        The optimizer with the settings of the next step.
    names : mapping of int to str
        Names of the parameters by their ids.
    remarks : Remarks
        Receives the reasons why a step is not split, is not gradient descent, or has inexact parts.
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
            notes.append(f"{kind} rescales its weight decay with the gradient, so its effect is in the rest")
            amount = 0.0
        momenta.add((mu, bool(plain and group["nesterov"])))
        rates.add(rate * (1 - damping))
        decay |= dict.fromkeys(held, rate * amount * (1 - damping) / (1 - mu) if mu < 1 else 0.0)
    unlike = "" if plain else f"{kind} is not gradient descent"
    if plain and len(rates) > 1:
        unlike = "step sizes that differ between parameters are not gradient descent"
    mu, nesterov = next(iter(momenta), (0.0, False))
    if len(momenta) > 1 or not 0 <= mu < 1:
        notes.append("momentum that is 1 or more, or differs between parameters: its effect is in the rest")
        remarks.add("; ".join(notes), unlike or notes[-1])
        return StepRule(decay)
    same_decay = len(set(decay.values())) == 1
    unsure = "" if same_decay or not decay else "weight decay differs between parameters"
    if type(optimizer) is not torch.optim.SGD:
        unsure = f"{kind} is not torch's own SGD: the effect of its steps is not known"
    remarks.add("; ".join(notes), unlike, unsure)
    known = type(optimizer) is torch.optim.SGD and not nesterov and same_decay and len(optimizer.param_groups) == 1
    known = known and not any(group.get("fused") for group in optimizer.param_groups)  # may rescale the gradient
    return StepRule(decay, mu, nesterov, float(optimizer.param_groups[0]["lr"]) if known else math.nan)


def _is_decoupled(optimizer: torch.optim.Optimizer, group: Mapping[str, Any]) -> bool:
    """Return whether weight decay is lr * weight_decay * theta, apart from the gradient."""
    known = [getattr(torch.optim, name, None) for name in ("AdamW", "Adafactor", "Muon")]
    return bool(group.get("decoupled_weight_decay")) or any(k is not None and isinstance(optimizer, k) for k in known)


def split(
    optimizer: torch.optim.Optimizer, rule: StepRule, before: Tensors, after: Tensors, ledgers: Sequence[Ledger]
) -> list[Increments]:
    r"""Return the increments of the quantities due to the last step, for ledgers with a row before it.

    Without momentum, Delta' = theta' - (1 - c) theta: by step Q(Delta'), by decay (c^2 - 2 c) Q(theta).

    With the heavy ball, Delta_t = mu Delta_{t-1} - eta (g_t + w theta_t) and B(theta_t, g_t) = 0, so b_t = B(theta_t,
    Delta_t) = mu (b_{t-1} + Q(Delta_{t-1})) - eta w Q(theta_t), and Q(theta_{t+1}) - Q(theta_t) = 2 b_t + Q(Delta_t).
    Hence a step adds (1 + mu) / (1 - mu) Q(Delta_t) - 2 c Q(theta_t) in all, c = eta w / (1 - mu), of which 2 mu /
    (1 - mu) Q(Delta_t) and -2 c mu Q(theta_t) come later, mu times as much every step. With Nesterov's, Delta_t =
    mu V_t - eta (g_t + w theta_t) and V_t = mu V_{t-1} - eta (g_t + w theta_t), it is Q(Delta_t) + 2 mu^2 / (1 - mu)
    B(Delta_t, V_t) - 2 c Q(theta_t), of which the second term and -2 c mu^2 Q(theta_t) come later. Exact for a constant
    step size and the same decay for all parameters. ``before`` may be empty if the rule has a rate.
    """
    mu = rule.momentum
    decays = {name: rule.decay.get(name, 0.0) for name in after}
    moved = {name: _moved(optimizer, p, mu) for name, p in after.items()} if math.isfinite(rule.rate) else {}
    keep = {name: 1.0 if mu else 1 - c for name, c in decays.items()}
    velocity = {name: _velocity(optimizer, after[name]) for name in before} if rule.nesterov else {}
    found = []
    for forms, value in ((ledger.forms, ledger.last) for ledger in ledgers):
        if len(set(decays.values())) > 1:  # parameters without decay do not change
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
    """Return the tensor that the step subtracts eta times, apart from decay: the gradient or the momentum buffer."""
    found = optimizer.state.get(parameter, {}).get("momentum_buffer") if mu else parameter.grad
    return torch.zeros_like(parameter) if found is None else found


def _velocity(optimizer: torch.optim.Optimizer, parameter: Tensor) -> Tensor:
    """Return V = -eta times the buffer of torch's SGD with momentum."""
    buffer = optimizer.state.get(parameter, {}).get("momentum_buffer")
    rate = next(float(g["lr"]) for g in optimizer.param_groups if any(p is parameter for p in g["params"]))
    return torch.zeros_like(parameter) if buffer is None else buffer * -rate


def predicted(ledger: Ledger, gradient: Tensors | None, lr: float | None, ridge: float) -> Increments:
    """Return the increments of the next step of gradient descent (T49), or, without ``lr``, of a flow per unit time."""
    value = ledger.last
    by_step = np.full_like(value, np.nan)
    if lr is None:
        return Increments(np.stack([by_step, -4 * ridge * value]), per_time=True)
    if gradient is not None:
        by_step = lr**2 * ledger.forms.of(gradient)
    c = 2 * lr * ridge
    return Increments(np.stack([by_step, (c**2 - 2 * c) * value]))


@dataclass(eq=False)
class Attachment:
    """Hooks in an optimizer that add rows to a track while it steps.

    An error in them does not end the training: recording stops, with a warning and a remark that give the reason.

    Parameters
    ----------
    optimizer : torch.optim.Optimizer
        The optimizer whose steps are recorded.
    trained, live : mapping of str to Tensor
        All trained parameters, and those that enter a quantity.
    track : Track
        Receives the rows.
    every : int
        Steps between rows, from step 3 * ``every`` on.
    remarks : Remarks
        Receives the remarks.
    step, time : int, float
        Step and time of the next row.
    """

    optimizer: torch.optim.Optimizer
    trained: Tensors
    live: Tensors
    track: Track
    every: int
    remarks: Remarks
    step: int = 0
    time: float = 0.0

    def __post_init__(self) -> None:
        """Add the hooks, with remarks on what changed before."""
        self.stopped = False
        self._before: dict[str, Tensor] = {}
        self._pending: StepRule | None = None
        self._settings: list[tuple[float, ...]] = []
        ledger, last = self.track.ledger, self.track.step
        if last is not None and not np.array_equal(ledger.forms.measure(self.live)[0], ledger.last):
            self.remarks.add(unsure=f"the network changed after step {last} while it was not watched")
        buffers = (self.optimizer.state.get(p, {}).get("momentum_buffer") for p in self.live.values())
        if last is None and any(b is not None and bool(b.any()) for b in buffers):
            self.remarks.add(unsure=PENDING)
        self._handles: list[Any] = [
            self.optimizer.register_step_pre_hook(self._before_step),
            self.optimizer.register_step_post_hook(self._after_step),
        ]

    def remove(self) -> None:
        """Remove the hooks."""
        for handle in self._handles:
            handle.remove()

    def catch_up(self) -> None:
        """Add the current state as a row if it is not one yet."""
        if not self.stopped and self.track.step not in (None, self.step):
            with self._recording():
                self._check_frozen()
                self.track.add(self.step, self.time, self.trained, last=True)

    @contextmanager
    def _recording(self) -> Iterator[None]:
        """Stop recording at an error; the hooks stay, since torch is iterating over them."""
        try:
            with torch.no_grad(), np.errstate(all="ignore"):  # of a training that diverges
                yield
        except Exception as error:
            self.stopped = True
            text = f"recording stopped at step {self.step}: {type(error).__name__}: {error}"
            self.remarks.add(note=text, unsure=text)
            warnings.warn(f"bnrank.invariants.Monitor: {text}; training continues", RuntimeWarning, stacklevel=3)

    def _before_step(self, optimizer: torch.optim.Optimizer, args: object, kwargs: object) -> None:
        self._pending = None
        if not self.stopped and (self.step == self.track.step or self._is_due(self.track.step)):
            with self._recording():
                self._pending = self._begin()

    def _after_step(self, optimizer: torch.optim.Optimizer, args: object, kwargs: object) -> None:
        if self.stopped:
            return
        with self._recording():
            if self._pending is not None:
                ledgers = self.track.open()
                found = split(optimizer, self._pending, self._before, self.live, ledgers)
                for ledger, increments in zip(ledgers, found, strict=True):
                    ledger.complete(increments)
            self.step += 1
            self.time += float(optimizer.param_groups[0]["lr"])

    def _is_due(self, last: int | None) -> bool:
        """Return whether to record the current step; rows are closer at the start, where most changes occur."""
        if last is None or self.step % self.every == 0:
            return True
        return self.step - last >= max(1, min(self.every, self.step // 3))

    def _begin(self) -> StepRule | None:
        """Add a row, if there is none yet, and keep what the split of the next step needs."""
        rule = rule_of(self.optimizer, {id(p): name for name, p in self.live.items()}, self.remarks)
        self._check_frozen()
        exact = self.every == 1 and not self.remarks.unlike  # otherwise the parts are estimates
        if exact and _clipped(p.grad for p in self.live.values()):
            self.remarks.add(unsure=CLIPPED)
        wanted = ("lr", "momentum", "weight_decay")
        settings = [tuple(float(group.get(name) or 0.0) for name in wanted) for group in self.optimizer.param_groups]
        before, self._settings = self._settings or settings, settings
        if before != settings and any(momentum for _, momentum, _ in (*settings, *before)):
            self.remarks.add(unsure=CHANGED)
        copies: dict[str, Tensor] = {}
        if rule is not None and math.isnan(rule.rate):
            if not self._before:
                self._before = {n: torch.empty(p.shape, dtype=p.dtype, device=p.device) for n, p in self.live.items()}
            copies = self._before
        if self.step != self.track.step:
            self.track.add(self.step, self.time, self.trained, copies=copies)
        elif copies:
            torch._foreach_copy_(list(copies.values()), list(self.live.values()))
        return rule

    def _check_frozen(self) -> None:
        """Remark on a parameter that is frozen now: its quantities are no longer conserved."""
        for name, p in self.live.items():
            if not p.requires_grad and not any(name in text.split() for text in self.remarks.unlike):
                text = f"parameter {name} was found frozen at step {self.step}"
                self.remarks.add(note=text, unlike=text)


def _clipped(gradients: Iterable[Tensor | None]) -> bool:
    """Return whether the largest entry of all gradients occurs more than once, as after clipping by value."""
    found = [g.detach() for g in gradients if g is not None and g.numel()]
    if any(g.dtype.itemsize < 4 for g in found):  # entries of low precision are often equal by chance
        return False
    found = [g.coalesce().values() if g.is_sparse else g for g in found]
    tops = [max(abs(float(v)) for v in torch.aminmax(g)) for g in found]
    top = max(tops, default=0.0)
    if not 0 < top < math.inf:
        return False
    most = [g for g, t in zip(found, tops, strict=True) if t == top]
    return sum(int((g == top).sum()) + int((g == -top).sum()) for g in most) > 1


LIGHTNING = ("lightning.pytorch", "pytorch_lightning")


def lightning_callback(monitor: Any) -> Any:
    """Return a callback of Lightning, under either name of the package, that attaches a monitor while it trains.

    Raises
    ------
    ImportError
        If neither ``lightning`` nor ``pytorch_lightning`` is installed.
    """
    for name in LIGHTNING:
        try:
            base: Any = importlib.import_module(name).Callback
        except ModuleNotFoundError as error:
            if error.name is None or error.name.split(".")[0] != name.split(".")[0]:
                raise  # Lightning is installed, but lacks a dependency
            continue

        class MonitorCallback(base):  # type: ignore[misc]
            """Attaches a monitor when training starts, and detaches it when training ends or fails."""

            def on_train_start(self, trainer: Any, pl_module: Any) -> None:
                """Attach to the optimizer that holds the parameters."""
                if not trainer.optimizers:
                    raise ValueError("optimizer: the LightningModule has none, expected one with its parameters")
                fitting = [optimizer for optimizer in trainer.optimizers if not monitor.missing(optimizer)]
                monitor.attach((fitting or trainer.optimizers)[0])

            def on_train_end(self, trainer: Any, pl_module: Any) -> None:
                """Record the last row."""
                monitor.detach()

            def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
                """Record the last row before an error ends the training."""
                monitor.detach()

        return MonitorCallback()
    raise ImportError(
        "callback needs PyTorch Lightning, which is not installed: pip install lightning. In any other loop, "
        "monitor.attach(optimizer) needs torch alone"
    )
