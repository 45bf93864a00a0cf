"""The monitor as a callback of PyTorch Lightning, where that is installed."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from bnrank._core import validation
from bnrank.theory.invariants.monitor import Monitor

__all__ = ["MonitorCallback"]

NAMES = ("lightning.pytorch", "pytorch_lightning")


def _callback() -> Any:
    """Return Lightning's base class of callbacks, under either name of the package, or None without Lightning."""
    for name in NAMES:
        try:
            return importlib.import_module(name).Callback
        except ModuleNotFoundError as error:
            if error.name is None or error.name.split(".")[0] != name.split(".")[0]:
                raise  # it is there, and what it needs is not
    return None


if TYPE_CHECKING:

    class Callback:
        """Stands for Lightning's own."""
else:
    FOUND = _callback()
    Callback = object if FOUND is None else FOUND


class MonitorCallback(Callback):
    """Attach a monitor when training starts, and detach it when it ends or fails.

    ``lightning.Trainer(callbacks=[MonitorCallback(monitor)])``, or :meth:`Monitor.callback`.

    Parameters
    ----------
    monitor : Monitor
        Of the module whose parameters the LightningModule trains, or of the LightningModule itself.

    Raises
    ------
    ImportError
        If neither ``lightning`` nor ``pytorch_lightning`` is installed.
    TypeError
        If it is no monitor.
    ValueError
        When training starts, if no optimizer holds the parameters that enter a conserved quantity.
    """

    def __init__(self, monitor: Monitor) -> None:
        if Callback is object:
            raise ImportError(
                "MonitorCallback needs PyTorch Lightning, which is not installed: pip install lightning. "
                "In a loop of your own, monitor.attach(optimizer) needs torch alone"
            )
        super().__init__()
        if not isinstance(monitor, Monitor):
            raise TypeError(f"monitor: got {validation.describe(monitor)}, expected a bnrank.invariants.Monitor")
        self.monitor = monitor

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Attach to the optimizer that holds the parameters."""
        optimizers = trainer.optimizers
        if not optimizers:
            raise ValueError("optimizer: the LightningModule has none, expected one that holds the module's parameters")
        fitting = [optimizer for optimizer in optimizers if not self.monitor.missing(optimizer)]
        self.monitor.attach(fitting[0] if fitting else optimizers[0])

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Record the last row."""
        self.monitor.detach()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Record the last row before an error ends the training."""
        self.monitor.detach()
