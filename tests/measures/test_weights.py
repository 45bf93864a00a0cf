"""Weights without code: every tensor is measured or listed with its reason."""

import functools
import math
import pickle
import re
import warnings
import zipfile

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn.utils import parametrizations, prune

import bnrank
import helpers
from bnrank._core import deadline
from bnrank.measures import describe, profile
from bnrank.measures import weights as tensors
from helpers import listed, values_of

normal = functools.partial(helpers.normal, dtype=torch.float32)


def notes(dataset):
    return (
        {} if "note" not in dataset.dims else dict(zip(dataset.note_name.values, dataset.note_note.values, strict=True))
    )


def svd(matrix):
    return np.linalg.svd(np.asarray(matrix.detach(), dtype=np.float64), compute_uv=False)


def tensor_of(name):
    """The tensor that holds a gate or a projection."""
    if found := re.fullmatch(r"(.*?)(?:(l\d+(?:_reverse)?)\.)(ih|hh)\.\w+", name):
        return f"{found[1]}weight_{found[3]}_{found[2]}"
    if found := re.fullmatch(r"(.*attention)\.[qkv]", name):
        return f"{found[1]}.in_proj_weight"
    return name


def accounted(dataset, state):
    """Every tensor is measured, in one or more parts, or listed, and none is both."""
    measured = {tensor_of(name) for name in values_of(dataset)}
    measured = {name if name in state else f"{name}.weight" for name in measured}
    assert not measured & set(listed(dataset))
    assert measured | set(listed(dataset)) == set(state)


