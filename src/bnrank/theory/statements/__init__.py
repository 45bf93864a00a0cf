"""The statements of the theory, each a function from facts to its two sides."""

from bnrank.theory.statements import (
    convolutions,
    escape,
    interpolation,
    invariances,
    ranks,
    representation,
    structure,
    symmetry,
)
from bnrank.theory.verdict import Statement

__all__ = ["STATEMENTS"]


def _number(statement: Statement) -> tuple[int, str]:
    digits = "".join(c for c in statement.id if c.isdigit())
    return int(digits), statement.id


STATEMENTS: tuple[Statement, ...] = tuple(
    sorted(
        [
            *representation.STATEMENTS,
            *convolutions.STATEMENTS,
            *ranks.STATEMENTS,
            *structure.STATEMENTS,
            *interpolation.STATEMENTS,
            *symmetry.STATEMENTS,
            *escape.STATEMENTS,
            *invariances.STATEMENTS,
        ],
        key=_number,
    )
)
"""All of them, in the order of their ids."""
