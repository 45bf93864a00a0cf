"""What the operations of torch are to the theory: linear maps, convolutions, activations, sums, reorderings."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from bnrank.networks.graph import reasons
from bnrank.networks.graph.pooling import mean, numbers, pool
from bnrank.networks.graph.reordering import MIXES, reorder
from bnrank.networks.graph.values import NO_SAMPLES, Call, Emit, UnreadError, Value, leaves, replace, same_order

__all__ = ["read"]

_INDEX = """
flatten unflatten ravel reshape reshape_as view view_as permute transpose swapaxes swapdims movedim moveaxis t T mT H mH
adjoint unsqueeze squeeze expand expand_as broadcast_to broadcast_tensors contiguous clone positive pos identity getitem
setitem cat concat concatenate stack hstack vstack dstack chunk split tensor_split unbind hsplit vsplit dsplit narrow
select index_select gather take_along_dim pad flip fliplr flipud roll rot90 tile repeat repeat_interleave pixel_shuffle
pixel_unshuffle channel_shuffle unfold diagonal tril triu masked_fill copy fill zero requires_grad atleast_2d atleast_3d
"""
_CASTS = "to type type_as double float half bfloat16 long int short char byte bool"
_INDEX_MODULES = (
    nn.Identity,
    nn.Flatten,
    nn.Unflatten,
    nn.PixelShuffle,
    nn.PixelUnshuffle,
    nn.ChannelShuffle,
    nn.Unfold,
    nn.modules.padding._ConstantPadNd,
    nn.modules.padding._ReflectionPadNd,
    nn.modules.padding._ReplicationPadNd,
    nn.modules.padding._CircularPadNd,
)


def read(call: Call, emit: Emit) -> Any:
    """Add the nodes of an operation and return its values.

    Raises
    ------
    UnreadError
        If it is outside the theory; the message is the reason.
    """
    handler = _handler(call)
    if handler is None:
        raise UnreadError(reasons.of(call))
    if any(v.batch == NO_SAMPLES or (v.merged > 1 and handler in _SPATIAL) for v in call.values):
        raise UnreadError(MIXES)
    return handler(call, emit)


def _handler(call: Call) -> Callable[[Call, Emit], Any] | None:
    if call.module is None:
        return _FUNCTIONS.get(call.name)
    if reason := reasons.of_parameters(call):
        raise UnreadError(reason)
    kinds = (handler for kind, handler in _MODULES if isinstance(call.module, kind))
    return next(kinds, None)


# linear maps and convolutions


def _linear(call: Call, emit: Emit) -> Value:
    if call.module is not None:
        x, weight, bias, transposed = call.get(0, "input"), call.own("weight"), call.own("bias"), False
    elif call.name == "linear":
        x, weight, bias, transposed = call.get(0, "input"), call.get(1, "weight"), call.get(2, "bias"), False
    elif call.name == "addmm":
        bias, x, weight, transposed = call.get(0, "input"), call.get(1, "mat1"), call.get(2, "mat2"), True
        if (call.kwargs.get("alpha", 1), call.kwargs.get("beta", 1)) != (1, 1):
            raise UnreadError("a product with factors alpha and beta")
    else:
        x, weight, bias, transposed = call.get(0, "input"), call.get(1, "other", call.get(1, "mat2")), None, True
    if not _depends(x):
        raise UnreadError("a matrix times the input from the left: it acts across positions")
    if _depends(weight) or _depends(bias):
        raise UnreadError("product of two values")
    name, tensor, view = call.parameter(weight, "weight")
    if tensor.ndim != 2 or view.ndim != 2:
        raise UnreadError("its weight is no matrix")
    if not same_order(view, tensor):
        if not same_order(view, tensor.T):
            raise UnreadError(f"its weight is another view of {name}")
        transposed = not transposed
    if x.batch == x.tensor.ndim - 1:
        raise UnreadError(MIXES)
    held = _bias(call, bias, (call.result.shape[-1],))
    return emit("linear", [x], call.result, **x.layout, weight=name, bias=held, transposed=transposed)


def _bias(call: Call, bias: Value | None, shape: tuple[int, ...]) -> str:
    if bias is None:
        return ""
    name, tensor, view = call.parameter(bias, "bias")
    if not same_order(view, tensor) or tuple(tensor.shape) != shape:
        raise UnreadError(f"its bias has shape {tuple(view.shape)}, expected {shape}")
    return name


def _conv(call: Call, emit: Emit) -> Value:
    m: Any = call.module
    if m is not None:
        x, weight, bias = call.get(0, "input"), call.own("weight"), call.own("bias")
        stride, padding, dilation, groups, mode = m.stride, m.padding, m.dilation, m.groups, m.padding_mode
    else:
        x, weight, bias = call.get(0, "input"), call.get(1, "weight"), call.get(2, "bias")
        stride, padding = call.get(3, "stride", 1), call.get(4, "padding", 0)
        dilation, groups, mode = call.get(5, "dilation", 1), call.get(6, "groups", 1), "zeros"
    if _depends(weight) or _depends(bias):
        raise UnreadError("product of two values")
    name, tensor, view = call.parameter(weight, "weight")
    if not same_order(view, tensor):
        raise UnreadError(f"its weight is another view of {name}")
    kernel = tuple(tensor.shape[2:])
    count = len(kernel)
    if not _depends(x) or x.batch != 0 or x.tensor.ndim != count + 2:
        raise UnreadError(MIXES)
    stride, dilation = numbers(stride, count), numbers(dilation, count)
    if padding == "valid":
        pads = [(0, 0)] * count
    elif padding == "same":
        totals = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
        pads = [(total // 2, total - total // 2) for total in totals]
    else:
        pads = [(p, p) for p in numbers(padding, count)]
    if mode not in ("zeros", "circular") or any(left != right for left, right in pads):
        flat = [p for pair in reversed(pads) for p in pair]
        padded = _pad(x.tensor, flat, mode)
        x = reorder([x], lambda ids: _pad(ids[0], flat, mode), padded, emit, text=f"pad ({mode})")
        pads, mode = [(0, 0)] * count, "zeros"
    fields: dict[str, Any] = {"stride": stride, "padding": tuple(p for p, _ in pads), "dilation": dilation}
    held = _bias(call, bias, (tensor.shape[0],))
    return emit(
        "conv", [x], call.result, 0, weight=name, bias=held, kernel=kernel, groups=groups, padding_mode=mode, **fields
    )


def _pad(x: Tensor, pads: list[int], mode: str) -> Tensor:
    return nn.functional.pad(x, pads, mode="constant" if mode == "zeros" else mode)


# entry by entry


def _activation(call: Call, emit: Emit) -> Value:
    m: Any = call.module
    x, name, slope, weight = call.get(0, "input"), call.name, 0.0, ""
    if isinstance(m, nn.LeakyReLU):
        slope = float(m.negative_slope)
    elif name == "leaky_relu":
        slope = float(call.get(1, "negative_slope", 0.01))
    elif name in ("abs", "absolute"):
        slope = -1.0
    elif name in ("clamp", "clip", "clamp_min"):
        least, most = call.get(1, "min"), None if name == "clamp_min" else call.get(2, "max")
        if most is not None or isinstance(least, Value) or least != 0:
            raise UnreadError("cuts values off, not positively homogeneous; only clamp(min=0) is")
    elif name == "threshold" or isinstance(m, nn.Threshold):
        bounds = (m.threshold, m.value) if m is not None else (call.get(1, "threshold"), call.get(2, "value"))
        if bounds != (0, 0):
            raise UnreadError("a threshold other than 0 is not positively homogeneous")
    elif name in ("prelu", "PReLU"):
        held = call.own("weight") if m is not None else call.get(1, "weight")
        if _depends(held):
            raise UnreadError("product of two values")
        weight, tensor, _ = call.parameter(held, "slope")
        slope = math.nan
        if tensor.numel() > 1 and (x.batch != 0 or x.merged > 1):
            raise UnreadError(MIXES)
    return emit("activation", [x], call.result, **x.layout, slope=slope, weight=weight)


def _sum(call: Call, emit: Emit) -> Value:
    a, b = call.get(0, "input"), call.get(1, "other", 0)
    alpha = call.kwargs.get("alpha", 1)
    name = call.name
    if name in ("neg", "negative"):
        terms = [(a, -1.0)]
    elif name == "rsub":
        terms = [(b, 1.0), (a, -float(alpha))]
    else:
        terms = [(a, 1.0), (b, -float(alpha) if name in ("sub", "subtract") else float(alpha))]
    values = [(v, factor) for v, factor in terms if _depends(v)]
    others = [(v, factor) for v, factor in terms if not _depends(v) and not _is_zero(v)]
    if others:
        (other, factor) = others[0]
        if not isinstance(other, Value) or not other.sources:
            raise UnreadError("adds a number that does not depend on the input")
        if factor != 1 or values[0][1] != 1:
            raise UnreadError("subtracts a parameter")
        return _added_parameter(call, emit, values[0][0], other)
    return _combine(call, emit, values)


def _combine(call: Call, emit: Emit, terms: list[tuple[Value, float]]) -> Value:
    result = call.result
    values = [_broadcast(v, result, emit) for v, _ in terms]
    if any(v.layout != values[0].layout for v in values):
        raise UnreadError(MIXES)
    return emit("add", values, result, **values[0].layout, factors=tuple(factor for _, factor in terms))


def _broadcast(value: Value, result: Tensor, emit: Emit) -> Value:
    if value.tensor.shape == result.shape:
        return value
    shape = result.shape
    return reorder([value], lambda ids: ids[0].expand(shape), value.tensor.expand(shape), emit, text="expand")


def _added_parameter(call: Call, emit: Emit, value: Value, other: Value) -> Value:
    name, _, view = call.parameter(other, "added term")
    if call.result.shape != value.tensor.shape or value.batch or value.merged > 1 or not view.is_contiguous():
        raise UnreadError(f"adds {name}, which is not the bias of a linear layer or convolution")
    # a bias, where the value is that of a layer without one and is used nowhere else: known only at the end
    return emit("bias", [value], call.result, 0, weight=name, weight_shape=tuple(view.shape))


def _product(call: Call, emit: Emit) -> Value:
    a, b = call.get(0, "input"), call.get(1, "other")
    if call.name == "rdiv":
        raise UnreadError("divides by a value")
    if call.name in ("div", "divide", "true_divide"):
        if call.kwargs.get("rounding_mode") is not None:
            raise UnreadError("rounds")
        if not _depends(a) or _depends(b):
            raise UnreadError("divides by a value")
        return _combine(call, emit, [(a, 1 / _number(b))])
    if _depends(a) and _depends(b):
        raise UnreadError("product of two values")
    value, other = (a, b) if _depends(a) else (b, a)
    if not isinstance(other, Value) or not other.sources:
        return _combine(call, emit, [(value, _number(other))])
    name, _, view = call.parameter(other, "factor")
    if not view.is_contiguous():  # the parameters of the copy are
        raise UnreadError(f"its factor is another view of {name}")
    shape = tuple(view.shape)
    along = len(shape) - (call.result.ndim - value.batch)  # where the samples' dimension falls
    if along >= 0 and shape[along] != 1:
        raise UnreadError("a parameter per sample")
    value = _broadcast(value, call.result, emit)
    if value.batch != 0 or value.merged > 1:
        raise UnreadError(MIXES)
    return emit("diagonal", [value], call.result, 0, weight=name, weight_shape=shape)


def _number(other: Any) -> float:
    if isinstance(other, Value):
        if other.sources or other.tensor.numel() != 1:
            raise UnreadError("times fixed numbers or a computed weight that are no parameter")
        return float(other.tensor.detach().flatten()[0])
    if isinstance(other, int | float):
        return float(other)
    raise UnreadError(f"times {type(other).__name__}")


# other orders


def _dropout(call: Call, emit: Emit) -> Any:
    p = getattr(call.module, "p", None) if call.module is not None else call.get(1, "p", 0.5)
    if p != 0:
        raise UnreadError(f"dropout with p = {p}: random while training")
    return _index(call, emit)


def _interpolate(call: Call, emit: Emit) -> Any:
    mode = getattr(call.module, "mode", None) if call.module is not None else call.get(3, "mode", "nearest")
    if not str(mode).startswith("nearest"):
        raise UnreadError(f"interpolation ({mode}), which bnrank does not read")
    return _index(call, emit)


def _cast(call: Call, emit: Emit) -> Value:
    x = call.values[0]
    if call.result.is_floating_point() != x.tensor.is_floating_point():
        raise UnreadError(f"no gradient flows through a cast to {str(call.result.dtype).removeprefix('torch.')}")
    if call.result.is_floating_point() and torch.finfo(call.result.dtype).eps > torch.finfo(x.tensor.dtype).eps:
        return emit("cast", [x], call.result, **x.layout)  # no matter at the end: known only then
    return Value(call.result, x.node, x.batch, merged=x.merged)


def _index(call: Call, emit: Emit) -> Any:
    m: Any = call.module
    number = {"pad": call.get(3, "value"), "setitem": call.get(2, "value"), "masked_fill": call.get(2, "value")}
    number |= {"fill": call.get(1, "value")}
    put = m.value if isinstance(m, nn.modules.padding._ConstantPadNd) else number.get(call.name)
    if put is not None and not _depends(put) and not _is_zero(put):
        raise UnreadError("puts in numbers that do not come from the input")
    every: list[Value] = leaves((call.args, call.kwargs), Value)
    for constant in every:
        floating = constant.tensor.is_floating_point()
        if constant.node is None and (constant.sources or (floating and not _is_zero(constant))):
            raise UnreadError("puts in numbers that do not come from the input")
    values = [v for v in every if v.node is not None]
    if len({v.tensor.is_floating_point() for v in values}) > 1:
        raise UnreadError("which entries it takes depends on the data")

    def run(ids: Sequence[Tensor]) -> Any:
        left = iter(ids)

        def plain(leaf: Any) -> Any:
            if isinstance(leaf, Value):
                return next(left).clone() if leaf.node is not None else leaf.tensor
            return leaf

        args, kwargs = replace((call.args, call.kwargs), plain)
        if call.name == "view" and not any(isinstance(a, torch.dtype) for a in args):
            return args[0].reshape(*args[1:], **kwargs)  # of ids, whose memory may be laid out otherwise
        return call.run(*args, **kwargs)

    try:
        return reorder(values, run, call.result, emit)
    except (IndexError, RuntimeError, TypeError, ValueError) as error:  # numbered entries are no indices or masks
        raise UnreadError("takes entries in a way that bnrank does not read") from error


# help


def _depends(value: Any) -> bool:
    return isinstance(value, Value) and value.node is not None


def _is_zero(value: Any) -> bool:
    if isinstance(value, Value):
        return not value.sources and not bool(value.tensor.any())
    return isinstance(value, int | float) and value == 0


_SPATIAL = (_conv, mean, pool)
_SUMS = "add sub subtract rsub neg negative"
_PRODUCTS = "mul multiply div divide true_divide rdiv"
_ACTIVATIONS = "relu leaky_relu abs absolute clamp clip clamp_min threshold prelu"
_POOLS = [f"{a}{kind}_pool{k}d" for a in ("", "adaptive_") for kind in ("avg", "max") for k in (1, 2, 3)]
_FUNCTIONS: dict[str, Callable[[Call, Emit], Any]] = {
    **dict.fromkeys(["linear", "matmul", "mm", "addmm"], _linear),
    **dict.fromkeys(["conv1d", "conv2d", "conv3d"], _conv),
    **dict.fromkeys(_ACTIVATIONS.split(), _activation),
    **dict.fromkeys(_SUMS.split(), _sum),
    **dict.fromkeys(_PRODUCTS.split(), _product),
    **dict.fromkeys(["mean", "sum", "amax"], mean),
    **dict.fromkeys(_POOLS, pool),
    **dict.fromkeys(_INDEX.split(), _index),
    **dict.fromkeys(_CASTS.split(), _cast),
    **dict.fromkeys(["dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout"], _dropout),
    "interpolate": _interpolate,
}
_POOL_MODULES = tuple(
    getattr(nn, f"{a}{kind}Pool{k}d") for a in ("", "Adaptive") for kind in ("Avg", "Max") for k in (1, 2, 3)
)
_MODULES: tuple[tuple[Any, Callable[[Call, Emit], Any]], ...] = (
    (nn.Linear, _linear),
    ((nn.Conv1d, nn.Conv2d, nn.Conv3d), _conv),
    ((nn.ReLU, nn.LeakyReLU, nn.PReLU, nn.Threshold), _activation),
    (_POOL_MODULES, pool),
    (_INDEX_MODULES, _index),
    (nn.modules.dropout._DropoutNd, _dropout),
    (nn.Upsample, _interpolate),
)
