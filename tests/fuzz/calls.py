"""One call: its arguments drawn from a seed, run and judged."""

import contextlib
import inspect
import io
import random
import re
import time
import types
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from .judging import (
    changed,
    different,
    explained,
    filters_of_others,
    fingerprint,
    nans,
    owned,
    raised_by_hand,
    refusal,
    restore,
    surroundings,
)
from .known import ALIASES, CHANGES, FORMULAS, LONG, MEANT, OWNERS, UNUSED
from .mutations import SAME, TYPES, Opaque, mutations, shuffled
from .surface import Target, properties, results
from .valid import arguments, optional

SECONDS = 20.0


@dataclass(frozen=True)
class Outcome:
    """What became of a call: ``answer``, ``refusal`` or ``finding``, with the finding's kind and text."""

    target: str
    room: str
    call: int
    changes: tuple[tuple[str, str], ...]
    status: str
    kind: str = ""
    text: str = ""
    seconds: float = 0.0

    @property
    def key(self) -> tuple[str, str, str, str]:
        """What makes a finding distinct: function, argument, kind and text without numbers."""
        argument = self.changes[0][0] if self.changes else ""
        return (self.target, argument, self.kind, re.sub(r"[\d.]+(e[+-]?\d+)?|'[^']*'|0x\w+", "#", self.text)[:60])


def _applies(target: Target, parameter: str, change: str) -> bool:
    return change not in ("2**31", "10**12") or f"{target.name}({parameter})" not in LONG


def drawn(target: Target, seed: int, call: int) -> tuple[tuple[str, str], ...]:
    """Return the arguments that a call changes and how: one, and from time to time two. Call -1 is the valid one."""
    if call < 0:
        return ()
    function = target.obtain()
    valid = optional(target.name) | arguments(target.name, target.parameters, function)
    signature = inspect.signature(function).parameters
    names = [p for p in dict.fromkeys([*target.parameters, *valid]) if p != "progress"]
    pairs = [(p, change) for p in names for change in mutations(valid.get(p), signature.get(p))]
    pairs = [(p, change) for p, change in pairs if _applies(target, p, change)]
    pairs += [(p, "as it is") for p in optional(target.name)]
    if not pairs:
        return ()
    order = shuffled(f"{seed} {target.name}", pairs)
    first = order[call % len(order)]
    draw = random.Random(f"{seed} {target.name} {call}")
    others = [pair for pair in pairs if pair[0] != first[0]]
    if others and (call >= len(order) or draw.random() < 0.15):
        return (first, draw.choice(others))
    return (first,)


def prepared(target: Target, changes: tuple[tuple[str, str], ...]) -> tuple[Callable[..., Any], dict[str, Any]]:
    """Return the function and the arguments of a call."""
    function = target.obtain()
    built = arguments(target.name, target.parameters, function)
    signature = inspect.signature(function).parameters
    for parameter, change in changes:
        value = built.get(parameter, optional(target.name).get(parameter))
        if value is None and parameter in signature and signature[parameter].default is not inspect.Parameter.empty:
            value = signature[parameter].default
        try:
            built[parameter] = ({"as it is": lambda v: v} | mutations(value, signature.get(parameter)))[change](value)
        except Exception as error:  # such as a trace of a network without linear layers
            raise UnsuitableError(f"{type(error).__name__}: {error}"[:200]) from error
    return function, built


class UnsuitableError(Exception):
    """A change that does not suit a value."""


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Swallow what a call prints."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield


def invoke(function: Callable[..., Any], built: dict[str, Any]) -> Any:
    """Call a function with arguments by name; those that are only positional, by position."""
    kinds = {p.name: p.kind for p in inspect.signature(function).parameters.values()}
    first = [built[name] for name, kind in kinds.items() if kind == inspect.Parameter.POSITIONAL_ONLY and name in built]
    rest = {k: v for k, v in built.items() if kinds.get(k) != inspect.Parameter.POSITIONAL_ONLY}
    variable = [
        rest.pop(name) for name, kind in kinds.items() if kind == inspect.Parameter.VAR_POSITIONAL and name in rest
    ]
    more = () if not variable else variable[0] if isinstance(variable[0], list | tuple) else variable
    return function(*first, *more, **rest)


def run(target: Target, seed: int, call: int) -> Outcome:
    """Run one call and judge it."""
    return judged(target, drawn(target, seed, call), call)


