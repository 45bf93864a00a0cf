"""Profile, watch and compare see the same matrices of a network, which are those of a dense computation by torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune

import bnrank
from bnrank.networks import read
from bnrank.networks.reading import listing

Blocks = list[torch.Tensor]  # the matrices of a weight, whose singular values are joined


@dataclass
class Case:
    """A network, samples for it, and what its weights are, by name: the kind and the matrices.

    ``blind`` has what differs in a state dict, which does not know groups and transposition. ``unlisted`` are names of
    tensors that are listed with a reason instead of measured.
    """

    net: nn.Module
    x: torch.Tensor | tuple[torch.Tensor, ...]
    weights: dict[str, tuple[str, Blocks]]
    blind: dict[str, tuple[str, Blocks]] = field(default_factory=dict)
    unlisted: tuple[str, ...] = ()


class Forward(nn.Module):
    """Parts, and a forward that is given."""

    def __init__(self, forward: Callable[..., torch.Tensor], **parts: nn.Module) -> None:
        super().__init__()
        for name, part in parts.items():
            self.add_module(name, part)
        self.run = forward

    def forward(self, *x: torch.Tensor) -> torch.Tensor:
        return self.run(self, *x)


def linear(weight: torch.Tensor) -> tuple[str, Blocks]:
    return "linear", [weight]


def recurrent(net: nn.Module, prefix: str, gates: tuple[str, ...]) -> dict[str, tuple[str, Blocks]]:
    """Return the gates of a recurrent module or cell, by the rows that torch documents."""
    found = {}
    for key, weight in net.named_parameters():
        if not key.startswith("weight"):
            continue
        _, side, *layer = key.split("_")
        stem = ".".join([prefix, *(["_".join(layer)] if layer else []), side])
        if side == "hr":
            found[stem] = "recurrent", [weight]
            continue
        names = [f"{stem}.{gate}" for gate in gates] if len(gates) > 1 else [stem]
        found |= {name: ("recurrent", [rows]) for name, rows in zip(names, weight.chunk(len(gates)), strict=True)}
    return found


LSTM, GRU, RNN = ("input", "forget", "cell", "output"), ("reset", "update", "new"), ("",)


def of_lstm():
    net = Forward(lambda s, x: s.head(s.rnn(x)[0][:, -1]), rnn=nn.LSTM(5, 4, 2, batch_first=True), head=nn.Linear(4, 3))
    weights = recurrent(net.rnn, "rnn", LSTM) | {"head": linear(net.head.weight)}
    return Case(net, torch.randn(40, 6, 5), weights)


def of_projected_lstm():
    rnn = nn.LSTM(5, 6, proj_size=2, batch_first=True)
    net = Forward(lambda s, x: s.head(s.rnn(x)[0][:, -1]), rnn=rnn, head=nn.Linear(2, 3))
    weights = recurrent(rnn, "rnn", LSTM) | {"head": linear(net.head.weight)}
    return Case(net, torch.randn(40, 6, 5), weights)


def of_gru():
    rnn = nn.GRU(5, 4, bidirectional=True, batch_first=True)
    net = Forward(lambda s, x: s.head(s.rnn(x)[0][:, -1]), rnn=rnn, head=nn.Linear(8, 3))
    return Case(net, torch.randn(40, 6, 5), recurrent(rnn, "rnn", GRU) | {"head": linear(net.head.weight)})


def of_cells():
    cells = {"a": nn.LSTMCell(5, 4), "b": nn.GRUCell(4, 6), "c": nn.RNNCell(6, 3)}
    net = Forward(lambda s, x: s.c(s.b(s.a(x)[0])), **cells)
    gates = zip(cells.items(), (LSTM, GRU, RNN), strict=True)
    weights = {name: part for (key, cell), g in gates for name, part in recurrent(cell, key, g).items()}
    return Case(net, torch.randn(40, 5), weights)


def of_attention():
    net = Forward(lambda s, x: s.attn(x, x, x)[0], attn=nn.MultiheadAttention(6, 2, batch_first=True))
    rows = net.attn.in_proj_weight.chunk(3)
    weights = {f"attn.{name}": linear(part) for name, part in zip("qkv", rows, strict=True)}
    return Case(net, torch.randn(40, 5, 6), weights | {"attn.out_proj": linear(net.attn.out_proj.weight)})


def of_cross_attention():
    attn = nn.MultiheadAttention(6, 2, kdim=5, vdim=4, batch_first=True)
    net = Forward(lambda s, q, k, v: s.attn(q, k, v)[0], attn=attn)
    weights = {f"attn.{name}": linear(getattr(attn, f"{name}_proj_weight")) for name in "qkv"}
    x = torch.randn(40, 3, 6), torch.randn(40, 7, 5), torch.randn(40, 7, 4)
    return Case(net, x, weights | {"attn.out_proj": linear(attn.out_proj.weight)})


def of_fused_attention():
    def forward(s, x):
        q, k, v = s.qkv(x).chunk(3, -1)
        return s.proj((q @ k.mT).softmax(-1) @ v)

    net = Forward(forward, qkv=nn.Linear(6, 18), proj=nn.Linear(6, 6))
    weights = {f"qkv.{name}": linear(part) for name, part in zip("qkv", net.qkv.weight.chunk(3), strict=True)}
    return Case(net, torch.randn(40, 5, 6), weights | {"proj": linear(net.proj.weight)})


def of_grouped_queries():
    def forward(s, x):
        q, k, v = (
            s.q_proj(x).unflatten(-1, (4, 2)),
            s.k_proj(x).unflatten(-1, (2, 2)),
            s.v_proj(x).unflatten(-1, (2, 2)),
        )
        k, v = (t.repeat_interleave(2, 2) for t in (k, v))
        weights = torch.einsum("nihd,njhd->nhij", q, k).softmax(-1)
        return s.o_proj(torch.einsum("nhij,njhd->nihd", weights, v).flatten(2))

    sizes = {"q_proj": (6, 8), "k_proj": (6, 4), "v_proj": (6, 4), "o_proj": (8, 6)}
    net = Forward(forward, **{name: nn.Linear(*size) for name, size in sizes.items()})
    return Case(net, torch.randn(40, 5, 6), {name: linear(getattr(net, name).weight) for name in sizes})


class Stacked(nn.Module):
    """Experts in one parameter, (number, out, in)."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.experts, self.head, self.name = nn.Module(), nn.Linear(9, 3), name
        self.experts.register_parameter(name, nn.Parameter(torch.randn(4, 9, 6)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.einsum("eoi,ni->neo", getattr(self.experts, self.name), x).relu().mean(1))


def of_stacked_experts(name="gate_up_proj"):
    net = Stacked(name)
    experts = {f"experts.{name}[{i}]": ("expert", [part]) for i, part in enumerate(getattr(net.experts, name))}
    return Case(net, torch.randn(40, 6), experts | {"head": linear(net.head.weight)})


def of_listed_experts():
    def forward(s, x):
        first = (x[:, :1] > 0).to(x.dtype)
        return s.head(first * s.experts[0](x) + (1 - first) * s.experts[1](x))

    net = Forward(forward, experts=nn.ModuleList(nn.Linear(6, 5) for _ in range(2)), head=nn.Linear(5, 3))
    names = {"experts.0": net.experts[0], "experts.1": net.experts[1], "head": net.head}
    return Case(net, torch.randn(40, 6), {name: linear(part.weight) for name, part in names.items()})


def of_tied():
    net = nn.Sequential(nn.Embedding(11, 6), nn.Linear(6, 6), nn.Linear(6, 11, bias=False))
    net[2].weight = net[0].weight
    weights = {"0": ("embedding", [net[0].weight]), "1": linear(net[1].weight)}
    return Case(net, torch.randint(11, (40, 5)), weights)


def of_reused():
    net = Forward(lambda s, x: s.b(s.a(s.a(x).relu())), a=nn.Linear(6, 6), b=nn.Linear(6, 3))
    return Case(net, torch.randn(40, 6), {"a": linear(net.a.weight), "b": linear(net.b.weight)})


def of_convolution(conv: nn.Module, *size: int, kind: str, groups: int = 1):
    """Return a network of a convolution; in a state dict, which does not know groups, one of one group."""
    net, transposed = nn.Sequential(conv, nn.Flatten()), "transposed" in kind
    weight = conv.weight.unflatten(0, (groups, -1))
    blocks = [(part.transpose(0, 1) if transposed else part).flatten(1) for part in weight]
    blind = {"0": (kind.removeprefix("transposed "), [conv.weight.flatten(1)])}
    return Case(net, torch.randn(40, conv.in_channels, *size), {"0": (kind, blocks)}, blind)


class Scaled(nn.Module):
    def forward(self, w: torch.Tensor) -> torch.Tensor:
        return 2 * w


def of_parametrized():
    net = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))
    parametrize.register_parametrization(net[0], "weight", Scaled())
    given = 2 * net[0].parametrizations.weight.original
    case = Case(net, torch.randn(40, 6), {"0": linear(given), "2": linear(net[2].weight)})
    case.unlisted = ("0",)  # the tensors alone do not tell what is computed
    return case


