"""What a run is made of, checked once and then fixed."""

from __future__ import annotations

import copy
import hashlib
import inspect
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bnrank._core import validation
from bnrank.networks import MLP
from bnrank.networks.functional import is_plain_mlp, unwrap
from bnrank.networks.stack import Drawn
from bnrank.tasks import Task
from bnrank.training.first_order import SCHEDULES
from bnrank.training.objective_module import refuse_untrainable

__all__ = ["OPTIMIZERS", "Settings", "Start", "by_hand", "digest", "starting_points"]

OPTIMIZERS = ("auto", "adam", "gd", "lbfgs", "kfac-lbfgs", "adam+lbfgs", "adam+kfac-lbfgs")
DRAWN = (MLP, Drawn)  # networks that can be drawn anew, by their method reset
LEARNING_RATES = {"adam": 3e-3, "gd": 1e-2}


@dataclass(frozen=True)
class Settings:
    """Everything that decides what a run computes; plain values, stored with it as JSON.

    Attributes
    ----------
    network, task, loss : str
        What is trained on what, in words, and the loss.
    data, start : str
        SHA-256 of the data and of the initial parameters.
    ridge, lr, seeds : tuple
        One entry per member; lr is empty where the optimizer chooses its own steps.
    """

    network: str
    task: str
    loss: str
    data: str
    start: str
    ridge: tuple[float, ...]
    lr: tuple[float, ...]
    seeds: tuple[int, ...]
    optimizer: str
    schedule: str
    steps: int
    batch_size: int | None
    dtype: str
    device: str
    record_every: int
    top_k: int
    stop_gradient: float
    stop_balance: float

    @property
    def members(self) -> int:
        """Number of members."""
        return len(self.ridge)

    def to_json(self) -> str:
        """Return the settings as JSON text."""
        return json.dumps(asdict(self), indent=1)

    @classmethod
    def from_json(cls, text: str) -> Settings:
        """Read back what :meth:`to_json` wrote."""
        values: dict[str, Any] = json.loads(text)
        for name, value in values.items():
            values[name] = tuple(value) if isinstance(value, list) else value
        return cls(**values)

    def differences(self, other: Settings) -> list[str]:
        """Name what keeps a run with these settings from going on as a run with others.

        A run may be made longer, unless its step size depends on its length.
        """
        mine, theirs = asdict(self), asdict(other)
        if self.schedule in ("constant", "normalized"):
            mine.pop("steps")
        hashes = {"data": "other data", "start": "other initial parameters"}
        return [
            hashes.get(key, f"{key}: {theirs[key]!r} there, {value!r} here")
            for key, value in mine.items()
            if theirs[key] != value
        ]

    @classmethod
    def create(
        cls,
        start: Start,
        task: Task,
        *,
        ridge: Any,
        lr: Any,
        optimizer: str,
        schedule: str,
        steps: int,
        batch_size: int | None,
        dtype: torch.dtype,
        device: str,
        record_every: int,
        top_k: int,
        stop_gradient: float,
        stop_balance: float,
    ) -> Settings:
        """Check every argument and fill in what was left open."""
        members = len(start.seeds)
        if batch_size is not None:
            batch_size = validation.integer(batch_size, "batch_size")
            if batch_size > task.n:
                raise ValueError(f"batch_size: got {batch_size}, expected at most the number of samples, {task.n}")
        optimizer = _optimizer(optimizer, start.net, batch_size)
        if optimizer in LEARNING_RATES:
            rates = tuple(
                validation.per_member(LEARNING_RATES[optimizer] if lr is None else lr, "lr", members, 0.0, strict=True)
            )
        elif lr is not None:
            raise ValueError(f"lr: got {lr}, but {optimizer!r} chooses its own steps; leave lr out or use 'adam'")
        else:
            rates = ()
        schedule = validation.choice(schedule, "schedule", SCHEDULES)
        if schedule != "constant" and not rates:
            raise ValueError(f"schedule: got {schedule!r}, but {optimizer!r} chooses its own steps; leave it out")
        if schedule == "normalized" and optimizer != "gd":
            raise ValueError(f"schedule: 'normalized' needs optimizer 'gd', got {optimizer!r}")
        if stop_gradient and batch_size:
            raise ValueError("stop_gradient: the whole gradient is not computed with mini-batches; leave it at 0")
        if stop_balance and not by_hand(start.net):
            raise ValueError(
                "stop_balance: balancedness (T14) is measured for a bnrank.MLP with all its parameters trained; "
                "leave it at 0"
            )
        return cls(
            network=f"{type(start.net).__name__}({start.net.extra_repr()})",
            task=json.dumps({"name": task.name, **{k: str(v) for k, v in task.settings.items()}}),
            loss=task.loss,
            data=digest(task.x, task.y),
            start=digest(start.theta),
            ridge=tuple(validation.per_member(ridge, "ridge", members)),
            lr=rates,
            seeds=start.seeds,
            optimizer=optimizer,
            schedule=schedule,
            steps=validation.integer(steps, "steps", 0),
            batch_size=batch_size,
            dtype=str(dtype).removeprefix("torch."),
            device=_device(device),
            record_every=validation.integer(record_every, "record_every"),
            top_k=validation.integer(top_k, "top_k"),
            stop_gradient=validation.number(stop_gradient, "stop_gradient", 0.0),
            stop_balance=validation.number(stop_balance, "stop_balance", 0.0),
        )


