"""Samples for networks on the command line: tokens, images as y, classes, and no y."""

import numpy as np
import pytest
import torch

import bnrank

NETS = """
from torch import nn, manual_seed

def tokens():
    manual_seed(0)
    return nn.Sequential(nn.Embedding(20, 4), nn.Flatten(), nn.Linear(24, 6), nn.ReLU(), nn.Linear(6, 3))

def positions():
    manual_seed(0)
    return nn.Sequential(nn.Embedding(20, 4), nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 5))

def images():
    manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.ReLU(), nn.Conv2d(2, 1, 3, padding=1))

def single():
    manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 1))

def plain():
    manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))
"""
RNG = np.random.default_rng(0)
WHOLE, REAL, PICTURES = RNG.integers(0, 20, (60, 6)), RNG.normal(size=(60, 6)), RNG.normal(size=(60, 1, 6, 6))
TEXTS = np.array(["b", "a", "c"])[WHOLE[:, 0] % 3]
DATA = {  # name: network, x, y
    "no_y": ("plain", REAL, None),
    "real_y": ("plain", REAL, REAL[:, :3]),
    "classes": ("plain", REAL, WHOLE[:, 0] % 3),
    "texts": ("plain", REAL, TEXTS),
    "whole": ("plain", WHOLE, WHOLE[:, 0] % 3),
    "tokens": ("tokens", WHOLE, WHOLE[:, 0] % 3),
    "tokens_only": ("tokens", WHOLE, None),
    "counts": ("single", REAL, WHOLE[:, 0]),
    "positions": ("positions", WHOLE, WHOLE % 5),
    "images": ("images", PICTURES, 2 * PICTURES),
}


@pytest.fixture
def files(tmp_path, monkeypatch):
    (tmp_path / "nets.py").write_text(NETS)
    for name, (_, x, y) in DATA.items():
        np.savez(tmp_path / f"{name}.npz", x=x, **({} if y is None else {"y": y}))
    return tmp_path


def module(name):
    made = {}
    exec(NETS, made)
    return made[name]()


def expected_cost(name):
    """The cost in float64 of the network on what float32 keeps of the data."""
    kind, x, y = DATA[name]
    net = module(kind).double()
    real = kind in ("plain", "single", "images")
    out = net(torch.from_numpy(x).float().double() if real else torch.from_numpy(x)).detach()
    if y.dtype.kind == "f" or kind == "single":
        return float(((out - torch.from_numpy(y).float().double().reshape(out.shape)) ** 2).flatten(1).sum(1).mean())
    labels = torch.from_numpy(np.unique(y, return_inverse=True)[1] if y.dtype.kind == "U" else y)
    return float(torch.nn.functional.cross_entropy(out.reshape(-1, out.shape[-1]), labels.flatten()))


@pytest.mark.parametrize("name", DATA)
def test_every_command_takes_the_samples_of_a_network(files, command, monkeypatch, name):
    given, spec = {}, f"nets.py:{DATA[name][0]}"
    profile = bnrank.profile
    monkeypatch.setattr(bnrank, "profile", lambda *a, **k: given.setdefault("profile", profile(*a, **k)))
    done = command("profile", spec, f"{name}.npz", "--quiet")
    assert done.code == 0, done.error
    if DATA[name][2] is None:
        assert "has no y" in done.out
        assert "the cost is not measured" in done.out
        assert "cost" not in given["profile"]
    else:
        assert "has no y" not in done.out
        assert float(given["profile"].cost) == pytest.approx(expected_cost(name), rel=1e-12)
    compare = bnrank.compare
    monkeypatch.setattr(bnrank, "compare", lambda a, b, x, **k: compare(a, b, given.setdefault("x", x), **k))
    done = command("compare", spec, spec, "--x", f"{name}.npz")
    assert done.code == 0, done.error
    as_given = DATA[name][1] if "tokens" in name or name == "positions" else DATA[name][1].astype(np.float32)
    assert given["x"].dtype.kind == as_given.dtype.kind
    assert np.array_equal(given["x"], as_given)
    done = command("check", spec, f"{name}.npz", "--only", "T4,T12")
    if name == "positions":  # check takes one class for each sample
        assert "y of DATA: got" in done.error
        assert "expected class indices: integers, shape (N,)" in done.error
    else:
        assert done.code == 0, done.error
        assert ("statements on the loss do not apply" in done.out) == (DATA[name][2] is None)


@pytest.mark.parametrize("name", ["no_y", "whole", "tokens_only", "images"])
def test_compress_takes_the_same_samples(files, command, monkeypatch, name):
    given = []

    def compress(net, x, **options):
        given.append(x)
        raise ValueError("x: seen")

    monkeypatch.setattr(bnrank, "compress", compress)
    assert "x of DATA: seen" in command("compress", f"nets.py:{DATA[name][0]}", f"{name}.npz").error
    expected = DATA[name][1] if name != "whole" else WHOLE.astype(float)
    assert given[0].dtype == expected.dtype
    assert np.array_equal(given[0], expected)


def test_a_csv_needs_no_targets(files, command):
    x = "\n".join(",".join(f"{value:.6f}" for value in row) for row in REAL)
    (files / "x.csv").write_text("a,b,c,d,e,f\n" + x + "\n")
    done = command("profile", "nets.py:plain", "x.csv", "--quiet")
    assert (done.code, "x has no y (in a .csv: --targets): the cost is not measured" in done.out) == (0, True)


def test_tokens_of_a_csv_are_integers(files, command):
    rows = "\n".join(",".join(map(str, row)) for row in np.column_stack([WHOLE, WHOLE[:, 0] % 3]))
    (files / "words.csv").write_text("a,b,c,d,e,f,label\n" + rows + "\n")
    outputs = [
        command("profile", "nets.py:tokens", name, "--quiet", *options).out.partition("The page")[0]
        for name, options in (("words.csv", ("--targets", "label")), ("tokens.npz", ()))
    ]
    assert outputs[0] == outputs[1]
    assert "x has integers" in outputs[0]


def test_tokens_outside_of_the_vocabulary_are_said(files, command):
    np.savez(files / "outside.npz", x=WHOLE + 20)
    done = command("profile", "nets.py:tokens", "outside.npz")
    assert (done.code, "index out of range" in done.error) == (2, True)
