"""Run the fuzzer: ``python -m tests.fuzz --calls 10000 --seed 0``."""

import argparse
import os
import sys
import time
import traceback
import warnings

for _name in ("OMP_NUM_THREADS", "MPLBACKEND"):
    os.environ.setdefault(_name, {"OMP_NUM_THREADS": "1", "MPLBACKEND": "agg"}[_name])

from .calls import drawn, invoke, prepared, run  # noqa: E402
from .fence import raise_fence  # noqa: E402
from .made import FOLDER  # noqa: E402
from .plan import all_targets, jobs_for  # noqa: E402
from .report import findings, table  # noqa: E402
from .workers import imported, outcomes  # noqa: E402


def main() -> int:
    """Run calls, print the table and the findings, and return 1 where there are any."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("--calls", type=int, default=10_000, help="number of calls")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--room", help="only the functions of one room")
    parser.add_argument("--function", help="only the functions whose name contains this")
    parser.add_argument("--call", type=int, help="one call of one function, with its traceback; -1 is the valid call")
    parser.add_argument("--slow", action="store_true", help="list the slowest calls")
    options = parser.parse_args()
    targets = all_targets(options.room, options.function)
    if options.call is not None:
        return _one(options, [t for t in targets if t.name == options.function] or targets)
    started = time.monotonic()
    done = []
    for outcome in outcomes(jobs_for(targets, options.calls), options.seed):
        done.append(outcome)
        if sys.stderr.isatty():
            print(f"\r{len(done)} calls", end="", file=sys.stderr)
    told = findings(done, options.seed)
    print("\n".join(told))
    print(table(done))
    skipped = sum(o.status == "not applicable" for o in done)
    slowest = max(done, key=lambda o: o.seconds)
    print(f"{len(told)} distinct findings; {skipped} changes did not apply; {time.monotonic() - started:.0f} s;")
    print(f"slowest call: {slowest.seconds:.1f} s, {slowest.target}{list(slowest.changes)}")
    if options.slow:
        for o in sorted(done, key=lambda o: -o.seconds)[:40]:
            print(f"{o.seconds:6.2f} s  {o.target} {o.call} {list(o.changes)} {o.status}")
    return 1 if told else 0


def _one(options: argparse.Namespace, targets: list) -> int:
    target = targets[0]
    imported()
    os.chdir(FOLDER)
    raise_fence(FOLDER)
    changes = drawn(target, options.seed, options.call)
    print(target.name, *(f"{argument}={change}" for argument, change in changes))
    function, built = prepared(target, changes)
    for name, value in built.items():
        print(f"  {name} = {str(value)[:200]}")
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        try:
            print("returned", str(invoke(function, built))[:500])
        except Exception:
            traceback.print_exc()
    outcome = run(target, options.seed, options.call)
    print(outcome.status, outcome.kind, outcome.text)
    return 1 if outcome.status == "finding" else 0


if __name__ == "__main__":
    sys.exit(main())
