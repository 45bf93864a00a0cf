"""What is told of the calls: counts per room, and the distinct findings with a line that repeats each."""

from collections import Counter
from collections.abc import Sequence

from .calls import Outcome


def table(outcomes: Sequence[Outcome]) -> str:
    """Return the counts per room: calls, answers, refusals and findings by kind."""
    rooms = sorted({outcome.room for outcome in outcomes})
    kinds = sorted({outcome.kind for outcome in outcomes if outcome.status == "finding"})
    lines = [f"{'room':<12} {'calls':>6} {'answers':>8} {'refusals':>9} {'findings':>9}  of them"]
    for room in [*rooms, "all"]:
        here = [o for o in outcomes if room in (o.room, "all") and o.status != "not applicable"]
        status = Counter(o.status for o in here)
        by_kind = Counter(o.kind for o in here if o.status == "finding")
        named = ", ".join(f"{by_kind[kind]} {kind}" for kind in kinds if by_kind[kind])
        counts = f"{len(here):>6} {status['answer']:>8} {status['refusal']:>9} {status['finding']:>9}"
        lines.append(f"{room:<12} {counts}  {named}")
    return "\n".join(lines)


def findings(outcomes: Sequence[Outcome], seed: int) -> list[str]:
    """Return the distinct findings, each with the number of calls and a command that repeats one."""
    groups: dict[tuple[str, str, str, str], list[Outcome]] = {}
    for outcome in outcomes:
        if outcome.status == "finding":
            groups.setdefault(outcome.key, []).append(outcome)
    lines = []
    for key, members in sorted(groups.items()):
        one = members[0]
        how = ", ".join(f"{argument}={change}" for argument, change in one.changes)
        lines.append(
            f"{key[0]}({how}) x{len(members)}: {one.kind}: {one.text}\n"
            f"    python -m tests.fuzz --seed {seed} --function {one.target} --call {one.call}"
        )
    return lines