class Mixed(nn.Module):
    """One of everything."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(11, 6)
        self.conv = nn.Conv2d(4, 6, 3, groups=2)
        self.up = nn.ConvTranspose1d(4, 6, 5)
        self.norm = nn.BatchNorm2d(6)
        self.lstm = nn.LSTM(6, 5, bidirectional=True)
        self.gru = nn.GRU(6, 5)
        self.attention = nn.MultiheadAttention(6, 2)
        self.act = nn.PReLU()
        self.head = nn.Linear(6, 11, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("mask", torch.ones(3, 3, dtype=torch.bool))
        self.register_buffer("nothing", torch.ones(0, 3))
        self.register_buffer("hidden", torch.ones(2, 3), persistent=False)  # no part of the state dict


def test_every_tensor_of_a_module_is_measured_or_listed():
    net = Mixed()
    ds = profile(net)
    accounted(ds, net.state_dict())
    found, reasons = values_of(ds), listed(ds)
    assert reasons["head.weight"] == "tied: the same tensor as embedding.weight, counted once"
    assert reasons["conv.bias"] == "bias"
    assert reasons["norm.weight"] == "scale of a normalization (BatchNorm2d)"
    assert reasons["norm.running_var"] == "running statistic of a normalization"
    assert reasons["norm.num_batches_tracked"] == "counter of batches"
    assert reasons["act.weight"] == "slopes of an activation (PReLU)"
    assert reasons["mask"].startswith("integers or truth values (bool)")
    assert reasons["nothing"] == "empty"
    kinds = dict(zip(ds.layer_name.values, ds.layer_kind.values, strict=True))
    assert (kinds["embedding"], kinds["conv"]) == ("embedding", "conv2d patches")
    np.testing.assert_allclose(found["embedding"], svd(net.embedding.weight), rtol=1e-12)
    halves = [svd(part.flatten(1)) for part in net.conv.weight.chunk(2)]
    np.testing.assert_allclose(found["conv"], -np.sort(-np.concatenate(halves)), rtol=1e-12)
    np.testing.assert_allclose(found["up"], svd(net.up.weight.transpose(0, 1).flatten(1)), rtol=1e-12)
    assert "gates" not in kinds
    for i, gate in enumerate(("input", "forget", "cell", "output")):
        rows = net.lstm.weight_ih_l0_reverse[5 * i : 5 * i + 5]
        np.testing.assert_allclose(found[f"lstm.l0_reverse.ih.{gate}"], svd(rows), rtol=1e-12)
    np.testing.assert_allclose(found["gru.l0.hh.new"], svd(net.gru.weight_hh_l0[10:]), rtol=1e-12)
    np.testing.assert_allclose(found["attention.k"], svd(net.attention.in_proj_weight[6:12]), rtol=1e-12)
    assert ds.attrs["entries_measured"] == sum(p.numel() for n, p in net.named_parameters() if p.ndim > 1)
    assert describe(ds)[0].startswith(f"{ds.attrs['tensors_measured']} of {ds.attrs['tensors']} tensors measured")


def test_a_state_dict_says_the_same_as_its_module_but_for_what_only_code_knows():
    net = Mixed()
    ds, with_code = profile(net.state_dict()), profile(net)
    accounted(ds, net.state_dict())
    assert list(values_of(with_code)) == list(values_of(ds))
    for name, row in values_of(ds).items():
        if name not in ("conv", "up"):  # groups, and the order of in and out
            np.testing.assert_array_equal(row, values_of(with_code)[name])
    assert listed(ds)["norm.weight"] == "scale of a normalization"
    assert "not the singular values of the convolution on images" in " ".join(notes(ds).values())
    assert "do not tell transposed or grouped convolutions" in " ".join(notes(ds).values())
    assert "transposed or grouped" not in " ".join(notes(with_code).values())


def test_gates_and_projections_have_the_names_that_they_have_with_samples():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm = nn.LSTM(4, 6, 2, bidirectional=True, batch_first=True)
            self.gru, self.rnn = nn.GRUCell(12, 6), nn.RNN(6, 6, batch_first=True)
            self.attention = nn.MultiheadAttention(6, 2, batch_first=True)

        def forward(self, x):
            h = self.rnn(self.gru(self.lstm(x)[0].mean(1))[:, None].expand(-1, 3, -1))[0]
            return self.attention(h, h, h)[0]

    torch.manual_seed(0)
    net = Net()
    without = set(values_of(profile(net.state_dict())))
    assert without == set(profile(net, normal(5, 4, 4)).layer_name.values)
    assert len(without) == 2 * 2 * 8 + 6 + 2 + 4


def test_columns_are_what_their_measures_say():
    a = torch.diag(torch.tensor([4.0, 2.0, 0.05, 1e-40]))
    ds = profile({"a": a, "b": torch.eye(3).double(), "c": torch.zeros(2, 2)}, atol=0.1, weight_rtol=0.6)
    assert ds.weight_rank.values.tolist() == [2, 3, 0]
    assert ds.weight_relative_rank.values.tolist() == [1, 3, 0]
    assert ds.full_rank.values.tolist() == [4, 3, 2]
    assert ds.stable_rank.values[:2] == pytest.approx([(16 + 4 + 0.05**2) / 16, 3])
    assert math.isnan(ds.stable_rank.values[2])
    shares = np.array([4, 2, 0.05]) / 6.05
    assert ds.entropy_rank.values == pytest.approx([math.exp(-(shares * np.log(shares)).sum()), 3, 0])
    assert ds.parameter_norm.values == pytest.approx([20.0025, 3, 0])
    assert ds.subnormals.values.tolist() == [1, 0, 0]
    assert all(ds[name].attrs["long_name"] for name in ds.data_vars)


def test_a_bilinear_layer_is_no_convolution():
    net = nn.ModuleDict({"a": nn.Linear(6, 8), "b": nn.Bilinear(8, 4, 5)})
    found = profile(net)
    assert found.layer_kind.values.tolist() == ["linear", "bilinear"]
    expected = np.linalg.svd(net["b"].weight.detach().double().numpy().reshape(5, 32), compute_uv=False)
    assert np.allclose(found.weight_singular_values.values[1, :5], expected)
    text = "\n".join(describe(found))
    assert "b.weight: as the matrix (out, in1 x in2) that maps products of an entry of each input" in text
    assert "convolution" not in text


def test_patches_are_the_covariance_of_the_outputs_for_white_noise():
    kernel = normal(5, 3, 3, 3)
    ds = profile({"conv.weight": kernel})
    x = helpers.normal(4000, 3, 3, 3, dtype=torch.float64)
    y = nn.functional.conv2d(x, kernel.double()).flatten(1)
    observed = torch.linalg.eigvalsh(y.T @ y / len(y)).flip(0)
    np.testing.assert_allclose(values_of(ds)["conv"] ** 2, observed, rtol=0.15)
    blocks = torch.fft.fft2(kernel.double(), (8, 8)).permute(2, 3, 0, 1)
    mean = (blocks @ blocks.mH).mean((0, 1)).real  # over frequencies, by Parseval
    np.testing.assert_allclose(values_of(ds)["conv"] ** 2, torch.linalg.eigvalsh(mean).flip(0), rtol=1e-12)


@pytest.mark.parametrize("shape", [(3000, 7), (7, 30_000), (40, 40), (1, 9)])
@pytest.mark.parametrize("gram", [False, True])
def test_blocks_of_rows_give_the_singular_values_of_the_whole(shape, gram, monkeypatch):
    monkeypatch.setattr(tensors, "ROWS", 64)
    matrix = normal(*shape)
    np.testing.assert_allclose(tensors.singular_values(matrix, gram), svd(matrix), rtol=1e-6 if gram else 1e-12)


def test_large_matrices_say_that_they_come_from_the_gram_matrix(monkeypatch):
    monkeypatch.setattr(tensors, "GRAM", 8)
    state = {"a": normal(20, 9), "b": normal(20, 8), "c": normal(20, 9).double()}
    ds = profile(state)
    assert [name for name, note in notes(ds).items() if "Gram" in note] == ["a"]
    np.testing.assert_allclose(values_of(ds)["a"], svd(state["a"]), rtol=1e-6)


@pytest.mark.parametrize(
    ("name", "shape", "parts", "note"),
    [
        ("h.0.attn.c_attn.weight", (4, 12), ["q", "k", "v"], "by its name"),  # GPT-2 stores (in, out)
        ("blocks.0.attn.qkv.weight", (12, 4), ["q", "k", "v"], "by its name"),
        ("a.to_qkv.weight", (12, 4, 1, 1), ["q", "k", "v"], "by its name"),
        ("a.qkv_proj.weight", (8, 4), None, "measured whole: fused"),  # grouped queries
        ("a.query_key_value.weight", (12, 4), None, "alternate by head"),
        ("pos_embed", (1, 5, 4), None, ""),
        ("mlp.experts.gate_proj", (3, 5, 4), [0, 1, 2], "stack of matrices"),
        ("rnn.weight_ih_l0", (12, 4), None, ""),  # without weight_hh no gates are known
    ],
)
def test_fused_and_stacked_tensors(name, shape, parts, note):
    tensor = normal(*shape)
    ds = profile({name: tensor})
    stem = name.removesuffix(".weight")
    whole = "rnn.l0.ih" if name.startswith("rnn") else stem
    named = [f"{name}[{part}]" if "experts" in name else f"{stem}.{part}" for part in parts or []]
    assert list(values_of(ds)) == (named or [whole])
    assert note in notes(ds).get(name, "")
    if "c_attn" in name:
        np.testing.assert_allclose(values_of(ds)[f"{stem}.v"], svd(tensor[:, 8:]), rtol=1e-12)


def test_an_lstm_with_a_projection_has_gates_of_its_hidden_size():
    net = nn.LSTM(3, 6, proj_size=2)
    ds = profile(net.state_dict())
    np.testing.assert_allclose(values_of(ds)["l0.hh.output"], svd(net.weight_hh_l0[18:]), rtol=1e-12)
    assert "l0.hr" in values_of(ds)


def test_weight_normalization_and_parametrizations_are_measured_as_the_weight_they_give():
    plain = nn.Linear(4, 5)
    old = nn.Sequential(nn.Linear(4, 5))
    with pytest.warns(FutureWarning):
        nn.utils.weight_norm(old[0])
    new = parametrizations.weight_norm(nn.Linear(4, 5))
    with torch.no_grad():
        old[0].weight_g.mul_(3), new.parametrizations.weight.original0.mul_(3)
    ds = profile(old.state_dict())
    np.testing.assert_allclose(values_of(ds)["0"], svd(3 * old[0].weight_v), rtol=1e-6)
    assert "multiplied into 0.weight" in listed(ds)["0.weight_g"]
    np.testing.assert_allclose(values_of(profile(new))["weight"], svd(new.weight), rtol=1e-6)
    without_code = values_of(profile(new.state_dict()))["weight"]
    np.testing.assert_allclose(without_code, svd(new.weight), rtol=1e-6)
    normed = parametrizations.spectral_norm(plain)
    state = {key: value.clone() for key, value in normed.state_dict().items()}
    assert profile(normed).weight_singular_values.values[0, 0] == pytest.approx(1, abs=0.2)
    assert all(torch.equal(value, state[key]) for key, value in normed.state_dict().items())  # its buffers learn
    assert normed.training


def masked(net, name="weight"):
    """Return the weight of a pruned module, computed by NumPy from what is stored."""
    return torch.tensor(getattr(net, f"{name}_orig").detach().numpy() * getattr(net, f"{name}_mask").numpy())


@pytest.mark.parametrize(
    ("net", "kind"),
    [
        (lambda: prune.random_unstructured(nn.Linear(6, 4), "weight", 0.5), "linear"),
        (lambda: prune.ln_structured(nn.Linear(6, 4), "weight", 2, n=2, dim=0), "linear"),
        (lambda: prune.l1_unstructured(nn.Conv2d(3, 5, 3), "weight", 0.6), "conv2d patches"),
        (lambda: prune.ln_structured(nn.Conv2d(3, 5, 3), "weight", 2, n=1, dim=0), "conv2d patches"),
    ],
)
def test_pruned_weights_are_measured_with_their_mask_in_modules_state_dicts_and_files(net, kind, tmp_path):
    net = prune.random_unstructured(net(), "bias", 0.5)
    state = {key: value.clone() for key, value in net.state_dict().items()}
    expected = svd(masked(net).flatten(1))
    save_file(state, tmp_path / "pruned.safetensors")
    for source in (net, state, tmp_path / "pruned.safetensors"):
        ds = profile(source)
        assert list(values_of(ds)) == ["weight"]
        np.testing.assert_allclose(values_of(ds)["weight"], expected, rtol=1e-6, atol=1e-7)
        assert (
            describe(ds)[0]
            == f"1 of 2 tensors measured, with {net.weight.numel()} of {net.weight.numel() + len(net.bias)} entries"
        )
        assert {"weight_mask", "bias_mask"} < set(listed(ds))
    assert profile(net).layer_kind.item() == kind
    assert profile(net).weight_singular_values.values[0].min() == pytest.approx(expected.min(), abs=1e-7)
    assert all(torch.equal(value, state[key]) for key, value in net.state_dict().items())
    with torch.no_grad():
        net.weight_orig.mul_(2)  # module.weight follows only when it runs
    np.testing.assert_allclose(values_of(profile(net))["weight"], 2 * expected, rtol=1e-6, atol=1e-7)


def test_pruned_gates_tied_modules_and_pruned_weight_normalization():
    lstm = prune.random_unstructured(nn.LSTM(3, 4), "weight_hh_l0", 0.5)
    for source in (lstm, lstm.state_dict()):
        found = values_of(profile(source))
        assert set(found) == {
            f"l0.{side}.{gate}" for side in ("ih", "hh") for gate in ("input", "forget", "cell", "output")
        }
        np.testing.assert_allclose(found["l0.hh.cell"], svd(masked(lstm, "weight_hh_l0")[8:12]), rtol=1e-6, atol=1e-7)
    layer = prune.random_unstructured(nn.Linear(4, 4), "weight", 0.5)
    ds = profile(nn.ModuleDict({"a": layer, "b": layer}))
    assert list(values_of(ds)) == ["a"]
    assert "tied" in listed(ds)["b.weight"]
    with pytest.warns(FutureWarning):
        layer = nn.utils.weight_norm(nn.Linear(5, 4))
    prune.random_unstructured(layer, "weight_v", 0.4)
    v = masked(layer, "weight_v").double()
    expected = svd(layer.weight_g.double() * v / v.norm(dim=1, keepdim=True))
    for source in (layer, layer.state_dict()):
        found = values_of(profile(source))
        assert list(found) == ["weight"]
        np.testing.assert_allclose(found["weight"], expected, rtol=1e-6)


@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
@pytest.mark.parametrize("wrap", [nn.utils.weight_norm, parametrizations.weight_norm])
def test_weight_normalization_by_one_norm_of_gates_and_of_transposed_convolutions(wrap):
    def scaled(net, name="weight"):
        g = getattr(net, f"{name}_g", None)
        g = net.parametrizations[name].original0 if g is None else g
        v = getattr(net, f"{name}_v", None)
        v = net.parametrizations[name].original1 if v is None else v
        with torch.no_grad():
            g.mul_(3)
            v.mul_(0.5)
        return g.detach().double(), v.detach().double()

    whole = wrap(nn.Linear(6, 4), dim=None)
    g, v = scaled(whole)
    for source in (whole, whole.state_dict()):
        found = values_of(profile(source))
        assert list(found) == ["weight"]
        np.testing.assert_allclose(found["weight"], svd(g * v / v.norm()), rtol=1e-6)
    lstm = wrap(nn.LSTM(3, 4), "weight_hh_l0")
    g, v = scaled(lstm, "weight_hh_l0")
    rows = g * v / v.norm(dim=1, keepdim=True)
    for source in (lstm, lstm.state_dict()):
        found = values_of(profile(source))
        assert len(found) == 8
        for i, gate in enumerate(("input", "forget", "cell", "output")):
            np.testing.assert_allclose(found[f"l0.hh.{gate}"], svd(rows[4 * i : 4 * i + 4]), rtol=1e-6)
    up = wrap(nn.ConvTranspose1d(3, 5, 2))
    g, v = scaled(up)
    kernel = (g * v / v.norm(dim=(1, 2), keepdim=True)).transpose(0, 1)  # stored as (in, out, taps)
    np.testing.assert_allclose(values_of(profile(up))["weight"], svd(kernel.flatten(1)), rtol=1e-6)


@pytest.mark.parametrize("wrap", [nn.utils.spectral_norm, parametrizations.spectral_norm])
@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (lambda: nn.Linear(6, 4), (9, 6)),
        (lambda: nn.Linear(5, 5), (9, 5)),
        (lambda: nn.Conv2d(3, 5, 3), (9, 3, 5, 5)),
        (lambda: nn.ConvTranspose1d(4, 6, 5), (9, 4, 7)),
        (lambda: nn.ConvTranspose1d(5, 5, 3), (9, 5, 7)),  # u fits both dimensions
    ],
)
def test_spectral_normalization_is_carried_out_in_modules_and_state_dicts(wrap, layer, shape):
    layer = layer()
    dim = int(isinstance(layer, nn.ConvTranspose1d))
    net = wrap(layer)
    with torch.no_grad():
        (net.weight_orig if wrap is nn.utils.spectral_norm else net.parametrizations.weight.original).mul_(3)
    for _ in range(2):
        net(normal(*shape))  # u and v learn
    state = {key: value.clone() for key, value in net.state_dict().items()}
    names = ("weight_orig", "weight_u", "weight_v")
    if wrap is parametrizations.spectral_norm:
        names = tuple(f"parametrizations.weight.{end}" for end in ("original", "0._u", "0._v"))
    w, u, v = (state[name].double().numpy() for name in names)
    effective = torch.tensor(w / (u @ np.moveaxis(w, dim, 0).reshape(len(u), -1) @ v))
    turned = effective.transpose(0, 1) if dim else effective
    for source, matrix in ((net, turned), (state, effective)):  # names do not say that a kernel is stored as (in, out)
        ds = profile(source)
        assert list(values_of(ds)) == ["weight"]
        np.testing.assert_allclose(values_of(ds)["weight"], svd(matrix.flatten(1)), rtol=1e-5)
        assert set(listed(ds)) - {"bias"} >= set(names[1:])
        assert describe(ds)[0].startswith("1 of 2 tensors measured")
    assert all(torch.equal(value, state[key]) for key, value in net.state_dict().items())
    assert net.training


def test_other_reparametrizations_are_listed_where_only_the_module_tells():
    class Symmetric(nn.Module):
        def forward(self, x):
            return x + x.mT

    custom = nn.Linear(4, 4)
    nn.utils.parametrize.register_parametrization(custom, "weight", Symmetric())
    twice = parametrizations.spectral_norm(parametrizations.weight_norm(nn.Linear(4, 4)))
    for net in (custom, parametrizations.orthogonal(nn.Linear(4, 4)), twice):
        ds = profile({"plain": torch.eye(3)} | dict(net.state_dict()))
        assert list(values_of(ds)) == ["plain"]
        reasons = {name: reason for name, reason in listed(ds).items() if name.startswith("parametrizations")}
        assert set(reasons) == {name for name in net.state_dict() if name.startswith("parametrizations")}
        for reason in reasons.values():
            assert (
                reason == "of a reparametrization of weight, which its tensors alone do not determine; give the module"
            )
        np.testing.assert_allclose(values_of(profile(net))["weight"], svd(net.eval().weight), rtol=1e-5)
    ds = profile({"plain": torch.eye(3), "a.weight_orig": torch.eye(3), "a.weight_u": torch.ones(3)})
    assert "do not determine" in listed(ds)["a.weight_orig"]
    stored = {"a.weight": torch.eye(3), "a.weight_orig": 2 * torch.eye(3), "a.weight_mask": torch.eye(3)}
    assert list(values_of(profile(stored))) == ["a"]


def test_what_cannot_be_measured_is_listed():
    state = {
        "ok": torch.eye(2),
        "nan": torch.tensor([[1.0, math.nan], [math.inf, 0.0]]),
        "meta": torch.ones(2, 2, device="meta"),
        "sparse": torch.eye(2).to_sparse(),
        "text": "text",
        "half": torch.eye(3).half(),
        "small": torch.eye(3).to(torch.float8_e4m3fn),
        "complex": torch.eye(2) * 1j,
        "six": torch.ones(1, 2, 1, 2, 1, 2),
        "scalar": torch.tensor(1.0),
        "layer_scale.gamma": torch.ones(1, 4, 1, 1),
        "int8.weight": torch.ones(2, 2, dtype=torch.int8),
    }
    ds = profile(state)
    accounted(ds, state)
    assert set(values_of(ds)) == {"ok", "half", "small", "complex"}
    reasons = listed(ds)
    assert reasons["nan"] == "2 of 4 entries are NaN or infinite"
    assert "quantized weights" in reasons["int8.weight"]
    assert reasons["text"] == "not a tensor (str)"
    assert reasons["layer_scale.gamma"] == "scale of a normalization"
    for wrong, message in (({}, "empty mapping"), ({"a": 3}, "without tensors"), ({"a": torch.ones(2)}, "no matrix")):
        with pytest.raises((ValueError, TypeError), match=rf"net: .*{message}"):
            profile(wrong)


def test_matrices_and_kernels_of_integers_count_as_left_out(tmp_path):
    state = {
        "a.weight": torch.ones(5, 7, dtype=torch.int8),
        "b.weight": normal(5, 7),
        "b.bias": normal(5),
        "c.weight": torch.ones(4, 3, 3, 3, dtype=torch.uint8),
        "packed.qweight": torch.ones(2, 6, dtype=torch.int32),
        "positions": torch.ones(3, 3, dtype=torch.int64),
        "ids": torch.arange(50)[None],  # a vector
        "causal": torch.ones(9, 9, dtype=torch.bool),
        "steps": torch.tensor(3),
    }
    save_file(state, tmp_path / "int.safetensors")
    entries = sum(value.numel() for key, value in state.items() if key not in ("positions", "ids", "causal", "steps"))
    for source in (state, tmp_path / "int.safetensors"):
        ds = profile(source)
        assert list(values_of(ds)) == ["b"]
        assert describe(ds)[0] == f"1 of 9 tensors measured, with 35 of {entries} entries"
        reasons = listed(ds)
        assert reasons["packed.qweight"].startswith("of the packed weights packed.qweight")
        for name, dtype in (("a.weight", "int8"), ("c.weight", "uint8")):
            assert reasons[name].startswith(f"integers ({dtype}), probably quantized weights")
        assert {reasons[name] for name in ("positions", "ids", "steps")} == {"integers or truth values (int64)"}
        assert reasons["causal"] == "integers or truth values (bool)"
    quantized = torch.quantize_per_tensor(normal(5, 7), 0.1, 0, torch.qint8)
    ds = profile({"a": quantized, "b": normal(5, 7)})
    assert ds.attrs["entries"] == 70
    assert notes(ds)["a"] == "dequantized from qint8"
    np.testing.assert_allclose(values_of(ds)["a"], svd(quantized.dequantize()), rtol=1e-12)


def test_a_checkpoint_counts_its_tensors_and_keeps_layers_whose_names_resemble_those_of_a_training():
    layers = {"downsample": {"weight": torch.eye(3)}, "sampler": {"weight": torch.eye(4)}, "blocks": [torch.eye(2)]}
    training = {
        "optimizer_states": [{"m": torch.eye(5)}],
        "lr_scheduler": {"lr": torch.ones(2, 2)},
        "scaler": {"scale": torch.ones(2, 2)},
        "amp": {"x": torch.eye(2)},
    }
    ds = profile({**layers, **training, "epoch": 3, "rates": [0.1]})
    assert {name: len(values) for name, values in values_of(ds).items()} == {
        "downsample": 3,
        "sampler": 4,
        "blocks.0": 2,
    }
    assert set(listed(ds)) == {*training, "epoch", "rates"}
    assert describe(ds)[0] == "3 of 3 tensors measured, with 29 of 29 entries"


def test_the_time_budget_leaves_the_most_expensive_tensors(monkeypatch):
    clock = iter([0.0, 1.0, 59.0, 61.0, 62.0])
    monkeypatch.setattr(deadline.time, "monotonic", lambda: next(clock))
    ds = profile(
        {"large": normal(9, 9), "small": normal(2, 2), "middle": normal(4, 4), "wide": normal(5, 9)}, max_minutes=1
    )
    assert list(values_of(ds)) == ["small", "middle"]
    assert listed(ds) == dict.fromkeys(("large", "wide"), "not reached within max_minutes=1")


def test_files_say_the_same_as_the_state_dict(tmp_path):
    net = nn.Sequential(nn.LSTM(3, 4), nn.Linear(4, 2), nn.BatchNorm1d(2))
    state = net.state_dict()
    save_file(state, tmp_path / "a.safetensors")
    torch.save(state, tmp_path / "b.pt")
    torch.save(state, tmp_path / "c.pth", _use_new_zipfile_serialization=False)
    torch.save({"epoch": 3, "model": state, "optimizer": {"state": {0: torch.ones(3, 3)}}}, tmp_path / "d.ckpt")
    torch.jit.script(net[1]).save(tmp_path / "e.pt")
    expected = values_of(profile(state))
    for name in ("a.safetensors", "b.pt", "c.pth", "d.ckpt"):
        prefix = "model." if name == "d.ckpt" else ""
        found = values_of(profile(tmp_path / name))
        assert found.keys() == {f"{prefix}{key}" for key in expected}, name
        for key, row in expected.items():
            np.testing.assert_array_equal(found[f"{prefix}{key}"], row)
    assert listed(profile(tmp_path / "d.ckpt"))["optimizer"] == "state of the training, 1 tensors, not of the network"
    np.testing.assert_array_equal(values_of(profile(tmp_path / "e.pt"))["weight"], expected["1"])
    page = bnrank.report(profile(str(tmp_path / "b.pt")), tmp_path / "page.html").read_text()
    assert "tensors measured, with" in page
    assert "running statistic of a normalization" in page


def test_scripted_modules_are_read_without_running_their_code(tmp_path):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Conv1d(2, 3, 4), nn.ReLU())
            self.head = nn.Linear(3, 2)
            self.register_buffer("table", torch.arange(6.0).reshape(2, 3).T)

        def forward(self, x):
            return self.head(self.body(x).mean(-1) @ self.table @ self.table.T)

    net = Net()
    torch.jit.script(net).save(tmp_path / "n.pt")
    ds = profile(tmp_path / "n.pt")
    accounted(ds, net.state_dict())
    np.testing.assert_allclose(values_of(ds)["table"], svd(net.table), rtol=1e-12)
    np.testing.assert_array_equal(values_of(ds)["head"], values_of(profile(net))["head"])
    with zipfile.ZipFile(tmp_path / "n.pt") as archive, zipfile.ZipFile(tmp_path / "evil.pt", "w") as changed:
        for item in archive.namelist():
            evil = pickle.dumps(Evil(tmp_path / "ran")) if item.endswith("/data.pkl") else archive.read(item)
            changed.writestr(item, evil)
    with pytest.raises(ValueError, match="net: "):
        profile(tmp_path / "evil.pt")
    assert not (tmp_path / "ran").exists()


class Evil:
    """A pickle that writes a file when it is opened."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return exec, (f"open({str(self.path)!r}, 'w')",)


