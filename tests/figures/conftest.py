"""Fixtures of the tests of `bnrank reproduce`."""

import sys

import pytest
from matplotlib.layout_engine import ConstrainedLayoutEngine
from rich.console import Console

from bnrank import cli, figures
from bnrank.figures.harness import store


@pytest.fixture(autouse=True)
def without_layout(monkeypatch):
    """Save pictures without arranging their axes, which takes longer than drawing them."""
    monkeypatch.setattr(ConstrainedLayoutEngine, "execute", lambda self, fig: None)


@pytest.fixture
def small_pictures(monkeypatch):
    monkeypatch.setattr(store, "SVG_LIMIT", 50_000)


@pytest.fixture
def plant(monkeypatch):
    """Put planted figures in the place of all that there are."""
    return lambda *made: monkeypatch.setattr(figures, "FIGURES", tuple(figure for figure, _ in made))


@pytest.fixture
def command(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["bnrank", "reproduce", *arguments])
        monkeypatch.setattr(cli.terminal, "console", Console(width=120))
        capsys.readouterr()
        with pytest.raises(SystemExit) as exit_:
            cli.main()
        return exit_.value.code or 0, *capsys.readouterr()

    return run
