"""Whether a folder holds the same sweep: one that may grow along its axes, and differs in nothing else."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bnrank.training.sweeping.axes import TASK
from bnrank.training.sweeping.groups import Group, Member, decoded


def check_same(path: str, known: Sequence[Group], new: Sequence[Group]) -> None:
    """Raise ValueError if groups that are new to a folder belong to another sweep than those that it has.

    What is an axis of neither must be the same, and networks at the same place of the grid must be the same networks:
    the pictures and tables of a folder would mix them otherwise.
    """
    if not known or not new:
        return
    axes = {name for group in (*known, *new) for member in group.members for name in member.point}
    if any(name.startswith(TASK) for name in axes):
        axes.add("task")
    before, now = fixed(known[0], axes), fixed(new[0], axes)
    differs = [name for name in before | now if before.get(name) != now.get(name)]
    if "task" in differs:
        raise ValueError(f"out: got {path!r}, which holds a sweep of other data; expected these, or another folder")
    for name in differs:
        first, second = _text(before.get(name)), _text(now.get(name))
        axis = "" if name == "device" else f", {name!r} as an axis"
        raise ValueError(
            f"out: got {path!r}, which holds a sweep with {name} {first}, and this one has {second}; expected the same"
            f"{axis}, or another folder"
        )
    places = {_place(member): member.key for member in _members(known)}
    for member in _members(new):
        if places.get(_place(member), member.key) != member.key:
            where = ", ".join(f"{name}={value!r}" for name, value in member.point.items())
            raise ValueError(
                f"out: got {path!r}, which holds another sweep: its network at {where} has other data or another "
                "step size; expected the same, or another folder"
            )


def fixed(group: Group, axes: Iterable[str]) -> dict[str, Any]:
    """Return the settings of a group that are no axes; those of the stopping rule and of the optimizer one by one."""
    found = {"task": group.task, "device": group.device, **group.network, **group.options}
    stop, optimizer = found.get("steps"), found.get("optimizer")
    if isinstance(stop, Mapping):
        found |= stop  # its own "steps" among them
    if isinstance(optimizer, Mapping) and "optimizer" not in axes:
        found |= {**optimizer, "optimizer": optimizer["is"]}
    return {name: value for name, value in found.items() if name not in (*axes, "is")}


def _members(groups: Iterable[Group]) -> Iterable[Member]:
    return (member for group in groups for member in group.members)


def _place(member: Member) -> str:
    return json.dumps(member.point, sort_keys=True)


def _text(value: Any) -> str:
    return repr(decoded(value)) if value is None or isinstance(value, Mapping | list) else str(value)