def test_files_that_are_refused_say_why_and_run_nothing(tmp_path):
    torch.save({"a": Evil(tmp_path / "ran")}, tmp_path / "evil.pt")
    torch.save(nn.Linear(2, 2), tmp_path / "module.pt")
    save_file({"a": torch.eye(300)}, tmp_path / "cut.safetensors")
    (tmp_path / "cut.safetensors").write_bytes((tmp_path / "cut.safetensors").read_bytes()[:-9])
    (tmp_path / "junk.pt").write_bytes(b"junk")
    torch.save(3, tmp_path / "number.pt")
    (tmp_path / "data.csv").write_text("1\n")
    for name, message in (
        ("evil.pt", "holds more than tensors"),
        ("module.pt", r"more than tensors \(torch\.nn\.modules\.linear\.Linear\)\. .*torch.save\(model.state_dict"),
        ("cut.safetensors", "damaged"),
        ("junk.pt", "no file of torch.save"),
        ("number.pt", r"holds 3 \(int\), expected a state dict"),
        ("data.csv", "expected a file of weights, one ending in .safetensors, .onnx"),
        ("none.pt", "expected a file that exists"),
    ):
        with pytest.raises(ValueError, match=f"(?s)net: .*{message}"):
            profile(tmp_path / name)
    assert not (tmp_path / "ran").exists()
    with pytest.raises(ValueError, match="y: got targets without x"):
        profile({"a": torch.eye(2)}, y=torch.ones(2))
    with pytest.raises(ValueError, match=r"net: a state dict is not a plain chain of linear layers"):
        profile({"a": torch.eye(2)}, torch.ones(2, 2))
    with pytest.raises(ValueError, match="weight_rtol: got"):
        profile({"a": torch.eye(2)}, weight_rtol=-1.0)
    with pytest.raises(TypeError, match="net: got 3"):
        profile(3)


