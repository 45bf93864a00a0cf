"""What enters and leaves each matrix when a network runs, and what follows from what, recorded on a replica."""

from __future__ import annotations

import functools
import inspect
import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from torch.overrides import TorchFunctionMode

from bnrank.networks.functional import Functional
from bnrank.networks.inputs import Inputs, Samples
from bnrank.networks.reading import inside
from bnrank.networks.reading.inside import Values
from bnrank.networks.reading.matrices import Matrix
from bnrank.networks.reading.stored import effective

KINDS: dict[Any, str] = {
    nn.Linear: "linear",
    nn.Conv1d: "conv1d",
    nn.Conv2d: "conv2d",
    nn.Conv3d: "conv3d",
    nn.ConvTranspose1d: "transposed conv1d",
    nn.ConvTranspose2d: "transposed conv2d",
    nn.ConvTranspose3d: "transposed conv3d",
}

Holders = Mapping[str, Sequence[Matrix]]  # the matrices that are recorded at a module, by its name
_INSIDE = nn.MultiheadAttention | nn.RNNBase | nn.RNNCellBase  # what acts inside them calls no module


def base_of(part: nn.Module) -> Any:
    """Return the class of torch, linear or a convolution, that a module is an instance of, or None."""
    return next((base for base in KINDS if isinstance(part, base)), None)


def overrides_forward(part: nn.Module) -> bool:
    """Return whether a linear or convolutional layer has a forward of its own."""
    base, methods = base_of(part), ("forward", "_conv_forward")
    return "forward" in vars(part) or any(getattr(type(part), m, 0) is not getattr(base, m, 0) for m in methods)


def holders_of(matrices: Sequence[Matrix], net: nn.Module) -> dict[str, list[Matrix]]:
    """Return the matrices of a module by the name of the submodule that runs them: attention runs its projections.

    Submodules that run a matrix which is listed elsewhere, tied to it, have none.
    """
    modules = dict(net.named_modules(remove_duplicate=False))
    holders: dict[str, list[Matrix]] = defaultdict(list)
    for matrix in matrices:
        owner = matrix.stored.owner
        parent, _, last = owner.rpartition(".")
        inner = last == "out_proj" and isinstance(modules.get(parent), nn.MultiheadAttention)
        holders[parent if inner else owner].append(matrix)
        for name in (tied.rpartition(".")[0] for tied in matrix.tied):
            if modules.get(name) is not matrix.module:
                holders.setdefault(name, [])
    return {name: held for name, held in holders.items() if not isinstance(modules[name], torch.jit.ScriptModule)}


@dataclass(frozen=True)
class Run:
    """One run of a module: what it was given and returned, and the values of its matrices, None where unknown."""

    part: nn.Module
    given: Sequence[Any]
    output: Any
    values: list[Values | None]


