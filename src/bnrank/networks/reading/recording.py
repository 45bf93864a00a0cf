"""What enters and leaves each matrix when a network runs, and what follows from what, recorded on a replica."""

from __future__ import annotations

import functools
import inspect
import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from torch.overrides import TorchFunctionMode

from bnrank.networks.functional import Functional
from bnrank.networks.inputs import Samples
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
Observed = Mapping[Matrix, Values | None]  # what enters and leaves each matrix, None where unknown
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
        parent = owner.removesuffix("out_proj").removesuffix(".")
        holders[parent if isinstance(modules.get(parent), nn.MultiheadAttention) else owner].append(matrix)
        for name in (tied.rpartition(".")[0] for tied in matrix.tied):
            if modules.get(name) is not matrix.module:
                holders.setdefault(name, [])
    return {name: held for name, held in holders.items() if not isinstance(modules[name], torch.jit.ScriptModule)}


@dataclass(frozen=True)
class Run:
    """One run of a module, by its name: with what it was called, and what it returned."""

    name: str
    part: nn.Module
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    output: Any

    @property
    def given(self) -> tuple[Any, ...]:
        """All arguments."""
        return (*self.args, *self.kwargs.values())


@contextmanager
def recording(net: nn.Module, holders: Holders, leave: Callable[[Run, Observed], Any]) -> Iterator[None]:
    """Call ``leave(run, values of the matrices)`` whenever a part of a replica has run.

    What it returns, if not None, stands for the output of the part.
    """

    def after(name: str, part: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        run = Run(name, part, args, kwargs, output)
        return leave(run, observed(run, holders[name]) if holders[name] else {})

    with ExitStack() as stack:
        for name in holders:
            hook = functools.partial(after, name)
            stack.callback(net.get_submodule(name).register_forward_hook(hook, with_kwargs=True).remove)
        yield


def observed(run: Run, matrices: Sequence[Matrix]) -> Observed:
    """Return the values of every matrix of a module in one run, None where they cannot be told."""
    if isinstance(run.part, _INSIDE):
        return _observed_inside(run, matrices)
    given = run.args or run.given
    tensors = len(given) == 1 and all(isinstance(value, Tensor) and value.ndim for value in (*given, run.output))
    if not tensors:
        return dict.fromkeys(matrices)
    if len(matrices) > 1 or isinstance(run.part, nn.Embedding | nn.EmbeddingBag):
        return _observed_parts(run, matrices)
    return {matrices[0]: (given[0], run.output, None)}


def _observed_parts(run: Run, matrices: Sequence[Matrix]) -> Observed:
    """Return the values of an embedding, or of a layer that is fused; others with several matrices are not faithful."""
    parts = run.output.chunk(len(matrices), -1) if len(matrices) > 1 else [run.output]
    if len(parts) != len(matrices) or (len(parts) > 1 and isinstance(run.part, nn.Embedding | nn.EmbeddingBag)):
        return dict.fromkeys(matrices)
    return {matrix: (run.given[0], part, part) for matrix, part in zip(matrices, parts, strict=True)}


def _observed_inside(run: Run, matrices: Sequence[Matrix]) -> Observed:
    call = _bound(run.part, run.args, run.kwargs)
    observe: Any = inside.attention if isinstance(run.part, nn.MultiheadAttention) else inside.recurrent
    values = {} if call is None else observe(run.part, call, run.output)
    prefix = f"{run.name}." if run.name else ""
    return {matrix: values.get(matrix.name.removeprefix(prefix)) for matrix in matrices}


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
class Point:
    """A tensor that enters or leaves a module: it, its node in the graph of gradients, and how much was flattened."""

    tensor: Any
    node: Any
    flattened: int


@dataclass
class Call:
    """One call of a module, or, as what enters it, the output of the whole one.

    It has the number of the call among all, the first tensor that entered, the values of the module's matrices, those
    of the matrices that say what the module computes with real numbers, whether it was called on one tensor and
    returned one, with the samples first, and the values on other samples, where they are known.
    """

    order: int
    entered: Point
    values: Observed = field(default_factory=dict)
    faithful: Mapping[Matrix, Values] = field(default_factory=dict)
    alone: bool = False
    others: Observed = field(default_factory=dict)


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

    Attributes
    ----------
    calls : dict of list of Call
        The calls of each module by its name, in the order of their ends; the output of the whole one by None.
    """

    def __init__(self, function: Functional, holders: Holders, x: Samples) -> None:
        self.holders, x = holders, x.detach()
        few, more = (x[torch.arange(n, device=x.device) % len(x)] for n in (2, 3))
        self._names: dict[Matrix | None, str] = {m: name for name, matrices in holders.items() for m in matrices}
        for tensor in [few] if isinstance(few, Tensor) else few.tensors:
            tensor.requires_grad_(tensor.is_floating_point())
        try:
            with torch.enable_grad(), _Attached() as mode:
                self._run(function, few, mode)
        except Exception as error:
            self._run_without_gradients(function, few.detach(), error)
        befores = [v[0] for calls in self.calls.values() for call in calls for v in call.values.values() if v]
        if any(before.ndim != 2 or not before.is_floating_point() or len(before) != 2 for before in befores):
            self._run_again(function, more)

    def _run(self, function: Functional, x: Samples, mode: _Attached) -> None:
        self.calls: dict[str | None, list[Call]] = defaultdict(list)
        self._left: dict[str, Point] = {}
        self.flattened, self._order = mode.flattened, itertools.count()
        plain = [name for name, p in function.module.named_modules() if not isinstance(p, torch.jit.ScriptModule)]
        with recording(function.module, {name: self.holders.get(name, ()) for name in plain}, self._leave):
            out = function(x)
        self.calls[None].append(Call(next(self._order), self._entered([out])))

    def _run_without_gradients(self, function: Functional, x: Samples, error: Exception) -> None:
        """Run where the module fails with gradients; nothing is known then of what follows from what."""
        try:
            with torch.no_grad():
                self._run(function, x, _Attached())
        except Exception:
            raise error from error.__cause__
        self._left.clear()

    def _run_again(self, function: Functional, x: Samples) -> None:
        """Note the values of the same calls on other samples; none where the module fails on them."""
        again: dict[str, list[Observed]] = defaultdict(list)

        def leave(run: Run, values: Observed) -> None:
            again[run.name].append(values)

        with suppress(ValueError), torch.no_grad(), recording(function.module, self.holders, leave):
            function(x)
            for name, others in again.items():
                if len(others) == len(self.calls[name]):
                    for call, values in zip(self.calls[name], others, strict=True):
                        call.others = values

    def _entered(self, given: Sequence[Any]) -> Point:
        tensor = next((value for value in given if isinstance(value, Tensor)), None)
        return Point(tensor, getattr(tensor, "grad_fn", None), len(self.flattened))

    def _leave(self, run: Run, values: Observed) -> Any:
        """Note a call; of a module with matrices, pass on a copy of the output, by which it is known in the graph."""
        # views: what follows may change the shapes of tensors in place
        values = {m: v and cast(Values, tuple(t if t is None else t.detach() for t in v)) for m, v in values.items()}
        real = {m: v for m, v in values.items() if v and not any(tensor.is_complex() for tensor in v[:2])}
        faithful = {m: v for m, v in real.items() if _is_faithful(run.part, m, v)}
        tensors = [*run.given, run.output]
        alone = len(tensors) == 2 and all(isinstance(t, Tensor) and t.ndim and len(t) == 2 for t in tensors)
        self.calls[run.name].append(Call(next(self._order), self._entered(run.given), values, faithful, alone))
        first = run.output[0] if isinstance(run.output, tuple) and run.output else run.output
        is_value = isinstance(first, Tensor) and first.is_floating_point() and torch.is_grad_enabled()
        if run.name not in self.holders or not is_value:
            return None
        leaf = first.detach().clone().requires_grad_()
        first = leaf.clone()  # what follows may work in place, which a leaf does not allow
        self._left[run.name] = Point(leaf, first.grad_fn, len(self.flattened))
        if type(run.output) is tuple:
            return (first, *run.output[1:])
        return first if isinstance(run.output, Tensor) else None

    def calls_of(self, matrix: Matrix | None) -> list[Call]:
        """Return the calls of the module that runs a matrix; None for the output."""
        return self.calls[self._names.get(matrix)]

    def seen(self, matrix: Matrix) -> tuple[dict[str, Any], str]:
        """Return the shapes of a matrix's values, and why these cannot be observed, or ""."""
        calls = self.calls_of(matrix)
        shapes = [_shapes(matrix, call.values[matrix], call.others.get(matrix)) for call in calls]
        about = shapes[0] if shapes and shapes.count(shapes[0]) == len(shapes) else {}
        values = calls[0].faithful.get(matrix) if about and len(calls) == 1 else None
        is_followed = values and (torch.is_inference_mode_enabled() or not values[1].is_inference())
        return about, "" if is_followed else _reason(matrix, calls, bool(about))

    def follows(self, matrix: Matrix, reader: Matrix | None) -> bool:
        """Return whether the next matrix, or the output, reads what one returns, and not also by way of another one."""
        name = self._names[matrix]
        sources = self._sources(self._names.get(reader), name)
        call, end = self.calls_of(matrix)[0], self.calls_of(reader)[0].order
        if call.faithful[matrix][2] is not None or name not in sources:
            return False
        between = [other for other in sources if any(call.order < c.order < end for c in self.calls[other])]
        return not any(name in self._sources(other, name) for other in between)

    def _sources(self, reader: str | None, first: str) -> set[str]:
        """Return the modules with matrices that what enters a module, or leaves the whole one, follows from.

        Those that ran before ``first`` are left out: nodes of the graph of gradients are numbered as they are made.
        """
        modules, found, seen = {point.node: name for name, point in self._left.items()}, set[str](), set[Any]()
        ahead = [self.calls[reader][-1].entered.node] if first in self._left else []
        while ahead:
            node = ahead.pop()
            if node is not None and node not in seen and node._sequence_nr() >= self._left[first].node._sequence_nr():
                seen.add(node)
                ahead += [other for other, _ in node.next_functions]
                found |= {modules[node]} if node in modules else set()
        return found

    def unflattened(
        self, matrix: Matrix, reader: Matrix | None, own: Sequence[int], samples_dim: int
    ) -> dict[str, Any]:
        """Return the shape of a sample before it is flattened for its reader, and the dimension of the units there.

        Parameters
        ----------
        matrix, reader : Matrix, Matrix or None
            A matrix and the next one; None for the output of the module.
        own, samples_dim : sequence of int, int
            The shape of a sample after the matrix, and the dimension of the samples there.
        """
        entered, left = self.calls_of(reader)[-1].entered, self._left[self._names[matrix]]
        between = self.flattened[left.flattened : entered.flattened]
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
            dim = axis + (axis >= samples_dim)
            units = _dim_of_units(entered.tensor, left.tensor, dim, given, possible, least)
        if vector and units is None:
            return {}
        if shape and units is None:
            units = 0 if "conv" in matrix.kind else len(shape) - 1
        return {"unflattened": shape, "units_dim": units}

    def once(self) -> frozenset[str]:
        """Return the names of the modules that run once, on one tensor with the samples first."""
        return frozenset(str(name) for name, calls in self.calls.items() if len(calls) == 1 and calls[0].alone)


@dataclass(eq=False)
class _Attached(TorchFunctionMode):
    """Keeps the graph of gradients where a module cuts it, and notes shapes around flattening, in this thread."""

    flattened: list[tuple[tuple[int, ...], tuple[int, ...]]] = field(default_factory=list)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run a function of torch."""
        if func in _CUTTING:
            return args[0].view_as(args[0])
        if func is torch._C._set_grad_enabled:
            return None
        if func in _OUTSIDE:
            args = (args[0].detach(), *args[1:])
        result = func(*args, **(kwargs or {}))
        if func in _FLATTENING and args:
            self._note(args[0], result)
        return result

    def _note(self, given: Any, result: Any) -> None:
        """Note shapes where samples of several dimensions become vectors."""
        if isinstance(given, Tensor) and isinstance(result, Tensor):
            before, after = tuple(given.shape), tuple(result.shape)
            if len(before) > 2 and after == (before[0], math.prod(before[1:])):
                self.flattened.append((before, after))


_CUTTING = {Tensor.detach, torch.detach, Tensor.detach_, cast(Any, Tensor.data).__get__}
_OUTSIDE = {Tensor.numpy, Tensor.__array__, Tensor.tolist}
_FLATTENING = {torch.flatten, torch.reshape, Tensor.flatten, Tensor.reshape, Tensor.view}


def _shapes(matrix: Matrix, values: Values | None, others: Values | None) -> dict[str, Any]:
    """Return the shapes of one sample before and after, and the dimension of the samples; nothing where unknown.

    ``others`` are the values on 3 samples in place of 2, None where these were not run.
    """
    shapes = [] if values is None else [tuple(tensor.shape) for tensor in values[:2]]
    dims = [0 if shape[:1] == (2,) else None for shape in shapes]
    if others is not None:
        dims = [_moved(shape, tuple(tensor.shape)) for shape, tensor in zip(shapes, others[:2], strict=True)]
    dim = dims[0] if dims and dims[0] == dims[1] else None
    if dim is None:
        return {}
    before, after = (shape[:dim] + shape[dim + 1 :] for shape in shapes)
    least = len(matrix.shape) - 1 if "conv" in matrix.kind else 0
    return {"input_shape": before, "output_shape": after, "samples_dim": dim} if len(before) >= least else {}


def _dim_of_units(
    read: Tensor, left: Tensor, dim: int, given: tuple[int, ...], possible: Sequence[int], least: float
) -> int | None:
    """Return which dimension of what is read has the units: the one whose entries depend on one unit each most."""
    places = read.reshape(len(read), *given)
    shares = dict.fromkeys((0, len(given) - 1), 0.0)
    for k, i in ((d, i) for d in (0, len(given) - 1) for i in range(given[d])):  # some entries may be dead
        gradient = None
        with suppress(RuntimeError):
            entry = places.select(k + 1, i).double()
            weights = torch.cos(torch.arange(entry.numel(), dtype=entry.dtype)).reshape(entry.shape).to(entry.device)
            (gradient,) = torch.autograd.grad((weights * entry).sum(), left, retain_graph=True, allow_unused=True)
        if gradient is None:
            return None
        sizes = gradient.abs().movedim(dim, 0).flatten(1).sum(1)
        shares[k] = max(shares[k], float(sizes.max() / sizes.sum()) if bool(sizes.any()) else 0.0)
    best = max(shares, key=lambda k: shares[k])
    return best if best in possible and shares[best] > least else None


def _moved(first: tuple[int, ...], second: tuple[int, ...]) -> int | None:
    """Return the only dimension whose size differs, from 2 to 3."""
    if len(first) != len(second):
        return None
    changed = [i for i, sizes in enumerate(zip(first, second, strict=True)) if sizes[0] != sizes[1]]
    return changed[0] if len(changed) == 1 and (first[changed[0]], second[changed[0]]) == (2, 3) else None


def _reason(matrix: Matrix, calls: Sequence[Call], has_samples: bool) -> str:
    """Return why the values of a matrix cannot be observed."""
    if not calls:
        return "never called on the example x (or its weight is used without calling it)"
    if len(calls) > 1:
        return f"called {len(calls)} times on the example x: its weight is shared between places"
    values = calls[0].values[matrix]
    if values is None:
        return _unknown(matrix)
    if any(tensor.is_complex() for tensor in values[:2]):
        return "its values are complex numbers"
    if values[1].is_inference() and not torch.is_inference_mode_enabled():
        return "it runs in torch.inference_mode, where what follows is not seen; torch.no_grad shows it"
    if not has_samples:
        return f"its input has shape {tuple(values[0].shape)}, and no dimension of it is that of the samples"
    if matrix.kind == "matrix":
        return "its module does something other than x W^T + b with it"
    return "its class overrides forward with something other than the plain layer"


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