def judged(target: Target, changes: tuple[tuple[str, str], ...], call: int = -1) -> Outcome:
    """Run the call that changes these arguments and judge it."""

    def outcome(status: str, kind: str = "", text: str = "") -> Outcome:
        return Outcome(target.name, target.room, call, changes, status, kind, text, time.monotonic() - started)

    started = time.monotonic()
    try:
        function, built = prepared(target, changes)
    except UnsuitableError as error:
        return outcome("not applicable", text=str(error))
    owner = getattr(function, "__self__", None) if target.name not in OWNERS else None
    before, prints, owns = surroundings(), fingerprint(built), owned(owner)
    started = time.monotonic()
    with warnings.catch_warnings(record=True) as caught, quiet():
        warnings.simplefilter("always")
        before["warning filters"] = filters_of_others()
        try:
            result, failure = invoke(function, built), None
        except Exception as error:
            result, failure = None, error
        after = surroundings()
    seconds = time.monotonic() - started
    if fingerprint(built) != prints and target.name not in CHANGES:
        made = {k: fingerprint(v) for k, v in built.items()}
        return outcome("finding", "argument changed", ", ".join(k for k in made if made[k] != prints.get(repr(k))))
    if owned(owner, [*owns]) != owns:
        made = owned(owner, [*owns])
        return outcome("finding", "owner changed", ", ".join(k or "parameters" for k in made if made[k] != owns[k]))
    if any(change == "random" for _, change in changes):  # a network that draws from PyTorch's generator itself
        after["torch's generator"] = before["torch's generator"]
    if moved := changed(before, after):
        restore(before)
        return outcome("finding", "global state changed", ", ".join(moved))
    if failure is not None:
        return _refused(target, changes, built, failure, outcome)
    if any(isinstance(built[p], Opaque) for p, _ in changes if f"{target.name}({p})" not in UNUSED):
        return outcome("finding", "object accepted", "an object of no use was taken")
    held = sorted(set(nans(result)))
    excused = explained(caught) or target.name in FORMULAS | MEANT.keys()
    if held and not excused:
        return outcome("finding", "NaN without a warning", ", ".join(held)[:200])
    if len(changes) == 1 and changes[0][1] in SAME:
        _, other = prepared(target, ())
        other = {p: v for p, v in optional(target.name).items() if p == changes[0][0]} | other
        with warnings.catch_warnings(), quiet():
            warnings.simplefilter("ignore")
            places = different(invoke(target.obtain(), other), result)
        if places:
            return outcome("finding", "another answer", ", ".join(places)[:200])
    if found := _read(result, excused):
        return outcome("finding", *found)
    if seconds > SECONDS:
        return outcome("finding", "too slow", f"{seconds:.0f} s")
    return outcome("answer")


def _read(result: Any, told: bool) -> tuple[str, str] | None:
    """Read the properties of a result, and call its methods without arguments; return the finding, if there is one.

    ``told`` states whether the call warned of numbers that are not finite, or they have a meaning.
    """
    with warnings.catch_warnings(record=True) as caught, quiet():
        warnings.simplefilter("always")
        for value in results(result):
            for name in properties(value):
                try:
                    read = getattr(value, name)
                    read = read() if isinstance(read, types.MethodType) else read
                except (ValueError, TypeError) as error:
                    if not raised_by_hand(error):
                        return "raw error", f"{type(value).__name__}.{name}: {type(error).__name__}: {error}"[:200]
                except ImportError:
                    continue  # of an optional package
                except Exception as error:
                    if type(error).__module__.startswith("bnrank"):
                        continue  # such as NotApplicable of Facts
                    return "other exception", f"{type(value).__name__}.{name}: {type(error).__name__}: {error}"[:200]
                else:
                    held = sorted(set(nans(read, f"{type(value).__name__}.{name}")))
                    if held and not told and not explained(caught):
                        return "NaN without a warning", ", ".join(held)[:200]
    return None


def _refused(
    target: Target, changes: tuple[tuple[str, str], ...], built: dict[str, Any], failure: Exception, outcome: Any
) -> Outcome:
    names = target.names
    if isinstance(built.get("name"), str) and target.name in ALIASES:
        names = (*names, built["name"])  # the name by which messages call another argument
    wrong = changes[0][0] if len(changes) == 1 and changes[0][1] in TYPES else ""
    if changes and changes[0][1] == "network" and "net" in changes[0][0]:
        wrong = ""
    found = refusal(failure, names, "" if names != target.names else wrong)
    if found is None and (not changes or [change for _, change in changes] == ["as it is"]):
        found = ("valid call refused", f"{type(failure).__name__}: {failure}".splitlines()[0][:200])
    return outcome("finding", *found) if found else outcome("refusal", text=str(failure)[:200])
