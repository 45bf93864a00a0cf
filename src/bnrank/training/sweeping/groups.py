"""Members of a sweep, keyed by all that decides their bits, and the groups in which they are trained."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bnrank._core import identity, store
from bnrank._core.locks import StorageError
from bnrank.networks import MLP
from bnrank.tasks import Task
from bnrank.training.options import Adam, GradientDescent, Record, Stop

LARGEST = 16  # members of a group: what a killed worker can lose, beside the time between checkpoints
TASKS, KIND = "tasks", "task of a sweep"
OPTIONS: dict[str, Any] = {kind.__name__: kind for kind in (Adam, GradientDescent, Record, Stop)}


@dataclass(frozen=True)
class Member:
    """A network of a sweep.

    Attributes
    ----------
    key : str
        Hash of all that decides its bits: data, architecture, ridge, seed and settings of training.
    ridge, seed : float, int
        Its own settings.
    point : mapping
        Its place in the grid, as plain values.
    failures : int
        How many stored failures do not count, since they are of earlier calls.
    lr : float, optional
        Its own step size, for optimizers that have one.
    """

    key: str
    ridge: float
    seed: int
    point: Mapping[str, Any]
    failures: int = 0
    lr: float | None = None


@dataclass(frozen=True)
class Group:
    """Members of one architecture on the same data, trained as one ensemble.

    Their bits do not depend on their company, so that members are grouped freely.

    Attributes
    ----------
    task : str
        Digest of the task in the folder.
    size : int
        Number of its training samples, the first.
    depth, width : int
        Of the networks.
    network : mapping
        Slope, bias and init.
    device : str
        Where they are trained.
    options : mapping
        Options of `bnrank.train`, encoded as plain values.
    checkpoint_every : int, optional
        Steps between checkpoints.
    members : tuple of Member
        The networks.
    """

    task: str
    size: int
    depth: int
    width: int
    network: Mapping[str, Any]
    device: str
    options: Mapping[str, Any]
    checkpoint_every: int | None
    members: tuple[Member, ...]

    @functools.cached_property
    def id(self) -> str:
        """Hash of the keys of the members."""
        return hashlib.sha256(" ".join(member.key for member in self.members).encode()).hexdigest()[:20]

    @property
    def work(self) -> int:
        """Roughly, the multiplications of a step."""
        return len(self.members) * self.size * self.depth * self.width**2

    def of(self, members: Sequence[Member]) -> Group:
        """Return the group with these members only."""
        return replace(self, members=tuple(members))

    def net(self, task: Task) -> MLP:
        """Return a network of this architecture."""
        widths = [task.d_in, *[self.width] * (self.depth - 1), task.d_out]
        return MLP(widths, **self.network).to(self.device)

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of `bnrank.train`: the options, and what its members have of their own."""
        found = {name: decoded(value) for name, value in self.options.items()}
        rates = tuple(member.lr for member in self.members)
        if rates[:1] not in ((), (None,)):
            found["optimizer"] = replace(found["optimizer"], lr=rates)
        ridge, seed = [member.ridge for member in self.members], [member.seed for member in self.members]
        return {**found, "ridge": ridge, "seed": seed}

    def to_json(self) -> str:
        """Return the group as one line of text."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Group:
        """Return the group of a line of text."""
        return cls.of_values(json.loads(text))

    @classmethod
    def of_values(cls, values: dict[str, Any]) -> Group:
        """Return the group of plain values."""
        return cls(**values | {"members": tuple(Member(**member) for member in values["members"])})


def grouped(settings: Mapping[str, Any], members: Sequence[tuple[float, int, Mapping[str, Any]]]) -> list[Group]:
    """Return members of one architecture, (ridge, seed, point), in groups of at most 16.

    Members that follow each other are in one group; if ridges are the outer loop, they differ in their seeds as far as
    possible.
    """
    return in_groups(settings, keyed(settings, members))


def keyed(
    settings: Mapping[str, Any], members: Sequence[tuple[float, int, Mapping[str, Any]]], rates: Sequence[float] = ()
) -> list[Member]:
    """Return members with their keys; ``rates`` are their step sizes, if the optimizer in ``settings`` has one."""
    decisive = {name: value for name, value in settings.items() if name != "checkpoint_every"}
    plans: dict[float | None, str] = {}
    found = []
    for i, (ridge, seed, point) in enumerate(members):
        rate = rates[i] if rates else None
        if rate not in plans:
            plans[rate] = json.dumps([identity.FORMAT, _with_rate(decisive, rate)], sort_keys=True)
        key = hashlib.sha256(f"{plans[rate]} {float(ridge)!r} {int(seed)}".encode()).hexdigest()[:20]
        found.append(Member(key, float(ridge), int(seed), dict(point), lr=rate))
    return found


def in_groups(settings: Mapping[str, Any], members: Sequence[Member]) -> list[Group]:
    """Return members of one architecture in groups of at most 16, equal ones once."""
    whole, found = Group(**settings, members=()), list({member.key: member for member in members}.values())
    return [whole.of(found[i : i + LARGEST]) for i in range(0, len(found), LARGEST)]


def _with_rate(settings: Mapping[str, Any], rate: float | None) -> dict[str, Any]:
    if rate is None:
        return dict(settings)
    options = settings["options"]
    return {**settings, "options": {**options, "optimizer": {**options["optimizer"], "lr": rate}}}


# options -------------------------------------------------------------------------------------------------------------


def encoded(value: Any, name: str = "options") -> Any:
    """Return an option of `bnrank.train` as plain values.

    Examples
    --------
    >>> encoded(Adam(lr=0.01))
    {'is': 'Adam', 'lr': 0.01, 'schedule': 'constant'}
    >>> decoded(encoded(Adam(lr=0.01)))
    Adam(lr=0.01, schedule='constant')
    """
    if isinstance(value, torch.dtype):
        return {"is": "dtype", "name": str(value).removeprefix("torch.")}
    if type(value) in OPTIONS.values():
        fields = {f.name: encoded(getattr(value, f.name), f"{name}.{f.name}") for f in dataclasses.fields(value)}
        return {"is": type(value).__name__, **fields}
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, list | tuple | np.ndarray):
        return [encoded(entry, name) for entry in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    known = ", ".join(OPTIONS)
    raise TypeError(f"{name}: got {value!r}, expected a number, text, torch.dtype, {known}, or a list of these")


def decoded(value: Any) -> Any:
    """Return the option that `encoded` encoded."""
    if isinstance(value, list):
        return tuple(map(decoded, value))
    if not isinstance(value, Mapping):
        return value
    if value["is"] == "dtype":
        return getattr(torch, value["name"])
    return OPTIONS[value["is"]](**{name: decoded(entry) for name, entry in value.items() if name != "is"})


# tasks ---------------------------------------------------------------------------------------------------------------


def store_task(folder: Path, task: Task) -> str:
    """Write the training data of a task to a folder, once, and return their digest."""
    digest = _digest(task)
    place = folder / TASKS
    place.mkdir(exist_ok=True)
    path = place / f"{digest}{store.SUFFIX}"
    if not store.is_whole(path):
        if path.exists():
            warnings.warn(f"out: {path} is damaged; it is written again", stacklevel=4)
        tensors = {"x": task.x, "y": task.y} | ({} if task.weights is None else {"weights": task.weights})
        settings = {name: str(value) for name, value in task.settings.items()}
        about = {"loss": task.loss, "name": task.name, "classes": task.classes, "settings": settings}
        store.save(path, tensors, about, KIND)
    return digest


@functools.lru_cache(maxsize=8)
def load_task(folder: Path, digest: str) -> Task:
    """Return the task of a digest; the last eight are kept in memory.

    Raises
    ------
    ValueError
        If its file is missing or damaged.
    """
    path = folder / TASKS / f"{digest}{store.SUFFIX}"
    stored = store.load(path, KIND, name="out")
    about, tensors = stored.about, stored.tensors
    task = Task(
        tensors["x"],
        tensors["y"],
        loss=about["loss"],
        name=about["name"],
        classes=about["classes"] if about["loss"] == "cross_entropy" else None,
        settings=about["settings"],
        weights=tensors.get("weights"),
    )
    if _digest(task) != digest:
        raise StorageError(f"out: {str(path)!r} holds other data than its name says")
    return task


def _digest(task: Task) -> str:
    """Return the digest of all of a task that decides the bits of a network."""
    return identity.digest(task.loss, task.d_out, task.x, task.y, task.weights)[:20]


def first(task: Task, size: int) -> Task:
    """Return the task of the first training samples."""
    if size == task.n:
        return task
    weights = None if task.weights is None else task.weights[:size]
    return replace(task, x=task.x[:size], y=task.y[:size], weights=weights)
