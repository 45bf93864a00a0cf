"""A callback of PyTorch Lightning for a monitor, where Lightning is installed."""

from __future__ import annotations

import importlib
from typing import Any

__all__ = ["callback"]

NAMES = ("lightning.pytorch", "pytorch_lightning")


class _Hooks:
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


def callback(monitor: Any) -> Any:
    """Return a callback of Lightning, under either name of the package, that attaches a monitor while it trains.

    Raises
    ------
    ImportError
        If neither ``lightning`` nor ``pytorch_lightning`` is installed.
    """
    for name in NAMES:
        try:
            base = importlib.import_module(name).Callback
        except ModuleNotFoundError as error:
            if error.name is None or error.name.split(".")[0] != name.split(".")[0]:
                raise  # Lightning is installed, but lacks a dependency
            continue
        made = type("MonitorCallback", (_Hooks, base), {})()
        made.monitor = monitor
        return made
    raise ImportError(
        "callback needs PyTorch Lightning, which is not installed: pip install lightning. In any other loop, "
        "monitor.attach(optimizer) needs torch alone"
    )
