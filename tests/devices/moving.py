"""The valid call of every public function and method, with its tensors and networks on a device."""

import contextlib
import dataclasses
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn

import bnrank
from bnrank.theory.verdicts import NotApplicable
from fuzz.calls import invoke, quiet
from fuzz.judging import different
from fuzz.surface import Target, functions, methods, properties, results
from fuzz.surface import _parameters as parameters
from fuzz.valid import METHOD_OWNERS, PREPARED, SKIPPED, arguments, optional

from . import pretended

VARIANTS = ("all", "network", "data", "optional", "general")
"""What is on the device: all arguments, networks alone, all but networks, optional arguments as well, and all, with a
network that is not an MLP of the library."""
OTHER = {"general", "optional"}
"""Variants with other arguments; the first ones have the same arguments, and one call on the CPU."""
LONG = {"bnrank.cost.solved_tradeoff", "bnrank.cost.shorten", "bnrank.cost.solve_depths", "bnrank.escape.first_escape"}
"""Functions that train networks for seconds: in one variant."""
OF_THE_MACHINE = (
    "Latency.",
    "speedup",
    "Certificate.headline",
    "subnormal_cost",
    "TrainSettings.device",
    "to_json",
    "Dataset.run",
    "plot",
)
"""Results that name the device, or depend on the time that passed."""


@contextlib.contextmanager
def device() -> Iterator[torch.device]:
    """Provide a GPU: a real one where there is one, and otherwise the pretended one."""
    if torch.cuda.is_available():
        yield torch.device("cuda", 0)
    else:
        with pretended.gpu() as made:
            yield made


def moved(value: Any, to: torch.device) -> Any:
    """Return a value with its tensors and networks on a device, in lists, mappings and dataclasses as well."""
    if isinstance(value, Tensor):
        return value.detach().to(to).requires_grad_(value.requires_grad)
    if isinstance(value, nn.Module):
        return value.to(to)
    if type(value) in (list, tuple):
        return type(value)(moved(entry, to) for entry in value)
    if type(value) is dict:
        return {key: moved(entry, to) for key, entry in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value) if f.init}
        there = {name: moved(entry, to) for name, entry in fields.items()}
        return dataclasses.replace(value, **there) if any(there[n] is not fields[n] for n in fields) else value
    return value


def held(value: Any) -> bool:
    """Return whether a value holds tensors or networks."""
    if isinstance(value, Tensor | nn.Module):
        return True
    if isinstance(value, list | tuple):
        return any(held(entry) for entry in value)
    if isinstance(value, dict):
        return any(held(entry) for entry in value.values())
    return dataclasses.is_dataclass(value) and any(held(getattr(value, f.name)) for f in dataclasses.fields(value))


@dataclass(frozen=True)
class Outcome:
    """What became of a target: ``ran``, ``elsewhere``, ``failed`` or ``differs``."""

    name: str
    status: str
    text: str = ""


def general() -> nn.Module:
    """Return a network of the kind that users build, with the inputs and outputs of the valid one."""
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    for i, parameter in enumerate(net.parameters()):
        parameter.data = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(i)) / 2
    return net


def built(target: Target, variant: str) -> dict[str, Any] | None:
    """Return the arguments of a call on the CPU; None where the variant is that of all arguments."""
    values = arguments(target.name, target.parameters, target.obtain())
    if variant == "optional":
        more = optional(target.name)
        return values | more if more else None
    if variant == "general":
        net = values.get("net")
        return values | {"net": general()} if isinstance(net, bnrank.MLP) and net.widths == (3, 4, 4, 2) else None
    networks = any(isinstance(v, nn.Module) for v in values.values())
    others = any(held(v) and not isinstance(v, nn.Module) for v in values.values())
    return values if variant == "all" or (networks and others) else None


