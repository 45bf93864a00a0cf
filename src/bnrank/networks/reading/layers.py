"""Layers of a module: its matrices with the values that enter and leave them when it runs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, zip_longest
from typing import cast

import torch
from torch import Tensor, nn

from bnrank._core import validation
from bnrank._core.content import Part, Table, remarks
from bnrank._core.results import Printed
from bnrank.networks import reasons
from bnrank.networks.functional import Functional, PrecisionError, example, unwrap
from bnrank.networks.inputs import Example, Samples
from bnrank.networks.reading.matrices import Listing, Matrix, listed
from bnrank.networks.reading.recording import Holders, Trial, base_of, holders_of, overrides_forward
from bnrank.networks.reading.stored import Stored, derived, of_module
from bnrank.networks.reasons import Skipped


@dataclass(frozen=True)
class Layer:
    """A matrix of a module, and the values that enter and leave it when the module runs.

    Attributes
    ----------
    index : int
        1..L, in order of execution where the module was read with an example, else of registration.
    matrix : Matrix
        The weight, with its ``name`` and ``kind``.
    input_shape, output_shape : tuple of int, optional
        Shapes of one sample before and after the layer; None where read without an example, or not observed.
    reason : str
        Why the values that enter and leave the layer cannot be observed; empty if they can.
    apart : bool
        Whether the next layer does not read what this layer returns, as with the query of attention, before the key,
        or reads it also by way of an unobserved weight. For the last layer, whether the output of the module does not
        follow from it, or follows also by way of one, such as a head that is tied to an embedding.
    unflattened : tuple of int
        The shape of one sample before it is flattened to a vector for the next layer; () if it is not.
    samples_dim : int
        The dimension of the samples in the module's own tensors.
    units_dim : int, optional
        The dimension of one sample that has the units of this layer, in ``unflattened`` or, for the last layer, in the
        output of the module; None where the kind of the next layer tells it.

    Examples
    --------
    >>> import torch, bnrank
    >>> net = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.ReLU(), torch.nn.Linear(5, 2))
    >>> layer = bnrank.networks.read(net).layers[1]             # a bnrank.networks.Layer
    >>> layer.index, layer.name, layer.kind, tuple(layer.weight.shape)
    (2, '2', 'linear', (2, 5))
    """

    index: int
    matrix: Matrix
    input_shape: tuple[int, ...] | None = None
    output_shape: tuple[int, ...] | None = None
    reason: str = ""
    apart: bool = False
    unflattened: tuple[int, ...] = ()
    samples_dim: int = 0
    units_dim: int | None = None

    @property
    def name(self) -> str:
        """The name of the matrix."""
        return self.matrix.name

    @property
    def kind(self) -> str:
        """The kind of the matrix."""
        return self.matrix.kind

    @property
    def module(self) -> nn.Module:
        """The module that holds the weight (not a copy)."""
        return cast(nn.Module, self.matrix.stored.module)

    @property
    def weight(self) -> Tensor:
        """The weight as it is now, detached, (out, in), or the kernel as it is stored."""
        return self.matrix.weight()

    @property
    def bias(self) -> Tensor | None:
        """The bias, (out,), or None."""
        return self.matrix.bias()

    @property
    def is_convolution(self) -> bool:
        """Whether the layer is a convolution, and no transposed one."""
        return self.kind.startswith("conv")

    @property
    def is_transposed(self) -> bool:
        """Whether the layer is a transposed convolution."""
        return self.kind.startswith("transposed")

    @property
    def is_plain(self) -> bool:
        """Whether the layer is a whole linear or convolutional module, with parameters of its own."""
        whole = base_of(self.module) is not None and self.matrix.rows is None
        return whole and not self.is_transposed and derived(self.module, "weight") is None


@dataclass(frozen=True)
class Reading(Printed):
    """The contents of a module.

    Attributes
    ----------
    layers : tuple of Layer
        Matrices with the values that enter and leave them, counted from 1.
    unobserved : tuple of Layer
        Matrices without these values (``reason`` says why), such as those of a layer that runs more than once.
    skipped : tuple of Skipped
        All other tensors by the modules that hold them, and the unobserved matrices, with the reasons.
    once : frozenset of str
        Names of the submodules that run once, on one tensor with the samples first, where read with an example.
    listing : Listing
        The matrices and all other tensors of the module.
    holders : mapping
        The matrices of each submodule that runs layers, by its name.

    Examples
    --------
    >>> import torch, bnrank
    >>> net = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.LayerNorm(5), torch.nn.Linear(5, 2))
    >>> reading = bnrank.networks.read(net)                     # a bnrank.networks.Reading
    >>> [layer.name for layer in reading.layers], [part.name for part in reading.skipped]
    (['0', '2'], ['1'])
    """

    layers: tuple[Layer, ...]
    unobserved: tuple[Layer, ...]
    skipped: tuple[Skipped, ...]
    once: frozenset[str]
    listing: Listing
    holders: Holders = field(compare=False, repr=False)

    @property
    def weights(self) -> tuple[Layer, ...]:
        """All matrices: ``layers``, then ``unobserved``."""
        return (*self.layers, *self.unobserved)

    @property
    def unread(self) -> tuple[Skipped, ...]:
        """The entries of ``skipped`` that are not an unobserved matrix."""
        weights = {(layer.name, layer.reason) for layer in self.unobserved}
        return tuple(part for part in self.skipped if (part.name, part.reason) not in weights)

    def _content(self) -> list[Part]:
        rows = [{"": x.index, "layer": x.name, "kind": x.kind, "weight": x.matrix.shape} for x in self.weights]
        shown: list[Part] = [Table("Layers", rows)] if rows else ["no layers"]
        return shown + remarks((f"skipped {part}" for part in self.skipped), "skipped")


def read(
    net: nn.Module,
    x: Example | None = None,
    *,
    dtype: torch.dtype = torch.float64,
    unobserved: Mapping[str, str] | None = None,
) -> Reading:
    """Return the layers of a module, and the parts that are not read.

    Layers are the matrices of the module (see :class:`Matrix`) whose values are observed when it runs: linear and
    convolutional modules, parametrized and pruned ones with the effective weight, the projections of attention (three
    where they are stored as one), the gates of recurrent layers, embeddings, and other modules whose output is
    x W^T + b. All other matrices are ``unobserved``, and modules with other tensors ``skipped``, with the reason.

    Parameters
    ----------
    net : torch.nn.Module
        Any module; not changed.
    x : Tensor or ndarray, tuple or mapping of them, optional
        Samples, (N, ...); a tuple or mapping for modules with several arguments. The first are run through a replica:
        layers then come in order of execution, with their shapes, and layers that run never or more than once are
        in ``unobserved``. A layer with several names has the first. Without x the order is that of registration, and
        layers with several names are in ``unobserved``.
    dtype : torch.dtype
        Precision of the run; if the module fails in it, in float32 or its own.
    unobserved : mapping of str to str, optional
        Further layers without observed values, by name with the reason.

    Returns
    -------
    Reading
        ``layers`` (counted from 1), ``unobserved`` and ``skipped``.

    Raises
    ------
    TypeError, ValueError
        If ``net`` is not a module, is scripted or quantized, has lazy parameters without a shape, or cannot be run on
        ``x``.

    Examples
    --------
    >>> import torch
    >>> from torch import nn
    >>> reading = read(nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 2)))
    >>> [(layer.index, layer.name, layer.kind) for layer in reading.layers]
    [(1, '0', 'linear'), (2, '3', 'linear')]
    >>> [(part.name, part.type) for part in reading.skipped]
    [('1', 'BatchNorm1d')]
    >>> [layer.name for layer in read(nn.MultiheadAttention(4, 2)).layers]
    ['q', 'k', 'v', 'out_proj']
    """
    net, dtype = unwrap(net), validation.dtype(dtype)
    validation.optional(validation.kind, unobserved, "unobserved", Mapping)
    if x is None:
        return _without_example(net, unobserved or {})
    reasons.refuse(net)
    samples = example(net, x, inputs=True)
    try:
        return read_function(Functional(net, dtype, whole=samples), samples, unobserved)
    except PrecisionError as error:  # another one does as well: no number of this run is a result
        return read_function(Functional(net, cast(torch.dtype, error.dtype), whole=samples), samples, unobserved)


def read_function(function: Functional, x: Samples, unobserved: Mapping[str, str] | None = None) -> Reading:
    """Return the reading of a module that has its precision already, with samples, see :func:`read`."""
    net, given = function.net, unobserved or {}
    held, holders, places = _held(net)
    trial, layers = Trial(function, holders, x), []
    for matrix in chain.from_iterable(holders.values()):
        about, reason = trial.seen(matrix)
        several = len(trial.calls[matrix.stored.owner]) > 1
        reason = given.get(matrix.name) or _reason(matrix, places[matrix.module], several) or reason
        layers.append(Layer(0, matrix, reason=reason, **about))
    observed = [layer for layer in layers if not layer.reason]
    # stable: of one call in the order of its matrices
    observed.sort(key=lambda layer: trial.calls_of(layer.matrix)[0].order)
    connected = [_connected(layer, after, trial) for layer, after in zip_longest(observed, observed[1:])]
    return _reading(net, held, holders, connected + [layer for layer in layers if layer.reason], trial.once())


def _connected(layer: Layer, after: Layer | None, trial: Trial) -> Layer:
    """Return a layer with whether and how the next one, or the output, reads what it returns."""
    matrix, reader, shape = layer.matrix, None if after is None else after.matrix, layer.output_shape or ()
    follows, has_places = trial.follows(matrix, reader), len(shape) > 1 or trial.flattened
    more = trial.unflattened(matrix, reader, shape, layer.samples_dim) if follows and has_places else {}
    return replace(layer, apart=not follows, **more)


def _without_example(net: nn.Module, unobserved: Mapping[str, str]) -> Reading:
    held, holders, places = _held(net)
    layers = []
    for matrix in chain.from_iterable(holders.values()):
        reason = unobserved.get(matrix.name) or _reason(matrix, places[matrix.module], several=True)
        layers.append(Layer(0, matrix, reason=reason or _reason_without_example(matrix)))
    return _reading(net, held, holders, sorted(layers, key=lambda layer: layer.reason != ""), frozenset())


def _held(net: nn.Module) -> tuple[Listing, Holders, Mapping[nn.Module | None, Sequence[str]]]:
    """Return the matrices of a module, those of each submodule that runs some, and the names of submodules."""
    reasons.refuse(net)
    held, places = listed(of_module(net), type(net).__name__), defaultdict(list)
    for name, part in net.named_modules(remove_duplicate=False):
        places[part].append(name)
    return held, holders_of(held.matrices, net), places


def _reading(net: nn.Module, held: Listing, holders: Holders, layers: list[Layer], once: frozenset[str]) -> Reading:
    """Return the reading with layers in their order, the unobserved ones last."""
    known, observed = {layer.matrix for layer in layers}, {layer.matrix for layer in layers if not layer.reason}
    scripted = [Layer(0, matrix, reason=reasons.SCRIPTED) for matrix in held.matrices if matrix not in known]
    numbered = tuple(replace(layer, index=i) for i, layer in enumerate(layers + scripted, 1))
    done, unobserved = numbered[: len(observed)], numbered[len(observed) :]
    running = {name: matrices for name, matrices in holders.items() if not observed.isdisjoint(matrices)}
    return Reading(done, unobserved, tuple(_skipped(net, held, unobserved)), once, held, running)


def _reason(matrix: Matrix, places: Sequence[str], several: bool) -> str:
    """Return why a matrix is shared between places or has parameters that a layer of torch has not; or "".

    ``places`` are the names of its module, and ``several`` says whether it runs in more than one.
    """
    others = [name for name in (tied.rpartition(".")[0] for tied in matrix.tied) if name not in places]
    if others:
        return f"its {matrix.stored.key} is shared with {', '.join(map(repr, others))}"
    if len(places) > 1 and several:
        return f"shared: the same module is used in more than one place, {', '.join(map(repr, places))}"
    part = matrix.module
    if part is None or base_of(part) is None or any(derived(part, key) is not None for key in ("weight", "bias")):
        return ""
    return reasons.of_parameters(part) or ""


def _reason_without_example(matrix: Matrix) -> str:
    part = matrix.stored.module
    if matrix.kind == "matrix":
        return "a matrix of a module that bnrank does not know; give an example x to see what it does with it"
    if matrix.kind in ("expert", "bilinear") or (part is not None and base_of(part) is None and "conv" in matrix.kind):
        return "no layer of torch with one input"
    if part is not None and base_of(part) is not None and overrides_forward(part):
        return "its class overrides forward; give an example x to check it"
    return ""


def _skipped(net: nn.Module, held: Listing, unobserved: Sequence[Layer]) -> Iterator[Skipped]:
    """Iterate over the unobserved matrices and the modules with other parameters, in order of registration."""
    used = {id(stored) for matrix in held.matrices for stored in (matrix.stored, matrix.bias_stored)}
    rest: dict[str, list[Stored]] = defaultdict(list)
    for stored in held.records:
        is_own = stored.module is not None and stored.key in stored.module._parameters
        if is_own and id(stored) not in used and not stored.into:
            rest[stored.owner].append(stored)
    layers: dict[nn.Module | None, list[Layer]] = defaultdict(list)
    for layer in unobserved:
        layers[layer.matrix.module].append(layer)
    with_matrices = {matrix.module for matrix in held.matrices}
    for name, part in net.named_modules():
        yield from (Skipped.part(layer.name, part, layer.reason) for layer in layers[part])
        if rest[name] and (part not in with_matrices or not layers[part]):
            yield Skipped.part(name, part, _reason_of_rest(part, rest[name], held))


def _reason_of_rest(part: nn.Module, rest: Sequence[Stored], held: Listing) -> str:
    """Return why parameters of a module that are no matrices are not read."""
    if any(matrix.module is part for matrix in held.matrices):
        return f"parameters besides its weights: {', '.join(stored.key for stored in rest)}"
    return reasons.of_type(part) or next(other.reason for other in held.others if other.name == rest[0].name)


def read_or(reading: Reading | None, net: nn.Module, x: Example | None) -> Reading:
    """Return a reading that a caller gave, or that of the module where none is given."""
    return read(net, x) if reading is None else validation.kind(reading, "reading", Reading)
