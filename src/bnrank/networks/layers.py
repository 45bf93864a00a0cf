"""What is read of a module: layers, each with one weight matrix or convolution, and where its weight is stored."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.nn.utils.prune import BasePruningMethod

from bnrank.networks.functional import unchanged

KINDS: dict[Any, str] = {
    nn.Linear: "linear",
    nn.Conv1d: "conv1d",
    nn.Conv2d: "conv2d",
    nn.Conv3d: "conv3d",
    nn.ConvTranspose1d: "transposed conv1d",
    nn.ConvTranspose2d: "transposed conv2d",
    nn.ConvTranspose3d: "transposed conv3d",
}


@dataclass(frozen=True)
class Source:
    """Where a weight is stored in a module.

    Attributes
    ----------
    owner : str
        Name of the submodule.
    weight : str
        Name of its tensor.
    bias : str, optional
        Name of the tensor of the bias, if there is one.
    rows : tuple of int, optional
        First row of the tensors, and the row after the last; all of them where None.
    transposed : bool
        Whether the tensor is (in, out). Its rows are those of the transposed tensor.
    bias_rows : tuple of int, optional
        Entries of the bias, where they are not ``rows``.
    """

    owner: str
    weight: str = "weight"
    bias: str | None = "bias"
    rows: tuple[int, int] | None = None
    transposed: bool = False
    bias_rows: tuple[int, int] | None = None

    def matrix(self, tensor: Tensor) -> Tensor:
        """Return the weight, (out, in), of a value of the stored tensor."""
        tensor = tensor.T if self.transposed else tensor
        return tensor if self.rows is None else tensor[slice(*self.rows)]


@dataclass(frozen=True)
class Layer:
    """A weight of a module that acts on vectors or images: a layer, a projection of attention, a gate, or a table.

    Attributes
    ----------
    index : int
        1..L, in order of execution where the module was read with an example, else of registration.
    name : str
        The submodule's name, e.g. ``"layers.0"``, where it holds one weight; else with that of the part, e.g.
        ``"layers.0.self_attn.q"`` or ``"lstm.l0.ih.forget"``.
    kind : str
        "linear", "conv1d", "conv2d", "conv3d", "transposed conv1d" to "transposed conv3d", "recurrent" (one gate of a
        recurrent layer), "embedding", or "matrix" (a parameter with two dimensions, used in an unknown way).
    module : torch.nn.Module
        The module that holds the weight (not a copy).
    input_shape, output_shape : tuple of int, optional
        Shapes of one sample before and after the layer; None where read without an example, or not observed.
    source : Source, optional
        Where the weight is stored; None for ``module.weight`` of a linear or convolutional layer.
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
    name: str
    kind: str
    module: nn.Module
    input_shape: tuple[int, ...] | None = None
    output_shape: tuple[int, ...] | None = None
    source: Source | None = None
    reason: str = ""
    apart: bool = False
    unflattened: tuple[int, ...] = ()
    samples_dim: int = 0
    units_dim: int | None = None

    @property
    def weight(self) -> Tensor:
        """The weight, (out, in) or (out, in / groups, *kernel); the effective one of a parametrized layer."""
        return self._stored("weight" if self.source is None else self.source.weight, True)

    @property
    def bias(self) -> Tensor | None:
        """The bias, (out,), or None."""
        name = "bias" if self.source is None else self.source.bias
        if name is None or getattr(self.module, name, None) is None:
            return None
        return self._stored(name, False)

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
        return self.source is None and not self.is_transposed and derived(self.module, "weight") is None

    @property
    def parameter(self) -> str:
        """The name of the tensor that holds the weight."""
        owner, name = (self.name, "weight") if self.source is None else (self.source.owner, self.source.weight)
        return f"{owner}.{name}" if owner else name

    def _stored(self, name: str, is_weight: bool) -> Tensor:
        value = effective(self.module, name)
        if self.source is None:
            return value
        if is_weight:
            return self.source.matrix(value)
        rows = self.source.bias_rows or self.source.rows
        return value if rows is None else value[slice(*rows)]


def effective(part: nn.Module, name: str) -> Tensor:
    """Return a tensor of a module, computed where it is parametrized; buffers of the parametrization do not change.

    Examples
    --------
    >>> layer = nn.utils.parametrizations.weight_norm(nn.Linear(2, 2))
    >>> torch.equal(effective(layer, "weight"), layer.weight)
    True
    """
    hook = derived(part, name)
    if hook is None:
        return cast(Tensor, getattr(part, name))
    if isinstance(hook, nn.Module):
        with unchanged(hook):  # no power iteration, no moving averages
            return cast(Tensor, hook())  # past parametrize.cached, in which the attribute can be of an earlier step
    if isinstance(hook, BasePruningMethod):
        return cast(Tensor, hook.apply_mask(part))
    # spectral_norm's second argument is whether to iterate; weight_norm has none
    arguments = (part, False) if hasattr(hook, "n_power_iterations") else (part,)
    return cast(Tensor, hook.compute_weight(*arguments))


def derived(part: nn.Module, name: str) -> Any:
    """Return what computes a tensor from other parameters, or None if it is a parameter itself."""
    if parametrize.is_parametrized(part, name):
        return cast(Any, part).parametrizations[name]
    for hook in part._forward_pre_hooks.values():
        normalizes = hasattr(hook, "compute_weight") and getattr(hook, "name", "") == name
        if normalizes or (isinstance(hook, BasePruningMethod) and hook._tensor_name == name):
            return hook
    return None


def computed_of(part: nn.Module, key: str) -> str:
    """Return the name of the tensor that hooks of torch.nn.utils compute from a parameter or buffer of a module, or "".

    Examples
    --------
    >>> layer = torch.nn.utils.prune.identity(nn.Linear(2, 2), "weight")
    >>> [computed_of(layer, key) for key in ("weight_orig", "weight_mask", "bias")]
    ['weight', 'weight', '']
    """
    found = ""
    while (match := re.fullmatch(r"(.+)_(?:orig|mask|g|v|u)", key)) is not None:  # v of g v / ||v|| can be pruned
        key = match[1]
        found = found if derived(part, key) is None else key
    return found


def base_of(part: nn.Module) -> Any:
    """Return the class of torch, linear or a convolution, that a module is an instance of, or None."""
    return next((base for base in KINDS if isinstance(part, base)), None)


def is_weight(tensor: Tensor | None) -> bool:
    """Return whether a parameter is a real matrix with more than one row and column."""
    return tensor is not None and tensor.ndim == 2 and min(tensor.shape) > 1 and torch.is_floating_point(tensor)


def has_complex_weight(part: nn.Module) -> bool:
    """Return whether a module is a linear or convolutional layer or an embedding with a weight of complex numbers."""
    weight = part._parameters.get("weight")
    known = base_of(part) is not None or isinstance(part, nn.Embedding | nn.EmbeddingBag)
    return known and weight is not None and weight.is_complex()
