import math

import numpy as np
import pytest
import torch
from torch import nn

import bnrank
from bnrank.measures import describe, spectra
from bnrank.networks import capture, read
from networks.zoo import ZOO, Attention, Taggers, Tied, Transposed, TwoInputs, made, numbers, tokens
from oracles import float64


def values(net, x, chunk_size=4096):
    reading = read(net, x)
    parts = list(capture(net, x, reading, chunk_size))
    columns = {
        key: [torch.cat(pieces) for pieces in zip(*(getattr(part, key) for part in parts), strict=True)]
        for key in ("inputs", "preactivations", "activations")
    }
    return {layer.name: tuple(columns[key][i] for key in columns) for i, layer in enumerate(reading.layers)}


@pytest.mark.parametrize("name", ZOO)
@pytest.mark.parametrize("example", [True, False])
def test_every_parameter_is_measured_or_has_a_reason(name, example):
    net, x = made(name)
    reading = read(net, x if example else None)
    held, parameters = reading.listing, dict(net.named_parameters())
    why = {other.name: other.reason for other in held.others if other.name not in held.measured}
    for key, parameter in parameters.items():
        computed = next(s.into for s in held.records if s.name == key) or key
        assert (computed in held.measured) != bool(why.get(computed)), key
        layers = [layer for layer in reading.weights if layer.name in held.measured.get(key, ())]
        pieces = [layer.weight if layer.matrix.tensor == key else layer.bias for layer in layers]
        turned = any(layer.matrix.is_turned for layer in layers)
        for piece in pieces:
            own = parameter.T if turned and piece.ndim == 2 else parameter
            assert piece.data_ptr() in {row.data_ptr() for row in own}  # a part of this parameter
        if pieces and "bias" not in key:
            assert sum(map(torch.numel, pieces)) == parameter.numel()  # all of it, once
    into = {stored.name: stored.into for stored in held.records}
    assert not [key for key in why if key in parameters and not into[key] and parameters[key].squeeze().ndim == 2]


@pytest.mark.parametrize("name", ZOO)
def test_every_module_has_a_profile_and_is_left_unchanged(name):
    net, x = made(name)
    net.train()
    state = {key: value.clone() for key, value in net.state_dict().items()}
    ds = bnrank.profile(net, x, max_jacobian_samples=1)
    assert [n for n in ds.layer_name.values] == [layer.name for layer in read(net, x).weights]
    assert np.isfinite(ds.weight_singular_values.values[:, 0]).all()
    assert all(torch.equal(state[key], value) for key, value in net.state_dict().items())
    assert all(part.training for part in net.modules())
    assert not any(part._forward_hooks for part in net.modules())


@pytest.mark.parametrize("name", ZOO)
def test_blocks_of_samples_give_the_same_values(name):
    net, x = made(name)
    if not read(net, x).layers:
        return
    whole, parts = values(net, x), values(net, x, chunk_size=4)
    for key, expected in whole.items():
        for a, b in zip(parts[key], expected, strict=True):
            assert torch.allclose(a.double(), b.double(), atol=1e-12)