@dataclass(frozen=True)
class Start:
    """Where an ensemble starts: an architecture, every member's parameters as a row, and their seeds."""

    net: nn.Module
    theta: Tensor
    seeds: tuple[int, ...]


def starting_points(
    net: nn.Module | Callable[..., nn.Module],
    task: Task,
    members: int | None,
    seed: int | Sequence[int] | None,
    init: Any,
    settings_per_member: Sequence[Any],
    batch_size: int | None,
    dtype: torch.dtype,
) -> Start:
    """Build every member's initial parameters; see :func:`bnrank.train` for the rules."""
    if dtype not in (torch.float32, torch.float64):
        raise ValueError(f"dtype: got {dtype}, expected torch.float32 or torch.float64")
    count = _count_members(members, [seed, init, *settings_per_member])
    batches = [list(range(count))] if batch_size else []  # members of one module differ in the order of their batches
    if not isinstance(net, nn.Module) and not callable(net):
        raise TypeError(f"net: got {validation.describe(net)}, expected an nn.Module or a function seed -> nn.Module")
    if isinstance(net, nn.Module):
        template = copy.deepcopy(unwrap(net))
        fresh = (seed is not None and isinstance(template, DRAWN)) or init is not None
        if fresh and not isinstance(template, DRAWN):
            raise ValueError(
                f"init: a {type(template).__name__} cannot be drawn anew; give a function seed -> nn.Module as net"
            )
        seeds = _seeds(seed, count, (template.seed or 0) if isinstance(template, DRAWN) else 0)
        if count > 1 and not isinstance(template, DRAWN) and not _differ([*settings_per_member, *batches]):
            raise ValueError(
                f"members: got {count} of the same {type(template).__name__} with the same settings, which would be "
                f"{count} copies of one run; give a function seed -> nn.Module as net"
            )
    else:
        seeds = _seeds(seed, count, 0)
        template = _call(net, seeds[0])
        if not isinstance(template, nn.Module):
            raise TypeError(f"net: the function returned {validation.describe(template)}, expected an nn.Module")
        fresh = init is not None
        if fresh and not isinstance(template, DRAWN):
            raise ValueError(f"init: a {type(template).__name__} draws its own parameters; leave init out")
    refuse_untrainable(template)
    _check_shapes(template, task)
    inits = _inits(init, count)
    size = sum(p.numel() for p in template.parameters() if p.requires_grad)
    theta = torch.empty(count, size, dtype=dtype)
    for i, member_seed in enumerate(seeds):
        if isinstance(net, nn.Module):
            member = template
            if isinstance(template, DRAWN) and (fresh or (i > 0 and not _differ(settings_per_member))):
                member = copy.deepcopy(template).reset(member_seed, inits[i])
        else:
            member = _call(net, member_seed)
            if isinstance(member, DRAWN) and init is not None:
                member.reset(member_seed, inits[i])
        row = torch.cat([p.detach().flatten() for p in member.parameters() if p.requires_grad])
        if len(row) != size:
            raise ValueError(f"net: seeds {seeds[0]} and {member_seed} gave networks of different sizes")
        theta[i] = row
    return Start(template, theta, tuple(seeds))


