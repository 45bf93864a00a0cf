"""One format on disk: round trips, and every way in which a file can be wrong."""

import os
import pickle

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from bnrank import __version__
from bnrank._core import sources, store

ABOUT = {"text": "é", "numbers": [1, 2.5, None], "nested": {"a": True}}


def stored(folder, kind="example"):
    tensors = {"x": torch.arange(6.0).reshape(2, 3), "n": np.array([1, 2]), "b": torch.tensor([True])}
    return store.save(folder / "a.safetensors", tensors, ABOUT, kind)


def test_round_trip(tmp_path):
    path = stored(tmp_path)
    found = store.load(path, "example")
    assert (found.kind, found.about, found.version, found.path) == ("example", ABOUT, __version__, path)
    assert found.tensors["x"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert found.tensors["n"].dtype == torch.int64
    assert found.tensors["b"].dtype == torch.bool
    assert store.read(str(path)).about == ABOUT
    assert [p.name for p in tmp_path.iterdir()] == ["a.safetensors"]


@pytest.mark.parametrize("shape", [(0,), (4, 0), (0, 3)])
def test_arrays_without_entries_are_stored(shape, tmp_path):
    """NumPy gives them strides of 0."""
    for empty in (np.zeros(shape), torch.from_numpy(np.zeros(shape)), torch.zeros(shape)):
        path = store.save(tmp_path / "a.safetensors", {"x": empty, "y": empty}, {}, "example")
        assert store.load(path).tensors["x"].shape == store.load(path).tensors["y"].shape == shape


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], derandomize=True)
@given(
    shape=st.lists(st.integers(0, 4), max_size=3),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8, torch.bool]),
    transposed=st.booleans(),
)
def test_tensors_of_any_shape_and_type_come_back(tmp_path, shape, dtype, transposed):
    tensor = torch.arange(int(np.prod(shape))).reshape(shape).to(dtype)
    tensor = tensor.T if transposed and tensor.ndim == 2 else tensor
    back = store.load(store.save(tmp_path / "t.safetensors", {"t": tensor}, {}, "k")).tensors["t"]
    assert back.dtype == dtype
    assert torch.equal(back, tensor)


def test_the_kind_is_checked(tmp_path):
    path = stored(tmp_path, "network")
    with pytest.raises(ValueError, match=r"out: .*a.safetensors holds a network, expected a checkpoint"):
        store.load(path, "checkpoint", name="out")


def test_a_file_of_another_program_is_read_and_not_loaded(tmp_path):
    path = tmp_path / "foreign.safetensors"
    save_file({"w": torch.ones(2)}, path, {"format": "pt"})
    found = store.read(path)
    assert (found.kind, found.about, found.version, found.tensors["w"].tolist()) == ("", {}, "", [1, 1])
    with pytest.raises(ValueError, match="that bnrank did not write, expected a network"):
        store.load(path, "network")


def test_every_flipped_bit_is_noticed(tmp_path):
    """Padding, the checksum and the names of the format included: no flip makes it a file of another program."""
    whole = stored(tmp_path).read_bytes()
    for place in range(len(whole)):
        for bit in range(8):
            data = whole[:place] + bytes([whole[place] ^ 1 << bit]) + whole[place + 1 :]
            with pytest.raises(
                ValueError, match=r"path: a.safetensors .*is (damaged or not a safetensors file|a pickle)"
            ):
                store.read("a.safetensors", data=data)


@pytest.mark.parametrize("length", [2, 16, 64])
def test_every_swap_of_blocks_and_every_overwritten_block_is_noticed(tmp_path, length):
    whole = stored(tmp_path).read_bytes()
    for place in range(length, len(whole) - length):
        one, other = whole[:length], whole[place : place + length]
        swapped = other + whole[length:place] + one + whole[place + length :]
        zeroed = whole[:place] + b"0" * length + whole[place + length :]
        for data in {swapped, zeroed, whole + other, whole[:place] + other + whole[place:]} - {whole}:
            with pytest.raises(ValueError, match=r"path: a.safetensors .*is (damaged|a pickle)"):
                store.read("a.safetensors", data=data)


def test_the_checksum_of_a_file_with_other_contents_is_noticed(tmp_path):
    first, second = stored(tmp_path).read_bytes(), store.save(tmp_path / "b.safetensors", {}, {}, "k").read_bytes()
    checksum = store.read("a.safetensors", data=first).checksum.encode()
    other = store.read("b.safetensors", data=second).checksum.encode()
    with pytest.raises(sources.DamagedError, match="differ from what was written"):
        store.read("a.safetensors", data=first.replace(checksum, other))