def test_onnx_files_say_what_uses_a_tensor(tmp_path):
    onnx = pytest.importorskip("onnx")
    arrays = {
        "kernel": normal(4, 1, 3).numpy(),
        "matrix": normal(6, 5).numpy(),
        "turned": normal(6, 5).numpy(),
        "shift": normal(1, 5).numpy(),
        "W": normal(2, 16, 3).numpy(),
        "R": normal(2, 16, 4).numpy(),
        "shape": np.array([1, 2]),
        "inner": normal(5, 5).numpy(),
    }
    make = onnx.helper.make_node
    constant = onnx.numpy_helper.from_array(arrays["inner"], "inner")
    branch = [make("Constant", [], ["inner"], value=constant), make("MatMul", ["d", "inner"], ["e"])]
    out = onnx.helper.make_tensor_value_info("e", onnx.TensorProto.FLOAT, None)
    graph = onnx.helper.make_graph(branch, "branch", [], [out])
    nodes = [
        make("Conv", ["x", "kernel"], ["a"], group=4),
        make("MatMul", ["a", "matrix"], ["b"]),
        make("Identity", ["turned"], ["same"]),
        make("Gather", ["same", "x"], ["c"]),
        make("Add", ["b", "shift"], ["d"]),
        make("LSTM", ["x", "W", "R"], ["h"], hidden_size=4, direction="bidirectional"),
        make("If", ["x"], ["f"], name="If", then_branch=graph, else_branch=graph),
    ]
    held = [onnx.numpy_helper.from_array(array, name) for name, array in arrays.items() if name != "inner"]
    whole = onnx.helper.make_graph(nodes, "net", [], [out], initializer=held)
    onnx.save(onnx.helper.make_model(whole), tmp_path / "net.onnx")
    ds = profile(tmp_path / "net.onnx")
    found, kinds = values_of(ds), dict(zip(ds.layer_name.values, ds.layer_kind.values, strict=True))
    assert kinds["kernel"] == "conv1d patches"
    np.testing.assert_allclose(found["kernel"], -np.sort(-np.linalg.norm(arrays["kernel"], axis=(1, 2))), rtol=1e-6)
    assert (kinds["matrix"], kinds["turned"]) == ("linear", "embedding")
    np.testing.assert_allclose(found["W[backward][output]"], svd(torch.tensor(arrays["W"][1, 4:8])), rtol=1e-6)
    assert len([name for name in found if name.startswith("R[")]) == 8
    assert {name for name in found if name.endswith("inner")} == {"If.then_branch.inner", "If.else_branch.inner"}
    assert listed(ds) == {"shift": "a vector, used by Add", "shape": "integers or truth values (int64)"}
    (tmp_path / "cut.onnx").write_bytes(b"\xff\xff\xff\xff")
    with pytest.raises(ValueError, match=r"net: .*damaged or not an ONNX file"):
        profile(tmp_path / "cut.onnx")