def states(rnn, x):
    """Return the hidden states of every layer and direction, step by step, (N, time, h), and the gates' values."""
    cell = {"LSTM": "i f g o", "GRU": "r z n", "RNN_TANH": "h", "RNN_RELU": "h"}[rnn.mode].split()
    found, gates = {}, {}
    for layer in range(rnn.num_layers):
        outs = []
        for end in ("", "_reverse") if rnn.bidirectional else ("",):
            wi, wh, bi, bh = (
                getattr(rnn, f"{p}_l{layer}{end}") for p in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
            )
            h = c = x.new_zeros(len(x), rnn.hidden_size)
            steps, before, rows = range(x.shape[1]), [], []
            for t in reversed(steps) if end else steps:
                a, b = (x[:, t] @ wi.T + bi).chunk(len(cell), 1), (h @ wh.T + bh).chunk(len(cell), 1)
                before.append(h)
                if rnn.mode == "LSTM":
                    i, f, g, o = (p + q for p, q in zip(a, b, strict=True))
                    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
                    h = o.sigmoid() * c.tanh()
                elif rnn.mode == "GRU":
                    r, z = ((a[i] + b[i]).sigmoid() for i in range(2))
                    h = (1 - z) * (a[2] + r * b[2]).tanh() + z * h
                else:
                    h = torch.relu(a[0] + b[0]) if rnn.mode == "RNN_RELU" else (a[0] + b[0]).tanh()
                rows.append((h, a, b))
            rows, before = (rows[::-1], before[::-1]) if end else (rows, before)
            out = torch.stack([row[0] for row in rows], 1)
            outs.append(out)
            found[f"l{layer}{end}"] = out
            for side, k in (("ih", 1), ("hh", 2)):
                for i in range(len(cell)):
                    after = torch.stack([row[k][i] for row in rows], 1)
                    gates[f"l{layer}{end}.{side}", i] = (x if k == 1 else torch.stack(before, 1)), after, out
        x = torch.cat(outs, -1)
    return found, gates


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("first", [True, False])
def test_the_values_of_gates_are_those_of_a_loop_over_time(kind, first):
    torch.manual_seed(0)
    net = Taggers(kind, num_layers=2, bidirectional=True, batch_first=first)
    x = tokens(5, 4)
    found, rnn = values(net, x), float64(net).rnn
    embedded = float64(net).embed(x)
    _, gates = states(rnn, embedded)
    names = {nn.LSTM: ("input", "forget", "cell", "output"), nn.GRU: ("reset", "update", "new"), nn.RNN: ("",)}[kind]
    for (place, i), expected in gates.items():
        key = f"rnn.{place}.{names[i]}".rstrip(".")
        for a, b in zip(found[key], expected, strict=True):
            assert torch.allclose(a, b, atol=1e-12), key
    last = torch.cat([gates["l1.ih", 0][2], gates["l1_reverse.ih", 0][2]], -1)
    assert torch.allclose(found["head"][0], last[:, -1])


def test_a_recurrent_layer_by_itself_takes_time_first_as_torch_does():
    torch.manual_seed(0)
    net, x = nn.LSTM(4, 3), numbers(7, 5, 4)  # 5 samples of 7 steps
    other = nn.LSTM(4, 3, batch_first=True)
    other.load_state_dict(net.state_dict())
    a, b = bnrank.profile(net, x), bnrank.profile(other, x.transpose(0, 1))
    assert a.attrs["samples"] == b.attrs["samples"] == 5
    for name in ("weight_singular_values", "activation_singular_values", "parameter_norm"):
        width = min(a[name].shape[-1], b[name].shape[-1])
        assert np.allclose(a[name].values[..., :width], b[name].values[..., :width], equal_nan=True)
    states = other.double()(x.double().transpose(0, 1))[0].flatten(1) / math.sqrt(5)
    assert np.allclose(a.activation_singular_values[0][:5], torch.linalg.svdvals(states).detach())
    with pytest.raises(TypeError, match=r"x: got .time, N, features."):
        bnrank.Jacobian(net, x)


def attended(part, x, mask=None, context=None):
    """Return the heads side by side and what the layer returns, from the definition."""
    context = x if context is None else context
    q, k, v = (
        value @ w.T + b
        for value, w, b in zip(
            (x, context, context), part.in_proj_weight.chunk(3), part.in_proj_bias.chunk(3), strict=True
        )
    )
    heads = []
    for rows in torch.arange(q.shape[-1]).chunk(part.num_heads):
        scores = q[..., rows] @ k[..., rows].mT / math.sqrt(len(rows))
        scores = scores if mask is None else scores.masked_fill(mask[:, None, :], -math.inf)
        heads.append(scores.softmax(-1) @ v[..., rows])
    joined = torch.cat(heads, -1)
    return joined, joined @ part.out_proj.weight.T + part.out_proj.bias, q


@pytest.mark.parametrize("first", [True, False])
def test_the_heads_that_enter_the_output_projection_are_those_of_the_definition(first):
    torch.manual_seed(0)
    net = nn.TransformerEncoder(nn.TransformerEncoderLayer(6, 2, 8, batch_first=first), 2)
    x, mask = numbers(5, 4, 6), torch.arange(4)[None] >= torch.tensor([4, 4, 3, 2, 1])[:, None]
    given = {"src": x, "src_key_padding_mask": mask} if first else x.transpose(0, 1)
    found = values(net.eval(), given)
    layer = float64(net).layers[0].self_attn
    joined, out, q = attended(layer, x.double(), mask if first else None)
    assert torch.allclose(found["layers.0.self_attn.out_proj"][0], joined)
    assert torch.allclose(found["layers.0.self_attn.out_proj"][1], out)
    assert torch.allclose(found["layers.0.self_attn.q"][2], q)
    assert len(found) == 12  # of both layers: nothing is passed by a fast path