def test_the_replaced_file_is_kept(tmp_path):
    path, previous = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    for n in range(3):
        store.save(path, {}, {"n": n}, "k", previous=previous)
    assert (store.load(path).about["n"], store.load(previous).about["n"]) == (2, 1)
    assert store.is_whole(path)
    assert store.checksum(path) == store.load(path).checksum
    path.write_bytes(path.read_bytes()[:-1])
    assert not store.is_whole(path)


@pytest.mark.parametrize(
    ("tensors", "about", "message"),
    [
        ([torch.ones(2)], {}, r"tensors: got \[.*expected a mapping"),
        ({"a": [1.0]}, {}, r"tensors\['a'\]: got \[1.0\] \(list\), expected a tensor or array of numbers"),
        ({"a": np.array(["b"])}, {}, r"tensors\['a'\]: got ndarray"),
        ({}, [1], r"about: got \[1\] \(list\), expected a mapping"),
    ],
)
def test_other_values_are_refused_by_name(tmp_path, tensors, about, message):
    with pytest.raises(TypeError, match=message):
        store.save(tmp_path / "a.safetensors", tensors, about, "k")


@pytest.mark.parametrize("path", [None, 3, b"a", "", "a\0b"])
def test_what_is_no_path_is_named(path):
    with pytest.raises((TypeError, ValueError), match=r"weights: got .*expected a path"):
        store.read(path, name="weights")


def test_tensors_of_other_programs_are_read_wherever_they_start(tmp_path):
    header = (
        b'{"b":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"f":{"dtype":"F32","shape":[1],"data_offsets":[1,5]}}'
    )
    data = len(header).to_bytes(8, "little") + header + b"\7" + np.float32(2.5).tobytes()
    found = store.read("a.safetensors", data=data).tensors
    assert (found["b"].tolist(), found["f"].tolist()) == ([7], [2.5])
    for wrong in (data + b"0", data.replace(b"[1,5]", b"[0,4]"), data.replace(b"F32", b"F31")):
        with pytest.raises(ValueError, match="damaged or not a safetensors file"):
            store.read("a.safetensors", data=wrong)


def test_every_truncated_file_is_refused(tmp_path):
    path = stored(tmp_path)
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(ValueError, match=r"path: .*a.safetensors .* is damaged or not a safetensors file"):
            store.load(path)


class Payload:
    def __reduce__(self):
        return pytest.fail, ("a pickle was run",)


@pytest.mark.parametrize("name", ["a.pt", "a.safetensors", "a.joblib", "a"])
@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_pickles_are_refused(tmp_path, name, protocol):
    path = tmp_path / name
    path.write_bytes(pickle.dumps(Payload(), protocol))
    with pytest.raises(ValueError, match="is a pickle"):
        store.read(path)


def test_paths_that_cannot_be_written_to_are_refused(tmp_path, monkeypatch):
    for path, message in [
        (tmp_path / "a.pt", r"expected a name ending in .safetensors"),
        (tmp_path / "none" / "a.safetensors", "in a folder that exists"),
        (tmp_path / "folder.safetensors", "which is a folder"),
    ]:
        (tmp_path / "folder.safetensors").mkdir(exist_ok=True)
        with pytest.raises(ValueError, match=message):
            store.save(path, {}, {}, "k")

    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("tempfile.mkdtemp", refuse)
    with pytest.raises(ValueError, match=r"path: cannot write .*Permission denied"):
        store.save(tmp_path / "a.safetensors", {}, {}, "k")
    with pytest.raises(ValueError, match="expected a file that exists"):
        store.read(tmp_path / "a.safetensors")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_an_unwritable_folder_is_refused(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(ValueError, match="cannot write"):
        stored(tmp_path)
    tmp_path.chmod(0o700)


def test_values_that_json_cannot_represent_are_refused(tmp_path):
    with pytest.raises(TypeError):
        store.save(tmp_path / "a.safetensors", {}, {"tensor": torch.ones(1)}, "k")
    assert not list(tmp_path.iterdir())


def test_a_failing_write_leaves_the_file_before(tmp_path, monkeypatch):
    path = stored(tmp_path)
    before = path.read_bytes()

    def stop(_):
        raise OSError("disk full")

    monkeypatch.setattr("os.fsync", stop)
    with pytest.raises(ValueError, match="disk full"):
        store.save(path, {}, {}, "other")
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["a.safetensors"]