@pytest.mark.parametrize("left", [None, b"cut"])
def test_onnx_files_whose_external_data_is_missing_or_cut_are_refused(tmp_path, left):
    onnx = pytest.importorskip("onnx")
    node = onnx.helper.make_node("MatMul", ["x", "w"], ["y"])
    values = [onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, None) for n in "xy"]
    held = [onnx.numpy_helper.from_array(np.ones((5, 8), np.float32), "w")]
    model = onnx.helper.make_model(onnx.helper.make_graph([node], "net", values[:1], values[1:], initializer=held))
    path, data = tmp_path / "net.onnx", tmp_path / "net.data"
    onnx.save_model(model, str(path), save_as_external_data=True, location=data.name, size_threshold=0)
    assert profile(path).weight_rank.values.tolist() == [1]
    data.unlink()
    if left is not None:
        data.write_bytes(left)
    with pytest.raises(ValueError, match=r"^net: .*net\.onnx: 'w' in 'net\.data' beside it cannot be read: "):
        profile(path)


def test_onnx_files_without_the_package_say_what_to_install(tmp_path, monkeypatch):
    (tmp_path / "net.onnx").write_bytes(b"any")
    monkeypatch.setitem(__import__("sys").modules, "onnx", None)
    with pytest.raises(ValueError, match=r"net: got .* which needs the package onnx: pip install onnx"):
        profile(tmp_path / "net.onnx")


