"""Where the verbs say what they did."""

from rich.console import Console

console = Console()


def say(text: str) -> None:
    """Print plain text as it is: no markup, no colors, no line broken."""
    console.print(escape(text), highlight=False, soft_wrap=True)


def escape(text: str) -> str:
    """Return text in which no bracket is taken for markup."""
    return text.replace("[", r"\[")
