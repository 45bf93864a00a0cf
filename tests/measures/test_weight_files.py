"""Files of weights as people share them: checkpoints, shards, exported graphs, and files that are none."""

import functools
import importlib.util
import json

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import bnrank
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
    assert list(values_of(ds)) == ["net.0", "net.1"]
    assert listed(ds)[name] == "state of the training, 12 tensors, not of the network"
    torch.save(optimizer.state_dict(), tmp_path / "optimizer.pt")
    with pytest.raises(ValueError, match="net: got the state of an optimizer, expected the weights of a network"):
        profile(tmp_path / "optimizer.pt")
    layers = {"state": {"weight": torch.eye(3)}, "param": torch.eye(2)}  # other things of this name
    assert list(values_of(profile(layers))) == ["state", "param"]


def test_scales_and_shifts_of_many_dimensions_are_no_kernels():
    net = nn.Sequential(nn.LayerNorm([4, 8, 8]), nn.Conv2d(4, 4, 3), nn.LayerNorm([6, 6]))
    state = {**net.state_dict(), "attention.bias": torch.ones(1, 2, 5, 5), "positions.bias": normal(7, 3)}
    ds = profile(state)
    assert list(values_of(ds)) == ["1", "positions.bias"]
    for layer in "02":
        for key, what in (("weight", "scale"), ("bias", "shift")):
            reason = f"{what} of a normalization, applied entry by entry, since weight and bias have one shape"
            assert listed(ds)[f"{layer}.{key}"] == reason
    assert listed(ds)["attention.bias"] == "bias"
    assert values_of(profile(net)).keys() == {"1"}


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
    nodes[1] = make("Conv", ["x", "c"], ["z"], group=3)
    ds_grouped = profile(onnx_file(tmp_path / "groups.onnx", nodes, arrays | {"c": normal(2, 5, 3)}))
    assert listed(ds_grouped)["c"] == "2 channels in 3 groups, which do not divide them"
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


def split(folder, state, places):
    """Write a state dict as files of these names, and their index."""
    for file in set(places.values()):
        part = {key: value for key, value in state.items() if places[key] == file}
        (torch.save if file.endswith(".bin") else save_file)(part, folder / file)
    path = folder / "model.safetensors.index.json"
    path.write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": places}))
    return path


def test_split_weights_are_read_as_one_by_their_index(tmp_path):
    state = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(5, 4)), nn.Linear(4, 3)).state_dict()
    files = [f"model-0000{i}-of-00003.safetensors" for i in (1, 2, 3)]
    places = {key: files[i % 2] for i, key in enumerate(state)} | {"1.bias": files[2]}
    path = split(tmp_path, state, places)  # the two parts of the normalized weight are in different files
    ds, whole = profile(path), profile(state)
    assert listed(ds) == listed(whole)
    for name, row in values_of(whole).items():
        np.testing.assert_array_equal(values_of(ds)[name], row)
    assert (ds.attrs["tensors"], ds.attrs["entries"]) == (whole.attrs["tensors"], whole.attrs["entries"])
    assert "model.safetensors.index.json" in ds.attrs["title"]
    save_file({"1.weight": state["1.weight"]}, tmp_path / files[2])
    with pytest.raises(
        ValueError, match=r"^net: .*00003\.safetensors has no tensor '1\.bias', which model\.safetensors"
    ):
        profile(path)
    (tmp_path / files[2]).unlink()
    with pytest.raises(ValueError, match=r"^net: got .* without model-00003-of-00003\.safetensors, expected all files"):
        profile(path)
    (tmp_path / "parts").mkdir()
    inside = split(tmp_path, state, {key: f"parts/{i % 2}.safetensors" for i, key in enumerate(state)})
    assert listed(profile(inside)) == listed(whole)
    binary = split(tmp_path, state, {key: f"pytorch_model-{1 + i % 2}.bin" for i, key in enumerate(state)})
    assert "1" in values_of(profile(binary))
    for text, message in (
        ('{"weight_map": {"a": "../other.safetensors"}}', "expected an index of files of weights in its folder"),
        ('{"weight_map": {"a": "/other.safetensors"}}', "expected an index of files of weights in its folder"),
        ('{"weight_map": {}}', "expected an index"),
        ('{"weight_map": {"a": "model.safetensors.index.json"}}', "expected an index of files of weights"),
        ('{"weight_map": {"a": 3}}', "no index of weights"),
        ('{"a": 3}', "no index of weights"),
        ("[", "no index of weights"),
    ):
        path.write_text(text)
        with pytest.raises(ValueError, match=f"^net: .*{message}"):
            profile(path)


def test_checkpoints_that_hold_themselves_are_refused_by_name(tmp_path):
    state, layers = {"w": normal(3, 4)}, [normal(3, 4)]
    state["again"] = state
    layers.append(layers)
    for value in (state, {"w": normal(3, 4), "optimizer": {"x": layers}}):
        torch.save(value, tmp_path / "c.pt")
        with pytest.raises(ValueError, match=r"^net: got mappings or lists nested too deep"):
            profile(tmp_path / "c.pt")


