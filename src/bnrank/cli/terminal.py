"""Where the verbs say what they did."""

from rich.console import Console
from rich.table import Table

console = Console()


def show(table: Table) -> None:
    """Print a table; where the terminal is too narrow for its numbers, its lines are longer than the terminal."""
    needed = console.measure(table, options=console.options.update(width=1000)).minimum
    Console(width=max(console.width, needed)).print(table)


def say(text: str) -> None:
    """Print plain text as it is: no markup, no colors, no line broken."""
    console.print(escape(text), highlight=False, soft_wrap=True)


def escape(text: str) -> str:
    """Return text in which no bracket is taken for markup."""
    return text.replace("[", r"\[")