def test_a_transformer_in_eval_mode_is_observed_though_torch_would_take_its_fast_path():
    torch.manual_seed(0)
    net, x = nn.TransformerEncoder(nn.TransformerEncoderLayer(6, 2, 8, batch_first=True), 1).eval(), numbers(4, 3, 6)
    before = torch.backends.mha.get_fastpath_enabled()
    assert [layer.name for layer in read(net, x).layers][-2:] == ["layers.0.linear1", "layers.0.linear2"]
    assert torch.backends.mha.get_fastpath_enabled() is before


def test_fused_projections_are_three_layers_and_their_outputs_stand_apart():
    torch.manual_seed(0)
    for net, x in ((Attention(), numbers(6, 5, 6)), (Transposed(4, 12), numbers(6, 5, 4))):
        if isinstance(net, Transposed):
            net = nn.Sequential()
            net.c_attn = Transposed(4, 12)
        whole = net.c_attn.weight.T if hasattr(net, "c_attn") else net.qkv.weight
        reading, found = read(net, x), values(net, x)
        thirds = whole.chunk(3)
        for layer, third in zip(reading.layers[:3], thirds, strict=True):
            assert torch.equal(layer.weight, third)
            assert layer.name.rpartition(".")[2] in "qkv"
            given, after, activation = found[layer.name]
            assert torch.allclose(after, given @ third.double().T + layer.bias.double())
            assert torch.equal(after, activation)


def test_a_layer_that_the_next_one_does_not_read_has_its_own_output_as_activations():
    class Residual(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c, self.d = (nn.Linear(3, 3) for _ in range(4))
            self.norm = nn.LayerNorm(3)

        def forward(self, x):
            h = self.norm(x)
            left = self.a(x)
            return self.d(torch.relu(self.c(torch.relu(left))) + self.b(h))

    torch.manual_seed(0)
    net, x = Residual(), numbers(5, 3)
    reading, found = read(net, x), values(net, x)
    assert {layer.name: layer.apart for layer in reading.layers} == {"a": False, "c": True, "b": False, "d": False}
    assert torch.equal(found["c"][2], found["c"][1])  # b reads the normalized input
    assert torch.equal(found["a"][2], found["a"][1].relu())
    assert np.isnan(bnrank.nonlinearity(net, x)["c"])


def test_weights_of_parametrized_layers_are_the_effective_ones():
    net, x = made("effective")
    net.train()
    buffers = {key: value.clone() for key, value in net.state_dict().items()}
    found = spectra.weight_singular_values(net, x)
    copied = net.eval()
    with torch.no_grad():
        copied(x)  # computes the weights of the older ones
    assert set(found) == {"0", "2", "3", "4", "5"}
    for name in "2345":
        expected = torch.linalg.svdvals(copied[int(name)].weight.detach().double())
        assert torch.allclose(found[name], expected, atol=1e-6)
    assert torch.allclose(found["3"], torch.ones(5, dtype=torch.float64), atol=1e-6)
    assert all(torch.equal(buffers[key], value) for key, value in net.state_dict().items())


class Averaging(nn.Module):
    """A parametrization that keeps a moving average, in eval mode, too."""

    def __init__(self):
        super().__init__()
        self.register_buffer("size", torch.zeros(()))

    def forward(self, weight):
        self.size = self.size * 0.9 + 0.1 * weight.detach().abs().max()
        return weight + self.size


def test_moving_averages_of_parametrizations_do_not_change():
    net = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2))
    nn.utils.parametrize.register_parametrization(net[0], "weight", Averaging())
    size = net[0].parametrizations.weight[0].size
    expected, version = size.clone(), size._version
    bnrank.profile(net, torch.randn(20, 4))
    bnrank.profile(net)
    bnrank.compare(net, net, torch.randn(20, 4))
    assert net[0].parametrizations.weight[0].size is size
    assert torch.equal(size, expected)
    assert size._version == version


