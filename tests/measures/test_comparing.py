"""Two networks compared: planted updates, permutations and rotations, and what cannot be compared."""

import copy
import itertools
import math

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import bnrank
from bnrank._core import deadline
from bnrank.measures.comparing import representations
from bnrank.measures.comparing.matching import matched
from bnrank.networks.reading import capturing, listing


def normal(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def zeros(*shape):
    return torch.zeros(shape)


def mlp(*widths, seed=0, between=nn.ReLU):
    torch.manual_seed(seed)
    layers = [part for a, b in itertools.pairwise(widths) for part in (nn.Linear(a, b), between())]
    return nn.Sequential(*layers[:-1])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("seed", range(5))
def test_a_planted_low_rank_update_is_found_exactly(dtype, seed):
    size = {torch.bfloat16: 1.0, torch.float16: 0.3}.get(dtype, 1e-4)
    rank = seed + 1
    before = normal(60, 90, seed=seed, dtype=dtype)
    update = size * normal(60, rank, seed=10 + seed).double() @ normal(rank, 90, seed=20 + seed).double()
    after = (before.double() + update).to(dtype)
    data = bnrank.compare({"w": before}, {"w": after}).data.isel(layer=0)
    assert int(data.update_rank) == rank
    noise = torch.finfo(dtype).eps * float(before.double().norm())
    values = torch.linalg.svdvals(update)[:rank]
    assert np.allclose(data.update_singular_values[:rank], values, atol=noise)
    assert float(data.update_share) > 0.9


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("seed", range(5))
def test_rounding_alone_has_rank_0(dtype, seed):
    exact = torch.randn(40, 300, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    exact[seed] *= 100  # one large row
    found = bnrank.compare({"w": exact.to(dtype)}, {"w": exact.to(torch.float32).to(dtype) * 1}).data
    assert int(found.update_rank[0]) == 0
    low = exact.to(torch.bfloat16).double()
    assert int(bnrank.compare({"w": low.to(torch.bfloat16)}, {"w": exact.to(torch.float32)}).data.update_rank[0]) == 0


def test_numbers_are_what_the_definitions_give():
    a, b = {"w": normal(9, 30)}, {"w": normal(9, 30, seed=1)}
    found = bnrank.compare(a, b, top=3).data.isel(layer=0)
    one, other = a["w"].double().numpy(), b["w"].double().numpy()
    s = np.linalg.svd(other - one, compute_uv=False)
    shares = s / s.sum()
    assert float(found.change) == pytest.approx(np.linalg.norm(other - one) / np.linalg.norm(one))
    assert float(found.update_norm) == pytest.approx(np.linalg.norm(other - one))
    assert float(found.update_stable_rank) == pytest.approx((s**2).sum() / s[0] ** 2)
    assert float(found.update_entropy_rank) == pytest.approx(math.exp(-(shares * np.log(shares)).sum()))
    assert float(found.update_share) == pytest.approx((s[:3] ** 2).sum() / (s**2).sum())
    assert np.allclose(found.update_singular_values, s)
    for k, (name, matrix) in enumerate({"a": one, "b": other}.items()):
        own = bnrank.profile({"w": torch.from_numpy(matrix).float()})
        for column in ("weight_rank", "weight_relative_rank", "stable_rank", "entropy_rank", "parameter_norm"):
            assert float(found[column][k]) == float(own[column][0]), (name, column)
    (u, _, v), (w, _, z) = (np.linalg.svd(matrix) for matrix in (one, other))
    for side, p, q in (("left", u[:, :3], w[:, :3]), ("right", v[:3].T, z[:3].T)):
        cosines = np.linalg.svd(p.T @ q, compute_uv=False)
        assert np.allclose(np.cos(found[f"{side}_angles"].values), cosines, atol=1e-10)


def test_equal_networks_have_no_change_and_cka_1():
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 5))
    found = bnrank.compare(net, copy.deepcopy(net), normal(20, 1, 6, 6))
    data = found.data
    assert float(data.change.max()) == float(data.tensor_change.max()) == data.attrs["output_change"] == 0
    assert "No difference in 8 compared tensors." in str(found)  # with the running statistics
    assert float(data.update_rank.max()) == 0
    for name in ("update_share", "update_stable_rank", "update_entropy_rank", "update_relative_rank"):
        assert bool(np.isnan(data[name]).all())
    assert np.allclose(np.diag(data.cka), 1)
    assert np.allclose(np.diag(data.cka_debiased), 1)
    assert float(np.nanmax(data.left_angles)) < 1e-14


