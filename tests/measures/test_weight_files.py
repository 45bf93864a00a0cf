"""Files of weights as people share them: checkpoints, shards, exported graphs, and files that are none."""

import functools

import numpy as np
import pytest
import torch
from torch import nn

import helpers
from bnrank.measures import profile
from helpers import listed, values_of

normal = functools.partial(helpers.normal, dtype=torch.float32)


@pytest.mark.parametrize("name", ["opt", "optG", "generator_adam"])
def test_the_state_of_an_optimizer_is_known_by_its_keys(name, tmp_path):
    net = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    optimizer = torch.optim.Adam(net.parameters())
    net(torch.ones(5, 3)).sum().backward()
    optimizer.step()
    torch.save({"net": net.state_dict(), name: optimizer.state_dict()}, tmp_path / "c.pt")
    ds = profile(tmp_path / "c.pt")
    assert list(values_of(ds)) == ["net.0.weight", "net.1.weight"]
    assert listed(ds)[name] == "state of the training, 12 tensors, not of the network"
    layers = {"state": {"weight": torch.eye(3)}, "param": torch.eye(2)}  # other things of this name
    assert list(values_of(profile(layers))) == ["state.weight", "param"]


def test_scales_and_shifts_of_many_dimensions_are_no_kernels():
    net = nn.Sequential(nn.LayerNorm([4, 8, 8]), nn.Conv2d(4, 4, 3), nn.LayerNorm([6, 6]))
    state = {**net.state_dict(), "attention.bias": torch.ones(1, 2, 5, 5), "positions.bias": normal(7, 3)}
    ds = profile(state)
    assert list(values_of(ds)) == ["1.weight", "positions.bias"]
    for layer in "02":
        for key, what in (("weight", "scale"), ("bias", "shift")):
            assert listed(ds)[f"{layer}.{key}"] == f"{what} of a normalization, applied entry by entry"
    assert listed(ds)["attention.bias"] == "bias"
    assert values_of(profile(net)).keys() == {"1.weight"}


def onnx_file(path, nodes, arrays, functions=()):
    """Write a model of these operations and arrays, which need not run."""
    onnx = pytest.importorskip("onnx")
    x, y = (onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in "xy")
    held = [onnx.numpy_helper.from_array(np.asarray(array), name) for name, array in arrays.items()]
    graph = onnx.helper.make_graph(nodes, "net", [x], [y], initializer=held)
    versions = [onnx.helper.make_opsetid("", 17), onnx.helper.make_opsetid("own", 1)]
    onnx.save(onnx.helper.make_model(graph, functions=functions, opset_imports=versions), path)
    return path


def test_kernels_in_onnx_files_are_read_in_the_layout_of_their_convolution(tmp_path):
    make = pytest.importorskip("onnx").helper.make_node
    kernel = normal(8, 4, 3, 5)
    stored = {
        "hwio": (kernel.permute(2, 3, 1, 0), [make("Transpose", ["hwio"], ["a"], perm=[3, 2, 0, 1])]),
        "first": (kernel[None], [make("Squeeze", ["first", "zero"], ["b"])]),
        "turned": (
            kernel.permute(3, 2, 1, 0)[..., None],
            [make("Squeeze", ["turned"], ["t"]), make("Transpose", ["t"], ["c"])],
        ),
        "flat": (kernel[:, :, 0], [make("Unsqueeze", ["flat", "last"], ["d"])]),
        "one": (kernel[:, :, 0, 0], [make("Unsqueeze", ["one", "both"], ["e"])]),
    }
    arrays = {name: array for name, (array, _) in stored.items()} | {"zero": np.array([0]), "last": np.array([-1])}
    nodes = [make("Conv", ["x", "plain"], ["o"]), *(node for _, steps in stored.values() for node in steps)]
    nodes += [make("Conv", ["x", name], [f"y{name}"]) for name in "abcde"]
    both = {"plain": kernel, "both": np.array([2, 3])}
    ds = profile(onnx_file(tmp_path / "net.onnx", nodes, arrays | both))
    found, kinds = values_of(ds), dict(zip(ds.layer_name.values, ds.layer_kind.values, strict=True))
    assert listed(ds).keys() == {"zero", "last", "both"}
    for name in ("hwio", "first", "turned"):
        np.testing.assert_allclose(found[name], found["plain"], rtol=1e-12)
        assert kinds[name] == "conv2d patches"
    np.testing.assert_allclose(found["flat"], np.linalg.svd(kernel[:, :, 0].double().flatten(1), compute_uv=False))
    np.testing.assert_allclose(found["one"], np.linalg.svd(kernel[:, :, 0, 0].double(), compute_uv=False))
    unknown = [make("Squeeze", ["k", "x"], ["a"]), make("Conv", ["x", "a"], ["b"]), make("MatMul", ["x", "w"], ["y"])]
    ds = profile(onnx_file(tmp_path / "b.onnx", unknown, {"k": kernel, "w": torch.eye(3)}))
    assert listed(ds) == {"k": "used by Squeeze: not a matrix and not a kernel of a convolution"}


def test_biases_in_onnx_files_are_no_matrices(tmp_path):
    make = pytest.importorskip("onnx").helper.make_node
    arrays = {"W": normal(2, 16, 3), "R": normal(2, 16, 4), "B": normal(2, 32), "P": normal(2, 12)}
    nodes = [
        make("LSTM", ["x", "W", "R", "B", "", "", "", "P"], ["y"], hidden_size=4, direction="bidirectional"),
        make("Gemm", ["x", "w", "c"], ["z"]),
    ]
    ds = profile(onnx_file(tmp_path / "net.onnx", nodes, arrays | {"w": normal(3, 5), "c": normal(2, 5)}))
    peepholes = "weights of peepholes, which act entry by entry"
    assert listed(ds) == {"B": "bias", "c": "bias", "P": peepholes}
    assert len(values_of(ds)) == 17


@pytest.mark.parametrize("version", [17, 16])
def test_functions_of_onnx_files_are_looked_into(version, tmp_path):
    onnx = pytest.importorskip("onnx")
    make = onnx.helper.make_node
    inner = normal(4, 4)
    constant = make("Constant", [], ["m"], value=onnx.numpy_helper.from_array(inner.numpy(), "m"))
    body = [constant, make("Conv", ["x", "k"], ["c"], group=2), make("MatMul", ["c", "m"], ["y"])]
    function = onnx.helper.make_function(
        "own", "Block", ["x", "k"], ["y"], body, [onnx.helper.make_opsetid("", version)]
    )
    node = make("Block", ["x", "kernel"], ["y"], domain="own")
    ds = profile(onnx_file(tmp_path / "net.onnx", [node], {"kernel": normal(8, 2, 3, 3)}, [function]))
    found = values_of(ds)
    if version == 17:
        assert ds.layer_shape.values.tolist()[0] == "4 x 18"
        assert len(found) == 2
    else:  # only a conversion could insert it
        assert list(listed(ds)) == ["kernel"]
    np.testing.assert_allclose(list(found.values())[-1], np.linalg.svd(inner.double(), compute_uv=False))
