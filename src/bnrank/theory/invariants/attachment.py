"""Hooks in a torch optimizer, and a callback of PyTorch Lightning, that record the rows of a monitor."""

import importlib
import math
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bnrank.theory.invariants.drift import StepRule, rule_of, split
from bnrank.theory.invariants.track import Track

PENDING = "momentum from before the first row: its later effect is in the rest"
CHANGED = "step size, momentum or decay changed between steps that have momentum: its parts are for constant ones"
CLIPPED = "gradients look clipped by value (their largest entry occurs more than once): T49 is for the gradient itself"


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


class Attachment:
    """Hooks in an optimizer that add rows to a track while it steps.

    An error in them does not end the training: recording stops, with a warning and a remark that give the reason.

    Parameters
    ----------
    optimizer : torch.optim.Optimizer
        Whose steps are followed.
    trained, live : mapping of str to Tensor
        All trained parameters, and those that enter a quantity.
    track : Track
        Receives the rows.
    every : int
        Steps between rows, once there are three times as many.
    remarks : Remarks
        Receives the remarks.
    step, time : int, float
        Of the first row to come.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        trained: Mapping[str, Tensor],
        live: Mapping[str, Tensor],
        track: Track,
        every: int,
        remarks: Remarks,
        step: int = 0,
        time: float = 0.0,
    ) -> None:
        self.optimizer, self.trained, self.live = optimizer, dict(trained), dict(live)
        self.track, self.every, self.remarks = track, every, remarks
        self.step, self.time = step, time
        self.stopped = False
        self._before: dict[str, Tensor] = {}
        self._pending: StepRule | None = None
        self._settings: list[tuple[float, ...]] | None = None
        if track.step is not None and not np.array_equal(track.ledger.forms.measure(self.live)[0], track.ledger.last):
            remarks.add(unsure=f"the network changed after step {track.step} while it was not watched")
        elif track.step is None and _begun(optimizer, self.live.values()):
            remarks.add(unsure=PENDING)
        self._handles: list[Any] = [
            optimizer.register_step_pre_hook(self._before_step),
            optimizer.register_step_post_hook(self._after_step),
        ]

    def remove(self) -> None:
        """Take the hooks away."""
        for handle in self._handles:
            handle.remove()

    def catch_up(self) -> None:
        """Add the present state as a row if it is not one yet."""
        if self.stopped or self.track.step in (None, self.step):
            return
        try:
            with torch.no_grad():
                self._check_frozen()
                self.track.add(self.step, self.time, self.trained, last=True)
        except Exception as error:
            self._stop(error)

    def _before_step(self, optimizer: torch.optim.Optimizer, args: object, kwargs: object) -> None:
        self._pending = None
        if self.stopped or not (self.step == self.track.step or self._is_due(self.track.step)):
            return
        try:
            with torch.no_grad():
                self._pending = self._begin(optimizer)
        except Exception as error:
            self._stop(error)

    def _after_step(self, optimizer: torch.optim.Optimizer, args: object, kwargs: object) -> None:
        if self.stopped:
            return
        try:
            if self._pending is not None:
                with torch.no_grad(), np.errstate(all="ignore"):  # of a training that diverges
                    self._complete(optimizer, self._pending)
            self._pending = None
            self.step += 1
            self.time += float(optimizer.param_groups[0]["lr"])
        except Exception as error:
            self._stop(error)

    def _stop(self, error: Exception) -> None:
        """Stop recording; the hooks stay, since torch is iterating over them."""
        self.stopped, self._pending = True, None
        text = f"recording stopped at step {self.step}: {type(error).__name__}: {error}"
        self.remarks.add(note=text, unsure=text)
        warnings.warn(f"bnrank.invariants.Monitor: {text}; training continues", RuntimeWarning, stacklevel=2)

    def _is_due(self, last: int | None) -> bool:
        """Return whether the present step is a row; rows are closer at the start, where most changes occur."""
        if last is None or self.step % self.every == 0:
            return True
        return self.step - last >= max(1, min(self.every, self.step // 3))

    def _begin(self, optimizer: torch.optim.Optimizer) -> StepRule:
        """Add a row, if there is none yet, and keep what the split of the next step needs."""
        rule = rule_of(optimizer, {id(p): name for name, p in self.live.items()})
        self.remarks.add(rule.note, rule.unlike, rule.unsure)
        self._check_frozen()
        exact = self.every == 1 and not rule.unlike  # else the parts are estimates anyway
        if exact and _clipped(p.grad for p in self.live.values()):
            self.remarks.add(unsure=CLIPPED)
        wanted = ("lr", "momentum", "weight_decay")
        settings = [tuple(float(group.get(name) or 0.0) for name in wanted) for group in optimizer.param_groups]
        changed = self._settings is not None and self._settings != settings
        if changed and any(momentum for _, momentum, _ in (*settings, *(self._settings or ()))):
            self.remarks.add(unsure=CHANGED)
        self._settings = settings
        copies: dict[str, Tensor] = {}
        if rule.splits and math.isnan(rule.rate):
            if not self._before:
                self._before = {n: torch.empty(p.shape, dtype=p.dtype, device=p.device) for n, p in self.live.items()}
            copies = self._before
        if self.step != self.track.step:
            self.track.add(self.step, self.time, self.trained, copies=copies)
        elif copies:
            torch._foreach_copy_(list(copies.values()), list(self.live.values()))
        return rule

    def _complete(self, optimizer: torch.optim.Optimizer, rule: StepRule) -> None:
        """Split the step that has just been taken."""
        if rule.splits:
            ledgers = self.track.open()
            wanted = [(ledger.forms, ledger.last) for ledger in ledgers]
            found = split(optimizer, rule, self._before, self.live, wanted)
            for ledger, increments in zip(ledgers, found, strict=True):
                ledger.complete(increments)

    def _check_frozen(self) -> None:
        """Remark on a parameter that is frozen now: its quantities are no longer conserved."""
        for name, p in self.live.items():
            if not p.requires_grad and not any(name in text.split() for text in self.remarks.unlike):
                text = f"parameter {name} was found frozen at step {self.step}"
                self.remarks.add(note=text, unlike=text)


def _begun(optimizer: torch.optim.Optimizer, parameters: Iterable[Tensor]) -> bool:
    """Return whether steps with momentum were taken before."""
    buffers = [optimizer.state.get(p, {}).get("momentum_buffer") for p in parameters]
    return any(b is not None and bool(b.any()) for b in buffers)


def _clipped(gradients: Iterable[Tensor | None]) -> bool:
    """Return whether the largest entry of all gradients occurs more than once, as after clipping by value."""
    found = [g.detach() for g in gradients if g is not None and g.numel()]
    if any(g.dtype.itemsize < 4 for g in found):  # where entries often agree by chance
        return False
    found = [g.coalesce().values() if g.is_sparse else g for g in found]
    tops = [max(abs(float(v)) for v in torch.aminmax(g)) for g in found]
    top = max(tops, default=0.0)
    if not 0 < top < math.inf:
        return False
    most = [g for g, t in zip(found, tops, strict=True) if t == top]
    return sum(int((g == top).sum()) + int((g == -top).sum()) for g in most) > 1


LIGHTNING = ("lightning.pytorch", "pytorch_lightning")


class _LightningHooks:
    """Attaches a monitor when training starts, and detaches it when training ends or fails."""

    monitor: Any

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Attach to the optimizer that holds the parameters."""
        if not trainer.optimizers:
            raise ValueError("optimizer: the LightningModule has none, expected one that holds the module's parameters")
        fitting = [optimizer for optimizer in trainer.optimizers if not self.monitor.missing(optimizer)]
        self.monitor.attach((fitting or trainer.optimizers)[0])

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Record the last row."""
        self.monitor.detach()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Record the last row before an error ends the training."""
        self.monitor.detach()


def lightning_callback(monitor: Any) -> Any:
    """Return a callback of Lightning, under either name of the package, that attaches a monitor while it trains.

    Raises
    ------
    ImportError
        If neither ``lightning`` nor ``pytorch_lightning`` is installed.
    """
    for name in LIGHTNING:
        try:
            base = importlib.import_module(name).Callback
        except ModuleNotFoundError as error:
            if error.name is None or error.name.split(".")[0] != name.split(".")[0]:
                raise  # Lightning is installed, but lacks a dependency
            continue
        made = type("MonitorCallback", (_LightningHooks, base), {})()
        made.monitor = monitor
        return made
    raise ImportError(
        "callback needs PyTorch Lightning, which is not installed: pip install lightning. In any other loop, "
        "monitor.attach(optimizer) needs torch alone"
    )
