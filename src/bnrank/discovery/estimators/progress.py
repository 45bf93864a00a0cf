"""The progress of a fit, and the time left."""

import contextlib
import sys
from collections.abc import Iterator
from contextvars import ContextVar

from bnrank._core import validation
from bnrank._core.terminal import BarColumn, Console, Progress, TaskID, TextColumn, TimeRemainingColumn


class Voice:
    """Tells what a fit does, and how much of it is done, to a bar, or to a console line by line, or to nobody.

    Work is counted in evaluations of the loss, of one network, times its depth.
    """

    def __init__(self, console: Console | None = None, bar: Progress | None = None) -> None:
        self.console, self.bar = console, bar
        self.task: TaskID | None = None if bar is None else bar.add_task("fitting", total=None)
        self.done, self.total = 0.0, 0.0

    def __call__(self, text: str) -> None:
        """Tell what is done next."""
        if self.bar is not None and self.task is not None:
            self.bar.update(self.task, description=f"fitting: {text}")
        elif self.console is not None:
            self.console.print(f"fitting: {text}", soft_wrap=True)

    def expect(self, work: float) -> None:
        """Add work that is to be done."""
        self.total += work
        self._show()

    def advance(self, work: float) -> None:
        """Add work that is done; where it was not expected, as that at more ridges, it is expected from now on."""
        self.done += work
        self.total = max(self.total, self.done)
        self._show()

    def _show(self) -> None:
        if self.bar is not None and self.task is not None:
            self.bar.update(self.task, completed=self.done, total=self.total)


_CURRENT: ContextVar[Voice | None] = ContextVar("voice", default=None)


def current() -> Voice:
    """Return the voice of the fit that is under way; a mute one where there is none."""
    return _CURRENT.get() or Voice()


@contextlib.contextmanager
def voice(progress: bool | str) -> Iterator[Voice]:
    """Yield what tells the progress: by a bar on a terminal, elsewhere line by line ("auto": not at all)."""
    if isinstance(progress, str):
        validation.choice(progress, "progress", ["auto"])
    console = Console(stderr=True)
    with contextlib.ExitStack() as stack:
        made = Voice()
        if progress and console.is_terminal and sys.stderr.isatty():
            columns = TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn()
            made = Voice(bar=stack.enter_context(Progress(*columns, console=console, transient=True)))
        elif progress and progress != "auto":
            made = Voice(console)
        stack.callback(_CURRENT.reset, _CURRENT.set(made))
        yield made
