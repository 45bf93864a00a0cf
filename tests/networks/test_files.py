import itertools
import json
import pickle
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import nn

import bnrank
from bnrank._core import store
from bnrank.networks import load, load_module, save


def chain(*widths, bias=True):
    layers = [m for a, b in itertools.pairwise(widths) for m in (nn.Linear(a, b, bias=bias), nn.ReLU())]
    return nn.Sequential(*layers[:-1])


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], derandomize=True)
@given(
    widths=st.lists(st.integers(1, 7), min_size=2, max_size=6),
    slope=st.sampled_from([0.0, 0.1, -0.5]),
    bias=st.booleans(),
    init=st.sampled_from(["he", 0.01]),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16]),
)
def test_what_is_saved_comes_back(tmp_path, widths, slope, bias, init, dtype):
    net = bnrank.MLP(widths, slope, bias, init, seed=7, dtype=dtype)
    path = save(net, tmp_path / "net.safetensors")
    back = load(path)
    assert (back.widths, back.slope, back.bias, back.init, back.seed) == (widths, slope, bias, init, 7)
    for a, b in zip(net.parameters(), back.parameters(), strict=True):
        assert a.dtype == b.dtype
        assert torch.equal(a, b)
    assert [p.name for p in tmp_path.iterdir()] == ["net.safetensors"]


def test_metadata_names_the_version(tmp_path):
    from safetensors import safe_open

    with safe_open(save(bnrank.MLP([2, 1]), tmp_path / "a.safetensors"), "pt") as file:
        assert json.loads(file.metadata()["bnrank file"])["version"] == bnrank.__version__


def test_parameters_that_are_views_of_an_ensemble_are_saved(tmp_path):
    net, stack = bnrank.MLP([3, 3]), torch.randn(5, 3, 3)
    net.layers[0].weight = nn.Parameter(stack[2].T)
    assert torch.equal(load(save(net, tmp_path / "a.safetensors")).weights[0], stack[2].T)


def test_a_failing_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = save(bnrank.MLP([2, 1], seed=1), tmp_path / "a.safetensors")
    old = path.read_bytes()

    def stop(_):
        raise OSError("disk full")

    monkeypatch.setattr("os.fsync", stop)
    with pytest.raises(ValueError, match=r"path: cannot write .*disk full"):
        save(bnrank.MLP([2, 1], seed=2), path)
    assert path.read_bytes() == old
    assert [p.name for p in tmp_path.iterdir()] == ["a.safetensors"]


def test_the_target_is_never_open_for_writing(tmp_path, monkeypatch):
    path = tmp_path / "a.safetensors"
    opened = []
    original = Path.open
    monkeypatch.setattr(Path, "open", lambda self, *a, **k: (opened.append(self), original(self, *a, **k))[1])
    save(bnrank.MLP([2, 1]), path)
    assert opened
    assert path not in opened
    assert all(path.parent in place.parents for place in opened)  # the same disk, so that renaming is one step


@pytest.mark.parametrize("bias", [True, False])
def test_a_foreign_chain_is_read(tmp_path, bias):
    torch.manual_seed(0)
    model = chain(3, *[5] * 11, 2, bias=bias)  # numbers of two digits: "10" comes after "2"
    save_file(model.state_dict(), tmp_path / "m.safetensors")
    net = load(tmp_path / "m.safetensors", "relu")
    x = torch.randn(4, 3)
    assert net.widths == [3, *[5] * 11, 2]
    assert torch.allclose(net(x), model(x))


def test_names_without_numbers_need_an_order(tmp_path):
    path = tmp_path / "m.safetensors"
    tensors = {"inner.weight": torch.ones(4, 3), "outer.weight": torch.ones(2, 4), "core.weight": torch.ones(4, 4)}
    save_file(tensors, path)
    with pytest.raises(ValueError, match="order="):
        load(path)
    assert load(path, 0.1, order=["inner.weight", "core.weight", "outer.weight"]).widths == [3, 4, 4, 2]
    with pytest.raises(ValueError, match="order: got"):
        load(path, order=["inner.weight"])


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        (
            {"0.weight": torch.ones(4, 3), "2.weight": torch.ones(2, 5)},
            r"0.weight, 2.weight: weights: got shapes \[\(4, 3\), \(2, 5\)\], expected each to take .* order=",
        ),
        ({"0.weight": torch.ones(4, 3, 3, 3)}, "not a plain chain"),
        ({"0.weight": torch.ones(4, 3), "1.weight": torch.ones(4)}, r"1.weight \(4,\)"),
        ({"0.weight": torch.ones(4, 3), "1.running_mean": torch.ones(4)}, "running_mean"),
        (
            {"0.weight": torch.ones(4, 3), "0.bias": torch.ones(4), "1.weight": torch.ones(2, 4)},
            r"0.weight, 1.weight: biases: got shapes \[\(4,\)\], expected one per layer",
        ),
        ({"0.weight": torch.ones(4, 3), "1.weight": torch.ones(2, 4).double()}, "dtypes"),
        ({"0.weight": torch.ones(4, 3).int()}, "dtypes"),
    ],
)
def test_what_is_no_chain_is_refused_by_name(tmp_path, tensors, message):
    path = tmp_path / "m.safetensors"
    save_file(tensors, path)
    with pytest.raises(ValueError, match=message) as caught:
        load(path)
    assert "m.safetensors" in str(caught.value)


