"""Which calls are made: the targets, and how many calls of each."""

import contextlib
import io
import random
import warnings
from collections.abc import Sequence

from .calls import invoke
from .surface import Target, functions, of_result
from .valid import METHOD_OWNERS, SLOW, arguments


def all_targets(room: str | None = None, function: str | None = None) -> list[Target]:
    """Return the functions, classes and methods, of one room or with a text in the name."""
    found = {target.name: target for target in functions()}
    for owner in METHOD_OWNERS:
        target = found[owner]
        obtained = target.obtain()
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            value = invoke(obtained, arguments(target.name, target.parameters, obtained))
        for method in of_result(owner, value):
            found.setdefault(method.name, method)
    chosen = [t for t in found.values() if room in (None, t.room) and (function is None or function in t.name)]
    if not chosen:
        raise SystemExit(f"no public function of room {room!r} with {function!r} in its name")
    return chosen


def jobs_for(targets: Sequence[Target], calls: int) -> list[tuple[Target, int]]:
    """Return the calls: the valid one of each target, then an equal number of bad ones, fewer of slow functions."""
    weights = {target.name: SLOW.get(target.name.rsplit(".", 1)[0], SLOW.get(target.name, 1.0)) for target in targets}
    left = max(calls - len(targets), 0)
    total = sum(weights.values())
    jobs = []
    for target in targets:
        count = round(left * weights[target.name] / total)
        jobs += [(target, call) for call in range(-1, count)]
    return jobs


def sample(calls: int, seed: int) -> list[tuple[Target, int]]:
    """Return some bad calls of functions in the rooms tasks, networks, measures and training, drawn from a seed."""
    quick = [t for t in functions() if t.room in ("tasks", "networks", "measures", "training") and t.name not in SLOW]
    draw = random.Random(seed)
    return [(draw.choice(quick), draw.randrange(1000)) for _ in range(calls)]
