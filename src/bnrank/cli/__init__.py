"""The command line: one verb each for what the library does."""

import os
from typing import Annotated, NoReturn

import typer
from rich.console import Console

from bnrank._version import __version__
from bnrank.cli.check import check_command
from bnrank.cli.compare import compare_command
from bnrank.cli.compress import compress_command
from bnrank.cli.demo import demo_command
from bnrank.cli.discover import discover_command
from bnrank.cli.naming import verb
from bnrank.cli.profile import profile_command
from bnrank.cli.reproduce import reproduce_command
from bnrank.cli.sweep import sweep_command
from bnrank.cli.terminal import escape, say
from bnrank.cli.train import train_command
from bnrank.cli.watch import watch_command

__all__ = ["app", "main"]

app = typer.Typer(add_completion=False, no_args_is_help=True, rich_markup_mode="rich", pretty_exceptions_enable=False)


def main() -> None:
    """Run the command line.

    The exit status is 2 for an error of the user's, 130 for Ctrl-C, 70 for an error that no one foresaw; each is one
    message. The variable BNRANK_TRACEBACK shows where an unforeseen one was raised.
    """
    try:
        app()
    except (ValueError, TypeError, OSError) as error:
        _fail(f"[bold red]error[/] {escape(str(error))}", 2)
    except KeyboardInterrupt:
        _fail("interrupted", 130)
    except Exception as error:
        if os.environ.get("BNRANK_TRACEBACK"):
            raise
        what = f"{type(error).__name__}: {error}; BNRANK_TRACEBACK=1 shows where"
        _fail(f"[bold red]unexpected error[/] {escape(what)}", 70)


def _fail(message: str, status: int) -> NoReturn:
    Console(stderr=True).print(message, highlight=False, soft_wrap=True)
    raise SystemExit(status) from None


@app.callback(invoke_without_command=True)
def root(version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False) -> None:
    """Measure, train, check and use the bottleneck structure of deep networks."""
    if version:
        say(f"bnrank {__version__}")
        raise typer.Exit


app.command(name="demo")(verb(demo_command))
app.command(name="train")(verb(train_command))
app.command(name="sweep")(verb(sweep_command))
app.command(name="profile")(verb(profile_command))
app.command(name="watch")(verb(watch_command))
app.command(name="compare")(verb(compare_command))
app.command(name="check")(verb(check_command))
app.command(name="discover")(verb(discover_command))
app.command(name="compress")(verb(compress_command))
app.command(name="reproduce")(verb(reproduce_command))