def test_permuted_neurons_have_cka_1_and_other_weights():
    net = mlp(6, 20, 15, 3)
    other = copy.deepcopy(net)
    with torch.no_grad():
        order = torch.randperm(20, generator=torch.Generator().manual_seed(0))
        other[0].weight.copy_(net[0].weight[order])
        other[0].bias.copy_(net[0].bias[order])
        other[2].weight.copy_(net[2].weight[:, order])
    data = bnrank.compare(net, other, normal(80, 6)).data
    assert np.allclose(np.diag(data.cka), 1)
    assert np.allclose(np.diag(data.cca), 1)
    assert data.attrs["output_change"] < 1e-12
    assert data.change.values[:2].min() > 1
    assert float(data.change[2]) == 0


def test_a_rotated_representation_has_cka_1():
    net = mlp(6, 12, 4, between=nn.Identity).double()
    other = copy.deepcopy(net)
    turn = torch.linalg.qr(normal(12, 12, dtype=torch.float64))[0]
    with torch.no_grad():
        other[0].weight.copy_(turn @ net[0].weight)
        other[0].bias.copy_(turn @ net[0].bias)
        other[2].weight.copy_(net[2].weight @ turn.T)
    data = bnrank.compare(net, other, normal(50, 6)).data
    assert float(data.cka[0, 0]) == pytest.approx(1, abs=1e-12)
    assert float(data.change[0]) > 1
    assert float(data.right_angles.sel(layer=1).max()) < 1e-6  # left vectors turn, right ones stay


def test_independent_networks_have_nothing_in_common():
    found = [bnrank.compare(mlp(100, 80, seed=s), mlp(100, 80, seed=50 + s)).data.isel(layer=0) for s in range(5)]
    assert np.allclose([float(data.change) for data in found], math.sqrt(2), rtol=0.05)
    overlaps = [float((np.cos(data.left_angles) ** 2).mean()) for data in found]
    assert np.mean(overlaps) == pytest.approx(8 / 80, abs=0.05)


def test_outputs_change_over_their_norm_and_over_their_spread():
    a = nn.Linear(3, 2).double()
    b = copy.deepcopy(a)
    with torch.no_grad():
        b.bias += torch.tensor([1.0, 0.0])
        a.bias += 10
        b.bias += 10
    x = normal(30, 3, dtype=torch.float64)
    found = bnrank.compare(a, b, x)
    out = a(x).detach()
    assert found.data.attrs["output_change"] == pytest.approx(math.sqrt(30) / float(out.norm()))
    assert found.data.attrs["output_change_of_spread"] == pytest.approx(
        math.sqrt(30) / float((out - out.mean(0)).norm())
    )
    assert found.data.tensor_change.values.tolist() == [pytest.approx(1 / float(a.bias.detach().norm()))]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_outputs_that_differ_by_rounding_have_no_spread(dtype):
    for seed in range(10):
        torch.manual_seed(seed)
        a, b = (nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 3)) for _ in "ab")
        found = bnrank.compare(a, b, torch.randn(1, 5).repeat(20, 1), dtype=dtype, chunk_size=7)
        assert found.data.attrs["output_change"] > 0
        assert "output_change_of_spread" not in found.data.attrs
        assert "spread" not in found.headline
    x = 1e3 + 1e-6 * torch.randn(20, 5, dtype=torch.float64)
    a, b = a.double(), b.double()
    with torch.no_grad():
        a[0].weight /= 1e3
    outputs = [net(x).detach() for net in (a, b)]
    expected = (outputs[1] - outputs[0]).norm() / (outputs[0] - outputs[0].mean(0)).norm()
    assert bnrank.compare(a, b, x).data.attrs["output_change_of_spread"] == pytest.approx(float(expected), rel=1e-5)