class Evil:
    def __reduce__(self):
        return Path.touch, (Path("opened"),)


@pytest.mark.parametrize("name", ["m.pt", "m.pth", "m.ckpt", "m.safetensors", "m"])
@pytest.mark.parametrize("write", ["zip", "legacy", "plain"])
def test_pickles_are_refused_unopened_by_name_or_content(tmp_path, monkeypatch, name, write):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / name
    if write == "plain":
        path.write_bytes(pickle.dumps(Evil()))
    else:
        torch.save({"a": Evil()}, path, _use_new_zipfile_serialization=write == "zip")
    for read in (load, lambda p: bnrank.load(p, nn.Identity())):
        with pytest.raises(
            ValueError, match=r"safetensors.torch.save_file\(model.state_dict\(\), \"model.safetensors\"\)"
        ):
            read(path)
    assert not Path("opened").exists()


def test_headers_whose_length_begins_like_a_pickle_are_read(tmp_path):
    path = tmp_path / "m.safetensors"
    starts = set()
    for n in range(400):  # the header grows by a byte at a time, its padded length by 8
        tensors = {"0.weight": torch.ones(4, 3), "0.bias": torch.full((4,), float(n))}
        save_file(tensors, path, metadata={"note": "x" * n, "more": "y" * 512})
        starts.add(path.read_bytes()[:2])
        assert load(path).biases[0][0] == n
    assert starts & {b"\x80\x02", b"\x80\x03", b"\x80\x04"}


def test_a_compressed_network_is_not_taken_for_a_chain(tmp_path):
    path = tmp_path / "small.safetensors"
    store.save(path, {"0.weight": torch.ones(4, 3), "1.weight": torch.ones(2, 4)}, {"plan": {}}, "compressed network")
    with pytest.raises(ValueError, match="holds a compressed network, expected a network"):
        load(path)


def test_damaged_files_are_refused_by_name(tmp_path):
    path = save(bnrank.MLP([5, 5]), tmp_path / "net.safetensors")
    whole = path.read_bytes()
    for data in (b"", whole[:4], whole[:50], whole[:-1], b"\xff" * 200, b"<html></html>"):
        path.write_bytes(data)
        with pytest.raises(ValueError, match=r"net.safetensors .* is damaged or not a safetensors file"):
            load(path)
    with pytest.raises(ValueError, match="expected a file that exists"):
        load(tmp_path / "none.safetensors")


@pytest.mark.parametrize(
    "change",
    [{"widths": [5, 6]}, {"widths": [5]}, {"widths": "ab"}, {"slope": 3}, {"bias": False}, {"init": None}, None],
)
def test_damaged_metadata_is_refused_by_name(tmp_path, change):
    plan = {"kind": "MLP", "widths": [5, 5], "slope": 0.0, "bias": True, "init": "he", "seed": 0}
    path, tensors = tmp_path / "net.safetensors", bnrank.MLP([5, 5]).state_dict()
    if change is None:
        save_file(tensors, path, {"bnrank file": "{"})
    else:
        store.save(path, tensors, {"plan": {**plan, **change}}, "network")
    with pytest.raises(ValueError, match=r"net.safetensors"):
        load(path)


def test_save_refuses_other_modules_and_names(tmp_path):
    with pytest.raises(TypeError, match="save_file"):
        save(nn.Linear(2, 2), tmp_path / "a.safetensors")
    with pytest.raises(ValueError, match=r"ending in .safetensors"):
        save(bnrank.MLP([2, 1]), tmp_path / "a.pt")
    with pytest.raises(ValueError, match="folder that exists"):
        save(bnrank.MLP([2, 1]), tmp_path / "no" / "a.safetensors")


