"""Callbacks of training frameworks that step a watch."""

from __future__ import annotations

import importlib
import warnings
from typing import Any, Protocol

LIGHTNING = ("lightning.pytorch", "pytorch_lightning")
FRAMEWORKS = ("lightning", "transformers")


class Stepped(Protocol):
    """What callbacks need of a watch."""

    steps: int

    def advance(self, number: int | None = None) -> tuple[bool, str]:
        """Count a step; return whether it was measured, and why the training should stop, or an empty text."""
        ...

    def latest(self) -> dict[str, float]:
        """Return the last measurement."""
        ...

    def close(self) -> None:
        """Remove the hooks."""
        ...

    def warn_if_closed(self) -> None:
        """Warn, where the watch is closed, that the training is not measured."""
        ...


def make(watch: Stepped, framework: str) -> Any:
    """Return the callback of a framework that steps a watch.

    Raises
    ------
    ImportError
        If the framework is not installed.
    """
    return _lightning(watch) if framework == "lightning" else _transformers(watch)


def _base(modules: tuple[str, ...], name: str, package: str) -> Any:
    """Return a class from the first of several modules whose package is installed."""
    for module in modules:
        try:
            return getattr(importlib.import_module(module), name)
        except ModuleNotFoundError as error:
            if error.name is None or error.name.split(".")[0] != module.split(".")[0]:
                raise  # the package is installed, but lacks a dependency
    raise ImportError(
        f"callback needs {package}, which is not installed: pip install {package}. In any other loop, call watch.step()"
    )


def _lightning(watch: Stepped) -> Any:
    base: Any = _base(LIGHTNING, "Callback", "lightning")

    class WatchCallback(base):  # type: ignore[misc]
        """Steps a watch after every step of the optimizers, logs measurements, and stops at a collapse."""

        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            """Warn where an earlier training has closed the watch."""
            watch.warn_if_closed()

        def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            """Count the steps taken, and log a measurement."""
            if trainer.global_step <= watch.steps:  # gradients are accumulated
                return
            measured, reason = watch.advance(trainer.global_step)
            if measured:
                pl_module.log_dict(watch.latest(), on_step=True, on_epoch=False)
            if reason:
                warnings.warn(f"bnrank.watch: {reason}; the trainer stops", RuntimeWarning, stacklevel=2)
                trainer.should_stop = True

        def on_train_end(self, trainer: Any, pl_module: Any) -> None:
            """Remove the hooks."""
            watch.close()

        def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
            """Remove the hooks."""
            watch.close()

    return WatchCallback()


def _transformers(watch: Stepped) -> Any:
    base: Any = _base(("transformers",), "TrainerCallback", "transformers")

    class WatchCallback(base):  # type: ignore[misc]
        """Steps a watch after every step of the optimizer, logs measurements, and stops at a collapse."""

        def on_train_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            """Warn where an earlier training has closed the watch."""
            watch.warn_if_closed()

        def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> Any:
            """Count the steps taken, and add a measurement to the log."""
            if state.global_step > watch.steps:
                measured, reason = watch.advance(state.global_step)
                if measured:
                    state.log_history.append({"step": state.global_step, **watch.latest()})
                if reason:
                    warnings.warn(f"bnrank.watch: {reason}; the trainer stops", RuntimeWarning, stacklevel=2)
                    control.should_training_stop = True
            return control

        def on_train_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            """Remove the hooks."""
            watch.close()

    return WatchCallback()