def test_tensors_are_matched_by_name_prefix_and_order():
    state = mlp(4, 6, 5, 2).state_dict()
    for change, how in (
        (lambda name: name, set()),
        (lambda name: f"net.{name}", {"name without prefix"}),
        (lambda name: f"new.{name.replace('.', '_')}", {"order and shape"}),
    ):
        other = {change(name): value for name, value in state.items()}
        with listing(state) as a, listing(other) as b:
            pairs, _ = matched(a, b)
        assert [(pair.a.name, pair.b.name) for pair in pairs] == [(name, change(name)) for name in state]
        assert {pair.by for pair in pairs} - {"name"} == how
        found = bnrank.compare(state, other)
        assert float(found.data.change.max()) == 0
        assert all(f"matched by {text}" in str(found) for text in how)
    turned = {f"module.{name}": state[name] for name in reversed(state)}  # in another order
    assert float(bnrank.compare(turned, state).data.change.max()) == 0


def test_layers_whose_weights_are_matched_have_their_representations_compared():
    net = mlp(6, 12, 9, 3)
    wrapped = nn.ModuleDict({"module": nn.Sequential(*copy.deepcopy(net), nn.Linear(3, 3))})
    wrapped.forward = wrapped["module"].forward
    rows = bnrank.compare(net, wrapped, normal(60, 6)).representations()
    assert [row["layer of b"] for row in rows] == ["1: module.0", "2: module.2", "3: module.4"]
    assert [row["CKA"] for row in rows] == pytest.approx([1, 1, 1])


def test_a_new_head_is_matched_by_its_place_and_the_rest_is_listed():
    a = {"body.weight": normal(5, 4), "body.bias": normal(5), "head.weight": normal(2, 5)}
    b = {"body.weight": normal(5, 4), "body.bias": normal(5), "extra": normal(3, 3), "classifier.weight": normal(2, 5)}
    found = bnrank.compare(a, b)
    assert found.data.layer_name_b.values.tolist() == ["body", "classifier"]
    assert "head.weight with classifier.weight; check" in str(found)
    assert "only in b: extra" in str(found)


def test_adapters_beside_equal_weights_are_named_with_advice():
    weight = normal(6, 6)
    adapted = {"q.base_layer.weight": weight, "q.lora_A.one.weight": normal(2, 6), "q.lora_B.one.weight": normal(6, 2)}
    found = bnrank.compare({"q.weight": weight}, adapted)
    assert found.headline == "No difference in 1 compared tensor. 2 tensors only in b."
    assert "adapters in b: q.lora_A.one.weight, q.lora_B.one.weight;" in str(found)
    assert "merge_and_unload" in str(found)
    apart = bnrank.compare({"w": weight, "u": weight[:1]}, {"w": weight, "v": weight[:2]})
    assert "1 tensor only in a. 1 tensor only in b." in apart.headline
    with pytest.raises(ValueError, match=r"^a, b: .*adapters in b: q\.lora_A\.one\.weight.*merge_and_unload"):
        bnrank.compare({"q.weight": weight}, dict(list(adapted.items())[1:]))
    assert "adapters" not in str(bnrank.compare({"w": weight}, {"w": weight, "flora_A.weight": weight[:1]}))


def test_tied_and_reparametrized_weights_are_not_said_to_be_only_in_one():
    net = mlp(6, 6, 6)
    tied = {"0.weight": net[0].weight, "0.bias": net[0].bias, "2.weight": net[0].weight, "2.bias": net[2].bias}
    once = {name: value for name, value in tied.items() if name != "2.weight"}
    found = bnrank.compare(tied, once)
    assert found.headline == "No difference in 3 compared tensors."
    assert found.data.layer_name.values.tolist() == ["0"]
    normed = nn.utils.parametrizations.weight_norm(nn.Linear(6, 6))
    found = bnrank.compare(normed, {"weight": normed.weight.detach(), "bias": normed.bias.detach()})
    assert "only in" not in found.headline
    assert found.data.change.values.tolist() == [0]


def test_networks_of_other_shapes_have_ranks_and_no_change():
    found = bnrank.compare(mlp(4, 6, 2), mlp(4, 9, 2), normal(20, 4))
    data = found.data
    assert np.isnan(data.change).all()
    assert data.full_rank.values.tolist() == [[4, 2], [4, 2]]
    assert "2 matrices with a partner of another shape." in found.headline
    assert data.cka.shape == (2, 2)
    assert np.isfinite(data.cka).all()


def test_networks_without_common_tensors_are_refused_without_samples():
    a, b = {"u": normal(4, 3)}, {"w": normal(5, 2)}
    with pytest.raises(ValueError, match=r"^a, b: .*only in a: u; only in b: w"):
        bnrank.compare(a, b)