def by_hand(net: nn.Module) -> bool:
    """Say whether a network is trained by `MLPObjective`: an MLP as it was made, all of its parameters trained."""
    return is_plain_mlp(net) and all(p.requires_grad for p in net.parameters())


def _call(function: Callable[..., nn.Module], seed: int) -> nn.Module:
    try:
        inspect.signature(function).bind(seed)
    except ValueError:
        pass  # built in, without a signature to look at
    except TypeError as error:
        raise TypeError(
            f"net: got a function that cannot be called with a seed ({error}), expected seed -> nn.Module"
        ) from None
    return function(seed)


def _optimizer(optimizer: str, net: nn.Module, batch_size: int | None) -> str:
    optimizer = validation.choice(optimizer, "optimizer", OPTIMIZERS)
    if optimizer == "auto":
        optimizer = "adam" if batch_size else "adam+kfac-lbfgs" if by_hand(net) else "adam+lbfgs"
    if batch_size and "lbfgs" in optimizer:
        raise ValueError(f"optimizer: {optimizer!r} needs the whole gradient; leave batch_size out or use 'adam'")
    if optimizer.endswith("kfac-lbfgs") and not by_hand(net):
        raise ValueError(
            f"optimizer: {optimizer!r} needs a bnrank.MLP with all its parameters trained; use 'adam+lbfgs'"
        )
    return optimizer


def _device(device: str) -> str:
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"device: cannot use {device!r}: {str(error).splitlines()[0]}") from error
    return device


def _count_members(members: int | None, values: Sequence[Any]) -> int:
    if members is not None:
        return validation.integer(members, "members")
    return max([1, *(len(entries) for entries in map(_entries, values) if entries)])


def _seeds(seed: int | Sequence[int] | None, count: int, default: int) -> tuple[int, ...]:
    entries = _entries(seed)
    if entries is not None:
        if len(entries) != count:
            raise ValueError(f"seed: got {len(entries)} values, expected one or one per member ({count})")
        return tuple(validation.integer(s, f"seed[{i}]", 0) for i, s in enumerate(entries))
    first = default if seed is None else validation.integer(seed, "seed", 0)
    return tuple(first + i for i in range(count))


def _inits(init: Any, count: int) -> list[Any]:
    values = _entries(init)
    if values is None:
        return [init] * count
    if len(values) != count:
        raise ValueError(f"init: got {len(values)} values, expected one or one per member ({count})")
    return values


def _entries(value: Any) -> list[Any] | None:
    """Return the entries of a sequence or array, None of a single value."""
    if isinstance(value, Tensor | np.ndarray):
        value = value.tolist()
    return list(value) if isinstance(value, list | tuple) else None


def _differ(values: Sequence[Any]) -> bool:
    return any(entry != entries[0] for entries in map(_entries, values) if entries for entry in entries)


def _check_shapes(net: nn.Module, task: Task) -> None:
    if isinstance(net, MLP):
        if task.x.ndim != 2 or net.widths[0] != task.d_in or net.widths[-1] != task.d_out:
            raise ValueError(
                f"net: got widths {net.widths}, expected {task.d_in} inputs and {task.d_out} outputs for x of shape "
                f"{tuple(task.x.shape)} and y of shape {tuple(task.y.shape)} ({task.loss})"
            )
        return
    dtype = next(p.dtype for p in net.parameters())
    with torch.no_grad():
        try:
            output = net(task.x[:2].to(dtype))
        except RuntimeError as error:
            raise ValueError(f"net: cannot take x of shape {tuple(task.x.shape)}: {error}") from error
    if not isinstance(output, Tensor):
        raise ValueError(f"net: gives {validation.describe(output)}, expected one tensor")
    if output.shape != (2, task.d_out):
        raise ValueError(f"net: gives outputs of shape {tuple(output.shape[1:])}, expected ({task.d_out},)")


def digest(*tensors: Tensor) -> str:
    """Return the SHA-256 of tensors: shapes, types and bits."""
    result = hashlib.sha256()
    for tensor in tensors:
        result.update(f"{tuple(tensor.shape)}{tensor.dtype}".encode())
        result.update(tensor.detach().cpu().contiguous().numpy().data)
    return result.hexdigest()
