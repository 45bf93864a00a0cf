"""Why a part of a module is not read: one table for layers, graphs and compression."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from torch import nn
from torch.nn.utils import parametrize

from bnrank._core import validation
from bnrank._core.results import Printed

_NORMALIZATION = "normalization: divides by a function of the values"
_TABLE = "look-up table: its input is an index and not a vector"
_ATTENTION = "attention: products of values inside a softmax"
_SOFTMAX = "softmax is not positively homogeneous"
_TYPES: tuple[tuple[tuple[type[nn.Module], ...], str], ...] = (
    ((nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm), _NORMALIZATION),
    ((nn.LocalResponseNorm, nn.CrossMapLRN2d), _NORMALIZATION),
    ((nn.Embedding, nn.EmbeddingBag), _TABLE),
    ((nn.RNNBase, nn.RNNCellBase), "recurrent: its weights act once per time step"),
    ((nn.MultiheadAttention,), _ATTENTION),
    ((nn.modules.conv._ConvTransposeNd,), "transposed convolution, which is not compressed"),
    ((nn.Bilinear, nn.CosineSimilarity, nn.PairwiseDistance), "has two inputs"),
    ((nn.PReLU,), "activation with a learned slope and no weight matrix"),
    ((nn.Softmax, nn.LogSoftmax, nn.Softmin, nn.Softmax2d), _SOFTMAX),
    ((nn.RReLU,), "its slope is random while training"),
    ((nn.LPPool1d, nn.LPPool2d, nn.FractionalMaxPool2d, nn.FractionalMaxPool3d), "pooling that bnrank does not read"),
)

_SCRIPTED = (
    "net: got a scripted or traced module, whose layers bnrank cannot see; expected the module that it was made from. "
    "Its weights alone: bnrank.profile(scripted.state_dict()); or build the module and load them: "
    "net.load_state_dict(scripted.state_dict())"
)
SCRIPTED = "scripted or traced, and bnrank cannot see its layers; give the module that it was made from"

_OPERATIONS = {
    _NORMALIZATION: "batchnorm layernorm groupnorm instancenorm rmsnorm normalize localresponsenorm norm var std rsqrt",
    _ATTENTION: "scaleddotproductattention multiheadattentionforward",
    "product of two values": "einsum bmm baddbmm tensordot inner outer dot mv bilinear pow square prod cross kron",
    "random while training": "featuredropout featurealphadropout rrelu",
    _SOFTMAX: "softmax logsoftmax softmin gumbelsoftmax logsumexp",
    "not positively homogeneous": (
        "sigmoid tanh gelu silu mish softplus elu selu celu glu logsigmoid hardtanh relu6 hardsigmoid hardswish "
        "hardshrink softshrink tanhshrink softsign exp log sin cos erf sqrt reciprocal sign"
    ),
    "no gradient flows through it": "detach data",
    _TABLE: "embedding embeddingbag",
    "transposed convolution, which bnrank does not read": "convtranspose1d convtranspose2d convtranspose3d",
}
_BY_NAME = {name: reason for reason, names in _OPERATIONS.items() for name in names.split()}


@dataclass(frozen=True)
class Skipped(Printed):
    """A part of a module that is not read.

    Attributes
    ----------
    name : str
        The submodule's name, "" for the module itself, or that of an operation.
    type : str
        Its class.
    reason : str
        Why.

    Examples
    --------
    >>> import torch, bnrank
    >>> net = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.LayerNorm(5))
    >>> part, = bnrank.networks.read(net).skipped               # a bnrank.networks.Skipped
    >>> part.name, part.type
    ('1', 'LayerNorm')
    """

    name: str
    type: str
    reason: str

    @classmethod
    def part(cls, name: str, part: nn.Module, reason: str) -> Skipped:
        """Return the record of a submodule."""
        return cls(name, type(part).__name__, reason)

    def __str__(self) -> str:
        return f"{self.name or 'the module itself'} ({self.type}): {self.reason}"


def of_operation(name: str) -> str | None:
    """Return why a function or module of torch, by its name without underscores, is not read, or None."""
    return _BY_NAME.get(name)


def of_type(part: nn.Module) -> str | None:
    """Return why modules of a class are not read, or None."""
    if isinstance(part, torch.jit.ScriptModule):
        return SCRIPTED
    known = next((reason for types, reason in _TYPES if isinstance(part, types)), None)
    vectors = all(p is None or p.ndim < 2 for p in part._parameters.values())
    return known or ("normalization, by the name of its class" if vectors and "Norm" in type(part).__name__ else None)


def of_parameters(part: nn.Module) -> str | None:
    """Return why the parameters of a layer are not those of a plain layer, or None."""
    if parametrize.is_parametrized(part):
        which = ", ".join(cast(nn.ModuleDict, part.parametrizations).keys())
        return f"parametrized ({which}); torch.nn.utils.parametrize.remove_parametrizations makes it a plain layer"
    own = {key for key, p in part._parameters.items() if p is not None}
    if "weight" not in own:
        return f"its weight is computed from other parameters ({', '.join(sorted(own))})"
    extra = ", ".join(sorted(own - {"weight", "bias"}))
    return f"has parameters besides weight and bias: {extra}" if extra else None


def only_weight(reason: str) -> str:
    """Return a note on a layer whose values are not observed for a reason."""
    return f"only its weight is measured: {reason}"


def refuse(net: nn.Module) -> None:
    """Raise TypeError if the layers of a module cannot be read because it is scripted or quantized, with advice.

    Examples
    --------
    >>> refuse(nn.Linear(2, 2))
    """
    if isinstance(net, torch.jit.ScriptModule):
        raise TypeError(_SCRIPTED)
    parts = [(name, part) for name, part in net.named_modules() if not isinstance(part, torch.jit.ScriptModule)]
    found = [name for name, part in parts if _is_quantized(part)]
    if found:
        shown = validation.listed(found, 3) or type(net).__name__
        got = f"got quantized layers ({shown}), expected floating-point ones"
        raise TypeError(f"net: {got}; give the module as it was before quantization, or load it without")


def _is_quantized(part: nn.Module) -> bool:
    module, weight = type(part).__module__, part._parameters.get("weight")
    packed = ".quantized" in module and module.startswith("torch.") and hasattr(part, "weight")
    whole = weight is not None and not weight.is_floating_point() and not weight.is_complex()
    return packed or whole or any(tensor.is_quantized for tensor in [*part.parameters(False), *part.buffers(False)])
