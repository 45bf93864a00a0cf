"""Text tables."""

from rich.console import Console

from bnrank._core import text
from bnrank.cli import terminal


def test_no_number_is_cut_where_words_can_wrap():
    numbers = {"loss": 0.1235, "cost": 0.0123, "norm": 123.4, "gradient": 1.234e-05, "balance": 1.567e-07}
    console = Console(width=80)
    with console.capture() as capture:
        console.print(text.table([{"member": 0, "status": "steps used up", "middle rank": 2} | numbers]))
    for number in numbers.values():
        assert text.cell(number) in capture.get()
    assert max(map(len, capture.get().splitlines())) <= 80


def test_nothing_is_cut_where_the_terminal_is_too_narrow(monkeypatch, capsys):
    monkeypatch.setattr(terminal, "console", Console(width=40))
    numbers = {"loss": 0.167, "cost": 0.0009345, "norm": 16.6, "gradient": 0.01296, "balance": 0.005159}
    terminal.show(text.table([{"status": "finished", "middle rank": 2, "name": "bottleneck-spectra"} | numbers]))
    shown = capsys.readouterr().out
    for entry in ("finished", "middle", "gradient", "bottleneck-spectra", *map(text.cell, numbers.values())):
        assert entry in shown
    assert "…" not in shown


def test_a_column_may_be_empty():
    assert text.table([{"name": "", "value": None}]).row_count == 1
    assert text.table([]).row_count == 0
