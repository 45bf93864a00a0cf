"""What compression is given: what it refuses, by name and before the work, and tables of data."""

import functools

import pandas as pd
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import bnrank
import helpers
from bnrank import compress
from bnrank._core import store
from bnrank.discovery.compression import Timing, result, search
from bnrank.discovery.storage import plain_array

normal = functools.partial(helpers.normal, dtype=torch.float32)


QUICK = {"timing": Timing(repeats=2, batch_size=16)}


def perceptron(d_in=6):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(d_in, 8), nn.ReLU(), nn.Linear(8, 3))


class Convolving(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten())

    def forward(self, x):
        return self.body(x)


class Doubling(nn.Module):
    """Changes in place what the activation needs for its gradient."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(6, 9), nn.Linear(9, 2)

    def forward(self, x):
        return self.last(self.first(x).relu_().mul_(2))


class Decided(nn.Module):
    """Returns decisions, no real numbers."""

    def __init__(self, decide):
        super().__init__()
        self.body, self.decide = perceptron(), decide

    def forward(self, x):
        return self.decide(self.body(x))


class Several(nn.Module):
    """Runs on several samples only, and says no more."""

    def __init__(self):
        super().__init__()
        self.body = perceptron()

    def forward(self, x):
        if len(x) < 2:
            raise AssertionError
        return self.body(x)


class Single(nn.Module):
    """Holds a tensor that is no buffer: it runs in one precision only."""

    def __init__(self):
        super().__init__()
        self.layer, self.fixed = nn.Linear(6, 2), torch.ones(2, 3)

    def forward(self, x):
        return self.layer(x) @ self.fixed


class OwnLinear(nn.Linear):
    """Has a forward of its own, whose argument is named otherwise."""

    def forward(self, features):
        return nn.functional.linear(features, self.weight, self.bias)


class Wrapping(nn.Module):
    """Raises its own error where a layer fails, and passes the input by name."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 2)

    def forward(self, x):
        try:
            return self.layer(input=x)
        except RuntimeError as error:
            raise RuntimeError("no such features") from error


def embedding():
    return nn.Sequential(nn.Embedding(10, 4), nn.Flatten(), nn.Linear(12, 2))


def batch_statistics():
    return nn.Sequential(*perceptron(), nn.BatchNorm1d(3, track_running_stats=False))


def of_tokens():
    return nn.Sequential(*perceptron(), nn.Unflatten(1, (3, 1)), nn.Linear(1, 2))


X = normal(40, 6)
LABELS = torch.arange(40) % 3
AT_POSITIONS = (
    r"^y: got one class per sample for outputs of shape \(40, 3, 2\), expected outputs of shape \(N, classes\)"
)


@pytest.mark.parametrize(
    ("module", "x", "given", "error", "match"),
    [
        (perceptron(), X[:, :5], {}, ValueError, r"^x: the module fails on it.*\(5,\).*layer 0 .*expects 6 features"),
        (perceptron(), (9 * X).long(), {}, TypeError, r"^x: got dtype torch.int64.*expected floating point"),
        (nn.Sequential(OwnLinear(6, 2)), X[:, :5], {}, ValueError, r"layer 0 \(OwnLinear\) expects 6 features and is"),
        (Wrapping(), X[:, :5], {}, ValueError, r"layer layer .*expects 6 features .*\(5,\): no such features$"),
        (Convolving(), normal(20, 3, 5, 5), {}, ValueError, r"^x: .*layer body\.0 \(Conv2d\) expects 1 channel and"),
        (embedding(), normal(20, 3), {}, TypeError, "^x: got dtype torch.float32.*expected integers"),
        (embedding(), torch.full((20, 3), 10), {}, ValueError, "^x: the module fails on it.*index out of range"),
        (Single(), X, {}, ValueError, r"^net: Single runs on x .*in torch.float32, but not in torch.float64"),
        (Decided(lambda z: z.argmax(1)), X, {}, ValueError, "^net: Decided returns integers .*expected floating-point"),
        (Decided(lambda z: z > 0), X, {}, ValueError, "^net: Decided returns truth values .*expected floating-point"),
        (Doubling(), X, {}, ValueError, "^net: Doubling cannot be differentiated: .*modified by an inplace operation"),
        (batch_statistics(), X, {}, ValueError, r"^net: Sequential runs on several .*not on one alone.*\(batch norm"),
        (Several(), X, {}, ValueError, "^net: Several runs .*expected a function of one sample: AssertionError$"),
        (perceptron(), X[:1].repeat(30, 1), {}, ValueError, "^x: got 30 equal samples.*spread of the outputs is 0"),
        (perceptron(), X, {"held_out": X[:1]}, ValueError, r"^held_out: got 1 sample\(s\), expected at least 8"),
        (perceptron(), X, {"held_out": X[:1].repeat(20, 1)}, ValueError, "^held_out: the spread.* 20 samples.*is 0"),
        (perceptron(), X, {"held_out": X * torch.nan}, ValueError, "^held_out: got NaN"),
        (perceptron(), X, {"held_out": (9 * X).long()}, TypeError, "^held_out: got dtype torch.int64"),
        (perceptron(), X, {"tol": 1.0}, ValueError, "^tol: got 1, expected 0 < tol < 1"),
        (perceptron(), X, {"tol": 2}, ValueError, "^tol: got 2, expected"),
        (of_tokens(), X, {"y": LABELS}, ValueError, AT_POSITIONS),
        (perceptron(), X, {"y": LABELS + 1}, ValueError, "^y: got class indices from 1 to 3, .*from 0 to 2$"),
        (perceptron(), X, {"y": LABELS, "held_out": (X, LABELS + 2)}, ValueError, r"^held_out\[1\]: got .*from 2 to 4"),
        (perceptron(), X, {"y": LABELS, "held_out": (X[:, :2], LABELS)}, ValueError, "^held_out: got samples of shape"),
        (perceptron(), X, {"y": LABELS, "held_out": (X / 0, LABELS)}, ValueError, r"^held_out\[0\]: got NaN"),
        (perceptron(), pd.DataFrame({"a": [1.0] * 9, "b": ["u"] * 9}), {}, TypeError, r"^x: .*no numbers: b \("),
        (perceptron(), pd.DataFrame({"a": [1.0] * 9 + [None]}), {}, ValueError, "^x: got a DataFrame with missing"),
        (perceptron(), X, {"y": pd.Series(["u"] * 40)}, TypeError, "^y: got a Series with columns that are no"),
        (perceptron(), X, {"y": pd.Series([1.0] * 40).to_numpy()}, TypeError, "^y: got ndarray .* float64"),
    ],
)  # fmt: skip
def test_it_is_refused_by_name_before_the_work(module, x, given, error, match, monkeypatch):
    def work(*_):
        raise AssertionError("work was done before the arguments were checked")

    monkeypatch.setattr(search, "_outcomes", work)
    with pytest.raises(error, match=match) as caught:
        compress(module, x, **given)
    assert "\n" not in str(caught.value)


