"""Tensors of an ONNX file, and what the operations that use them say of them. Needs the package onnx."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
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
MOVING = {"Identity", "Cast", "Transpose", "Squeeze", "Unsqueeze"}  # operations whose result holds the same numbers
MOST = 8  # of them in a row


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
        opsets = {opset.domain: opset.version for opset in model.opset_import}
        found = list(_of_graph(model.graph, "", path, name, opsets))
        for function in model.functions:  # of another version of ONNX than the model, which cannot be inlined
            found += _of_graph(function, f"{function.name}.", path, name, opsets)
    except Exception as error:  # texts that are none, for example
        raise DamagedError(f"{name}: {path} is damaged: {type(error).__name__}: {error}") from error
    if not found:
        raise ValueError(f"{name}: {path} holds no tensors, expected an ONNX file with weights")
    return found


def _of_graph(graph: Any, prefix: str, path: Path, argument: str, opsets: dict[str, int]) -> Iterator[Stored]:
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
    about = _Graph(uses, dict(held), opsets)
    for name, tensor in held:
        yield _stored(f"{prefix}{name}", tensor, about, name, _loader(tensor, name, path, argument))
    for sparse in getattr(graph, "sparse_initializer", ()):
        yield Stored(sparse.values.name, tuple(sparse.dims), "sparse", nothing, reason="sparse layout")
    for place, part in inner:
        yield from _of_graph(part, f"{prefix}{place}", path, argument, opsets)


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


def _stored(name: str, tensor: Any, graph: _Graph, key: str, load: Callable[[], Tensor]) -> Stored:
    import onnx

    shape = tuple(tensor.dims)
    dtype = onnx.TensorProto.DataType.Name(tensor.data_type).lower()
    dtype = {"float": "float32", "double": "float64"}.get(dtype, dtype)
    floating = dtype.startswith(("float", "bfloat", "complex"))
    about, nodes = graph.about(key, shape) if floating and len(shape) > 1 else ({}, ())
    after = graph.moved(np.broadcast_to(np.float32(0), shape), nodes).shape
    if after == shape or len(shape) == len(after) == 2:  # transposed, a matrix has the same singular values
        return Stored(name, shape, dtype, load, floating, **about)
    about["note"] = f"stored as {' x '.join(map(str, shape))}, read in the layout that its operation takes"
    moved = lambda: torch.from_numpy(graph.moved(load().numpy(), nodes).copy())  # noqa: E731
    return Stored(name, after, dtype, moved, floating, **about)


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
class _Graph:
    """The operations that use each tensor of a graph with their places, its constants, and the versions of ONNX."""

    uses: Mapping[str, list[tuple[Any, int]]]
    constants: Mapping[str, Any]
    opsets: dict[str, int]

    def moved(self, array: np.ndarray, nodes: Sequence[Any]) -> np.ndarray:
        """Return an array after operations that only move its entries."""
        from onnx import numpy_helper
        from onnx.reference import ReferenceEvaluator

        for node in nodes:
            others = {name: numpy_helper.to_array(self.constants[name]) for name in node.input[1:] if name}
            evaluator: Any = ReferenceEvaluator(node, opsets=self.opsets)
            (array,) = evaluator.run(None, {node.input[0]: array, **others})
        return array

    def about(
        self, key: str, shape: tuple[int, ...], nodes: tuple[Any, ...] = ()
    ) -> tuple[dict[str, Any], tuple[Any, ...]]:
        """Return what the operations that use a tensor say of it, and those that move its entries before."""
        uses = self.uses[key]
        for node, place in uses:
            kind, attributes = node.op_type, {a.name: a for a in node.attribute}
            if kind in KERNEL and place == 1:
                groups = attributes["group"].i if "group" in attributes else 1
                if groups < 1 or shape[0] % groups:
                    return {"reason": f"{shape[0]} channels in {groups} groups, which do not divide them"}, ()
                return {"role": KERNEL[kind], "groups": groups}, nodes
            if kind in GATES and place in (1, 2) and len(shape) == 3:
                return {"role": "recurrent", "gates": GATES[kind]}, nodes
            if kind in MATRIX and BIASES.get(kind) != place and set(shape[:-2]) <= {1}:
                return {"role": "embedding" if kind == "Gather" else "linear"}, nodes
        for node, _ in uses:
            known = all(name in self.constants for name in node.input[1:] if name)
            if node.op_type in MOVING and known and len(nodes) < MOST:
                after = self.moved(np.broadcast_to(np.float32(0), shape), [node]).shape
                about, path = self.about(node.output[0], after, (*nodes, node))
                if about.get("role", "recurrent") != "recurrent":
                    return about, path
        return self._unused(uses, shape), ()

    def _unused(self, uses: Sequence[tuple[Any, int]], shape: tuple[int, ...]) -> dict[str, Any]:
        """Return what is known of a tensor that no linear map and no convolution takes."""
        if any(BIASES.get(node.op_type) == place for node, place in uses):
            return {"reason": "bias"}
        if any(node.op_type == "LSTM" and place == PEEPHOLES for node, place in uses):
            return {"reason": "weights of peepholes, which act entry by entry"}
        used = ", ".join(dict.fromkeys(node.op_type for node, _ in uses)) or "no operation of its graph"
        if sum(size > 1 for size in shape) < 2:
            return {"reason": f"a vector, used by {used}"}
        if len(shape) == 2:
            return {"note": f"used by {used}"}
        return {"reason": f"used by {used}: not a matrix and not a kernel of a convolution"}