def test_checkpoints_with_the_name_of_an_archive_and_lists_of_tensors(tmp_path):
    state = {"w": normal(3, 4)}
    torch.save({"epoch": 3, "state_dict": state}, tmp_path / "best.pth.tar")
    assert list(values_of(profile(tmp_path / "best.pth.tar"))) == ["state_dict.w"]
    for i, value in enumerate(([normal(3, 4), torch.ones(2)], (state, 3))):
        torch.save(value, tmp_path / f"{i}.pt")
    assert list(values_of(profile(tmp_path / "0.pt"))) == ["0"]
    assert list(values_of(profile(tmp_path / "1.pt"))) == ["0.w"]


def test_what_is_no_file_of_weights_is_said(tmp_path):
    torch.save({"w": torch.ones(3, 3)}, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    cut = (tmp_path / "old.pt").read_bytes()[:40]
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 123\n"
    cases = [(b"", "which is empty"), (pointer, "a pointer of Git LFS .*git lfs pull")]
    named = [("a.onnx", *case) for case in cases] if importlib.util.find_spec("onnx") else []
    named += [(name, *case) for name in ("a.pt", "a.safetensors") for case in cases]
    named += [("a.pt", b"PK\3", "no file of torch.save"), ("a.pt", cut, "it ends too early$")]
    for name, data, message in named:
        (tmp_path / name).write_bytes(data)
        with pytest.raises(ValueError, match=f"^net: .*{message}"):
            profile(tmp_path / name)


def test_files_without_matrices_say_what_their_largest_tensors_are():
    state = {"steps": torch.tensor([1, 2]), "shape": torch.ones(3), "w": torch.ones(4, 4, dtype=torch.int8)}
    with pytest.raises(ValueError, match=r"\(w: integers \(int8\), probably quantized weights; .*; shape: a vector"):
        profile(state)


def test_files_of_one_name_are_compared_by_their_paths(tmp_path):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        torch.save({"w": normal(3, 4)}, tmp_path / folder / "net.pt")
    paths = [tmp_path / folder / "net.pt" for folder in ("a", "b")]
    found = bnrank.compare(*paths)
    assert [found.data.attrs[name] for name in ("name_a", "name_b")] == list(map(str, paths))
    assert str(found).startswith(f"{paths[0]} and {paths[1]}: ")


class Scripted(nn.Module):
    """A module with buffers of rare types, for TorchScript."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 4)
        self.register_buffer("small", normal(3, 3).to(torch.float8_e4m3fn))
        self.register_buffer("whole", torch.ones(2, 2, dtype=torch.uint16))
        self.register_buffer("sparse", torch.eye(3).to_sparse())

    def forward(self, x):
        return self.layer(x)


def test_scripted_modules_with_buffers_of_rare_types(tmp_path):
    net = Scripted()
    torch.jit.script(net).save(tmp_path / "net.pt")
    ds = profile(tmp_path / "net.pt")
    assert listed(ds) == {
        "whole": "integers or truth values (uint16)",
        "sparse": "sparse layout; .to_dense() makes it measurable",
        "layer.bias": "bias",
    }
    np.testing.assert_allclose(values_of(ds)["small"], np.linalg.svd(net.small.double(), compute_uv=False), rtol=1e-12)


def test_weights_of_frozen_modules_are_constants(tmp_path):
    net = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Conv2d(5, 6, 3)).eval()
    frozen = torch.jit.freeze(torch.jit.script(net))
    frozen.save(tmp_path / "net.pt")
    ds, whole = profile(tmp_path / "net.pt"), profile(net.state_dict())
    found = sorted(map(tuple, values_of(ds).values()))
    assert found == sorted(map(tuple, values_of(whole).values()))
    assert (ds.attrs["tensors"], ds.attrs["entries"]) == (whole.attrs["tensors"], whole.attrs["entries"])
    assert sorted([*values_of(ds), *listed(ds)]) == [f"CONSTANTS.c{i}" for i in range(4)]


def damaged(data, seed):
    """Return bytes of which some are replaced, removed or added."""
    rng, out = np.random.default_rng(seed), bytearray(data)
    for _ in range(rng.integers(1, 4)):
        i = int(rng.integers(len(out)))
        kind = rng.random()
        if kind < 0.7:
            out[i] = rng.integers(256)
        elif kind < 0.85:
            del out[i : i + 4]
        else:
            out[i:i] = rng.bytes(2)
    return bytes(out)


@pytest.mark.parametrize("kind", ["new", "old", "script", "safetensors", "onnx"])
def test_damaged_files_are_read_or_refused_by_name(kind, tmp_path):
    net = nn.Sequential(nn.Linear(3, 4), nn.Conv1d(4, 2, 3))
    path = tmp_path / f"net.{kind if kind in ('safetensors', 'onnx') else 'pt'}"
    if kind == "script":
        torch.jit.script(net).save(path)
    elif kind == "onnx":
        make = pytest.importorskip("onnx").helper.make_node
        nodes = [make("Squeeze", ["k", "zero"], ["a"]), make("Conv", ["x", "a"], ["y"])]
        onnx_file(path, nodes, {"k": normal(1, 4, 3, 5), "zero": np.array([0])})
    elif kind == "safetensors":
        save_file(net.state_dict(), path)
    else:
        torch.save(net.state_dict(), path, _use_new_zipfile_serialization=kind == "new")
    data, refused = path.read_bytes(), []
    for seed in range(60):
        path.write_bytes(damaged(data, seed))
        try:
            profile(path)
        except ValueError as error:
            refused.append(str(error))
    assert len(refused) > 5
    assert all(message.startswith("net: ") for message in refused), refused