def test_tied_weights_are_measured_once():
    net, x = made("tied")
    reading = read(net, x)
    assert [layer.name for layer in reading.weights].count("embed") == 1
    assert "head" not in [layer.name for layer in reading.weights]
    assert "the same tensor as embed.weight" in next(s.reason for s in reading.skipped if s.name == "head")
    ds = bnrank.profile(net, x)
    total = sum(float(p.detach().double().square().sum()) for p in net.parameters())
    assert float(ds.parameter_norm.sum()) == pytest.approx(total)
    assert any(line.startswith("embed: only its weight") for line in describe(ds))


def test_outputs_and_inputs_of_every_form_give_what_a_wrapped_module_gives():
    class Wrapped(nn.Module):
        def __init__(self, net):
            super().__init__()
            self.net = net

        def forward(self, x):
            return self.net(x[:, :3], x[:, 3:])["last_hidden_state"]

    torch.manual_seed(0)
    net, x = TwoInputs(), numbers(6, 5)
    expected = bnrank.profile(Wrapped(net), x, numbers(6, 4))
    for given in (
        (x[:, :3], x[:, 3:]),
        {"a": x[:, :3], "b": x[:, 3:].numpy()},
        [x[:, :3], x[:, 3:]],
    ):
        ds = bnrank.profile(net, given, numbers(6, 4))
        assert float(ds.cost) == pytest.approx(float(expected.cost))
        assert np.allclose(ds.activation_singular_values, expected.activation_singular_values[:, : ds.sizes["index"]])
        assert any("x is several tensors" in line for line in describe(ds))
    net, x = Tied(), tokens(6, 5)
    (part,) = capture(net, x)
    assert torch.allclose(part.output, float64(net)(x).logits)


def test_scripted_parts_are_listed_with_what_to_do():
    plain, x = nn.Sequential(nn.Linear(4, 4)), numbers(60, 4)
    for made_ in (torch.jit.script(plain), torch.jit.trace(plain, torch.ones(1, 4))):
        net = nn.Sequential(nn.Linear(4, 4), made_, nn.Linear(4, 2))
        for reading in (read(net), read(net, x)):
            assert [layer.name for layer in reading.layers] == ["0", "2"]
            (part,) = reading.skipped
            assert part.name == "1.0"
            assert "give the module that it was made from" in part.reason
        ds = bnrank.profile(net, x)
        assert ds["units"].values.tolist()[:2] == [4, 2]
        assert ds["layer_name"].values.tolist() == ["0", "2", "1.0"]
        assert "only its weight is measured" in str(describe(ds))


def test_what_cannot_be_read_says_what_to_do():
    plain = nn.Sequential(nn.Linear(3, 2))
    for made_ in (torch.jit.script(plain), torch.jit.trace(plain, torch.ones(1, 3))):
        with pytest.raises(TypeError, match=r"net: got a scripted or traced module.*load_state_dict"):
            bnrank.profile(made_, numbers(4, 3))
    quantized = nn.Sequential(nn.Linear(3, 2))
    quantized[0].weight = nn.Parameter(torch.ones(2, 3, dtype=torch.int8), requires_grad=False)
    with pytest.raises(TypeError, match=r"net: got quantized layers \(0\), expected floating-point ones"):
        read(quantized)
    net = TwoInputs()
    with pytest.raises(ValueError, match=r"x: got shapes \(4, 3\), \(5, 2\), expected tensors with one entry per"):
        bnrank.profile(net, (numbers(4, 3), numbers(5, 2)))
    with pytest.raises(ValueError, match=r"x\[.a.\]: got NaN"):
        bnrank.profile(net, {"a": torch.full((4, 3), math.nan), "b": numbers(4, 2)})
    with pytest.raises(ValueError, match="x: got no tensor"):
        bnrank.profile(net, {"a": 1})
    with pytest.raises(TypeError, match="x: got a tuple or mapping of tensors, expected one tensor"):
        bnrank.Jacobian(net, (numbers(4, 3), numbers(4, 2)))
    with pytest.raises(ValueError, match="returns str, expected a tensor"):
        read(type("Text", (nn.Module,), {"forward": lambda self, x: "x"})(), numbers(4, 3))
