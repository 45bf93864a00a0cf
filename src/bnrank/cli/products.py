"""Power products of the inputs in `bnrank discover`."""

from __future__ import annotations

import warnings
from typing import Any

import bnrank
from bnrank._core import validation
from bnrank.cli.arguments import words
from bnrank.cli.terminal import say


def read_units(text: str | None, table: bnrank.tasks.Table, kind: str | None) -> dict[str, str] | None:
    """Return the units of all columns, before anything is fitted; None without a text.

    Raises
    ------
    ValueError
        If there is not one output of numbers, a word has no "=", a unit is missing or unknown, or pint is missing.
    """
    from bnrank.discovery.power_products.units import quantities

    outputs = table.outputs
    got = "no target column" if outputs is None else f"target columns {', '.join(table.targets)}"
    got = f"--kind {kind}" if kind not in (None, "regressor") else got
    numbers = outputs is not None and outputs.shape[1] == 1 and outputs.iloc[:, 0].dtype.kind in "iuf"
    option = "power_products" if text is None else "units"
    validation.expect(numbers and kind in (None, "regressor"), option, got, "one target column of numbers")
    if text is None:
        return None
    units = dict[str, str]()
    for word in words(text):
        name, equals, unit = (part.strip() for part in word.rpartition("="))
        validation.expect(equals, "units", repr(word), "COLUMN=UNIT, such as L=m")
        units[name] = unit
    target = table.targets[0]
    validation.expect(target in units, "units", f"none for {target}", "one for every column ('COLUMN=' for numbers)")
    inputs = {name: unit for name, unit in units.items() if name != target}
    x = table.inputs.to_numpy(dtype=float)
    try:
        quantities(x, x[:, 0], list(table.inputs), inputs, units[target])
    except ImportError as error:
        raise ValueError(str(error)) from error
    return units


def power_products(table: bnrank.tasks.Table, units: dict[str, str] | None, estimator: Any) -> Any:
    """Print the power products of the inputs that the output depends on, and return the result."""
    assert table.outputs is not None
    target = table.targets[0]
    inputs = None if units is None else {name: unit for name, unit in units.items() if name != target}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", bnrank.discovery.NothingFoundWarning)  # the result says it
        found = bnrank.discovery.dimensionless_groups(
            table.inputs,
            table.outputs,
            units=inputs,
            y_unit=None if units is None else units[target],
            groups=table.groups,
            estimator=estimator,
        )
    say(str(found))
    return found