def test_nan_weights_are_listed_and_refused_with_samples():
    net, other = mlp(4, 6, 2), mlp(4, 6, 2)
    with torch.no_grad():
        other[0].weight[1, 2] = torch.nan
    found = bnrank.compare(net, other)
    assert "not compared: in b, 1 of 24 entries are NaN or infinite (0.weight)" in str(found)
    assert found.data.layer_name.values.tolist() == ["2"]
    lost = "1 tensor not compared, NaN or infinite: 0.weight."
    assert found.headline.startswith(lost)
    same = copy.deepcopy(net)
    with torch.no_grad():
        same[0].weight[1, 2] = torch.nan
    assert bnrank.compare(net, same).headline == f"{lost} No difference in 3 compared tensors."
    assert "not compared" not in bnrank.compare(net, net).headline
    with pytest.raises(ValueError, match=r"^b: .*0\.weight"):
        bnrank.compare(net, other, normal(5, 4))


def test_representations_do_not_depend_on_how_many_layers_are_held_at_a_time(monkeypatch):
    a, b, x = mlp(4, 9, 6, 2), mlp(4, 9, 6, 2, seed=1), normal(37, 4)
    whole = bnrank.compare(a, b, x)
    monkeypatch.setattr(representations, "MAX_TOGETHER", 37 * 7)
    monkeypatch.setattr(capturing, "MAX_BLOCK", 9 * 5)
    held, passes = [], []
    gram, stream = representations.similarity.gram, representations.stream
    monkeypatch.setattr(representations.similarity, "gram", lambda rows: (held.append(rows), gram(rows))[1])
    monkeypatch.setattr(representations, "stream", lambda *given, **some: (passes.append(1), stream(*given, **some))[1])
    found = bnrank.compare(a, b, x)
    assert len(passes) == 2 * 3  # layers of 9, 6 and 2 features
    assert [tuple(rows.shape) for rows in held] == 2 * [(37, 9), (37, 6), (37, 2)]
    with torch.no_grad():
        assert torch.allclose(held[0], torch.relu(a[0](x)).double(), atol=1e-6)
    for name in ("cka", "cka_debiased", "cca", "dimension_95_a", "dead_units_b"):
        np.testing.assert_allclose(found.data[name], whole.data[name], rtol=1e-9)
    for name in ("output_change", "output_change_of_spread"):
        assert found.data.attrs[name] == pytest.approx(whole.data.attrs[name])


def test_what_is_not_compared_in_time_is_listed(monkeypatch):
    a, b, x = mlp(4, 9, 6, 2), mlp(4, 9, 6, 2, seed=1), normal(20, 4)
    assert "max_minutes" not in str(bnrank.compare(a, b, x, max_minutes=9))
    monkeypatch.setattr(representations, "MAX_TOGETHER", 20 * 7)
    counts = []
    for looks in range(1, 40):
        ticks = iter([0.0] * looks)
        with monkeypatch.context() as some:
            some.setattr(deadline.time, "monotonic", lambda ticks=ticks: next(ticks, 1e6))
            found = bnrank.compare(a, b, x, max_minutes=1)
        names = ("change", "tensor_change", "cka", "units_a", "dead_units_b")
        done = [int(np.isfinite(found.data[name]).sum()) for name in names if name in found.data]
        assert ("max_minutes=1" in str(found)) == (sum(done) < 3 + 3 + 9 + 3 + 3)
        counts.append(sum(done))
    assert counts[0] == 0
    assert counts == sorted(counts)
    assert counts[-1] == 3 + 3 + 9 + 3 + 3


def test_two_files_of_onnx_are_compared(tmp_path):
    onnx = pytest.importorskip("onnx")
    w = normal(5, 4).numpy()
    for name, array in (("a", w), ("b", w + np.outer(np.ones(5), np.ones(4)).astype(np.float32))):
        node = onnx.helper.make_node("Gemm", ["x", "fc.weight"], ["y"], transB=1)
        values = [onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, None) for n in "xy"]
        held = [onnx.numpy_helper.from_array(array, "fc.weight")]
        graph = onnx.helper.make_graph([node], "net", values[:1], values[1:], initializer=held)
        onnx.save(onnx.helper.make_model(graph), tmp_path / f"{name}.onnx")
    found = bnrank.compare(tmp_path / "a.onnx", tmp_path / "b.onnx")
    assert found.data.update_rank.values.tolist() == [1]
    assert float(found.data.change[0]) == pytest.approx(20**0.5 / np.linalg.norm(w))


