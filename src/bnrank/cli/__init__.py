"""The command line: one verb each for what the library does."""

from typing import Annotated

import typer
from rich.console import Console

from bnrank._version import __version__
from bnrank.cli.arguments import grouped
from bnrank.cli.check import check_command
from bnrank.cli.compress import compress_command
from bnrank.cli.demo import demo_command
from bnrank.cli.discover import discover_command
from bnrank.cli.profile import profile_command
from bnrank.cli.reproduce import reproduce_command
from bnrank.cli.terminal import escape, say
from bnrank.cli.train import train_command

__all__ = ["app", "main"]

app = typer.Typer(add_completion=False, no_args_is_help=True, rich_markup_mode="rich", pretty_exceptions_enable=False)


def main() -> None:
    """Run the command line; an error of the user's is one line and exit status 2, Ctrl-C exit status 130."""
    try:
        app()
    except (ValueError, TypeError, OSError) as error:
        Console(stderr=True).print(f"[bold red]error[/] {escape(str(error))}", highlight=False)
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        Console(stderr=True).print("interrupted")
        raise SystemExit(130) from None


@app.callback(invoke_without_command=True)
def root(version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False) -> None:
    """Measure, train, check and use the bottleneck structure of deep networks."""
    if version:
        say(f"bnrank {__version__}")
        raise typer.Exit


app.command(name="demo")(demo_command)
app.command(name="train")(grouped(train_command))
app.command(name="profile")(grouped(profile_command))
app.command(name="check")(grouped(check_command))
app.command(name="discover")(grouped(discover_command))
app.command(name="compress")(grouped(compress_command))
app.command(name="reproduce")(reproduce_command)
