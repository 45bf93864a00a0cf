"""Tensors of an ONNX file, and what the operations that use them say of them. Needs the package onnx."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bnrank._core.sources import DamagedError
from bnrank.networks.reading.stored import Stored, nothing

MATRIX = {"MatMul", "Gemm", "Einsum", "Gather", "FusedMatMul"}
KERNEL = {"Conv": "conv", "ConvTranspose": "transposed"}
GATES = {
    "LSTM": ("input", "output", "forget", "cell"),
    "GRU": ("update", "reset", "new"),
    "RNN": (),
}
BIASES = {"Gemm": 2, "LSTM": 3, "GRU": 3, "RNN": 3, "DynamicQuantizeLSTM": 3}  # which input
PEEPHOLES = 7  # input of an LSTM
ALIKE = {"Identity", "Transpose", "Cast", "Squeeze", "Unsqueeze"}  # of which the result holds the same numbers


def records(path: Path, name: str) -> list[Stored]:
    """Return the initializers and constants of a file, also those in branches, loops and functions.

    Raises
    ------
    ValueError
        If the package onnx is missing, or the file is damaged.
    """
    try:
        import onnx
        from onnx import inliner
    except ImportError as error:
        raise ValueError(
            f"{name}: got {str(path)!r}, which needs the package onnx: pip install onnx (or bnrank[onnx])"
        ) from error
    try:
        model = onnx.load(str(path), load_external_data=False)
        if model.functions:
            model = inliner.inline_local_functions(model)
    except Exception as error:  # protobuf has errors of its own
        raise DamagedError(f"{name}: {path} is damaged or not an ONNX file: {error}") from error
    try:
        found = list(_of_graph(model.graph, "", path, name))
        for function in model.functions:  # of another version of ONNX than the model, which cannot be inlined
            found += _of_graph(function, f"{function.name}.", path, name)
    except Exception as error:  # texts that are none, for example
        raise DamagedError(f"{name}: {path} is damaged: {type(error).__name__}: {error}") from error
    if not found:
        raise ValueError(f"{name}: {path} holds no tensors, expected an ONNX file with weights")
    return found


def _of_graph(graph: Any, prefix: str, path: Path, argument: str) -> Iterator[Stored]:
    """Iterate over the tensors of a graph and of the graphs inside it."""
    uses: dict[str, list[tuple[Any, int]]] = defaultdict(list)
    for node in _nodes(graph):
        for i, given in enumerate(node.input):
            uses[given].append((node, i))
    held = [(tensor.name, tensor) for tensor in getattr(graph, "initializer", ())]  # a function has none
    inner = []
    for node in graph.node:
        for attribute in node.attribute:
            if node.op_type == "Constant" and attribute.HasField("t"):
                held.append((node.output[0], attribute.t))
            inner += [(f"{node.name or node.op_type}.{attribute.name}.", part) for part in _graphs(attribute)]
    constants = dict(held)
    for name, tensor in held:
        yield _entry(f"{prefix}{name}", tensor, uses, constants, name, _loader(tensor, name, path, argument))
    for sparse in getattr(graph, "sparse_initializer", ()):
        yield Stored(sparse.values.name, tuple(sparse.dims), "sparse", nothing, reason="sparse layout")
    for place, part in inner:
        yield from _of_graph(part, f"{prefix}{place}", path, argument)


def _graphs(attribute: Any) -> list[Any]:
    """Return the branches and loops of an operation."""
    return [*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs]


def _nodes(graph: Any) -> Iterator[Any]:
    """Iterate over the operations of a graph, and of those inside it, which see its tensors."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for inner in _graphs(attribute):
                yield from _nodes(inner)


def _entry(name: str, tensor: Any, uses: Any, constants: Any, key: str, load: Callable[[], Tensor]) -> Stored:
    import onnx

    shape = tuple(tensor.dims)
    dtype = onnx.TensorProto.DataType.Name(tensor.data_type).lower()
    dtype = {"float": "float32", "double": "float64"}.get(dtype, dtype)
    floating = dtype.startswith(("float", "bfloat", "complex"))
    about, layout = _about(key, shape, uses, constants) if floating and len(shape) > 1 else ({}, None)
    if layout is None or len(shape) == len(layout.shape) == 2:  # transposed, a matrix has the same singular values
        return Stored(name, shape, dtype, load, floating, **about)
    about["note"] = f"stored as {' x '.join(map(str, shape))}, read in the layout that its operation takes"
    return Stored(name, layout.shape, dtype, lambda: layout.turn(load()), floating, **about)