def test_one_sample_and_constant_activations_have_no_cka():
    net = mlp(4, 6, 2)
    found = bnrank.compare(net, net, normal(1, 4))
    assert np.isnan(found.data.cka).all()
    few = bnrank.compare(net, net, normal(3, 4)).data
    assert np.allclose(np.diag(few.cka), 1)
    assert np.isnan(few.cka_debiased).all()
    dead = copy.deepcopy(net)
    with torch.no_grad():
        dead[0].weight.zero_()
        dead[0].bias.fill_(0.3)
    found = bnrank.compare(net, dead, normal(10, 4))
    assert np.isnan(found.data.cka[:, 0]).all()
    assert float(found.data.change[0]) == pytest.approx(1)
    zero = bnrank.compare(dead, net)
    assert math.isinf(float(zero.data.change[0]))


def test_convolutions_groups_recurrent_weights_and_complex_numbers():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.wide = nn.Conv2d(4, 8, 3, groups=2)
            self.up = nn.ConvTranspose2d(3, 5, 3)
            self.lstm = nn.LSTM(4, 6)

    torch.manual_seed(0)
    net, other = Net(), Net()
    data = bnrank.compare(net, other.state_dict()).data  # the module says what is transposed
    shapes = dict(zip(data.layer_name.values.tolist(), data.layer_shape.values.tolist(), strict=True))
    assert shapes["up"] == "5 x 27"
    assert shapes["lstm.l0.ih.forget"] == "6 x 4"
    grouped = data.isel(layer=data.layer_name.values.tolist().index("wide"))
    difference = (other.wide.weight - net.wide.weight).detach().double()
    values = torch.cat([torch.linalg.svdvals(part.flatten(1)) for part in difference.split(4)])
    assert np.allclose(grouped.update_singular_values[:8], values.sort(descending=True).values)
    assert float(grouped.subspace) == 0
    made = {"w": torch.randn(8, 9, dtype=torch.complex64)}
    turned = bnrank.compare(made, {"w": made["w"] * 1j}).data
    assert float(turned.change[0]) == pytest.approx(math.sqrt(2), rel=1e-6)
    assert np.nanmax(turned.left_angles) < 1e-3


def test_a_module_tells_how_the_kernels_of_its_state_dict_are_read():
    net = nn.Sequential(nn.ConvTranspose2d(5, 4, 3), nn.Conv2d(4, 8, 3, groups=2))
    moved = {name: value + 0.1 for name, value in net.state_dict().items()}
    whole = copy.deepcopy(net)
    whole.load_state_dict(moved)
    expected = bnrank.compare(net, whole)
    for found in (bnrank.compare(net, moved), bnrank.compare(net.state_dict(), whole)):
        for name in ("stable_rank", "update_norm", "update_stable_rank"):
            assert np.array_equal(found.data[name].values, expected.data[name].values)
        assert "another shape" not in found.headline
    along = bnrank.compare([net.state_dict(), whole]).history
    assert along.stable_rank.values == pytest.approx(expected.data.stable_rank.values, rel=1e-9)


def test_a_large_matrix_has_the_same_numbers_by_the_gram_matrix(monkeypatch):
    a, b = {"w": normal(30, 20)}, {"w": normal(30, 20, seed=1)}
    exact = bnrank.compare(a, b).data
    monkeypatch.setattr("bnrank.measures.weights.GRAM", 5)
    gram = bnrank.compare(a, b).data
    for name in ("update_singular_values", "update_stable_rank", "weight_singular_values", "left_angles"):
        assert np.allclose(exact[name], gram[name], rtol=1e-6, equal_nan=True)


def test_results_print_themselves_and_become_frames_and_plots():
    a, b = mlp(5, 12, 12, 3), mlp(5, 12, 12, 3, seed=1)
    found = bnrank.compare(a, b, normal(30, 5))
    assert "<table" in found._repr_html_()
    frame = found.to_frame()
    assert frame["layer"].tolist() == ["0", "2", "4"]
    assert frame["stable_rank_a"].tolist() == found.data.stable_rank.values[0].tolist()
    axes = found.plot()
    assert [bar.get_height() for bar in axes[0].patches] == found.data.change.values.tolist()
    assert len(axes) == 3
    assert found.layers()[1]["matrix"] == "2: 2"
    assert [row["layer of b"] for row in found.representations()] == ["1: 0", "2: 2", "3: 4"]
    assert found.data["change"].attrs["long_name"]


