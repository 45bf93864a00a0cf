"""Why an operation is outside the theory, in words."""

from __future__ import annotations

from torch import nn
from torch.nn.utils import parametrize

from bnrank.networks.graph.values import Call

__all__ = ["of", "of_parameters"]

_MODULES: tuple[tuple[tuple[type[nn.Module], ...], str], ...] = (
    (
        (
            nn.modules.batchnorm._NormBase,
            nn.LayerNorm,
            nn.GroupNorm,
            nn.RMSNorm,
            nn.LocalResponseNorm,
            nn.CrossMapLRN2d,
        ),
        "normalization: divides by a function of the values",
    ),
    ((nn.MultiheadAttention,), "attention: products of values inside a softmax"),
    ((nn.Embedding, nn.EmbeddingBag), "look-up table: its input is an index and not a vector"),
    ((nn.modules.conv._ConvTransposeNd,), "transposed convolution, which bnrank does not read"),
    ((nn.Bilinear, nn.CosineSimilarity, nn.PairwiseDistance), "has two inputs"),
    ((nn.Softmax, nn.LogSoftmax, nn.Softmin, nn.Softmax2d), "softmax is not positively homogeneous"),
    ((nn.RReLU,), "its slope is random while training"),
    ((nn.LPPool1d, nn.LPPool2d, nn.FractionalMaxPool2d, nn.FractionalMaxPool3d), "pooling that bnrank does not read"),
)
_FUNCTIONS = {
    "normalization: divides by a function of the values": (
        "batch_norm layer_norm group_norm instance_norm rms_norm normalize local_response_norm norm var std rsqrt"
    ),
    "attention: products of values inside a softmax": "scaled_dot_product_attention multi_head_attention_forward",
    "product of two values": "einsum bmm baddbmm tensordot inner outer dot mv bilinear pow square prod cross kron",
    "random while training": "feature_dropout feature_alpha_dropout rrelu",
    "softmax is not positively homogeneous": "softmax log_softmax softmin gumbel_softmax logsumexp",
    "not positively homogeneous": (
        "sigmoid tanh gelu silu mish softplus elu selu celu glu logsigmoid hardtanh relu6 hardsigmoid hardswish "
        "hardshrink softshrink tanhshrink softsign exp log sin cos erf sqrt reciprocal sign"
    ),
    "no gradient flows through it": "detach data",
    "look-up table: its input is an index and not a vector": "embedding embedding_bag",
    "transposed convolution, which bnrank does not read": ("conv_transpose1d conv_transpose2d conv_transpose3d"),
}
_BY_NAME = {name: reason for reason, names in _FUNCTIONS.items() for name in names.split()}


def of(call: Call) -> str:
    """Return why an operation that nothing reads is outside."""
    if call.module is not None:
        for kinds, reason in _MODULES:
            if isinstance(call.module, kinds):
                return reason
        if type(call.module).__name__.lower() in _BY_NAME:
            return _BY_NAME[type(call.module).__name__.lower()]
        if type(call.module).__module__.startswith("torch.nn.modules.activation"):
            return "not positively homogeneous"
    if call.name.endswith("(autograd.Function)"):
        return "an autograd.Function, whose gradient is its own"
    return _BY_NAME.get(call.name, f"{call.name} is not among the operations that the theory covers")


def of_parameters(call: Call) -> str | None:
    """Return why a submodule's parameters are not those of a plain layer, or None."""
    if call.module is None or not isinstance(call.module, nn.Linear | nn.modules.conv._ConvNd | nn.PReLU):
        return None
    if parametrize.is_parametrized(call.module):
        which = ", ".join(call.module.parametrizations.keys())  # type: ignore[operator, union-attr]
        return f"parametrized ({which}); torch.nn.utils.parametrize.remove_parametrizations makes it a plain layer"
    own = {name for name, p in call.module._parameters.items() if p is not None}
    if "weight" not in own:
        return f"its weight is computed from other parameters ({', '.join(sorted(own))})"
    if extra := sorted(own - {"weight", "bias"}):
        return f"has parameters besides weight and bias: {', '.join(extra)}"
    return None
