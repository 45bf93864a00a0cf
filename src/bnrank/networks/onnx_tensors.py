"""Tensors of an ONNX file, and what the operations that use them say of them. Needs the package onnx."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bnrank._core.sources import DamagedError
from bnrank.networks.tensors import Entry

MATRIX = {"MatMul", "Gemm", "Einsum", "Gather", "FusedMatMul"}
KERNEL = {"Conv": "conv", "ConvTranspose": "transposed"}
GATES = {
    "LSTM": ("input", "output", "forget", "cell"),
    "GRU": ("update", "reset", "new"),
    "RNN": (),
}
ALIKE = {"Identity", "Transpose", "Cast", "Squeeze", "Unsqueeze"}  # of which the result holds the same matrix


def entries(path: Path, name: str) -> list[Entry]:
    """Return the initializers and constants of a file, also those in branches and loops.

    Raises
    ------
    ValueError
        If the package onnx is missing, or the file is damaged.
    """
    try:
        import onnx
    except ImportError as error:
        raise ValueError(
            f"{name}: got {str(path)!r}, which needs the package onnx: pip install onnx (or bnrank[onnx])"
        ) from error
    try:
        model = onnx.load(str(path), load_external_data=False)
    except Exception as error:  # protobuf has errors of its own
        raise DamagedError(f"{name}: {path} is damaged or not an ONNX file: {error}") from error
    found = list(_of_graph(model.graph, "", path, name))
    if not found:
        raise ValueError(f"{name}: {path} holds no tensors, expected an ONNX file with weights")
    return found


def _of_graph(graph: Any, prefix: str, path: Path, argument: str) -> Iterator[Entry]:
    """Iterate over the tensors of a graph and of the graphs inside it."""
    uses: dict[str, list[tuple[Any, int]]] = defaultdict(list)
    for node in _nodes(graph):
        for i, given in enumerate(node.input):
            uses[given].append((node, i))
    held = [(tensor.name, tensor) for tensor in graph.initializer]
    inner = []
    for node in graph.node:
        for attribute in node.attribute:
            if node.op_type == "Constant" and attribute.HasField("t"):
                held.append((node.output[0], attribute.t))
            inner += [(f"{node.name or node.op_type}.{attribute.name}.", part) for part in _graphs(attribute)]
    for name, tensor in held:
        yield _entry(f"{prefix}{name}", tensor, uses, name, _loader(tensor, name, path, argument))
    for sparse in graph.sparse_initializer:
        yield Entry(sparse.values.name, tuple(sparse.dims), "sparse", lambda: torch.zeros(0), reason="sparse layout")
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


def _entry(name: str, tensor: Any, uses: Any, key: str, load: Callable[[], Tensor]) -> Entry:
    import onnx

    shape = tuple(tensor.dims)
    dtype = onnx.TensorProto.DataType.Name(tensor.data_type).lower()
    dtype = {"float": "float32", "double": "float64"}.get(dtype, dtype)
    floating = dtype.startswith(("float", "bfloat", "complex"))
    about = _about(key, shape, uses) if floating and len(shape) > 1 else {}
    return Entry(name, shape, dtype, load, floating, **about)


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


def _about(key: str, shape: tuple[int, ...], uses: Any, seen: int = 0) -> dict[str, Any]:
    """Return what the operations that use a tensor say of it."""
    operations = [node.op_type for node, _ in uses[key]]
    for node, place in uses[key]:
        kind, attributes = node.op_type, {a.name: a for a in node.attribute}
        if kind in KERNEL and place == 1:
            return {"role": KERNEL[kind], "groups": attributes["group"].i if "group" in attributes else 1}
        if kind in GATES and place in (1, 2) and len(shape) == 3:
            return {"role": "recurrent", "gates": GATES[kind]}
        if kind in MATRIX and set(shape[:-2]) <= {1}:
            return {"role": "embedding" if kind == "Gather" else "linear"}
    for node, _ in uses[key]:
        if node.op_type in ALIKE and seen < 8:
            through = _about(node.output[0], shape, uses, seen + 1)
            if through and "reason" not in through and through.get("role") != "recurrent":
                return through
    used = ", ".join(dict.fromkeys(operations)) or "no operation of its graph"
    if sum(size > 1 for size in shape) < 2:
        return {"reason": f"a vector, used by {used}"}
    if len(shape) == 2:
        return {"note": f"used by {used}"}
    return {"reason": f"used by {used}: not a matrix and not a kernel of a convolution"}