def test_angles_are_of_at_most_half_a_side():
    a, b = normal(9, 5).double(), normal(9, 5, seed=1).double()
    data = bnrank.compare({"w": a}, {"w": b}, top=8).data.isel(layer=0)
    assert int(data.subspace) == 2
    for side, i in (("left", 0), ("right", 2)):
        sets = [torch.linalg.svd(m)[i] if i == 0 else torch.linalg.svd(m)[i].T for m in (a, b)]
        cosines = torch.linalg.svdvals(sets[0][:, :2].T @ sets[1][:, :2])
        assert np.allclose(np.cos(data[f"{side}_angles"].values), cosines)


@pytest.mark.parametrize(
    ("a", "b", "said"),
    [
        ({"w": zeros(3, 3)}, {"w": torch.eye(3)}, ["1 of 1 matrix changed, by inf times", "the change is 3 "]),
        (mlp(4, 6, 2), mlp(4, 7, 2), ["1 of 1 other tensor changed", "2 matrices with a partner of another shape."]),
        (
            {"a": normal(3, 3), "b": zeros(3, 3), "v": normal(3)},
            {"a": normal(3, 3), "b": zeros(3, 3), "v": zeros(3)},
            ["1 of 1 other tensor changed"],
        ),
        (
            {"a": normal(3, 3), "b": zeros(3, 3)},
            {"a": zeros(3, 3), "b": normal(3, 3)},
            ["2 of 2 matrices changed, by 1 to inf times their norm; the stable rank"],
        ),
        (
            {"w": zeros(2, 3), "b": zeros(3)},
            {"w": zeros(2, 2), "b": zeros(3)},
            ["No difference in 1 compared tensor. 1 matrix with a partner of another shape."],
        ),
        ({"v": normal(3), "w": normal(3)}, {"v": zeros(3), "w": zeros(3)}, ["2 of 2 other tensors changed"]),
        (
            {"v": normal(3, 3), "w": normal(3, 2)},
            {"v": zeros(3, 3), "w": normal(4, 2)},
            ["1 of 2 matrices changed, by 1 times", "1 matrix with a partner of another shape."],
        ),
    ],
)
def test_the_headline_says_what_differs(a, b, said):
    headline = bnrank.compare(a, b).headline
    assert all(text in headline for text in said)
    assert "1 matrices" not in headline
    assert "1 tensors" not in headline


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_headline_says_what_is_rounding(dtype):
    net, storage = mlp(20, 40, 30), f"within the rounding of {str(dtype).removeprefix('torch.')} storage"
    stored = {key: value.to(dtype) for key, value in net.state_dict().items()}
    found = bnrank.compare(net, stored)
    low, high = found.data.change.values.min(), found.data.change.values.max()
    said = f"2 of 2 matrices changed, by {low:.3g} to {high:.3g} times their norm, 2 {storage}."
    assert found.headline == f"{said} 0 of 2 other tensors changed by more than rounding."
    more = bnrank.compare(net, stored | {"0.bias": 2 * stored["0.bias"]}).headline
    assert more == f"{said} 1 of 2 other tensors changed by more than rounding."
    one = bnrank.compare(net, stored | {"0.weight": 2 * stored["0.weight"]})
    low = one.data.change.values[1]
    said = (
        f"2 of 2 matrices changed, by {low:.3g} to 1 times their norm, 1 {storage}; the stable rank of the change is "
    )
    assert one.headline.startswith(said)
    same = {key: value.double() * (1 + 1e-9) for key, value in net.state_dict().items()}
    assert "within the rounding" not in bnrank.compare(net.double(), same).headline


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ((3, {"w": normal(2, 2)}), TypeError, "a: got 3"),
        (({"w": normal(2, 2)}, "none.safetensors"), ValueError, "b: got 'none.safetensors'"),
        (({"w": normal(2, 2)}, {"w": normal(2, 2)}, normal(3, 2)), TypeError, "a: got .*Module"),
        ((nn.Linear(2, 2), nn.Linear(3, 2), normal(3, 2)), ValueError, "b: "),
        ((nn.Linear(2, 2),), TypeError, "a, b: got .* alone, expected two networks"),
        (([nn.Linear(2, 2)],), ValueError, "a: got 1 networks, expected at least 2"),
        (("none",), ValueError, "a: got 'none', expected a folder of checkpoints"),
    ],
)
def test_bad_arguments_are_named(arguments, error, text):
    with pytest.raises(error, match=f"^{text}"):
        bnrank.compare(*arguments)


