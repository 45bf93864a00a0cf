"""Classification of torch operations: linear maps, convolutions, activations, sums, pooling and reorderings."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bnrank.networks import reasons
from bnrank.networks.graph import values
from bnrank.networks.graph.values import MIXES, NO_SAMPLES, RANDOM, Call, RandomError, UnreadError, Value, expect

_INDEX = """
flatten unflatten ravel reshape reshapeas view viewas permute transpose swapaxes swapdims movedim moveaxis t mt h mh
adjoint unsqueeze squeeze expand expandas broadcastto broadcasttensors contiguous clone positive pos identity getitem
setitem cat concat concatenate stack hstack vstack dstack chunk split tensorsplit unbind hsplit vsplit dsplit narrow
select indexselect gather takealongdim pad flip fliplr flipud roll rot90 tile repeat repeatinterleave pixelshuffle
pixelunshuffle channelshuffle unfold diagonal tril triu maskedfill copy fill zero requiresgrad atleast2d atleast3d
constantpadnd reflectionpadnd replicationpadnd circularpadnd
"""
ROUNDS = "rounds values to a lower precision"  # no matter at the end of a module
_WINDOW_LIMIT = 2**22  # entries of the weights of a pooling operation


def read(call: Call) -> Any:
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
        raise UnreadError(_reason(call, names))
    apart = handler not in (_conv, _mean, _pool)
    expect(all(v.batch != NO_SAMPLES and (v.merged == 1 or apart) for v in call.values), MIXES)
    return handler(call)


def _reason(call: Call, names: list[str]) -> str:
    """Return why the theory does not cover an operation without a handler."""
    known = reasons.of_type(call.module) if call.module is not None else None
    known = known or reasons.of_operation(names[0] if names else "")
    return known or f"{call.name} is not among the operations that the theory covers"


def _plain(name: str) -> str:
    return name.replace("_", "").lower()


# linear maps and convolutions


def _linear(call: Call) -> Value:
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
    if not values.same_order(view, tensor):
        expect(values.same_order(view, tensor.T), f"its weight is another view of {name}")
        transposed = not transposed
    expect(x.batch != x.tensor.ndim - 1, MIXES)
    bias_name = _bias(call, bias, (call.result.shape[-1],))
    return call.emit("linear", [x.node], call.result, *x.layout, weight=name, bias=bias_name, transposed=transposed)


def _bias(call: Call, bias: Value | None, shape: tuple[int, ...]) -> str:
    if bias is None:
        return ""
    name, tensor, view = call.parameter(bias, "bias")
    fits = values.same_order(view, tensor) and tuple(tensor.shape) == shape
    expect(fits, f"its bias has shape {tuple(view.shape)}, expected {shape}")
    return name


def _conv(call: Call) -> Value:
    x, mode = call.get(0, "input"), getattr(call.module, "padding_mode", "zeros")
    name, tensor, view = call.parameter(call.get(1, "weight"), "weight")
    expect(values.same_order(view, tensor), f"its weight is another view of {name}")
    kernel = tuple(tensor.shape[2:])
    count = len(kernel)
    expect(_depends(x) and x.batch == 0 and x.tensor.ndim == count + 2, MIXES)
    padding, dilation = call.get(4, "padding", 0), _numbers(call.get(5, "dilation", 1), count)
    if padding == "same":
        totals = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
        pads = [(total // 2, total - total // 2) for total in totals]
    else:
        pads = [(p, p) for p in _numbers(0 if padding == "valid" else padding, count)]
    if mode not in ("zeros", "circular") or any(left != right for left, right in pads):
        flat = [p for pair in reversed(pads) for p in pair]

        def pad(tensors: list[Tensor]) -> Tensor:
            return nn.functional.pad(tensors[0], flat, mode="constant" if mode == "zeros" else mode)

        x = call.reordered([x], pad, pad([x.content]), part=f"pad ({mode})")
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
    return call.emit("conv", [x.node], call.result, 0, **fields)


# entry by entry


def _activation(call: Call) -> Value:
    x, weight, slope = call.get(0, "input"), "", math.nan
    if _plain(call.name) == "prelu":
        weight, tensor, _ = call.parameter(call.get(1, "weight"), "slope")
        expect(tensor.numel() == 1 or x.layout == (0, 1), MIXES)
    else:
        expect(len(call.taken) == 1, "its bounds are tensors")
        slope = homogeneous_slope(lambda a: call.on([a]))
        kind = "a threshold other than 0 is" if "threshold" in call.name.lower() else "cuts values off, which is"
        expect(not math.isnan(slope), f"{kind} not positively homogeneous; only clamp(min=0) is")
    return call.emit("activation", [x.node], call.result, *x.layout, slope=slope, weight=weight)


def is_activation(name: str) -> bool:
    """Return whether a function of torch, by its name, may be a positively homogeneous activation."""
    return _HANDLERS.get(_plain(name)) is _activation


def homogeneous_slope(function: Callable[[Tensor], Tensor]) -> float:
    """Return the slope s if a function is sigma_s, NaN if it is not positively homogeneous."""
    values = function(torch.tensor([-2.0, -1.0, 1.0, 2.0], dtype=torch.float64)).tolist()
    slope = 0.0 - float(values[1])
    return slope if values == [-2 * slope, -slope, 1, 2] else math.nan


def _combination(call: Call) -> Value:
    """Add the node of a weighted sum of values, with factors found by running the operation on units."""
    times, result = _plain(call.name) in ("mul", "multiply"), call.result
    expect("div" not in call.name or (not _depends(call.get(1, "other")) and call.name != "rdiv"), "divides by a value")
    expect(not times or len(call.values) == 1, "product of two values")
    parameters = [v for v in call.constants if v.sources]
    if parameters:
        return _with_parameter(call, call.values[0], parameters[0], times)

    def on(units: list[float]) -> Tensor:
        return call.on(torch.full(v.tensor.shape, unit).double() for v, unit in zip(call.values, units, strict=True))

    count = len(call.values)
    expect(not on([0.0] * count).any(), "adds a number that does not depend on the input")
    factors = [on([float(i == j) for j in range(count)]).unique() for i in range(count)]
    expect(all(len(factor) == 1 for factor in factors), "times fixed numbers that are no parameter")
    terms = [_broadcast(call, v) for v in call.values]
    expect(all(v.layout == terms[0].layout for v in terms), MIXES)
    nodes, numbers = [v.node for v in terms], tuple(float(factor) for factor in factors)
    return call.emit("add", nodes, result, *terms[0].layout, factors=numbers)


def _with_parameter(call: Call, value: Value, other: Value, times: bool) -> Value:
    """Add the node of a value plus a parameter, or times a parameter."""
    name, _, view = call.parameter(other, "factor" if times else "added term")
    expect(len(call.values) == 1 and (times or call.name == "add"), "subtracts a parameter")
    expect(view.is_contiguous() and call.kwargs.get("alpha", 1) == 1, f"uses another view of {name}")
    if times:
        along = view.ndim - (call.result.ndim - value.batch)  # where the samples' dimension falls
        expect(along < 0 or view.shape[along] == 1, "a parameter per sample")
        value = _broadcast(call, value)
        expect(value.layout == (0, 1), MIXES)
        return call.emit("diagonal", [value.node], call.result, 0, weight=name, weight_shape=tuple(view.shape))
    reason = f"adds {name}, which is not the bias of a linear layer or convolution"
    expect(call.result.shape == value.tensor.shape and value.layout == (0, 1), reason)
    before, shape = call.tracer.nodes[value.node], call.result.shape[1:]
    channels = len(shape) - 1 if before.op == "linear" else 0
    along = [1, *(size if d == channels else 1 for d, size in enumerate(shape))]
    if before.op in ("linear", "conv") and not before.bias and [1] * (len(along) - view.ndim) + [*view.shape] == along:
        call.bias = name  # where the value is used nowhere else: known only at the end
    return call.emit("outside", [value.node], call.result, 0, reason=reason, held=(name,))


def _broadcast(call: Call, value: Value) -> Value:
    shape = call.result.shape
    if value.tensor.shape == shape:
        return value
    return call.reordered([value], lambda tensors: tensors[0].expand(shape), value.content.expand(shape), part="expand")


def _cast(call: Call) -> Value:
    x, floating, kind = call.values[0], call.result.is_floating_point(), call.result.dtype
    gone = f"no gradient flows through a cast to {str(kind).removeprefix('torch.')}"
    expect(floating == x.tensor.is_floating_point(), gone)
    if floating and torch.finfo(kind).eps > torch.finfo(x.tensor.dtype).eps:
        return call.emit("outside", [x.node], call.result, *x.layout, reason=ROUNDS)
    return Value(call.result, x.node, *x.layout)


# other orders


def _dropout(call: Call) -> Any:
    p = call.get(1, "p", 0.5)
    expect(p == 0, f"dropout with p = {p}: random while training")
    return _index(call)


def _interpolate(call: Call) -> Any:
    mode = str(call.get(3, "mode", "nearest"))
    expect(mode.startswith("nearest"), f"interpolation ({mode}), which bnrank does not read")
    return _index(call)


def _index(call: Call) -> Any:
    if any(RANDOM in constant.sources and not constant.tensor.is_floating_point() for constant in call.constants):
        raise RandomError(f"which entries {call.name!r} takes")
    alike = len({v.tensor.is_floating_point() for v in call.values}) <= 1
    expect(alike, "which entries it takes depends on the data")

    try:
        return call.reordered(call.values, call.on, call.result)
    except (IndexError, RuntimeError, TypeError, ValueError) as error:  # numbered entries are no indices or masks
        raise UnreadError("takes entries in a way that bnrank does not read") from error


# means and maxima along positions, read as windows with weights


def _mean(call: Call) -> Value:
    """Add the node of a mean, sum or maximum over dimensions."""
    x: Value = call.get(0, "input")
    dims = call.get(1, "dim", call.kwargs.get("axis"))
    expect(dims is not None, MIXES)
    dims = sorted(d % x.tensor.ndim for d in (dims if isinstance(dims, list | tuple) else (dims,)))
    expect(x.batch not in dims, MIXES)
    positions = math.prod(x.tensor.shape[d] for d in dims)
    windows = np.full((1, positions), 1 / positions if call.name == "mean" else 1.0)
    batch = x.batch if call.get(2, "keepdim", False) else x.batch - sum(d < x.batch for d in dims)
    fields: dict[str, Any] = {
        "windows": windows if positions <= _WINDOW_LIMIT else None,
        "dims": tuple(d - (d > x.batch) for d in dims),
    }
    return call.emit("maximum" if call.name == "amax" else "average", [x.node], call.result, batch, **fields)


def _pool(call: Call) -> Value:
    """Add the node of average or max pooling."""
    x: Value = call.get(0, "input")
    name = call.name.lower()
    count = next(int(digit) for digit in name if digit in "123")
    expect(isinstance(call.result, Tensor), "returns indices as well")
    expect(x.batch < x.tensor.ndim - count, MIXES)
    fields: dict[str, Any] = {"dims": tuple(range(x.tensor.ndim - 1))[-count:]}
    if "adaptive" not in name:
        kernel, stride = _numbers(call.get(1, "kernel_size"), count), call.get(2, "stride")
        fields |= {"kernel": kernel, "stride": _numbers(stride, count) if stride else kernel}
        fields["padding"] = _numbers(call.get(3, "padding", 0), count)
        fields["dilation"] = _numbers(call.get(4, "dilation", 1) if "max" in name else 1, count)
    fields["windows"] = _windows(call, tuple(x.tensor.shape[-count:]), math.prod(call.result.shape[-count:]))
    return call.emit("maximum" if "max" in name else "average", [x.node], call.result, x.batch, **fields)


def _windows(call: Call, spatial: tuple[int, ...], positions: int) -> np.ndarray | None:
    """Return the results of pooling on unit images, each with one channel."""
    size = math.prod(spatial)
    if positions * size > _WINDOW_LIMIT:
        return None

    def pooled(units: Tensor) -> Tensor:
        return call.again(lambda _: units.reshape(-1, 1, *spatial)).flatten(1)

    columns = map(pooled, torch.eye(size, dtype=torch.float64).split(max(1, _WINDOW_LIMIT // size)))
    return torch.cat(list(columns)).T.contiguous().numpy()


def _depends(value: Any) -> bool:
    return isinstance(value, Value) and bool(value.node)


def _numbers(value: Any, count: int) -> tuple[int, ...]:
    """Return one number per spatial dimension."""
    numbers = tuple(value) if isinstance(value, list | tuple) else (value,)
    return tuple(int(number) for number in (numbers * count if len(numbers) == 1 else numbers))


_HANDLERS: dict[str, Callable[[Call], Any]] = {
    name: handler
    for handler, names in (
        (_linear, "linear matmul mm addmm"),
        (_conv, "conv1d conv2d conv3d"),
        (_activation, "relu leakyrelu abs absolute clamp clip clampmin threshold prelu"),
        (_combination, "add sub subtract rsub neg negative mul multiply div divide truedivide rdiv"),
        (_mean, "mean sum amax"),
        (_pool, " ".join(f"{a}{b}pool{k}d" for a in ("", "adaptive") for b in ("avg", "max") for k in (1, 2, 3))),
        (_index, _INDEX),
        (_cast, "to type typeas double float half bfloat16 long int short char byte bool"),
        (_dropout, "dropout dropout1d dropout2d dropout3d alphadropout dropoutnd"),
        (_interpolate, "interpolate upsample"),
    )
    for name in names.split()
}
