"""Errors that name options as typed, whatever the library calls what they set."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from typer.models import ArgumentInfo, ParameterInfo


class Names(dict[str, str]):
    """What a user types, by other names that the library has for it: ``Names(record="--record-every")``."""

    def __init__(self, **names: str) -> None:
        super().__init__(names)


@contextlib.contextmanager
def naming(names: Mapping[str, str]) -> Iterator[None]:
    """Raise errors that begin with the names of arguments again, with what the user typed in their place."""
    try:
        yield
    except (ValueError, TypeError) as error:
        raise ValueError(_in_files(renamed(str(error), names))) from error


def _in_files(message: str) -> str:
    """Return an error's message with advice on files where it is on arrays of Python."""
    return message.replace("convert it with .long()", "store it as integers")


def renamed(message: str, names: Mapping[str, str]) -> str:
    """Return an error's message with the arguments before its first colon renamed.

    Examples
    --------
    >>> renamed("every: got 0, expected more", {"every": "--record-every"})
    '--record-every: got 0, expected more'
    >>> renamed("x, y[1]: got 3", {"y": "y of DATA"})
    'x, y of DATA: got 3'
    """
    head, colon, rest = message.partition(": ")
    words = [re.sub(r"\[\d+\]$", "", word) for word in head.split(", ")]
    return ", ".join(names.get(word, word) for word in words) + colon + rest if {*words} & {*names} else message


def verb(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command for typer: the fields of dataclass parameters are options, and errors name options as typed."""
    parameters: list[inspect.Parameter] = []
    groups: dict[str, tuple[Any, list[str]]] = {}
    for name, parameter in inspect.signature(command, eval_str=True).parameters.items():
        kind = parameter.annotation
        if isinstance(kind, type) and dataclasses.is_dataclass(kind):
            fields = inspect.signature(kind, eval_str=True).parameters
            groups[name] = kind, list(fields)
            parameters += fields.values()
        else:
            parameters.append(parameter)
    names = {name: typed for parameter in parameters for name, typed in _names(parameter).items()}

    def run(**given: Any) -> None:
        for name, (kind, fields) in groups.items():
            given[name] = kind(**{field: given.pop(field) for field in fields})
        try:
            with naming(names):
                command(**given)
        except SystemExit as exit_:  # commands raise typer.Exit: this is from a user's code
            whose = "MODEL: the code of the network" if "MODEL" in names.values() else "the code that the command runs"
            raise ValueError(f"{whose} called sys.exit({exit_.code!r})") from exit_

    run.__doc__ = command.__doc__
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    parameters.sort(key=lambda parameter: parameter.default is not inspect.Parameter.empty)
    keyword = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in parameters]
    vars(run)["__signature__"] = inspect.Signature(keyword)
    return run


def _names(parameter: inspect.Parameter) -> dict[str, str]:
    """Return what a user types for a parameter, by the names that the library has for it."""
    typed = "--" + parameter.name.replace("_", "-")
    others: dict[str, str] = {}
    for about in parameter.annotation.__metadata__:
        if isinstance(about, ArgumentInfo):
            typed = about.metavar or parameter.name.upper()
        elif isinstance(about, ParameterInfo):
            typed = next((name for name in about.param_decls or () if name.startswith("--")), typed)
        elif isinstance(about, Names):
            others = about
    return {parameter.name: typed, **others}
