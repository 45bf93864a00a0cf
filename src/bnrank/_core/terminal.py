"""The parts of rich that are used: its import draws from the generator of `random`, which is restored here."""

import random

_state = random.getstate()
try:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TaskID,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )
    from rich.table import Table
    from rich.text import Text
finally:
    random.setstate(_state)

__all__ = [
    "SIMPLE_HEAD",
    "BarColumn",
    "Console",
    "MofNCompleteColumn",
    "Progress",
    "Table",
    "TaskID",
    "Text",
    "TextColumn",
    "TimeElapsedColumn",
    "TimeRemainingColumn",
]
