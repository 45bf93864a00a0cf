"""Text tables."""

from rich.console import Console

from bnrank._core import text


def test_no_number_is_cut_where_words_can_wrap():
    numbers = {"loss": 0.1235, "cost": 0.0123, "norm": 123.4, "gradient": 1.234e-05, "balance": 1.567e-07}
    console = Console(width=80)
    with console.capture() as capture:
        console.print(text.table([{"member": 0, "status": "steps used up", "middle rank": 2} | numbers]))
    for number in numbers.values():
        assert text.cell(number) in capture.get()
    assert max(map(len, capture.get().splitlines())) <= 80