def test_entries_of_tied_tensors_are_counted_once(tmp_path):
    net = nn.ModuleDict({"embedding": nn.Embedding(30, 6), "head": nn.Linear(6, 30), "other": nn.Linear(6, 30)})
    net["head"].weight, net["other"].bias = net["embedding"].weight, net["head"].bias
    torch.save(net.state_dict(), tmp_path / "net.pt")
    for source in (net, net.state_dict(), tmp_path / "net.pt"):
        ds = profile(source)
        assert (ds.attrs["entries"], ds.attrs["entries_measured"]) == (2 * 30 * 6 + 30, 2 * 30 * 6)
        assert listed(ds)["head.weight"] == "tied: the same tensor as embedding.weight, counted once"
        assert describe(ds)[0] == "2 of 3 tensors measured, with 360 of 390 entries"


def test_all_of_a_tied_network_is_measured_once():
    net = nn.Sequential(nn.Embedding(30, 6), nn.Linear(6, 30, bias=False))
    net[1].weight = net[0].weight
    ds = profile(net)
    lines = ["1 of 1 tensors measured, with 180 of 180 entries"]
    assert describe(ds) == [
        *lines,
        "not measured: tied: the same tensor as another, counted once (1.weight = 0.weight)",
    ]
    w, v = torch.eye(2), torch.eye(3)
    state = {"w": w, "v": v, "a": w, "b": v, "c": v}
    assert describe(profile(state))[1].endswith(
        "3 x tied: the same tensor as another, counted once (a = w, b = v and 1 others)"
    )
    assert ds.attrs["entries"] == sum(p.numel() for p in net.parameters())


def test_names_with_any_characters_are_read_as_reparametrized_and_nested_tensors_are_listed():
    state = {"enc/w_orig": 2 * torch.ones(3, 3), "enc/w_mask": torch.eye(3)}
    found = profile(state)
    assert found.layer_name.values.tolist() == ["enc/w"]
    assert found.weight_rank.values.tolist() == [3]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that nested tensors are a prototype
        nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    lines = describe(profile({"w": torch.eye(3), "n": nested}))
    assert "not measured: nested; torch.nested.to_padded_tensor makes it measurable (n)" in lines


@pytest.mark.parametrize("shape", [(12, 6), (6, 12), (6, 6)])
def test_groups_of_large_kernels_have_the_values_of_each(shape, monkeypatch):
    torch.manual_seed(0)
    out, inputs = shape
    layer = nn.Conv1d(2 * inputs, 2 * out, 1, groups=2)
    monkeypatch.setattr(tensors, "GRAM", 2)
    found = profile(layer).weight_singular_values.values[0]
    expected = torch.linalg.svdvals(layer.weight.detach().double().reshape(2, out, inputs)).flatten()
    assert np.allclose(found, expected.sort(descending=True).values)
