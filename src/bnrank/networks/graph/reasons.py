"""Why an operation is outside the theory, in words."""

from __future__ import annotations

from torch import nn

from bnrank.networks import reasons
from bnrank.networks.graph.values import Call

__all__ = ["of", "of_parameters"]

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
        if reason := reasons.of_type(call.module):
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
    return reasons.of_parameters(call.module)
