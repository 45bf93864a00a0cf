"""Watches and comparisons saved and opened: the same bits, and the same page."""

import numpy as np
import pytest
import torch
import xarray as xr
from torch import nn

import bnrank


def watched():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))
    x = torch.randn(30, 4)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    watch = bnrank.watch(net, every=2, x=x, collapse=bnrank.training.Collapse(below=3, times=1, stop=False))
    for _ in range(6):
        optimizer.zero_grad()
        net(x).square().mean().backward()
        optimizer.step()
        watch.step()
    return watch


def same(one, other):
    assert one.identical(other)
    for name in one.variables:
        assert one[name].dtype == other[name].dtype or one[name].dtype.kind == "U"
        if one[name].dtype.kind == "f":
            assert one[name].values.tobytes() == other[name].values.tobytes()  # NaN too


def test_a_watch_comes_back_bit_by_bit(tmp_path):
    watch = watched()
    watch.close()
    found = bnrank.load(bnrank.save(watch, tmp_path / "watch.safetensors"))
    same(watch.history, found.history)
    assert (str(found), found.notes) == (str(watch), watch.notes)
    pages = [bnrank.report(result, tmp_path / "page.html").read_bytes() for result in (watch, found)]
    assert pages[0] == pages[1]
    again = bnrank.load(bnrank.save(found, tmp_path / "again.safetensors"))
    same(found.history, again.history)


def test_an_empty_watch_and_a_record_of_checkpoints_come_back(tmp_path):
    net = nn.Linear(2, 2)
    for result in (bnrank.watch(net, what=["weights"]), bnrank.compare([net, net])):
        same(result.history, bnrank.load(bnrank.save(result, tmp_path / "file.safetensors")).history)


def test_a_comparison_comes_back_bit_by_bit(tmp_path):
    found = bnrank.compare(bnrank.MLP([3, 8, 2], seed=0), bnrank.MLP([3, 9, 2], seed=1), torch.randn(3, 3))
    opened = bnrank.load(bnrank.save(found, tmp_path / "comparison.safetensors"))
    same(found.data, opened.data)
    assert str(opened) == str(found)
    assert np.isnan(found.data["cka_debiased"]).all()


def test_a_damaged_file_is_refused(tmp_path):
    path = bnrank.save(bnrank.compare([nn.Linear(2, 2)] * 2), tmp_path / "file.safetensors")
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)
    with pytest.raises(ValueError, match=r"file\.safetensors"):
        bnrank.load(path)


def test_a_run_comes_back_without_its_network_being_given(tmp_path):
    x = torch.randn(20, 4)
    run = bnrank.train(bnrank.MLP([4, 3, 2]), (x, x[:, :2]), steps=2, out=tmp_path / "run", progress=False)
    opened = bnrank.load(tmp_path / "run")
    same(run.history, opened.history)
    assert torch.equal(opened.network(0).weights[0], run.network(0).weights[0])


def test_a_profile_comes_back_bit_by_bit(tmp_path):
    net = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))
    for result in (bnrank.profile(net.state_dict()), bnrank.profile(net, torch.randn(60, 4))):
        found = bnrank.load(bnrank.save(result, tmp_path / "profile.safetensors"))
        same(result, found)
        assert bnrank.measures.describe(found) == bnrank.measures.describe(result)
        pages = [bnrank.report(each, tmp_path / "page.html").read_bytes() for each in (result, found)]
        assert pages[0] == pages[1]
    with pytest.raises(ValueError, match=r"net: got .*profile\.safetensors with a dataset, expected a file of weights"):
        bnrank.profile(tmp_path / "profile.safetensors")
    with pytest.raises(TypeError, match=r"result: got a dataset with z \(complex128\), expected numbers and texts"):
        bnrank.save(result.assign(z=("layer", np.ones(2) * 1j)), tmp_path / "profile.safetensors")


@pytest.mark.parametrize(
    ("part", "text"),
    [
        ({"z": ("layer", np.array(["a", None], dtype=object))}, r"z \(object\)"),
        ({"of": np.ones(2)}, r"attribute of \(ndarray\)"),
    ],
)
def test_datasets_that_would_not_come_back_are_refused(part, text, tmp_path):
    made = xr.Dataset({"a": ("layer", np.array([1.0, 2.0], dtype=">f8"))}, {"layer": ["x", "y"]}, {"sizes": [1, 2]})
    assert bnrank.load(bnrank.save(made, tmp_path / "made.safetensors")).identical(made)
    changed = made.assign_attrs(part) if "of" in part else made.assign(part)
    with pytest.raises(TypeError, match=f"^result: got a dataset with {text}, expected numbers and texts"):
        bnrank.save(changed, tmp_path / "changed.safetensors")