def of_weight_norm():
    net = nn.Sequential(parametrizations.weight_norm(nn.Linear(6, 5)), nn.ReLU(), nn.Linear(5, 3))
    g, v = (getattr(net[0].parametrizations.weight, f"original{i}") for i in (0, 1))
    with torch.no_grad():
        g.mul_(3)
    return Case(net, torch.randn(40, 6), {"0": linear(g * v / v.norm(dim=1, keepdim=True)), "2": linear(net[2].weight)})


def of_spectral_norm():
    net = nn.Sequential(parametrizations.spectral_norm(nn.Linear(6, 5)), nn.ReLU(), nn.Linear(5, 3)).eval()
    weight, (vectors,) = net[0].parametrizations.weight.original, net[0].parametrizations.weight
    given = weight / (vectors._u @ weight @ vectors._v)
    return Case(net, torch.randn(40, 6), {"0": linear(given), "2": linear(net[2].weight)})


def of_masked():
    net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    prune.random_unstructured(net[0], "weight", 0.5)
    given = net[0].weight_orig * net[0].weight_mask
    return Case(net, torch.randn(40, 6), {"0": linear(given), "2": linear(net[2].weight)})


def of_adapters():
    class Adapted(nn.Module):
        def __init__(self):
            super().__init__()
            self.base_layer = nn.Linear(6, 5)
            self.lora_A = nn.ModuleDict({"default": nn.Linear(6, 2, bias=False)})
            self.lora_B = nn.ModuleDict({"default": nn.Linear(2, 5, bias=False)})

        def forward(self, x):
            return self.base_layer(x) + self.lora_B["default"](self.lora_A["default"](x))

    net = nn.Sequential(Adapted(), nn.ReLU(), nn.Linear(5, 3))
    names = {"0.base_layer": net[0].base_layer, "0.lora_A.default": net[0].lora_A["default"]}
    names |= {"0.lora_B.default": net[0].lora_B["default"], "2": net[2]}
    return Case(net, torch.randn(40, 6), {name: linear(part.weight) for name, part in names.items()})