def test_weights_and_biases_in_another_order_are_matched():
    a = mlp(4, 6, 6, 2).state_dict()
    names = sorted(a, key=lambda name: (name[0], name[2]))  # biases first, as in a sorted file
    found = bnrank.compare(a, {name.replace("weight", "w").replace("bias", "offset"): a[name] for name in names})
    assert (found.data.sizes["layer"], found.data.sizes["tensor"]) == (3, 3)
    assert float(found.data.change.max()) == float(found.data.tensor_change.max()) == 0
    assert "only in" not in str(found)


def test_recurrent_weights_of_one_shape_are_not_mixed_up():
    a = {"rnn.weight_ih": normal(8, 2), "rnn.weight_hh": normal(8, 2, seed=1), "rnn.bias": normal(8)}
    b = {f"cell.{name[4:]}": a[name] for name in sorted(a)}
    found = bnrank.compare(a, b)
    assert not float(found.data.change.max())
    assert not float(found.data.tensor_change.max())


class Repeated(nn.Module):
    """A recurrent cell, whose layers run once for each step: they have no value for each sample."""

    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Linear(12, 8), nn.Linear(8, 2)

    def forward(self, x):
        state = x.new_zeros(len(x), 8)
        for t in range(x.shape[1]):
            state = self.inner(torch.cat([x[:, t], state], 1)).tanh()
            out = self.outer(state)
        return out


def test_networks_without_activations_are_compared_by_weights_and_outputs():
    torch.manual_seed(0)
    a, b, once = Repeated(), Repeated(), nn.Sequential(nn.Flatten(), nn.Linear(20, 2))
    x = normal(60, 5, 4)
    before, after = (net.double()(x.double()).detach() for net in (a, b))
    found = bnrank.compare(a, b, x, chunk_size=7)
    assert found.data.output_change == pytest.approx(float((after - before).norm() / before.norm()), rel=1e-12)
    assert found.data.change.identical(bnrank.compare(a, b).data.change)
    (note,) = (line for line in found.notes if "representations" in line)
    assert note.startswith(
        "a, b: no representations, as no layer has a value for each sample: inner (Linear): called 5"
    )
    assert (found.data.sizes["layer_a"], found.representations(), len(found.plot())) == (0, [], 2)
    mixed = bnrank.compare(once, b, x)
    out = once.double()(x.double()).detach()
    assert mixed.data.output_change == pytest.approx(float((after - out).norm() / out.norm()), rel=1e-12)
    assert int(mixed.data.units_a[0]) == 2
    assert [line[:21] for line in mixed.notes if "representations" in line] == ["b: no representations"]
    record = bnrank.compare([a, b, a], x=x)
    assert str(record).count("no representations") == 1
    late = bnrank.compare(a, b, x, max_minutes=1e-9)
    assert "a, b: outputs: not reached within max_minutes=1e-09" in late.notes
    with pytest.raises(ValueError, match="layer that runs once, with a value for each sample, in Repeated"):
        next(bnrank.networks.capture(a, x))


class Experts(nn.Module):
    """A mixture whose experts are one parameter (experts, out, in), in a precision that float64 lacks."""

    def __init__(self):
        super().__init__()
        self.mix = nn.Module()
        self.mix.weight = nn.Parameter(torch.randn(4, 12, 6))
        self.head = nn.Linear(12, 3)

    def forward(self, x):
        if x.dtype == torch.float64:
            raise RuntimeError("expected float32 or bfloat16")
        return self.head(torch.relu(torch.einsum("eoi,ni->neo", self.mix.weight, x)).mean(1))


def test_stacked_experts_are_compared_one_by_one():
    torch.manual_seed(0)
    a, b = Experts(), Experts()
    b.load_state_dict(a.state_dict())
    with torch.no_grad():
        b.mix.weight[2] += torch.outer(torch.ones(12), torch.arange(6.0))
    for sources in ((a, b), (a, b.state_dict()), (a.state_dict(), b)):  # a kernel by its name alone
        data = bnrank.compare(*sources).data
        assert data.layer_name.values.tolist() == ["mix[0]", "mix[1]", "mix[2]", "mix[3]", "head"]
        assert data.update_rank.values.tolist() == [0, 0, 1, 0, 0]
        size = float((b.mix.weight[2] - a.mix.weight[2]).detach().norm() / a.mix.weight[2].detach().norm())
        assert data.change.values == pytest.approx([0, 0, size, 0, 0], rel=1e-6)
        assert "only in" not in str(bnrank.compare(*sources))