def test_refusing_leaves_no_hooks():
    net = perceptron().train()
    with pytest.raises(ValueError, match="x: the module fails"):
        compress(net, X[:, :2])
    assert net.training
    assert not any(sub._forward_hooks or sub._forward_pre_hooks for sub in net.modules())


def test_a_table_is_taken_for_its_numbers():
    net = perceptron()
    frame = pd.DataFrame(X.numpy(), columns=list("abcdef"))
    y, held_out = pd.Series(LABELS.numpy()), (frame[:20], pd.Series(LABELS[:20].numpy()))
    found = compress(net, frame, tol=0.3, y=y, held_out=held_out, **QUICK)
    same = compress(net, X.double(), tol=0.3, y=LABELS, held_out=(X[:20].double(), LABELS[:20]), **QUICK)
    assert all(torch.equal(p, q) for p, q in zip(found.network.parameters(), same.network.parameters(), strict=True))
    assert found.certificate.held_out_accuracy == same.certificate.held_out_accuracy
    assert compress(net, frame, tol=0.3, held_out=frame[:8], **QUICK).certificate.held_out.samples == 8


def test_a_table_of_integers_stays_one():
    found = plain_array(pd.DataFrame({"a": [1, 2], "b": [3, 4]}, dtype="Int64"), "x")
    assert (found.dtype.kind, found.tolist()) == ("i", [[1, 3], [2, 4]])
    assert plain_array([1], "x") == [1]


def test_held_out_samples_of_a_share_vary_too():
    """Half of the samples reach nothing; where these alone are held out there is no spread."""
    net = nn.Sequential(nn.Linear(1, 1), nn.ReLU())
    with torch.no_grad():
        net[0].weight.fill_(1.0)
        net[0].bias.zero_()
    x = torch.linspace(1, 2, 20)[:, None]
    kept = torch.randperm(20, generator=torch.Generator().manual_seed(0))[:4]
    x[kept] *= -1
    with pytest.raises(ValueError, match="held_out: the spread of the outputs on the 4 samples held out is 0"):
        compress(net, x, **QUICK)


def test_a_module_that_is_constant_on_different_samples_is_fine():
    net = perceptron()
    with torch.no_grad():
        net[0].weight.zero_()
    found = compress(net, X, tol=0.1, **QUICK)
    assert found.certificate.on_x.relative < 1e-6
    assert "inf" not in str(found)


def test_a_foreign_file_is_refused_in_words(tmp_path):
    path = tmp_path / "other.safetensors"
    save_file({"w": torch.ones(2)}, path)
    with pytest.raises(
        ValueError,
        match=r"other\.safetensors is a safetensors file that bnrank did not write, expected a compressed network",
    ):
        store.load(path, result.KIND)


def test_classes_in_a_column_are_refused_with_the_expected_shape():
    x = normal(30, 6)
    with pytest.raises(ValueError, match=r"^y: got shape \(30, 1\), expected \(30,\), one class per sample"):
        compress(perceptron(), x, torch.zeros(30, 1, dtype=torch.long), **QUICK)


class Flat(nn.Module):
    """Returns a number for each of several positions of a sample, all in one row."""

    def __init__(self, kept):
        super().__init__()
        torch.manual_seed(0)
        self.body, self.kept = nn.Sequential(nn.Linear(8, 1), nn.Linear(1, 30), nn.ReLU(), nn.Linear(30, kept)), kept

    def forward(self, x):
        return self.body(x).reshape(-1, *[self.kept] * (self.kept > 1))


class Unflattened(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, x):
        return self.net(x).unflatten(0, (len(x), -1))


@pytest.mark.parametrize("kept", [1, 3])
def test_several_rows_for_each_sample_are_refused_with_advice_that_works(kept):
    net, x = Flat(kept), torch.randn(50, 7, 8)
    advice = (
        r"for 2 samples, expected \(N, ...\); for 7 rows for each sample, wrap net in a module that returns net\(x\)"
    )
    with pytest.raises(ValueError, match=advice):
        compress(net, x)
    small = compress(Unflattened(net), x, tol=0.1, **QUICK)
    assert small.certificate.met
    assert small.certificate.parameters < small.certificate.parameters_before
    assert bnrank.profile(Unflattened(net), x).sizes["layer"] == 3
