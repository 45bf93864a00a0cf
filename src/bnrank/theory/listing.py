"""What verdicts say of themselves: their number by status, a table of those that apply, and why others do not."""

import math
from typing import Any

from bnrank._core.content import Fold, Headline, Part, Table
from bnrank._core.results import described


def headline(verdicts: Any) -> str:
    """Return the number of statements, and of verdicts of each status, in a line; violated ones by their ids.

    Examples
    --------
    >>> from bnrank.theory.verdicts import Verdict, Verdicts
    >>> found = [Verdict("T4", "", "", "", "holds", vacuous="0 <= 1"), Verdict("T7", "", "", "", "violated")]
    >>> headline(Verdicts(tuple(found), {}))
    '2 statements: 1 hold (1 vacuous), 1 violated (T7), 0 inconclusive, 0 not applicable'
    """
    violated = ", ".join(dict.fromkeys(v.id for v in verdicts.having("violated")))
    said = f"{len(verdicts)} statement{'' if len(verdicts) == 1 else 's'}: {numbers(verdicts)}"
    return said.replace(" violated,", f" violated ({violated}),") if violated else said


def numbers(verdicts: Any) -> str:
    """Return the number of verdicts of each status, in words."""
    counts, vacuous = verdicts.counts, sum(bool(v.vacuous) for v in verdicts)
    return (
        f"{counts['holds']} hold{f' ({vacuous} vacuous)' if vacuous else ''}, {counts['violated']} violated, "
        f"{counts['inconclusive']} inconclusive, {counts['not applicable']} not applicable"
    )


def content(verdicts: Any) -> list[Part]:
    """Return the headline, a row per verdict on a statement that applies, and the reasons why others do not."""
    rows = [
        {
            "id": v.id,
            "statement": v.name,
            "status": v.label,
            "left": v.left,
            "": "" if math.isnan(v.left) else v.relation,
            "right": v.right,
            "slack": v.slack,
            "remarks": v.reason or v.vacuous,
        }
        for v in verdicts.applied
    ]
    shown: list[Part] = [Headline(headline(verdicts)), Table("Verdicts on the statements that apply", rows)]
    lines, unmet = [], []
    for reason, own in verdicts.unmet().items():
        ids = ", ".join(dict.fromkeys(v.id for v in own))
        lines.append(f"{len(own)} of {len(verdicts)} not applicable ({ids}): {reason}")
        unmet.append({"statements": len(own), "not applicable": ids, "reason": reason})
    if unmet:
        title = f"{len(verdicts) - len(rows)} of {len(verdicts)} not applicable, and why"
        shown.append(Fold(title, lines, [Table("Not applicable, and why", unmet)]))
    about = [{"of": name, "value": described(value)} for name, value in verdicts.about.items()]
    return [*shown, Fold("network and data", (), [Table("Network and data", about)])] if about else shown
