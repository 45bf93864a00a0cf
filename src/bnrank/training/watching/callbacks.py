"""Callbacks of training frameworks that step a watch."""

from __future__ import annotations

import importlib
import warnings
from typing import Any

from bnrank.training.watching.collapse import CollapseError

FRAMEWORKS = {
    "lightning": ("Callback", "lightning.pytorch", "pytorch_lightning"),
    "transformers": ("TrainerCallback", "transformers"),
}
"""The class of callbacks of a framework, and the modules that may have it."""


def make(watch: Any, framework: str) -> Any:
    """Return the callback of a framework that steps a watch, logs its measurements, and stops at a collapse.

    Raises
    ------
    ImportError
        If the framework is not installed.
    """

    class WatchCallback(_base(framework)):  # type: ignore[misc]
        """Each framework calls its own methods."""

        def on_train_batch_end(self, trainer: Any, pl_module: Any, *batch: Any, **more: Any) -> None:
            """Count the steps of Lightning's optimizers, and log a measurement."""
            measured, stop = _stepped(watch, trainer.global_step)
            if measured:
                pl_module.log_dict(watch.latest(), on_step=True, on_epoch=False)
            trainer.should_stop = trainer.should_stop or stop

        def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> Any:
            """Count the steps of the optimizer of a Trainer of Hugging Face, and add a measurement to its log."""
            measured, stop = _stepped(watch, state.global_step)
            if measured:
                state.log_history.append({"step": state.global_step, **watch.latest()})
            control.should_training_stop = control.should_training_stop or stop
            return control

        def on_train_end(self, *arguments: Any, **more: Any) -> None:
            """Remove the hooks."""
            watch.close()

        def on_exception(self, *arguments: Any) -> None:
            """Remove the hooks."""
            watch.close()

    return WatchCallback()


def _base(framework: str) -> Any:
    name, *modules = FRAMEWORKS[framework]
    for module in modules:
        try:
            return getattr(importlib.import_module(module), name)
        except ModuleNotFoundError as error:
            if error.name is None or error.name.split(".")[0] != module.split(".")[0]:
                raise  # the package is installed, but lacks a dependency
    advice = f"pip install {framework}. In any other loop, call watch.step()"
    raise ImportError(f"callback needs {framework}, which is not installed: {advice}")


def _stepped(watch: Any, number: int) -> tuple[bool, bool]:
    """Step a watch; return whether it was measured, and whether the training should stop."""
    if number <= watch.steps:  # gradients are accumulated
        return False, False
    try:
        return watch.step(number), False
    except CollapseError as error:
        warnings.warn(f"bnrank.watch: {error}; the trainer stops", RuntimeWarning, stacklevel=3)
        return True, True
