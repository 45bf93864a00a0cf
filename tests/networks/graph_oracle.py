"""The value of a layer graph, node by node, from the fields of its nodes alone: loops, no torch functions."""

import itertools
import math

import numpy as np


def evaluate(graph, module, x):
    """Return the output (N, ...) of a graph without nodes outside, in float64."""
    weights = {name: p.detach().double().numpy() for name, p in module.named_parameters()}
    rows = []
    for sample in x.double().numpy():
        values = {}
        for node in graph:
            values[node.name] = of(node, [values[name] for name in node.inputs], weights, sample)
            assert values[node.name].shape == node.shape, node
        rows.append(values[graph.output])
    return np.stack(rows)


def of(node, inputs, weights, sample):
    if node.op == "input":
        return sample
    a = inputs[0]
    if node.op == "linear":
        w = weights[node.weight].T if node.transposed else weights[node.weight]
        return np.einsum("...i,oi->...o", a, w) + (weights[node.bias] if node.bias else 0)
    if node.op == "conv":
        return conv(node, a, weights[node.weight], weights.get(node.bias))
    if node.op == "activation":
        slope = np.array(node.slope)
        if math.isnan(node.slope):
            slope = weights[node.weight].reshape(-1, *[1] * (a.ndim - 1))
        return np.where(a >= 0, a, slope * a)
    if node.op == "add":
        return sum(factor * value for factor, value in zip(node.factors, inputs, strict=True))
    if node.op == "diagonal":
        return (a[None] * weights[node.weight].reshape(node.weight_shape))[0]
    if node.op in ("average", "maximum"):
        return pool(node, a)
    assert node.op == "index", node
    flat = np.concatenate([value.ravel() for value in inputs])
    return np.array([flat[i] if i >= 0 else 0.0 for i in node.index]).reshape(node.shape)


def conv(node, a, weight, bias):
    out = np.zeros(node.shape)
    size = a.shape[1:]
    per_group, outs = weight.shape[1], weight.shape[0] // node.groups
    for o in range(weight.shape[0]):
        first = (o // outs) * per_group
        for place in itertools.product(*map(range, node.shape[1:])):
            total = 0.0 if bias is None else bias[o]
            for tap in itertools.product(*map(range, node.kernel)):
                at = [
                    p * s - pad + t * d
                    for p, s, pad, t, d in zip(place, node.stride, node.padding, tap, node.dilation, strict=True)
                ]
                if node.padding_mode == "circular":
                    at = [i % n for i, n in zip(at, size, strict=True)]
                if all(0 <= i < n for i, n in zip(at, size, strict=True)):
                    total += weight[(o, slice(None), *tap)] @ a[(slice(first, first + per_group), *at)]
            out[(o, *place)] = total
    return out


def pool(node, a):
    rest = [d for d in range(a.ndim) if d not in node.dims]
    flat = np.transpose(a, [*rest, *node.dims]).reshape(*[a.shape[d] for d in rest], -1)
    if node.op == "average":
        return (flat @ node.windows.T).reshape(node.shape)
    taken = [flat[..., row > 0].max(-1) for row in node.windows]
    return np.stack(taken, -1).reshape(node.shape)
