"""Classification of torch operations: linear maps, convolutions, activations, sums, pooling and reorderings."""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bnrank.networks import reasons
from bnrank.networks.graph.values import MIXES, NO_SAMPLES, Call, Emit, UnreadError, Value, expect, reorder, same_order

_INDEX = """
flatten unflatten ravel reshape reshapeas view viewas permute transpose swapaxes swapdims movedim moveaxis t mt h mh
adjoint unsqueeze squeeze expand expandas broadcastto broadcasttensors contiguous clone positive pos identity getitem
setitem cat concat concatenate stack hstack vstack dstack chunk split tensorsplit unbind hsplit vsplit dsplit narrow
select indexselect gather takealongdim pad flip fliplr flipud roll rot90 tile repeat repeatinterleave pixelshuffle
pixelunshuffle channelshuffle unfold diagonal tril triu maskedfill copy fill zero requiresgrad atleast2d atleast3d
constantpadnd reflectionpadnd replicationpadnd circularpadnd
"""
_WINDOW_LIMIT = 2**22


def read(call: Call, emit: Emit) -> Any:
    """Return the values of an operation, after adding its nodes to the graph.

    Raises
    ------
    UnreadError
        If the operation is outside the theory; the message is the reason.
    """
    module, names = call.module, [_plain(call.name)]
    if module is not None:
        names = [_plain(kind.__name__) for kind in type(module).__mro__ if kind.__module__.startswith("torch.nn.")]
        plain = isinstance(module, nn.Linear | nn.modules.conv._ConvNd | nn.PReLU)
        if plain and (reason := reasons.of_parameters(module)):
            raise UnreadError(reason)
    handler = next((_HANDLERS[name] for name in names if name in _HANDLERS), None)
    if handler is None:
        if call.name.endswith("(autograd.Function)"):
            raise UnreadError("an autograd.Function, whose gradient is its own")
        known = reasons.of_type(module) if module is not None else None
        known = known or reasons.of_operation(names[0] if names else "")
        raise UnreadError(known or f"{call.name} is not among the operations that the theory covers")
    apart = handler not in (_conv, _mean, _pool)
    expect(all(v.batch != NO_SAMPLES and (v.merged == 1 or apart) for v in call.values), MIXES)
    return handler(call, emit)


def _plain(name: str) -> str:
    return name.replace("_", "").lower()


# linear maps and convolutions


def _linear(call: Call, emit: Emit) -> Value:
    x, weight, bias, transposed = call.get(0, "input"), call.get(1, "weight"), call.get(2, "bias"), False
    if call.name == "addmm":
        bias, x, weight, transposed = x, call.get(1, "mat1"), call.get(2, "mat2"), True
        factors = call.kwargs.get("alpha", 1), call.kwargs.get("beta", 1)
        expect(factors == (1, 1), "a product with factors alpha and beta")
    elif call.module is None and call.name != "linear":
        weight, bias, transposed = call.get(1, "other", call.get(1, "mat2")), None, True
    expect(_depends(x), "a matrix times the input from the left: it acts across positions")
    name, tensor, view = call.parameter(weight, "weight")
    expect(tensor.ndim == view.ndim == 2, "its weight is no matrix")
    if not same_order(view, tensor):
        expect(same_order(view, tensor.T), f"its weight is another view of {name}")
        transposed = not transposed
    expect(x.batch != x.tensor.ndim - 1, MIXES)
    held = _bias(call, bias, (call.result.shape[-1],))
    return emit("linear", [x], call.result, **x.layout, weight=name, bias=held, transposed=transposed)


def _bias(call: Call, bias: Value | None, shape: tuple[int, ...]) -> str:
    if bias is None:
        return ""
    name, tensor, view = call.parameter(bias, "bias")
    fits = same_order(view, tensor) and tuple(tensor.shape) == shape
    expect(fits, f"its bias has shape {tuple(view.shape)}, expected {shape}")
    return name


