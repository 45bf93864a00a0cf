"""The folder of a sweep: what is to be trained, what is done, and who is at work.

``sweep.json``: format and versions. ``tasks/``: data, each once. ``plan/``: groups, a line each. ``leases/``: who is at
work. ``work/``: checkpoints. ``rows/``: one row per trained member. ``arrays/``: networks and histories, a file per
group. ``split/``: groups whose members are trained one by one.
"""

from __future__ import annotations

import json
import os
import shutil
import uuid
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from bnrank._core.files import one_writer, prepare_folder, write_atomically, writing
from bnrank._core.sources import DamagedError, as_path
from bnrank._version import __version__
from bnrank.training.sweeping.groups import Group
from bnrank.training.sweeping.rows import Reader, line_of, row_of

ABOUT, FORMAT = "sweep.json", 1
PLAN, WORK, ARRAYS, SPLIT = "plan", "work", "arrays", "split"
FAILED = "failed"
PLAN_LOCK = ".plan.lock"


class SweepFolder:
    """The folder of a sweep, as a process sees it."""

    def __init__(self, path: Path) -> None:
        self.path = path.resolve()
        self.rows: dict[str, dict[str, Any]] = {}  # one of each key: of a trained network rather than a failed one
        self._failed: set[tuple[str, str | None]] = set()  # keys, and the calls in which they failed
        self._reader = Reader(self.path)
        self._groups: dict[str, Group] = {}
        self._plans: set[str] = set()

    @classmethod
    def create(cls, out: str | os.PathLike[str]) -> SweepFolder:
        """Return a folder that this version of bnrank can go on with, created if necessary.

        Raises
        ------
        TypeError, ValueError
            If it cannot be written to, holds something else, or is of other versions of bnrank or torch.
        """
        path = prepare_folder(out)
        about = path / ABOUT
        if not about.exists():
            others = sorted(entry.name for entry in path.iterdir() if not entry.name.startswith("."))
            if others and not about.exists():  # not created by another process in between
                raise ValueError(f"out: got {str(path)!r}, which holds {others[0]!r}, expected a new or empty folder")
            with writing("out", path):
                write_atomically(about, json.dumps(_versions()))
        folder = cls(path)
        folder.check_versions()
        return folder

    @classmethod
    def open(cls, path: str | os.PathLike[str], name: str = "path") -> SweepFolder:
        """Return the folder of a sweep; ValueError if it is none."""
        path = as_path(path, name)
        if not (path / ABOUT).is_file():
            raise ValueError(f"{name}: got {str(path)!r}, expected the folder of a sweep, which has a file {ABOUT}")
        return cls(path)

    def state(self) -> object:
        """Return what differs between this folder and any other, also one that was removed from the same place."""
        about = (self.path / ABOUT).stat()
        return self.path, about.st_ino, about.st_mtime_ns

    def check_versions(self) -> None:
        """Raise ValueError if the folder was begun with other versions of bnrank or torch: their bits may differ."""
        try:
            found, own = dict(json.loads((self.path / ABOUT).read_text())), _versions()
        except (ValueError, TypeError) as error:
            raise DamagedError(f"out: {str(self.path / ABOUT)!r} is damaged: {error}") from error
        for name, version in own.items():
            if found.get(name) != version:
                raise ValueError(
                    f"out: {str(self.path)!r} was begun with {name} {found.get(name)}, and this is {name} {version}; "
                    "expected the same, since their results may differ"
                )

    def refresh(self) -> None:
        """Read the rows that were appended since the last call."""
        for row in self._reader.read():  # of many files, in no order of time
            key, failed = row["key"], row["status"] == FAILED
            if failed:
                self._failed.add((key, row.get("call")))
            if not failed or key not in self.rows or self.rows[key]["status"] == FAILED:
                self.rows[key] = row

    def is_done(self, key: str, call: str | None) -> bool:
        """Return whether a member has a result; one that failed counts only if it failed in this call."""
        row = self.rows.get(key)
        return row is not None and (row["status"] != FAILED or call is None or (key, call) in self._failed)

    def add(self, groups: list[Group]) -> None:
        """Add groups to the plan."""
        if groups:
            place = self.path / PLAN
            with writing("out", place):
                place.mkdir(exist_ok=True)
                text = "".join(line_of(asdict(group)) for group in groups)
                write_atomically(place / f"{uuid.uuid4().hex}.jsonl", text)

    def groups(self) -> dict[str, Group]:
        """Return all groups of the plan by their ids, in the order in which they were planned."""
        new = [path for path in (self.path / PLAN).glob("*.jsonl") if path.name not in self._plans]
        for path in sorted(new, key=lambda path: path.stat().st_mtime_ns):
            self._plans.add(path.name)
            found = [row_of(line) for line in path.read_bytes().splitlines()]
            groups = [Group.of_values(values) for values in found if values is not None]
            self._groups |= {group.id: group for group in groups}
            if None in found:  # their members are planned again
                warnings.warn(f"out: {path} is damaged in {found.count(None)} group(s), not used", stacklevel=3)
        return self._groups

    def parts(self, group: Group) -> list[Group]:
        """Return a group, or its members one by one if it was split."""
        if len(group.members) > 1 and (self.path / SPLIT / group.id).exists():
            return [group.of([member]) for member in group.members]
        return [group]

    def split(self, group: Group) -> None:
        """Train the members of a group one by one from now on: one of them ends or breaks its process."""
        (self.path / SPLIT).mkdir(exist_ok=True)
        (self.path / SPLIT / group.id).touch()

    def checkpoints(self, group: Group) -> Path:
        """Return the folder of the checkpoints of a group."""
        path = self.path / WORK / group.id
        path.mkdir(parents=True, exist_ok=True)
        return path

    def discard_checkpoints(self, group: Group) -> None:
        """Remove the checkpoints of a group."""
        shutil.rmtree(self.path / WORK / group.id, ignore_errors=True)


def planned(folder: SweepFolder, groups: list[Group]) -> list[Group]:
    """Return the groups that have these members, without those that are done; what is new is added to the plan.

    A member that another sweep has planned stays in its group, so that it is trained once.
    """
    with one_writer(folder.path, lock=PLAN_LOCK, wait=True):
        folder.refresh()
        known = {member.key: group for group in folder.groups().values() for member in group.members}
        found: dict[str, Group] = {}
        new = []
        for group in groups:
            fresh = []
            for member in group.members:
                row = folder.rows.get(member.key)
                if row is not None and row["status"] != FAILED:
                    continue
                if row is None and member.key in known:
                    found[known[member.key].id] = known[member.key]
                else:
                    fresh.append(member)
            if fresh:
                new.append(group.of(fresh))
        folder.add(new)
    return list((found | {group.id: group for group in new}).values())


def _versions() -> dict[str, Any]:
    return {"format": FORMAT, "bnrank": __version__, "torch": torch.__version__}
