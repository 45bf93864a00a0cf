"""The folder of a sweep: what is to be trained, what is done, and who is at work.

``sweep.json``: format and versions. ``tasks/``: data, each once. ``plan/``: groups, a line each. ``leases/``: who is at
work. ``work/``: checkpoints. ``rows/``: one row per trained member. ``arrays/``: networks and histories, a file per
group, in 256 folders. ``split/``: groups whose members are trained one by one.
"""

from __future__ import annotations

import json
import os
import shutil
import uuid
import warnings
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from bnrank._core.files import one_writer, prepare_folder, write_atomically, writing
from bnrank._core.sources import DamagedError, as_path
from bnrank._version import __version__
from bnrank.training.sweeping.groups import Group, Member
from bnrank.training.sweeping.rows import Reader, line_of, row_of
from bnrank.training.sweeping.same import check_same
from bnrank.training.trainer import CHECKPOINT

ABOUT, FORMAT = "sweep.json", 2
PLAN, WORK, ARRAYS, SPLIT = "plan", "work", "arrays", "split"
FAILED, WAITING = "failed", "waiting"
PLAN_LOCK = ".plan.lock"


class SweepFolder:
    """The folder of a sweep, as a process sees it; a worker keeps the status of each network, and not its row."""

    def __init__(self, path: Path, worker: bool = False) -> None:
        self.path, self.worker = path.resolve(), worker
        self.rows: dict[str, dict[str, Any]] = {}  # one of each key: of a trained network rather than a failed one
        self.failures: Counter[str] = Counter()  # how often each key has failed
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
    def open(cls, path: str | os.PathLike[str], name: str = "path", worker: bool = False) -> SweepFolder:
        """Return the folder of a sweep; ValueError if it is none."""
        path = as_path(path, name)
        if not (path / ABOUT).is_file():
            raise ValueError(f"{name}: got {str(path)!r}, expected the folder of a sweep, which has a file {ABOUT}")
        return cls(path, worker)

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
        for row in self._reader.new():  # of many files, in no order of time
            key, failed = row["key"], row["status"] == FAILED
            if failed:
                self.failures[key] += 1
            if not failed or key not in self.rows or self.rows[key]["status"] == FAILED:
                self.rows[key] = {"status": row["status"]} if self.worker else row

    def is_done(self, *members: Member) -> bool:
        """Return whether members have results; failures that were known when they were planned do not count."""
        return all(
            (row := self.rows.get(member.key)) is not None
            and (row["status"] != FAILED or self.failures[member.key] > member.failures)
            for member in members
        )

    def add(self, groups: list[Group]) -> None:
        """Add groups to the plan."""
        if groups:
            place = self.path / PLAN
            with writing("out", place):
                place.mkdir(exist_ok=True)
                text = "".join(line_of(asdict(group)) for group in groups)
                write_atomically(place / f"{uuid.uuid4().hex}.jsonl", text)

    def groups(self) -> dict[str, Group]:
        """Return all groups of the plan by their ids, in the order in which they were planned; the last of each id."""
        new = [path for path in (self.path / PLAN).glob("*.jsonl") if path.name not in self._plans]
        for path in sorted(new, key=lambda path: path.stat().st_mtime_ns):
            self._plans.add(path.name)
            found = [row_of(line) for line in path.read_bytes().splitlines()]
            groups = [Group.of_values(values) for values in found if values is not None]
            for group in groups:
                if group.id not in self._groups or _tries(self._groups[group.id]) <= _tries(group):
                    self._groups[group.id] = group
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

    def progress(self, group: Group) -> str | None:
        """Return what tells the last checkpoint of a group from earlier ones; None without one."""
        try:
            found = (self.path / WORK / group.id / CHECKPOINT).stat()
        except OSError:
            return None
        return f"{found.st_ino} {found.st_mtime_ns}"

    def discard_checkpoints(self, group: Group) -> None:
        """Remove the checkpoints of a group."""
        shutil.rmtree(self.path / WORK / group.id, ignore_errors=True)


def planned(folder: SweepFolder, groups: list[Group]) -> list[Group]:
    """Return the groups that have these members, without those that are done; what is new is added to the plan.

    A member that another call has planned stays in its group, so that it is trained once, or tried again once.

    Raises
    ------
    ValueError
        If the folder holds another sweep.
    """
    with one_writer(folder.path, lock=PLAN_LOCK, wait=True):
        folder.refresh()
        check_same(str(folder.path), list(folder.groups().values()), groups)
        known: dict[str, tuple[Group, Member]] = {}  # of each key, the last that was planned
        for group in folder.groups().values():
            for member in group.members:
                if member.key not in known or known[member.key][1].failures <= member.failures:
                    known[member.key] = group, member
        found: dict[str, Group] = {}
        new = []
        for group in groups:
            fresh = []
            for member in group.members:
                row = folder.rows.get(member.key)
                if row is not None and row["status"] != FAILED:
                    continue
                other = known.get(member.key)
                if other is not None and not folder.is_done(other[1]):
                    found[other[0].id] = other[0]
                else:
                    fresh.append(replace(member, failures=folder.failures[member.key]))
            if fresh:
                new.append(group.of(fresh))
        folder.add(new)
    return list((found | {group.id: group for group in new}).values())


def _tries(group: Group) -> int:
    return sum(member.failures for member in group.members)


def _versions() -> dict[str, Any]:
    return {"format": FORMAT, "bnrank": __version__, "torch": torch.__version__}
