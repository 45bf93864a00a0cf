"""Hooks in a torch optimizer, and a callback of PyTorch Lightning, that record the rows of a monitor."""

import importlib
import math
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bnrank.theory.invariants.drift import Remarks, StepRule, rule_of, split
from bnrank.theory.invariants.track import Track

PENDING = "momentum from before the first row: its later effect is in the rest"
CHANGED = "step size, momentum or decay changed between steps that have momentum: its parts are for constant ones"
CLIPPED = "gradients look clipped by value (their largest entry occurs more than once): T49 is for the gradient itself"


@dataclass(eq=False)
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

    optimizer: torch.optim.Optimizer
    trained: Mapping[str, Tensor]
    live: Mapping[str, Tensor]
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
        """Take the hooks away."""
        for handle in self._handles:
            handle.remove()

    def catch_up(self) -> None:
        """Add the present state as a row if it is not one yet."""
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
                wanted = [(ledger.forms, ledger.last) for ledger in ledgers]
                found = split(optimizer, self._pending, self._before, self.live, wanted)
                for ledger, increments in zip(ledgers, found, strict=True):
                    ledger.complete(increments)
            self.step += 1
            self.time += float(optimizer.param_groups[0]["lr"])

    def _is_due(self, last: int | None) -> bool:
        """Return whether the present step is a row; rows are closer at the start, where most changes occur."""
        if last is None or self.step % self.every == 0:
            return True
        return self.step - last >= max(1, min(self.every, self.step // 3))

    def _begin(self) -> StepRule | None:
        """Add a row, if there is none yet, and keep what the split of the next step needs."""
        rule = rule_of(self.optimizer, {id(p): name for name, p in self.live.items()}, self.remarks)
        self._check_frozen()
        exact = self.every == 1 and not self.remarks.unlike  # else the parts are estimates anyway
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