@contextmanager
def recording(
    net: nn.Module,
    holders: Holders,
    leave: Callable[[str, Run], Any],
    enter: Callable[[str, Sequence[Any]], None] | None = None,
) -> Iterator[None]:
    """Call ``leave(name, run)`` whenever a part of a replica has run, and ``enter(name, what it is given)`` before.

    What ``leave`` returns, if not None, stands for the output of the part.
    """

    def after(name: str, part: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        values = observed(part, name, holders[name], args, kwargs, output)
        return leave(name, Run(part, [*args, *kwargs.values()], output, values))

    def before(name: str, part: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        cast(Any, enter)(name, [*args, *kwargs.values()])

    with ExitStack() as stack:
        for name in holders:
            part = net.get_submodule(name)
            stack.callback(part.register_forward_hook(functools.partial(after, name), with_kwargs=True).remove)
            if enter is not None:
                stack.callback(part.register_forward_pre_hook(functools.partial(before, name), with_kwargs=True).remove)
        yield


def observed(
    part: nn.Module, name: str, matrices: Sequence[Matrix], args: Any, kwargs: Any, output: Any
) -> list[Values | None]:
    """Return the values of every matrix of a module in one call, None where they cannot be told."""
    if not matrices:
        return []
    if isinstance(part, _INSIDE):
        return _observed_inside(part, name, matrices, args, kwargs, output)
    given = args if args else tuple(kwargs.values())
    before = given[0] if len(given) == 1 else None
    if not isinstance(before, Tensor) or not isinstance(output, Tensor) or not before.ndim or not output.ndim:
        return [None] * len(matrices)
    if isinstance(part, nn.Embedding | nn.EmbeddingBag):
        return [(before, output, output)]
    if len(matrices) == 1:
        return [(before, output, None)]
    thirds = output.chunk(len(matrices), -1)  # of a layer that is fused; others are not faithful
    return [(before, third, third) for third in thirds] if len(thirds) == len(matrices) else [None] * len(matrices)


def _observed_inside(
    part: nn.Module, name: str, matrices: Sequence[Matrix], args: Any, kwargs: Any, output: Any
) -> list[Values | None]:
    call = _bound(part, args, kwargs)
    observe: Any = inside.attention if isinstance(part, nn.MultiheadAttention) else inside.recurrent
    values = {} if call is None else observe(part, call, output)
    return [values.get(matrix.name.removeprefix(f"{name}." if name else "")) for matrix in matrices]


def _bound(part: nn.Module, args: Any, kwargs: Any) -> dict[str, Any] | None:
    """Return all arguments of a call by name, with the defaults; None where forward is not that of torch."""
    plain = next(base for base in type(part).__mro__ if base.__module__.startswith("torch.nn.modules"))
    if type(part).forward is not plain.forward:  # type: ignore[attr-defined]
        return None
    call = inspect.signature(type(part).forward).bind(part, *args, **kwargs)
    call.apply_defaults()
    return {name: value for name, value in call.arguments.items() if name != "self"}


def _is_faithful(part: nn.Module, matrix: Matrix, values: Values) -> bool:
    """Return whether a module computes what its matrix says, a linear map or a convolution."""
    if isinstance(part, _INSIDE | nn.Embedding | nn.EmbeddingBag):
        return "products" in vars(part) or "forward" not in vars(part)
    is_plain = base_of(part) is not None and not (overrides_forward(part) and hasattr(part, "weight"))
    return is_plain or _computes(part, matrix, *values[:2])


def _computes(part: Any, matrix: Matrix, before: Tensor, after: Tensor) -> bool:
    """Return whether a module with a forward of its own gave, this time, what its matrix says."""
    base = base_of(part)
    if base is None or base is nn.Linear:
        weight = matrix.weight(effective(part, matrix.stored.key)).to(before.dtype)
        bias = None if matrix.bias_stored is None else effective(part, matrix.bias_stored.key)
        bias = bias if bias is None or matrix.rows is None else bias[slice(*matrix.rows)]
        if weight.ndim != 2 or before.shape[-1] != weight.shape[1] or not before.is_floating_point():
            return False
        return _close(linear(before, weight, bias), after)
    if not hasattr(base, "_conv_forward"):
        return _close(base.forward(part, before), after)
    return _close(base._conv_forward(part, before, part.weight, part.bias), after)


def _close(plain: Tensor, after: Tensor) -> bool:
    if plain.dtype == torch.float64 or not plain.is_floating_point():
        rtol, atol = 1e-9, 1e-12
    else:  # of sums that cancel, the terms have the size of the largest
        rtol = torch.finfo(plain.dtype).eps ** 0.5
        atol = rtol * float(plain.abs().max()) if plain.numel() else 0.0
    return plain.shape == after.shape and torch.allclose(plain, after, rtol=rtol, atol=atol)


# A trial run ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Call:
    """One call of a module.

    It has the number of the call among all, the values of the module's matrices, whether these are what the matrices
    say, and whether the module was called on one tensor and returned one, with the samples first.
    """

    order: int
    values: list[Values | None]
    faithful: bool = True
    alone: bool = False


@dataclass(frozen=True)
class Point:
    """A tensor that enters or leaves a module: it, its node in the graph of gradients, and how much was flattened."""

    tensor: Tensor
    node: Any
    flattened: int


class Trial:
    """A run of a module on a few samples: which matrices act once, on what, where the samples are, and what follows.

    Samples lie along the dimension whose size follows the number of samples, found by a second run where the first
    cannot tell. What follows from what is read off the graph of gradients, which detaching does not cut here.

    Parameters
    ----------
    function : Functional
        The module in a precision.
    holders : mapping
        The matrices that are recorded, by the name of the module that runs them.
    x : Tensor or Inputs
        The samples, of which the first are taken.
    """

    def __init__(self, function: Functional, holders: Holders, x: Samples) -> None:
        self.holders, rows = holders, [x[torch.arange(n, device=x.device) % len(x)] for n in (2, 3)]
        self._follow(function, rows[0])
        befores = [v[0] for calls in self.calls.values() for call in calls for v in call.values if v is not None]
        self._again: dict[str, list[Call]] = {}
        if any(before.ndim != 2 or not before.is_floating_point() or len(before) != 2 for before in befores):
            self._again = self._calls_on(function, rows[1])

    def _calls_on(self, function: Functional, x: Samples) -> dict[str, list[Call]]:
        """Return the calls on other samples; none where the module fails on them."""
        calls: dict[str, list[Call]] = defaultdict(list)

        def leave(name: str, run: Run) -> None:
            calls[name].append(Call(0, run.values))

        with suppress(ValueError), torch.no_grad(), recording(function.module, self.holders, leave):
            function(x)
            return calls
        return {}

    def _follow(self, function: Functional, x: Samples) -> None:
        """Run with gradients, or where the module fails so, without."""
        try:
            with torch.enable_grad(), _Attached() as mode:
                self._run(function, _marked(x), mode)
        except Exception as error:
            try:
                with torch.no_grad():
                    self._run(function, x, _Attached())
            except Exception:
                raise error from error.__cause__
            self._entered.clear()
            self._left.clear()

    def _run(self, function: Functional, x: Samples, mode: _Attached) -> None:
        self.calls: dict[str, list[Call]] = defaultdict(list)
        self._entered: dict[str | None, Point] = {}
        self._left: dict[str, Point] = {}
        self._mode, self._order = mode, itertools.count()
        self._inference = torch.is_inference_mode_enabled()
        plain = [name for name, p in function.module.named_modules() if not isinstance(p, torch.jit.ScriptModule)]
        everything = {name: self.holders.get(name, ()) for name in plain}
        with recording(function.module, everything, self._leave, self._enter):
            self._enter(None, [function(x)])

    def _enter(self, name: str | None, given: Sequence[Any]) -> None:
        """Note what enters a module, or leaves the whole one."""
        tensor = next((value for value in given if isinstance(value, Tensor)), None)
        if tensor is not None:
            self._entered[name] = Point(tensor, tensor.grad_fn, len(self._mode.flattened))

    def _leave(self, name: str, run: Run) -> Any:
        """Note what leaves a module; of one with matrices, pass on a copy that starts a graph of gradients."""
        values = [v and cast(Values, tuple(t if t is None else t.detach() for t in v)) for v in run.values]
        with torch.no_grad():
            pairs = zip(self.holders.get(name, ()), values, strict=True)
            faithful = all(v is None or _is_faithful(run.part, matrix, v) for matrix, v in pairs)
        tensors = [*run.given, run.output]
        alone = len(run.given) == 1 and all(isinstance(t, Tensor) and t.ndim and len(t) == 2 for t in tensors)
        self.calls[name].append(Call(next(self._order), values, faithful, alone))
        first = run.output[0] if isinstance(run.output, tuple) and run.output else run.output
        is_value = isinstance(first, Tensor) and first.is_floating_point() and torch.is_grad_enabled()
        if name not in self.holders or not is_value:
            return None
        leaf = _marked(first)
        first = leaf.clone()  # what follows may work in place, which a leaf does not allow
        self._left[name] = Point(leaf, first.grad_fn, len(self._mode.flattened))
        if type(run.output) is tuple:
            return (first, *run.output[1:])
        return first if isinstance(run.output, Tensor) else None

    def order(self, name: str) -> int:
        """Return the number of the first call of a module."""
        return self.calls[name][0].order

    def seen(self, matrix: Matrix, name: str, number: int) -> tuple[dict[str, Any], str]:
        """Return the shapes of a matrix's values, and why these cannot be observed, or ""."""
        calls = self.calls[name]
        if not calls:
            return {}, "never called on the example x (or its weight is used without calling it)"
        shapes = {self._shapes(name, i, number, matrix) for i in range(len(calls))}
        known = next(iter(shapes)) if len(shapes) == 1 else None
        about = {} if known is None else dict(zip(("input_shape", "output_shape", "samples_dim"), known, strict=True))
        value = calls[0].values[number]
        if len(calls) > 1:
            return about, f"called {len(calls)} times on the example x: its weight is shared between places"
        if value is None:
            return about, _unknown(matrix)
        if any(tensor.is_complex() for tensor in value[:2]):
            return about, "its values are complex numbers"
        if value[1].is_inference() and not self._inference:
            return about, "it runs in torch.inference_mode, where what follows is not seen; torch.no_grad shows it"
        if known is None:
            return about, f"its input has shape {tuple(value[0].shape)}, and no dimension of it is that of the samples"
        if not calls[0].faithful:
            if matrix.kind == "matrix":
                return about, "its module does something other than x W^T + b with it"
            return about, "its class overrides forward with something other than the plain layer"
        return about, ""

    def _shapes(
        self, name: str, call: int, number: int, matrix: Matrix
    ) -> tuple[tuple[int, ...], tuple[int, ...], int] | None:
        """Return the shapes of one sample before and after, and the dimension of the samples."""
        value = self.calls[name][call].values[number]
        if value is None:
            return None
        shapes = [tuple(tensor.shape) for tensor in value[:2]]
        dims = [0 if shape and shape[0] == 2 else None for shape in shapes]
        others = self._again.get(name, [])
        other = others[call].values[number] if len(others) == len(self.calls[name]) else None
        if other is not None:
            dims = [_moved(shape, tuple(tensor.shape)) for shape, tensor in zip(shapes, other[:2], strict=True)]
        dim = dims[0]
        if dim is None or dim != dims[1]:
            return None
        before, after = (shape[:dim] + shape[dim + 1 :] for shape in shapes)
        least = len(matrix.shape) - 1 if "conv" in matrix.kind else 0
        return (before, after, dim) if len(before) >= least else None

    def following(self, name: str, number: int, reader: str | None, end: float) -> bool:
        """Return whether the next matrix reads what one returns, and not also by way of one that is not observed.

        Parameters
        ----------
        name, number : str, int
            The module and which of its matrices.
        reader : str, optional
            The module that reads; None for the output of the whole one.
        end : float
            The number of the reader's call.
        """
        call, sources = self.calls[name][0], self._sources(reader)
        if cast(Values, call.values[number])[2] is not None or name not in sources:
            return False
        between = [other for other in sources if any(call.order < c.order < end for c in self.calls[other])]
        return not any(name in self._sources(other) for other in between)

    def _sources(self, reader: str | None) -> set[str]:
        """Return the modules with matrices whose outputs enter a module, or leave the whole one, directly."""
        modules, found, seen = {point.node: name for name, point in self._left.items()}, set[str](), set[Any]()
        ahead = [self._entered[reader].node] if reader in self._entered else []
        while ahead:
            node = ahead.pop()
            if node in modules:
                found.add(modules[node])
            elif node is not None and node not in seen:
                seen.add(node)
                ahead += [other for other, _ in node.next_functions]
        return found - {reader}

    @property
    def has_flattened(self) -> bool:
        """Whether samples of several dimensions became vectors."""
        return bool(self._mode.flattened)

    def unflattened(self, matrix: Matrix, about: Mapping[str, Any], name: str, reader: str | None) -> dict[str, Any]:
        """Return the shape of a sample before it is flattened for its reader, and the dimension of the units there."""
        own, entered, left = about["output_shape"], self._entered[reader], self._left[name]
        between = self._mode.flattened[left.flattened : entered.flattened]
        read = tuple(entered.tensor.shape)
        shape: tuple[int, ...] = next((before[1:] for before, after in reversed(between) if after == read), ())
        given = shape or (read[1:] if reader is None else ())
        vector = len(own) == 1
        if len(given) < 2 or not own or (vector and (not shape or math.prod(shape) == own[0])):
            return {}
        axis = 0 if "conv" in matrix.kind else len(own) - 1
        possible = [dim for dim in (0, len(given) - 1) if given[dim] == own[axis]]
        units = possible[0] if len(possible) == 1 and not vector else None
        if possible and units is None:  # by chance both have as many entries
            least = 0.5 if vector else 0.0
            units = self._dim_of_units(name, reader, axis + (axis >= about["samples_dim"]), given, possible, least)
        if vector and units is None:
            return {}
        if shape and units is None:
            units = 0 if "conv" in matrix.kind else len(shape) - 1
        return {"unflattened": shape, "units_dim": units}

    def _dim_of_units(
        self,
        name: str,
        reader: str | None,
        dim: int,
        given: tuple[int, ...],
        possible: Sequence[int],
        least: float,
    ) -> int | None:
        """Return which dimension of what is read has the units: the one whose entries depend on one unit each most."""
        read, left = self._entered[reader].tensor, self._left[name].tensor
        places = read.reshape(len(read), *given)
        shares = dict.fromkeys((0, len(given) - 1), 0.0)
        for k, i in ((d, i) for d in (0, len(given) - 1) for i in range(given[d])):  # some entries may be dead
            gradient = None
            with suppress(RuntimeError):
                entry = places.select(k + 1, i).double()
                weights = (
                    torch.cos(torch.arange(entry.numel(), dtype=entry.dtype)).reshape(entry.shape).to(entry.device)
                )
                (gradient,) = torch.autograd.grad((weights * entry).sum(), left, retain_graph=True, allow_unused=True)
            if gradient is None:
                return None
            sizes = gradient.abs().movedim(dim, 0).flatten(1).sum(1)
            shares[k] = max(shares[k], float(sizes.max() / sizes.sum()) if bool(sizes.any()) else 0.0)
        best = max(shares, key=lambda k: shares[k])
        return best if best in possible and shares[best] > least else None

    def once(self) -> frozenset[str]:
        """Return the names of the modules that run once, on one tensor with the samples first."""
        return frozenset(name for name, calls in self.calls.items() if len(calls) == 1 and calls[0].alone)


class _Attached(TorchFunctionMode):
    """Keeps the graph of gradients where a module cuts it, and notes shapes around flattening, in this thread."""

    def __init__(self) -> None:
        super().__init__()
        self.flattened: list[tuple[tuple[int, ...], tuple[int, ...]]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run a function of torch."""
        kwargs = kwargs or {}
        if func in _CUTTING:
            return args[0].view_as(args[0])
        if func is torch._C._set_grad_enabled:
            return None
        if func in _OUTSIDE:
            args = (args[0].detach(), *args[1:])
        result = func(*args, **kwargs)
        if func in _FLATTENING and args and isinstance(args[0], Tensor) and isinstance(result, Tensor):
            before, after = tuple(args[0].shape), tuple(result.shape)
            if len(before) > 2 and after == (before[0], math.prod(before[1:])):
                self.flattened.append((before, after))
        return result


_CUTTING = {Tensor.detach, torch.detach, Tensor.detach_, cast(Any, Tensor.data).__get__}
_OUTSIDE = {Tensor.numpy, Tensor.__array__, Tensor.tolist}
_FLATTENING = {torch.flatten, torch.reshape, Tensor.flatten, Tensor.reshape, Tensor.view}


def _marked(x: Any) -> Any:
    """Return copies of floating-point tensors that require gradients, and other values as they are."""
    if isinstance(x, Inputs):
        return Inputs(tuple(map(_marked, x.positional)), {key: _marked(v) for key, v in x.named.items()}, x.dim)
    if not isinstance(x, Tensor) or not x.is_floating_point():
        return x
    return x.detach().clone().requires_grad_()


def _moved(first: tuple[int, ...], second: tuple[int, ...]) -> int | None:
    """Return the only dimension whose size differs, from 2 to 3."""
    if len(first) != len(second):
        return None
    changed = [i for i, sizes in enumerate(zip(first, second, strict=True)) if sizes[0] != sizes[1]]
    return changed[0] if len(changed) == 1 and (first[changed[0]], second[changed[0]]) == (2, 3) else None


def _unknown(matrix: Matrix) -> str:
    if matrix.kind == "expert":
        return "one of a stack: which samples reach it, its module decides inside"
    if matrix.kind == "bilinear":
        return "has two inputs"
    if matrix.name.endswith("out_proj"):
        return "the heads that enter it are not returned by its attention layer"
    if matrix.name.endswith(".hr"):
        return "the values that enter the projection are not returned by its recurrent layer"
    return "its input or output is not one tensor with a dimension for the samples"