def test_a_mixture_that_lacks_float64_is_compared_in_another_precision():
    torch.manual_seed(0)
    net, x = Experts(), normal(20, 6)
    with pytest.raises(ValueError, match=r"^a: .*dtype="):
        bnrank.compare(net, net, x)
    data = bnrank.compare(net, net, x, dtype=torch.float32).data
    assert data.attrs["output_change"] == 0
    assert float(data.cka.sel(layer_a="head", layer_b="head")) == pytest.approx(1)


def test_quantized_weights_are_compared_as_what_they_stand_for(tmp_path):
    weight = normal(256, 256) * torch.logspace(0, -3, 256)[:, None]
    scale = weight.abs().amax(1, keepdim=True) / 448
    codes = (weight / scale).to(torch.float8_e4m3fn)
    save_file({"q.weight": codes, "q.weight_scale": scale}, tmp_path / "fp8.safetensors")
    save_file({"q.weight": weight.bfloat16()}, tmp_path / "bf16.safetensors")
    data = bnrank.compare(tmp_path / "bf16.safetensors", tmp_path / "fp8.safetensors").data
    plain = weight.bfloat16().double()
    right = float((codes.double() * scale.double() - plain).norm() / plain.norm())
    assert data.change.values == pytest.approx([right], rel=1e-6)
    assert (data.layer_name.values.tolist(), data.sizes["tensor"]) == (["q"], 0)
    packed = {"q.qweight": torch.ones(4, 8, dtype=torch.int32), "q.scales": torch.ones(2, 8)}
    data = bnrank.compare(packed, packed).data  # how they are packed, the file does not say
    assert (data.skipped_name.values.tolist(), data.sizes["layer"]) == (["q.qweight"], 0)


def test_tensors_that_cannot_be_read_are_listed():
    states = [{"m": torch.empty(3, 3, device="meta"), "s": torch.eye(3).to_sparse(), "w": normal(3, 3)} for _ in "ab"]
    states[1]["m"] = torch.eye(3)
    found = bnrank.compare(*states)
    reasons = dict(zip(found.data.skipped_name.values, found.data.skipped_reason.values, strict=True))
    assert reasons.keys() == {"m", "s"}
    assert reasons["m"].startswith("in a, on the meta device")
    assert reasons["s"].startswith("in a, sparse")
    assert found.data.layer_name.values.tolist() == ["w"]

    class Sharded(torch.Tensor):
        def full_tensor(self):
            raise RuntimeError("no process group")

    found = bnrank.compare(
        {"w": normal(3, 3), "v": normal(2, 3)}, {"w": normal(3, 3).as_subclass(Sharded), "v": normal(2, 3)}
    )
    assert found.data.skipped_name.values.tolist() == ["w"]
    assert "sharded" in found.data.skipped_reason.values[0]


def test_weights_tied_in_one_network_only_are_compared_with_both():
    tied = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 6))
    tied[2].weight = tied[0].weight
    state = {name: value.clone() for name, value in tied.state_dict().items()}
    state["2.weight"] += 1
    for sources in ((tied, state), (state, tied)):
        data = bnrank.compare(*sources).data
        assert data.update_norm.values == pytest.approx([0, 6], rel=1e-6)
    assert bnrank.compare(tied, tied).data.sizes["layer"] == 1


def test_a_file_with_a_prefix_is_read_as_the_module_is():
    net = nn.Sequential(nn.ConvTranspose2d(5, 4, 3), nn.Conv2d(4, 8, 3, groups=4))
    state = {f"model.{name}": value + 0.1 for name, value in net.state_dict().items()}
    moved = copy.deepcopy(net)
    moved.load_state_dict({name.removeprefix("model."): value for name, value in state.items()})
    expected, found = bnrank.compare(net, moved).data, bnrank.compare(net, state).data
    assert found.layer_name_b.values.tolist() == ["model.0", "model.1"]
    for name in ("stable_rank", "parameter_norm", "update_norm", "update_stable_rank"):
        assert np.allclose(found[name], expected[name], rtol=1e-12), name