def of_embeddings():
    net = Forward(
        lambda s, x: s.head(s.tok_emb(x[:, :3]).flatten(1) + s.bag_emb(x[:, 3:])),
        tok_emb=nn.Embedding(9, 2),
        bag_emb=nn.EmbeddingBag(9, 6),
        head=nn.Linear(6, 4),
    )
    weights = {name: ("embedding", [getattr(net, name).weight]) for name in ("tok_emb", "bag_emb")}
    return Case(net, torch.randint(9, (40, 5)), weights | {"head": linear(net.head.weight)})


def of_bilinear():
    net = Forward(lambda s, x: s.head(s.pair(x, x)), pair=nn.Bilinear(4, 4, 5), head=nn.Linear(5, 3))
    weights = {"pair": ("bilinear", [net.pair.weight.flatten(1)]), "head": linear(net.head.weight)}
    return Case(net, torch.randn(40, 4), weights)


def of_bfloat16():
    net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)).bfloat16()
    return Case(net, torch.randn(40, 6), {"0": linear(net[0].weight), "2": linear(net[2].weight)})


class Float8(nn.Module):
    """A linear layer with codes in 8 bits and scales, one for each row or each block of 128 x 128."""

    def __init__(self, n_in: int, n_out: int, block: int | None) -> None:
        super().__init__()
        weight = torch.randn(n_out, n_in) * torch.logspace(0, -2, n_out)[:, None]
        if block is None:
            scale, self.name = weight.abs().amax(1, keepdim=True) / 448, "weight_scale"
        else:
            scale = torch.stack([b.abs().amax() for a in weight.split(block) for b in a.split(block, 1)]) / 448
            scale, self.name = scale.reshape(-(-n_out // block), -1), "weight_scale_inv"
        self.block = block
        spread = self._spread(scale, weight.shape)
        self.weight = nn.Parameter((weight / spread).to(torch.float8_e4m3fn), requires_grad=False)
        self.register_parameter(self.name, nn.Parameter(scale, requires_grad=False))

    def _spread(self, scale, shape):
        if self.block is None:
            return scale
        return scale.repeat_interleave(self.block, 0).repeat_interleave(self.block, 1)[: shape[0], : shape[1]]

    def dequantized(self):
        scale = getattr(self, self.name)
        return self.weight.to(scale.dtype) * self._spread(scale, self.weight.shape)

    def forward(self, x):
        return x @ self.dequantized().to(x.dtype).T


def of_float8(block=None):
    layer = Float8(256, 160, block)
    net = nn.Sequential(layer, nn.ReLU(), nn.Linear(160, 3))
    weights = {"0": ("matrix", [layer.dequantized()]), "2": linear(net[2].weight)}
    return Case(net, torch.randn(40, 256), weights)


class GPTQ(nn.Module):
    """A layer with packed weights, whose number of bits the tensors do not say."""

    def __init__(self):
        super().__init__()
        self.register_buffer("qweight", torch.randint(0, 2**20, (2, 6), dtype=torch.int32))
        self.register_buffer("qzeros", torch.ones(1, 1, dtype=torch.int32))
        self.register_buffer("scales", torch.ones(1, 6).half())

    def forward(self, x):
        shifts = torch.arange(0, 32, 4)
        codes = (self.qweight[:, None] >> shifts[:, None]) & 15  # (2, 8, 6)
        return x @ (codes.flatten(0, 1).to(x.dtype) * self.scales.to(x.dtype))


def of_gptq():
    net = nn.Sequential(GPTQ(), nn.ReLU(), nn.Linear(6, 3))
    return Case(net, torch.randn(40, 16), {"2": linear(net[2].weight)})


def wrapped(wrapper: Callable[[nn.Module], nn.Module]):
    net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    weights = {name: linear(net[int(name)].weight.detach().clone()) for name in ("0", "2")}
    return Case(wrapper(net), torch.randn(40, 6), weights)


def ddp(net: nn.Module) -> nn.Module:
    return nn.parallel.DistributedDataParallel(net)


def fsdp2(net: nn.Module) -> nn.Module:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    fully_shard(net, mesh=init_device_mesh("cpu", (1,)))
    return net


CASES: dict[str, Callable[[], Case]] = {
    "LSTM": of_lstm,
    "LSTM with projection": of_projected_lstm,
    "GRU in two directions": of_gru,
    "recurrent cells": of_cells,
    "attention": of_attention,
    "attention with kdim and vdim": of_cross_attention,
    "fused attention": of_fused_attention,
    "grouped-query attention": of_grouped_queries,
    "stacked experts": of_stacked_experts,
    "stack by another name": lambda: of_stacked_experts("w1"),
    "listed experts": of_listed_experts,
    "tied": of_tied,
    "reused": of_reused,
    "Conv1d": lambda: of_convolution(nn.Conv1d(2, 3, 3), 7, kind="conv1d"),
    "Conv2d": lambda: of_convolution(nn.Conv2d(2, 3, 3, padding=1), 5, 4, kind="conv2d"),
    "Conv3d": lambda: of_convolution(nn.Conv3d(2, 3, 2), 3, 3, 3, kind="conv3d"),
    "grouped": lambda: of_convolution(nn.Conv2d(4, 6, 3, groups=2), 5, 4, kind="conv2d", groups=2),
    "depthwise": lambda: of_convolution(nn.Conv2d(4, 4, 3, groups=4), 5, 4, kind="conv2d", groups=4),
    "dilated": lambda: of_convolution(nn.Conv2d(2, 3, 2, dilation=2, stride=2), 6, 5, kind="conv2d"),
    "transposed": lambda: of_convolution(nn.ConvTranspose2d(3, 2, 3, stride=2), 3, 4, kind="transposed conv2d"),
    "parametrized": of_parametrized,
    "weight norm": of_weight_norm,
    "spectral norm": of_spectral_norm,
    "masked": of_masked,
    "adapters": of_adapters,
    "embeddings": of_embeddings,
    "bilinear": of_bilinear,
    "bfloat16": of_bfloat16,
    "float8 by row": of_float8,
    "float8 by block": lambda: of_float8(128),
    "GPTQ": of_gptq,
    "DDP": lambda: wrapped(ddp),
    "compiled": lambda: wrapped(lambda net: torch.compile(net, backend="eager")),
    "FSDP2": lambda: wrapped(fsdp2),
}


@pytest.fixture(scope="module", autouse=True)
def group(tmp_path_factory):
    """A group of one process, for networks that are distributed."""
    store = tmp_path_factory.mktemp("gloo") / "store"
    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.fixture(params=CASES)
def case(request) -> Case:
    torch.manual_seed(0)
    return CASES[request.param]()


def spectrum(blocks: Blocks) -> np.ndarray:
    values = [np.linalg.svd(block.detach().double().numpy(), compute_uv=False) for block in blocks]
    return -np.sort(-np.concatenate(values))


def measured(dataset) -> dict[str, tuple[str, np.ndarray]]:
    """Return the kinds and singular values of a profile, by name."""
    rows = zip(
        dataset.layer_name.values.tolist(),
        dataset.layer_kind.values.tolist(),
        dataset.weight_singular_values.values,
        strict=True,
    )
    return {name: (kind.removesuffix(" patches"), row[np.isfinite(row)]) for name, kind, row in rows}


def expect_same(found: dict, weights: dict[str, tuple[str, Blocks]], kinds: bool = True) -> None:
    """Compare names, their number, kinds and singular values with the dense computation."""
    assert set(found) == set(weights)
    for name, (kind, blocks) in weights.items():
        assert not kinds or found[name][0] == kind, name
        np.testing.assert_allclose(found[name][1], spectrum(blocks), rtol=1e-5, atol=1e-6, err_msg=name)


def expected_of_tensors(case: Case) -> dict[str, tuple[str, Blocks]]:
    """Return what the tensors without their module are, as far as they tell."""
    return {name: part for name, part in (case.weights | case.blind).items() if name not in case.unlisted}


def test_a_profile_of_a_module_has_its_matrices(case):
    expect_same(measured(bnrank.profile(case.net)), case.weights)


def test_a_profile_of_a_state_dict_or_file_has_the_same(case, tmp_path):
    weights, state = expected_of_tensors(case), case.net.state_dict()
    expect_same(measured(bnrank.profile(state)), weights, kinds=False)
    plain = {k: v.full_tensor() if hasattr(v, "full_tensor") else v.clone() for k, v in state.items()}
    save_file(plain, tmp_path / "net.safetensors")
    of_file = measured(bnrank.profile(tmp_path / "net.safetensors"))
    if set(of_file) != set(weights):  # tied tensors are two in a file
        assert {name: of_file.pop(name) for name in set(of_file) - set(weights)}.keys() == {"2"}
    expect_same(of_file, weights, kinds=False)
    known = measured(bnrank.profile(case.net))
    for name, (kind, _) in of_file.items():
        assert kind in ("matrix", "expert") or "conv" in kind or kind == known[name][0], name


def test_a_profile_with_samples_has_the_same(case):
    """Convolutions are measured as operators on images: of those, by applying them to all images of one pixel."""
    if any(hasattr(p, "full_tensor") for p in case.net.parameters()):
        with pytest.raises(
            ValueError, match=r"net: FSDP.* cannot be copied: .*build it anew and load get_model_state_dict"
        ):
            bnrank.profile(case.net, case.x)
        return
    dataset = bnrank.profile(case.net, case.x, what=("weights", "activations", "operators"))
    without = bnrank.profile(case.net)
    weights = dict(case.weights)
    for name, (kind, _) in case.weights.items():
        if "conv" in kind:
            conv = case.net[int(name)].double()
            basis = torch.eye(case.x[0].numel(), dtype=torch.float64).unflatten(1, case.x.shape[1:])
            matrix = (conv(basis) - conv(torch.zeros_like(basis))).flatten(1)
            weights[name] = kind, [matrix]
    expect_same(measured(dataset), weights)
    order = [dataset.layer_name.values.tolist().index(name) for name in without.layer_name.values.tolist()]
    np.testing.assert_allclose(dataset.parameter_norm[order], without.parameter_norm, rtol=1e-9)
    alone = {n for n, text in zip(dataset.note_name.values, dataset.note_note.values, strict=True) if "only" in text}
    unseen = np.isnan(dataset.units.values)
    assert {name for name, missing in zip(dataset.layer_name.values, unseen, strict=True) if missing} == alone


def test_a_reading_has_the_same(case):
    with listing(case.net) as held:
        found = {matrix.name: (matrix.kind, spectrum(list(matrix.blocks().double()))) for matrix in held.matrices}
    expect_same(found, case.weights)
    layers = read(case.net).weights
    assert sorted(layer.name for layer in layers) == sorted(found)
    assert [layer.kind for layer in layers] == [found[layer.name][0] for layer in layers]


def test_a_watch_has_the_same(case):
    with bnrank.watch(case.net, every=1) as watch:
        x, dtype = case.x if isinstance(case.x, tuple) else (case.x,), next(case.net.parameters()).dtype
        case.net(*(t.to(dtype) if dtype == torch.bfloat16 else t for t in x))
        watch.step()
    history = watch.history
    names = [str(name) for name in history.layer.values if str(name) != "output"]
    assert sorted(names) == sorted(case.weights)
    for name in names:
        values = spectrum(case.weights[name][1])
        stable = float(history.stable_rank.sel(layer=name).values[-1])
        assert stable == pytest.approx((values**2).sum() / values[0] ** 2, rel=1e-4), name


def test_a_comparison_has_the_same(case):
    data = bnrank.compare(case.net, case.net.state_dict()).data
    weights = expected_of_tensors(case)
    both = {name for name in weights if name in case.weights and name not in case.blind}
    assert both <= set(data.layer_name.values.tolist()) <= set(case.weights)
    for i, name in enumerate(data.layer_name.values.tolist()):
        for side in "ab" if name in both else "a":
            row = data.weight_singular_values.sel(network=side).values[i]
            expected = spectrum(case.weights[name][1])
            np.testing.assert_allclose(row[np.isfinite(row)], expected, rtol=1e-5, atol=1e-6, err_msg=name)
        assert name not in both or float(data.change[i]) <= 1e-6


def test_the_cases_are_thirty_networks():
    assert len(CASES) >= 30
