"""The data of a sweep: one task, or a function that makes a task of arguments."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from bnrank._core import validation
from bnrank.tasks import Task
from bnrank.tasks.task import as_task
from bnrank.training.sweeping.axes import TASK

KEPT = 16  # tasks in memory at a time
Arguments = tuple[tuple[str, Any], ...]


class Maker:
    """What makes the task of every network.

    Parameters
    ----------
    task : Task, tuple or function
        Data, or a function that returns a `Task`, or a tuple (x, y) or (x, y, loss).

    Raises
    ------
    TypeError, ValueError
        If it is neither.
    """

    def __init__(self, task: Any) -> None:
        function = callable(task) and not isinstance(task, Task | tuple)
        self.function: Callable[..., Any] | None = task if function else None
        self.task = None if function else as_task(task, weighted=True)
        self.of = functools.lru_cache(maxsize=KEPT)(self._of)

    @property
    def name(self) -> str:
        """Name of the task or the function."""
        if self.task is not None:
            return self.task.name
        inner = getattr(self.function, "func", self.function)
        return str(getattr(inner, "__name__", type(inner).__name__))

    @property
    def arguments(self) -> list[str] | None:
        """Names of the arguments of the function, none of a task; None if it takes any."""
        if self.function is None:
            return []
        try:
            parameters = inspect.signature(self.function).parameters.values()
        except ValueError:  # a builtin without a signature
            return None
        if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
            return None
        named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        return [parameter.name for parameter in parameters if parameter.kind in named]

    def _of(self, arguments: Arguments) -> Task:
        """Return the task of arguments.

        Raises
        ------
        TypeError, ValueError
            If the function raises an error, or returns something else.
        """
        if self.task is not None:
            return self.task
        assert self.function is not None
        given = {name: list(value) if isinstance(value, tuple) else value for name, value in arguments}
        call = f"{self.name}({', '.join(f'{name}={value!r}' for name, value in given.items())})"
        try:
            made = self.function(**given)
        except (TypeError, ValueError) as error:
            head = str(error).partition(": ")[0].partition("[")[0]
            text = f"{TASK}{error} (in {call})" if head in given else f"task: {call}: {error}"
            raise type(error)(text) from error
        except Exception as error:
            raise ValueError(f"task: {call} raised {type(error).__name__}: {error}") from error
        returned = isinstance(made, Task | tuple)
        expected = "a bnrank.tasks.Task or a tuple (x, y)"
        validation.expect(returned, "task", f"{validation.describe(made)} from {call}", expected, TypeError)
        return as_task(made, weighted=True)


def arguments_of(setting: Mapping[str, Any]) -> Arguments:
    """Return the arguments of the task in the setting of a network."""
    return tuple((name.removeprefix(TASK), value) for name, value in setting.items() if name.startswith(TASK))