def placed(values: dict[str, Any], variant: str, to: torch.device) -> dict[str, Any]:
    """Return arguments with those on the device that a variant puts there."""
    here = {"network": lambda v: not isinstance(v, nn.Module), "data": lambda v: isinstance(v, nn.Module)}
    stays: Callable[[Any], bool] = here.get(variant, lambda v: False)
    return {name: v if stays(v) else moved(v, to) for name, v in values.items()}


def call(target: Target, to: torch.device | None, full: str = "", variant: str = "all") -> Any:
    """Return the result of the valid call of a target, or of a method of what it returns, on a device (CPU: None)."""
    function = target.obtain()
    values = built(target, variant) or {}
    if to is not None:
        values = placed(values, variant, to)
        values |= {"device": to} if "device" in target.parameters else {}
    value = invoke(function, values)
    if not full:
        return value
    kind, _, method = full.partition(".")
    owner = next(v for v in results(value) if type(v).__name__ == kind)
    PREPARED.get(full, lambda _: None)(owner)
    bound = getattr(owner, method)
    given = arguments(full, parameters(bound), bound)
    return invoke(bound, given if to is None else {name: moved(v, to) for name, v in given.items()})


def read(value: Any) -> dict[str, Any]:
    """Return the properties of a result, and what its methods without arguments return."""
    found: dict[str, Any] = {}
    for part in results(value):
        for name in properties(part):
            with contextlib.suppress(ValueError, ImportError, NotApplicable):  # such as a part that was not measured
                got = getattr(part, name)
                found[f"{type(part).__name__}.{name}"] = got() if isinstance(got, MethodType) else got
    return found


def concerned(target: Target) -> bool:
    """Return whether a function takes a device, a tensor or a network."""
    return "device" in target.parameters or held(arguments(target.name, target.parameters, target.obtain()))


def run(name: str) -> Outcome:
    """Run the valid call of one target on the CPU and on the device, in every variant, and compare.

    Methods are ``owner/Class.method``, with the function that returns their object.
    """
    owner, _, full = name.partition("/")
    target = next(t for t in functions() if t.name == owner)
    if not concerned(target):
        return Outcome(name, "elsewhere")
    with warnings.catch_warnings(), quiet():
        warnings.simplefilter("ignore")
        expected: tuple[Any, dict[str, Any]] | None = None
        for variant in ("all",) if full or owner in LONG else VARIANTS:
            if built(target, variant) is None:
                continue
            if expected is None or variant in OTHER:
                try:
                    value = call(target, None, full, variant)
                except (ValueError, TypeError):
                    if variant not in OTHER:
                        raise
                    continue  # a function of MLPs, or an argument that others must go with
                expected = value, read(value)
            try:
                with device() as to:
                    value = call(target, to, full, variant)
                    places = different(expected, (value, read(value)))
            except Exception as error:
                return Outcome(name, "failed", f"{variant}: {_told(error)}")
            places = [p for p in places if not any(text in p for text in OF_THE_MACHINE)]
            if places and not full.endswith(".plot"):
                return Outcome(name, "differs", f"{variant}: {', '.join(places)}"[:300])
    return Outcome(name, "ran")


def _told(error: Exception) -> str:
    trace = [f for f in traceback.extract_tb(error.__traceback__) if "bnrank" in f.filename]
    where = " < ".join(f"{f.filename.rsplit('bnrank/')[-1]}:{f.lineno}" for f in trace[::-1][:4])
    return f"{type(error).__name__}: {error}"[:300] + f" at {where}"


def names() -> list[str]:
    """Return the names of all targets: functions, and the methods with arguments of what they return."""
    found = [target.name for target in functions()]
    seen: set[str] = set()
    for owner in METHOD_OWNERS:
        target = next(t for t in functions() if t.name == owner)
        if not concerned(target):
            continue
        with warnings.catch_warnings(), quiet():
            warnings.simplefilter("ignore")
            value = call(target, None)
        for part in results(value):
            for method in methods(part):
                full = f"{type(part).__name__}.{method}"
                if full not in seen and full not in SKIPPED and parameters(getattr(part, method)):
                    seen.add(full)
                    found.append(f"{owner}/{full}")
    return found