def test_modules_come_from_files_with_their_weights(tmp_path):
    (tmp_path / "sibling.py").write_text("WIDTH = 4\n")
    (tmp_path / "model.py").write_text(
        "from torch import nn\nfrom sibling import WIDTH\n"
        "def build():\n    return nn.Sequential(nn.Linear(3, WIDTH))\n"
        "def broken():\n    raise RuntimeError('no')\n"
        "def number():\n    return 3\n"
    )
    spec = f"{tmp_path / 'model.py'}:build"
    model = load_module(spec)
    assert model[0].weight.shape == (4, 3)
    save_file({k: v + 1 for k, v in model.state_dict().items()}, tmp_path / "w.safetensors")
    loaded = bnrank.load(tmp_path / "w.safetensors", load_module(spec))
    assert torch.equal(loaded[0].weight, model[0].weight + 1)
    save_file({"other": torch.ones(1)}, tmp_path / "o.safetensors")
    with pytest.raises(ValueError, match=r"o.safetensors does not fit"):
        bnrank.load(tmp_path / "o.safetensors", load_module(spec))
    with pytest.raises(ValueError, match="raised RuntimeError: no"):
        load_module(f"{tmp_path / 'model.py'}:broken")
    with pytest.raises(TypeError, match="returned 3"):
        load_module(f"{tmp_path / 'model.py'}:number")
    with pytest.raises(ValueError, match="did you mean 'build'"):
        load_module(f"{tmp_path / 'model.py'}:bild")
    with pytest.raises(ValueError, match="does not"):
        load_module(f"{tmp_path / 'none.py'}:build")
    with pytest.raises(ValueError, match="importing no_such_package_here"):
        load_module("no_such_package_here:build")
    with pytest.raises(ValueError, match=r"expected 'file.py:function'"):
        load_module("model.py")


def test_weights_that_do_not_fit_are_refused_by_the_first_three_differences(tmp_path):
    (tmp_path / "model.py").write_text(
        "from torch import nn\ndef build():\n    return nn.Sequential(*[nn.Linear(4, 4) for _ in range(60)])\n"
    )
    spec, path = f"{tmp_path / 'model.py'}:build", tmp_path / "w.safetensors"
    state = load_module(spec).state_dict()
    other = {key: value for key, value in state.items() if int(key.split(".")[0]) < 50} | {"5.weight": torch.ones(2, 4)}
    save_file({**other, "head.weight": torch.ones(1, 4)}, path)
    with pytest.raises(ValueError, match="does not fit") as refused:
        bnrank.load(path, load_module(spec))
    missing, unexpected = "20 missing, such as 50.weight (4, 4)", "1 unexpected, such as head.weight (1, 4)"
    assert f"{missing}; {unexpected}; 1 of another shape, such as 5.weight (2, 4), not (4, 4)" in str(refused.value)
    save_file({f"module.{key}": value for key, value in state.items()}, path)
    with pytest.raises(ValueError, match=r"names of the file begin with 'module\.'; without it they are equal"):
        bnrank.load(path, load_module(spec))
    save_file({"0.weight": torch.ones(3, 2)}, path)
    three = r"fit net: 2 missing, such as weight \(3, 2\); 1 unexpected, such as 0.weight \(3, 2\)$"
    with pytest.raises(ValueError, match=three):
        bnrank.load(path, nn.Linear(2, 3))


def test_a_file_leaves_its_own_module_behind_and_nothing_else(tmp_path):
    text = "from __future__ import annotations\nfrom dataclasses import dataclass\nfrom torch import nn\n"
    text += "import package.deep, sibling\n@dataclass\nclass Options:\n    width: int = sibling.WIDTH\n"
    text += "class Net(nn.Linear):\n    pass\ndef build():\n    return Net(2, Options().width)\n"
    before, path = set(sys.modules), list(sys.path)
    for folder, width in (("a", 3), ("b", 4)):
        (tmp_path / folder / "package").mkdir(parents=True)
        (tmp_path / folder / "package" / "deep.py").write_text("")
        (tmp_path / folder / "sibling.py").write_text(f"import colorsys\nWIDTH = {width}\n")
        (tmp_path / folder / "alone.py").write_text(text)
        net = load_module(f"{tmp_path / folder / 'alone.py'}:build")
        assert net.out_features == width  # the neighbor of its own folder
        assert torch.equal(pickle.loads(pickle.dumps(net)).weight, net.weight)
    assert sys.path == path
    own = {"bnrank_user_alone", "bnrank_user_alone_"}
    assert set(sys.modules) - before - {"colorsys"} == own
    (tmp_path / "a" / "sibling.py").write_text("raise OSError('broken')\n")
    (tmp_path / "a" / "other.py").write_text("import sibling\n")
    with pytest.raises(ValueError, match="raised OSError: broken"):
        load_module(f"{tmp_path / 'a' / 'other.py'}:build")
    assert not {"sibling", "bnrank_user_other"} & set(sys.modules)
    assert sys.path == path