def _loader(tensor: Any, name: str, path: Path, argument: str) -> Callable[[], Tensor]:
    def load() -> Tensor:
        from onnx import numpy_helper

        try:
            array = numpy_helper.to_array(tensor, str(path.parent))
        except Exception as error:  # external data that is missing or cut: onnx has errors of its own
            given = {entry.key: entry.value for entry in tensor.external_data}
            where = f" in {given['location']!r} beside it" if "location" in given else ""
            raise DamagedError(f"{argument}: {path}: {name!r}{where} cannot be read: {error}") from error
        if array.dtype.kind not in "fc" or array.dtype.itemsize < 2:  # bfloat16 and float8, of another package
            array = array.astype("float32")
        return torch.from_numpy(array.copy())

    return load


@dataclass(frozen=True)
class _Layout:
    """What operations on a tensor make of it: its shape, and how."""

    shape: tuple[int, ...]
    turn: Callable[[Tensor], Tensor]

    def after(self, node: Any, constants: Any) -> _Layout | None:
        """Return the layout after one more operation that only moves entries; None if the file does not tell it."""
        from onnx import numpy_helper

        shape, attributes = self.shape, {a.name: a for a in node.attribute}
        if node.op_type in ("Identity", "Cast"):
            return self
        if node.op_type == "Transpose":
            order = list(attributes["perm"].ints) if "perm" in attributes else list(range(len(shape)))[::-1]
            if sorted(order) != list(range(len(shape))):
                return None
            return _Layout(tuple(shape[i] for i in order), lambda tensor: self.turn(tensor).permute(order))
        axes: list[int] | None = None
        if "axes" in attributes:
            axes = list(attributes["axes"].ints)
        elif len(node.input) > 1 and node.input[1]:
            if node.input[1] not in constants:
                return None
            axes = numpy_helper.to_array(constants[node.input[1]]).flatten().tolist()
        if node.op_type == "Squeeze":
            left_out = (
                [i % len(shape) for i in axes] if axes is not None else [i for i, n in enumerate(shape) if n == 1]
            )
            changed = [n for i, n in enumerate(shape) if i not in left_out]
        else:
            rest, added = iter(shape), {i % (len(shape) + len(axes or ())) for i in axes or ()}
            changed = [1 if i in added else next(rest) for i in range(len(shape) + len(added))]
        if math.prod(changed) != math.prod(shape):
            return None
        return _Layout(tuple(changed), lambda tensor: self.turn(tensor).reshape(changed))


def _about(
    key: str, shape: tuple[int, ...], uses: Any, constants: Any, layout: _Layout | None = None, seen: int = 0
) -> tuple[dict[str, Any], _Layout | None]:
    """Return what the operations that use a tensor say of it, and the layout in which they take it."""
    operations = [node.op_type for node, _ in uses[key]]
    for node, place in uses[key]:
        kind, attributes = node.op_type, {a.name: a for a in node.attribute}
        if kind in KERNEL and place == 1:
            groups = attributes["group"].i if "group" in attributes else 1
            if groups < 1 or shape[0] % groups:
                return {"reason": f"{shape[0]} channels in {groups} groups, which do not divide them"}, None
            return {"role": KERNEL[kind], "groups": groups}, layout
        if kind in GATES and place in (1, 2) and len(shape) == 3:
            return {"role": "recurrent", "gates": GATES[kind]}, layout
        if kind in MATRIX and BIASES.get(kind) != place and set(shape[:-2]) <= {1}:
            return {"role": "embedding" if kind == "Gather" else "linear"}, layout
    for node, _ in uses[key]:
        after = (
            (layout or _Layout(shape, lambda tensor: tensor)).after(node, constants) if node.op_type in ALIKE else None
        )
        if after is not None and seen < 8:
            through, final = _about(node.output[0], after.shape, uses, constants, after, seen + 1)
            if "role" in through and through["role"] != "recurrent":
                return through, final
    if any(BIASES.get(node.op_type) == place for node, place in uses[key]):
        return {"reason": "bias"}, None
    if any(node.op_type == "LSTM" and place == PEEPHOLES for node, place in uses[key]):
        return {"reason": "weights of peepholes, which act entry by entry"}, None
    used = ", ".join(dict.fromkeys(operations)) or "no operation of its graph"
    if sum(size > 1 for size in shape) < 2:
        return {"reason": f"a vector, used by {used}"}, None
    if len(shape) == 2:
        return {"note": f"used by {used}"}, None
    return {"reason": f"used by {used}: not a matrix and not a kernel of a convolution"}, None
