"""Settings of runs and flows, and the initial parameters of ensembles."""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bnrank._core import identity, validation
from bnrank.networks import MLP
from bnrank.networks.drawn import Drawn
from bnrank.networks.functional import is_plain_mlp, unwrap
from bnrank.networks.replicas import copied
from bnrank.tasks import Task
from bnrank.training.objectives import refuse_untrainable
from bnrank.training.options import Adam, GradientDescent, Limits, Record, Save, SkipPlateau, Solver, Stop

OPTIMIZERS = ("auto", "adam", "gd", "lbfgs", "kfac-lbfgs", "adam+lbfgs", "adam+kfac-lbfgs")
START = "initial parameters"
RTOL = {"heun": 1e-3}  # defaults for a flow other than 1e-6 in float64 and 1e-4 in float32
MAX_GROWTH = {"rk45": 4.0, "dop853": 10.0, "heun": 1.5}
MEMORY = 1 << 30  # default limit on the networks stored by a flow, in bytes


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Everything that determines the result of a computation, as plain values stored with it in JSON.

    Attributes
    ----------
    identity : dict
        The parts of format, network, loss, x, y and initial parameters: see :mod:`bnrank._core.identity`.
    network, loss : str
        Descriptions of the network and the loss.
    """

    identity: identity.Parts = field(repr=False)
    network: str
    loss: str
    batch_size: int | None
    dtype: str
    device: str
    record_every: int
    spectra_every: int
    top_k: int

    def to_json(self) -> str:
        """Return the settings as JSON text, without the parts of the identity."""
        return json.dumps({key: value for key, value in asdict(self).items() if key != "identity"}, indent=1)

    def differences(self, stored: Mapping[str, Any]) -> list[str]:
        """Return the differences that prevent a stored computation from resuming with these settings.

        The number of steps may change if the step sizes do not depend on it ("constant" and "normalized" schedules).
        The name and the settings of the task do not matter, since its data do.
        """
        mine, parts = json.loads(self.to_json()), stored.get("identity", {})
        steps = {"steps"} if mine.get("schedule") in ("constant", "normalized") else set()
        names = [name for name in mine if name not in {"task", "network", "loss"} | steps]
        found = [{name: repr(settings.get(name)) for name in names} for settings in (stored, mine)]
        before, now = parts | found[0], self.identity | found[1]
        last = identity.differences({START: before.pop(START, "none")}, {START: now.pop(START)})
        return identity.differences(before, now) + last


@dataclass(frozen=True, kw_only=True)
class TrainSettings(Settings):
    """The settings of a training run.

    Attributes
    ----------
    ridge, lr, seeds : tuple
        One entry per member; ``lr`` is empty if the optimizer determines its own step sizes.
    """

    task: str
    ridge: tuple[float, ...]
    lr: tuple[float, ...]
    seeds: tuple[int, ...]
    optimizer: str
    schedule: str
    norm_power: float = 0.0
    steps: int
    stop_gradient: float
    stop_balance: float

    @property
    def members(self) -> int:
        """Number of members."""
        return len(self.ridge)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> TrainSettings:
        """Return settings that were stored as JSON."""
        read: dict[str, Any] = {k: tuple(value) if isinstance(value, list) else value for k, value in values.items()}
        return cls(**read)

    @classmethod
    def create(
        cls,
        start: Start,
        task: Task,
        ridge: Any,
        stop: Stop,
        optimizer: Any,
        batch_size: int | None,
        record: Record,
        save: Save | None,
    ) -> TrainSettings:
        """Return the settings of a run, with defaults filled in."""
        members = len(start.seeds)
        check_batch_size(batch_size, task.n)
        name, options = _optimizer(optimizer, start.net, batch_size)
        if stop.gradient_norm and batch_size:
            raise ValueError("gradient_norm: mini-batches do not give the whole gradient; leave it at 0")
        if stop.balance_residual and not by_hand(start.net):
            raise ValueError("balance_residual: expected 0, except for a bnrank.MLP with all its parameters trained")
        rates = () if options is None else validation.per_member(options.lr, "lr", members, 0.0, strict=True)
        theta, rows = start.theta, record.rows(100)
        return cls(
            **common(start.net, (task.x, task.y, task.loss), theta, str(start.device), rows, save, task.weights),
            batch_size=None if batch_size is None else int(batch_size),
            top_k=record.top_k,
            task=json.dumps({"name": task.name, **{k: str(v) for k, v in task.settings.items()}}),
            ridge=tuple(validation.per_member(ridge, "ridge", members)),
            lr=tuple(rates),
            seeds=start.seeds,
            optimizer=name,
            schedule="constant" if options is None else options.schedule,
            norm_power=options.norm_power if isinstance(options, GradientDescent) else 0.0,
            steps=stop.steps,
            stop_gradient=stop.gradient_norm,
            stop_balance=stop.balance_residual,
        )


@dataclass(frozen=True, kw_only=True)
class FlowSettings(Settings, Solver):
    """The settings of a flow: those of its solver, with ``rtol`` resolved, and of the skipped plateau."""

    rtol: float
    skip_plateau: bool
    handover_rtol: float
    max_growth: float
    plateau_batch_size: int | None = None
    max_networks: int

    @classmethod
    def create(
        cls,
        net: nn.Module,
        data: Any,
        theta: Tensor,
        solver: Solver,
        plateau: SkipPlateau | None,
        record: Record,
        limits: Limits,
        save: Save | None,
    ) -> FlowSettings:
        """Return the settings of a flow, with defaults filled in."""
        (x, _, _), method, dtype = data, solver.method, theta.dtype
        precision = 10 * torch.finfo(dtype).eps
        rtol = solver.rtol or RTOL.get(method, 1e-6 if dtype == torch.float64 else 1e-4)
        fits = method == "euler" or precision <= rtol < 1
        validation.expect(fits, "rtol", f"{rtol:g}", f"a number from {precision:.2g} ({dtype}) up to 1")
        check_batch_size(solver.batch_size, len(x))
        shapes = [p.shape for p in net.parameters() if p.requires_grad]
        sides = [min(shape) for shape in shapes if len(shape) > 1]
        size = sum(math.prod(shape) for shape in shapes) * (8 if dtype == torch.float64 else 4)
        rows = record.rows(1, 10 if max(sides, default=0) > 128 else 1)
        skip = plateau or SkipPlateau()
        if skip.batch_size is not None:
            given = f"{skip.batch_size} for a solver without batch_size"
            validation.expect(solver.batch_size is not None, "batch_size", given, "mini-batches in both or neither")
            check_batch_size(skip.batch_size, len(x))
        return cls(
            **common(net, data, theta, str(x.device), rows, save),
            **asdict(solver) | {"rtol": rtol},
            top_k=record.top_k,
            skip_plateau=plateau is not None,
            handover_rtol=skip.handover_rtol,
            max_growth=skip.max_growth or MAX_GROWTH.get(method, 4.0),
            plateau_batch_size=skip.batch_size or solver.batch_size,
            max_networks=limits.max_networks or max(2, min(64, MEMORY // size)),
        )


def common(
    net: nn.Module,
    data: Any,
    theta: Tensor,
    device: str,
    rows: tuple[int, int],
    save: Save | None,
    weights: Tensor | None = None,
) -> Any:
    """Return the settings common to runs and flows, whose parts are all identified if they are to be saved."""
    x, y, loss = data
    parts = {"format": str(identity.FORMAT)} | ({} if save is None or save.tag is None else {"tag": repr(save.tag)})
    own = {"net": net, "loss": loss, "x": x, "y": y} | ({} if weights is None else {"weights": weights})
    for name, value in [*own.items(), (START, theta)]:
        parts |= identity.describe(value, name)
    if save is not None:
        identity.require(parts)
    return {
        "identity": parts,
        "network": f"{type(net).__name__}({net.extra_repr()})",
        "loss": loss if isinstance(loss, str) else f"function {getattr(loss, '__qualname__', type(loss).__name__)}",
        "dtype": str(theta.dtype).removeprefix("torch."),
        "device": device,
        "record_every": rows[0],
        "spectra_every": rows[1],
    }


def check_batch_size(batch_size: int | None, n: int) -> None:
    """Raise if the mini-batch size exceeds the number of samples."""
    size = validation.optional(validation.integer, batch_size, "batch_size")
    validation.expect((size or 0) <= n, "batch_size", f"{size}", f"at most the number of samples, {n}")


def check_dtype(dtype: object) -> None:
    """Raise unless ``dtype`` is float32 or float64."""
    known = isinstance(dtype, torch.dtype) and dtype in (torch.float32, torch.float64)
    validation.expect(known, "dtype", f"{dtype}", "torch.float32 or torch.float64")


@dataclass(frozen=True)
class Start:
    """Initial state of an ensemble: architecture, parameters (one row per member), seeds and device."""

    net: nn.Module
    theta: Tensor
    seeds: tuple[int, ...]
    device: torch.device


def starting_points(
    net: Any, task: Task, members: int | None, seed: Any, per_member: Sequence[Any], batch_size: int | None, dtype: Any
) -> Start:
    """Return the initial parameters of every member, as specified in :func:`bnrank.train`.

    ``per_member`` holds the settings that can have one value per member.
    """
    check_dtype(dtype)
    modules = [net] if isinstance(net, nn.Module) else list(net) if isinstance(net, list | tuple) else []
    wrong = [module for module in modules or [net] if not isinstance(module, nn.Module)]
    if wrong and (modules or not callable(net)):
        expected = "an nn.Module, a list of them or a function seed -> nn.Module"
        raise TypeError(f"net: got {validation.describe(wrong[0])}, expected {expected}")
    single, modules = len(modules) == 1, [unwrap(module) for module in modules]
    lengths = [len(entries) for entries in map(_entries, [seed, modules, *per_member]) if entries]
    count = max([1, *lengths]) if members is None else validation.integer(members, "members")
    if members is not None:
        trained = sum(p.numel() for p in modules[0].parameters() if p.requires_grad) if modules else 1
        validation.allocation(count * trained, "members", count, itemsize=dtype.itemsize)
    one_each = len(modules) in (0, 1, count)
    validation.expect(one_each, "net", f"{len(modules)} networks", f"one, or one per member ({count})")
    own = [(module.seed or 0) if isinstance(module, Drawn) else 0 for module in modules] or [0]
    seeds = _seeds(own if seed is None and len(own) > 1 else seed, count, own[0])
    template = modules[0] if modules else _call(net, seeds[0])
    batches = [list(range(count))] if batch_size is not None else []  # members then differ by their batch order
    if count > 1 and single and not isinstance(template, Drawn) and not _differ([*per_member, *batches]):
        raise ValueError(
            f"members: got {count} of the same {type(template).__name__} with the same settings, which would be "
            f"{count} copies of one run; give a list of networks or a function seed -> nn.Module as net"
        )
    refuse_untrainable(template)
    device = next(p.device for p in template.parameters())
    template = copied(template).cpu()
    _check_shapes(template, task)
    size = sum(p.numel() for p in template.parameters() if p.requires_grad)
    first = _parts(template)
    theta = torch.empty(count, size, dtype=dtype)
    for i, member_seed in enumerate(seeds):
        member = modules[0 if single else i] if modules else _call(net, member_seed)
        redrawn = seed is not None or (i > 0 and single and not _differ(per_member))
        if modules and redrawn and isinstance(member, Drawn):
            member = copied(member).reset(member_seed)
        row = torch.cat([p.detach().flatten() for p in member.parameters() if p.requires_grad])
        if i and len(modules) != 1:
            differ = identity.differences(first, _parts(member), ("member 0 has", f"member {i}"))
            if differ:
                which = f"members 0 and {i} (seeds {seeds[0]} and {member_seed})"
                raise ValueError(f"net: {which} differ in more than the values of their parameters: {differ[0]}")
        theta[i] = row
    return Start(template, theta, seeds, device)


def by_hand(net: nn.Module) -> bool:
    """Return whether `MLPObjective` applies: a plain MLP with all of its parameters trained."""
    return is_plain_mlp(net) and all(p.requires_grad for p in net.parameters())


def _call(function: Callable[..., nn.Module], seed: int) -> nn.Module:
    try:
        inspect.signature(function).bind(seed)
    except ValueError:
        pass  # a builtin without a signature
    except TypeError as error:
        raise TypeError(f"net: got a function that cannot be called with a seed: {error}") from None
    net = function(seed)
    if not isinstance(net, nn.Module):
        raise TypeError(f"net: the function returned {validation.describe(net)}, expected an nn.Module")
    return net


def _parts(net: nn.Module) -> identity.Parts:
    """Return the parts of a network of an ensemble, without the seed that it may keep."""
    return {name: text for name, text in identity.describe(net, "net").items() if name != "net.seed"}


def _optimizer(optimizer: object, net: nn.Module, batch_size: int | None) -> tuple[str, Adam | GradientDescent | None]:
    """Return the name and the options of an optimizer; the options are None if it determines its own step sizes."""
    if isinstance(optimizer, Adam):
        return "adam", optimizer
    if isinstance(optimizer, GradientDescent):
        return "gd", optimizer
    name = validation.choice(optimizer, "optimizer", OPTIMIZERS)
    if name == "auto":
        name = "adam" if batch_size else "adam+kfac-lbfgs" if by_hand(net) else "adam+lbfgs"
    if batch_size and "lbfgs" in name:
        raise ValueError(f"optimizer: {name!r} needs the whole gradient; leave batch_size out or use 'adam'")
    if name.endswith("kfac-lbfgs") and not by_hand(net):
        raise ValueError(f"optimizer: {name!r} needs a bnrank.MLP with all its parameters trained; use 'adam+lbfgs'")
    return name, Adam() if name == "adam" else GradientDescent() if name == "gd" else None


def whole_numbers(values: Sequence[int]) -> np.ndarray:
    """Return integers as an array: with one beyond 2**63, such as a seed, NumPy would make floating-point numbers.

    Examples
    --------
    >>> whole_numbers([0, 7]).dtype, whole_numbers([0, 2**64 - 1]).tolist()
    (dtype('int64'), [0, 18446744073709551615])
    """
    return np.array(values, dtype=np.uint64 if max(values) >= 2**63 else np.int64)


def _seeds(seed: int | Sequence[int] | None, count: int, default: int) -> tuple[int, ...]:
    entries = _entries(seed)
    if entries is not None:
        validation.expect(len(entries) == count, "seed", f"{len(entries)} values", f"one or one per member ({count})")
        return tuple(validation.seed(s, f"seed[{i}]") for i, s in enumerate(entries))
    first = default if seed is None else validation.integer(seed, "seed", 0, 2**64 - count)
    return tuple(first + i for i in range(count))


def _entries(value: Any) -> list[Any] | None:
    """Return the entries of a sequence or array, or None for a single value."""
    if isinstance(value, Tensor | np.ndarray):
        value = None if isinstance(value, Tensor) and value.is_meta else value.tolist()
    return list(value) if isinstance(value, list | tuple) else None


def _differ(values: Sequence[Any]) -> bool:
    return any(entry != entries[0] for entries in map(_entries, values) if entries for entry in entries)


def _check_shapes(net: nn.Module, task: Task) -> None:
    if isinstance(net, MLP):
        fits = task.x.ndim == 2 and net.widths[0] == task.d_in and net.widths[-1] == task.d_out
        data = f"x of shape {tuple(task.x.shape)} and y of shape {tuple(task.y.shape)} ({task.loss})"
        expected = f"{task.d_in} inputs and {task.d_out} outputs for {data}"
        validation.expect(fits, "net", f"widths {net.widths}", expected)
        return
    first = next(net.parameters())
    with torch.no_grad():
        try:
            output = net(task.x[:2].to(first.device, first.dtype))
        except Exception as error:
            wrap = "; wrap it in a module that takes one tensor" if "argument" in str(error) else ""
            raise ValueError(f"net: cannot take x of shape {tuple(task.x.shape)}: {error}{wrap}") from error
    if not isinstance(output, Tensor):
        got = validation.describe(output)
        raise ValueError(f"net: gives {got}, expected one tensor; wrap it in a module that returns one")
    if output.shape != (2, task.d_out):
        raise ValueError(f"net: gives outputs of shape {tuple(output.shape[1:])}, expected ({task.d_out},)")
