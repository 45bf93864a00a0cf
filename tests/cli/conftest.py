"""The command line, run in the process of the tests."""

import sys
from dataclasses import dataclass

import pytest
from rich.console import Console

from bnrank import cli


@dataclass(frozen=True)
class Done:
    """What a command gave."""

    code: int
    out: str
    error: str


@pytest.fixture
def command(tmp_path, monkeypatch, capsys):
    """Run a command in a folder of its own, where there is no data."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "400")
    monkeypatch.setenv("BNRANK_DATA", str(tmp_path))

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["bnrank", *map(str, arguments)])
        monkeypatch.setattr(cli.terminal, "console", Console(width=160))
        capsys.readouterr()
        with pytest.raises(SystemExit) as exit_:
            cli.main()
        return Done(exit_.value.code or 0, *capsys.readouterr())

    return run