def _conv(call: Call, emit: Emit) -> Value:
    x, mode = call.get(0, "input"), getattr(call.module, "padding_mode", "zeros")
    name, tensor, view = call.parameter(call.get(1, "weight"), "weight")
    expect(same_order(view, tensor), f"its weight is another view of {name}")
    kernel = tuple(tensor.shape[2:])
    count = len(kernel)
    expect(_depends(x) and x.batch == 0 and x.tensor.ndim == count + 2, MIXES)
    padding = call.get(4, "padding", 0)
    dilation = _numbers(call.get(5, "dilation", 1), count)
    if padding == "same":
        totals = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
        pads = [(total // 2, total - total // 2) for total in totals]
    else:
        pads = [(p, p) for p in _numbers(0 if padding == "valid" else padding, count)]
    if mode not in ("zeros", "circular") or any(left != right for left, right in pads):
        flat = [p for pair in reversed(pads) for p in pair]
        pad = functools.partial(nn.functional.pad, pad=flat, mode="constant" if mode == "zeros" else mode)
        x = reorder([x], lambda ids: pad(ids[0]), pad(x.tensor), emit, text=f"pad ({mode})")
        pads, mode = [(0, 0)] * count, "zeros"
    fields: dict[str, Any] = {
        "weight": name,
        "bias": _bias(call, call.get(2, "bias"), (tensor.shape[0],)),
        "kernel": kernel,
        "stride": _numbers(call.get(3, "stride", 1), count),
        "dilation": dilation,
        "padding": tuple(p for p, _ in pads),
        "padding_mode": mode,
        "groups": call.get(6, "groups", 1),
    }
    return emit("conv", [x], call.result, 0, **fields)


# entry by entry


def _activation(call: Call, emit: Emit) -> Value:
    x, weight = call.get(0, "input"), ""
    if _plain(call.name) == "prelu":
        weight, tensor, _ = call.parameter(call.get(1, "weight"), "slope")
        slope = math.nan
        expect(tensor.numel() == 1 or (x.batch == 0 and x.merged == 1), MIXES)
    else:
        try:
            others = {key: value for key, value in call.kwargs.items() if key != "input"}
            found = call.run(torch.tensor([-2.0, -1.0, 1.0, 2.0], dtype=torch.float64), *call.args[1:], **others)
        except TypeError as error:
            raise UnreadError("its bounds are tensors") from error
        slope = 0.0 - float(found[1])
        kind = "a threshold other than 0 is" if "threshold" in call.name.lower() else "cuts values off, which is"
        homogeneous = found.tolist() == [-2 * slope, -slope, 1, 2]
        expect(homogeneous, f"{kind} not positively homogeneous; only clamp(min=0) is")
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
    if not others:
        return _combine(call, emit, values)
    (value, sign), (other, factor) = values[0], others[0]
    expect(isinstance(other, Value) and other.sources, "adds a number that does not depend on the input")
    expect(factor == sign == 1, "subtracts a parameter")
    name, _, view = call.parameter(other, "added term")
    plain = call.result.shape == value.tensor.shape and not value.batch and value.merged == 1 and view.is_contiguous()
    expect(plain, f"adds {name}, which is not the bias of a linear layer or convolution")
    # a bias, where the value is that of a layer without one and is used nowhere else: known only at the end
    return emit("bias", [value], call.result, 0, weight=name, weight_shape=tuple(view.shape))


def _combine(call: Call, emit: Emit, terms: list[tuple[Value, float]]) -> Value:
    result = call.result
    values = [_broadcast(v, result, emit) for v, _ in terms]
    expect(all(v.layout == values[0].layout for v in values), MIXES)
    return emit("add", values, result, **values[0].layout, factors=tuple(factor for _, factor in terms))


def _broadcast(value: Value, result: Tensor, emit: Emit) -> Value:
    shape = result.shape
    if value.tensor.shape == shape:
        return value
    return reorder([value], lambda ids: ids[0].expand(shape), value.tensor.expand(shape), emit, text="expand")


def _product(call: Call, emit: Emit) -> Value:
    a, b = call.get(0, "input"), call.get(1, "other")
    if call.name in ("div", "divide", "true_divide", "rdiv"):
        expect(call.kwargs.get("rounding_mode") is None, "rounds")
        expect(call.name != "rdiv" and _depends(a) and not _depends(b), "divides by a value")
        return _combine(call, emit, [(a, 1 / _number(b))])
    expect(not (_depends(a) and _depends(b)), "product of two values")
    value, other = (a, b) if _depends(a) else (b, a)
    if not isinstance(other, Value) or not other.sources:
        return _combine(call, emit, [(value, _number(other))])
    name, _, view = call.parameter(other, "factor")
    expect(view.is_contiguous(), f"its factor is another view of {name}")  # the parameters of the copy are
    shape = tuple(view.shape)
    along = len(shape) - (call.result.ndim - value.batch)  # where the samples' dimension falls
    expect(along < 0 or shape[along] == 1, "a parameter per sample")
    value = _broadcast(value, call.result, emit)
    expect(value.batch == 0 and value.merged == 1, MIXES)
    return emit("diagonal", [value], call.result, 0, weight=name, weight_shape=shape)


def _number(other: Any) -> float:
    if isinstance(other, Value):
        fixed = not other.sources and other.tensor.numel() == 1
        expect(fixed, "times fixed numbers or a computed weight that are no parameter")
        return float(other.tensor.detach().flatten()[0])
    expect(isinstance(other, int | float), f"times {type(other).__name__}")
    return float(other)


# other orders


def _dropout(call: Call, emit: Emit) -> Any:
    p = call.get(1, "p", 0.5)
    expect(p == 0, f"dropout with p = {p}: random while training")
    return _index(call, emit)


def _interpolate(call: Call, emit: Emit) -> Any:
    mode = str(call.get(3, "mode", "nearest"))
    expect(mode.startswith("nearest"), f"interpolation ({mode}), which bnrank does not read")
    return _index(call, emit)


def _cast(call: Call, emit: Emit) -> Value:
    x, floating, kind = call.values[0], call.result.is_floating_point(), call.result.dtype
    gone = f"no gradient flows through a cast to {str(kind).removeprefix('torch.')}"
    expect(floating == x.tensor.is_floating_point(), gone)
    if floating and torch.finfo(kind).eps > torch.finfo(x.tensor.dtype).eps:
        return emit("cast", [x], call.result, **x.layout)  # no matter at the end: known only then
    return Value(call.result, x.node, x.batch, merged=x.merged)


def _index(call: Call, emit: Emit) -> Any:
    places = {"pad": 3, "setitem": 2, "masked_fill": 2, "fill": 1}
    put = call.get(places.get(call.name, len(call.args)), "value")
    foreign = "puts in numbers that do not come from the input"
    expect(put is None or _depends(put) or _is_zero(put), foreign)
    for constant in call.constants:
        expect(_is_zero(constant) or not (constant.sources or constant.tensor.is_floating_point()), foreign)
    alike = len({v.tensor.is_floating_point() for v in call.values}) <= 1
    expect(alike, "which entries it takes depends on the data")

    def run(ids: Sequence[Tensor]) -> Any:
        left = iter(ids)
        if call.name == "view" and not any(isinstance(a, torch.dtype) for a in call.args):
            return next(left).reshape(*call.args[1:], **call.kwargs)  # of ids, whose memory may be laid out otherwise
        return call.again(lambda value: value.tensor if value.node is None else next(left).clone())

    try:
        return reorder(call.values, run, call.result, emit)
    except (IndexError, RuntimeError, TypeError, ValueError) as error:  # numbered entries are no indices or masks
        raise UnreadError("takes entries in a way that bnrank does not read") from error


# means and maxima along positions, read as windows with weights


def _mean(call: Call, emit: Emit) -> Value:
    """Add the node of a mean, sum or maximum over dimensions."""
    x: Value = call.get(0, "input")
    dims = call.get(1, "dim", call.kwargs.get("axis"))
    keep = bool(call.get(2, "keepdim", False))
    expect(dims is not None, MIXES)
    dims = sorted(d % x.tensor.ndim for d in (dims if isinstance(dims, list | tuple) else (dims,)))
    expect(x.batch not in dims, MIXES)
    positions = math.prod(x.tensor.shape[d] for d in dims)
    weight = 1 / positions if call.name == "mean" else 1.0
    batch = x.batch if keep else x.batch - sum(d < x.batch for d in dims)
    own = tuple(d - (d > x.batch) for d in dims)
    op = "maximum" if call.name == "amax" else "average"
    windows = np.full((1, positions), weight) if positions <= _WINDOW_LIMIT else None
    return emit(op, [x], call.result, batch, dims=own, windows=windows)


def _pool(call: Call, emit: Emit) -> Value:
    """Add the node of average or max pooling."""
    x: Value = call.get(0, "input")
    name = call.name.lower()
    count = next(int(digit) for digit in name if digit in "123")
    expect(isinstance(call.result, Tensor), "returns indices as well")
    expect(x.batch < x.tensor.ndim - count, MIXES)
    fields: dict[str, Any] = {}
    if "adaptive" not in name:
        kernel, stride = _numbers(call.get(1, "kernel_size"), count), call.get(2, "stride")
        fields = {"kernel": kernel, "stride": _numbers(stride, count) if stride else kernel}
        fields["padding"] = _numbers(call.get(3, "padding", 0), count)
        fields["dilation"] = _numbers(call.get(4, "dilation", 1) if "max" in name else 1, count)
    spatial = tuple(x.tensor.shape[-count:])
    dims = tuple(range(x.tensor.ndim - 1))[-count:]
    windows = _windows(call, spatial, math.prod(call.result.shape[-count:]))
    op = "maximum" if "max" in name else "average"
    return emit(op, [x], call.result, x.batch, dims=dims, windows=windows, **fields)


def _windows(call: Call, spatial: tuple[int, ...], positions: int) -> np.ndarray | None:
    """Return the results of pooling on unit images, each with one channel."""
    size = math.prod(spatial)
    if positions * size > _WINDOW_LIMIT:
        return None
    columns = []
    for units in torch.eye(size, dtype=torch.float64).split(max(1, _WINDOW_LIMIT // size)):
        args = (units.reshape(-1, 1, *spatial), *call.args[1:]) if call.args else ()
        kwargs = call.kwargs if call.args else {**call.kwargs, "input": units.reshape(-1, 1, *spatial)}
        columns.append(call.run(*args, **kwargs).flatten(1))
    return torch.cat(columns).T.contiguous().numpy()


# help


def _depends(value: Any) -> bool:
    return isinstance(value, Value) and value.node is not None


def _is_zero(value: Any) -> bool:
    if isinstance(value, Value):
        return not value.sources and not bool(value.tensor.any())
    return isinstance(value, int | float) and value == 0


def _numbers(value: Any, count: int) -> tuple[int, ...]:
    """Return one number per spatial dimension."""
    held = tuple(value) if isinstance(value, list | tuple) else (value,)
    return tuple(int(v) for v in (held * count if len(held) == 1 else held))


_HANDLERS: dict[str, Callable[[Call, Emit], Any]] = {
    name: handler
    for handler, names in (
        (_linear, "linear matmul mm addmm"),
        (_conv, "conv1d conv2d conv3d"),
        (_activation, "relu leakyrelu abs absolute clamp clip clampmin threshold prelu"),
        (_sum, "add sub subtract rsub neg negative"),
        (_product, "mul multiply div divide truedivide rdiv"),
        (_mean, "mean sum amax"),
        (_pool, " ".join(f"{a}{b}pool{k}d" for a in ("", "adaptive") for b in ("avg", "max") for k in (1, 2, 3))),
        (_index, _INDEX),
        (_cast, "to type typeas double float half bfloat16 long int short char byte bool"),
        (_dropout, "dropout dropout1d dropout2d dropout3d alphadropout dropoutnd"),
        (_interpolate, "interpolate upsample"),
    )
    for name in names.split()
}
