import functools

import numpy as np
import pytest
import torch
import xarray as xr
from safetensors.torch import save_file
from torch import nn
from torch.utils.checkpoint import checkpoint

import bnrank
import helpers
from bnrank import Jacobian
from bnrank._core.validation import number, real
from bnrank.measures import bottlenecks, describe, ntk, profile, samplewise, spectra
from bnrank.networks.functional import Functional

normal = functools.partial(helpers.normal, dtype=torch.float32)


def convolutional():
    return nn.Sequential(
        nn.Conv2d(1, 3, 3, padding=1, padding_mode="circular"),
        nn.ReLU(True),
        nn.BatchNorm2d(3),
        nn.Conv2d(3, 2, 3, stride=2, padding=1),
        nn.Flatten(),
        nn.Linear(18, 4),
    )


@pytest.mark.parametrize("chunk", [16, 4096])
def test_every_variable_is_what_its_measure_says(chunk):
    net, x, y = bnrank.MLP([4, 9, 9, 3], slope=0.1, seed=0), normal(50, 4), normal(50, 3)
    ds = profile(net, x, y, chunk_size=chunk, max_jacobian_samples=7)
    assert dict(ds.sizes) == {"layer": 3, "index": 9, "sample": 7}
    assert list(ds.layer.values) == [1, 2, 3]
    assert list(ds.layer_name.values) == ["layers.0", "layers.1", "layers.2"]
    assert list(ds.layer_kind.values) == ["linear"] * 3
    assert list(ds.sample.values) == [0, 8, 16, 24, 33, 41, 49]
    rows = x[ds.sample.values.tolist()]
    for name, expected in (
        ("weight_singular_values", spectra.weight_singular_values(net)),
        ("activation_singular_values", spectra.activation_singular_values(net, x)),
        ("preactivation_singular_values", spectra.activation_singular_values(net, x, which="preactivations")),
    ):
        for i, values in enumerate(expected.values()):
            row = ds[name].values[i]
            assert np.allclose(row[: len(values)], values, atol=1e-13)
            assert np.isnan(row[len(values) :]).all()
    assert np.allclose(ds.nonlinearity, list(bnrank.nonlinearity(net, x).values()), equal_nan=True)
    assert list(ds.weight_rank.values) == [int((s > 0.1).sum()) for s in spectra.weight_singular_values(net).values()]
    total = sum(float((p.detach().double() ** 2).sum()) for p in net.parameters())
    assert float(ds.parameter_norm.sum()) == pytest.approx(total)
    assert np.allclose(ds.jacobian_singular_values.values[:, :3], Jacobian(net, rows).singular_values)
    assert np.isnan(ds.jacobian_singular_values.values[:, 3:]).all()
    assert np.allclose(ds.log_pseudo_determinant, Jacobian(net, rows).log_pseudo_determinant())
    assert np.allclose(ds.ntk_trace, ntk.trace(net, rows))
    assert float(ds.cost) == pytest.approx(float(((net(x) - y) ** 2).sum(1).mean()), rel=1e-5)
    assert ds.cost.attrs["loss"] == "mse"
    assert all(v.attrs["long_name"] and v.attrs["units"] for v in ds.data_vars.values())


def test_a_convolutional_network_with_labels_and_what_was_left_out():
    net, x, y = convolutional(), normal(30, 1, 6, 6), torch.arange(30) % 4
    state, random = {k: v.clone() for k, v in net.state_dict().items()}, torch.get_rng_state()
    ds = profile(net, x, y.numpy())
    assert list(ds.layer_kind.values) == ["conv2d", "conv2d", "linear"]
    weights = spectra.weight_singular_values(net, x)
    assert np.allclose(ds.weight_singular_values.values[0, : len(weights["0"])], weights["0"])
    assert ds["skipped_name"].values.tolist() == ["2"]
    assert describe(ds) == [
        "skipped 2 (BatchNorm2d): normalization: divides by a function of the values",
        "dimensions: from 30 samples; with fewer than 50 they can be several times too large",
        "3: frequencies: with stride (2, 2) those that alias share their singular values",
    ]
    assert np.isfinite(ds.ntk_trace).all()
    assert float(ds.cost) == pytest.approx(float(nn.functional.cross_entropy(net.eval()(x), y)), rel=1e-5)
    assert torch.equal(random, torch.get_rng_state())
    assert all(torch.equal(state[k], v) for k, v in net.state_dict().items())


def test_the_bottleneck_is_in_the_attributes():
    net = bnrank.MLP([6] * 7, seed=0, bias=False)
    with torch.no_grad():
        for weight in net.weights[1:5]:
            weight.copy_(torch.diag(torch.tensor([1.1, 0.9, 0.01, 0.01, 0.01, 0.01])))
    ds = profile(net, normal(20, 6))
    assert [ds.attrs[f"bottleneck_{name}"] for name in ("rank", "start", "end", "reason")] == [2, 2, 5, ""]
    assert ds.attrs["bottleneck_gap"] == pytest.approx(90)
    assert bottlenecks.detect(ds.weight_singular_values.values).rank == 2
    collapsed = profile(bnrank.MLP([6] * 4, init=0.0), normal(20, 6)).attrs
    assert collapsed["bottleneck_rank"] == 0
    assert "bottleneck_gap" not in collapsed
    undetermined = profile(bnrank.MLP([6] * 4), normal(20, 6)).attrs
    assert "bottleneck_rank" not in undetermined
    assert "clear gap" in undetermined["bottleneck_reason"]


def test_a_profile_can_be_saved_and_opened(tmp_path):
    for net, x in ((bnrank.MLP([4, 5, 2]), normal(9, 4)), (convolutional(), normal(9, 1, 6, 6))):
        ds = profile(net, x, normal(9, 2 if x.ndim == 2 else 4))
        ds.to_netcdf(tmp_path / "p.nc", engine="h5netcdf")
        with xr.open_dataset(tmp_path / "p.nc", engine="h5netcdf") as back:
            xr.testing.assert_equal(ds, back.load())
            assert describe(back) == describe(ds)


def test_only_the_largest_values_are_kept_but_all_are_counted():
    net, x = bnrank.MLP([20, 20, 20], seed=0), normal(50, 20)
    ds, whole = profile(net, x, max_values=3), profile(net, x)
    assert ds.sizes["index"] == 3
    assert ds.attrs["index_cut"] == 1
    assert whole.attrs["index_cut"] == 0
    assert np.array_equal(ds.weight_singular_values, whole.weight_singular_values[:, :3])
    assert np.array_equal(ds.weight_rank, whole.weight_rank)


def test_what_costs_too_much_is_skipped_with_the_reason(monkeypatch):
    net, x = nn.Sequential(nn.Linear(4, 3)), normal(50, 4)
    monkeypatch.setattr(samplewise, "MAX_JACOBIAN_WORK", 1000)
    ds = profile(net, x)
    assert np.isnan(ds.jacobian_singular_values).all()
    assert np.isfinite(ds.ntk_trace).all()
    (line,) = [line for line in describe(ds) if "jacobian_singular_values" in line]
    assert line.endswith("max_jacobian_samples=27 stays below it")
    assert np.isfinite(profile(net, x, max_jacobian_samples=27).log_pseudo_determinant).all()


def test_samples_that_depend_on_each_other_leave_the_layers_measured():
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4, track_running_stats=False), nn.Linear(4, 2))
    ds = profile(net, normal(10, 3))
    assert np.isfinite(ds.activation_singular_values.values[0]).all()
    assert np.isnan(ds.log_pseudo_determinant).all()
    assert any("jacobian_singular_values" in line for line in describe(ds))


def test_a_convolution_whose_stride_does_not_divide_the_image_is_measured():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv1d(1, 2, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(6, 2))
    ds = profile(net, normal(10, 1, 7), atol=1e-9)
    dense = torch.zeros(2, 3, 7, dtype=torch.float64)
    for i in range(3):
        dense[:, i, 2 * i : 2 * i + 3] = net[0].weight[:, 0].detach()
    assert np.allclose(ds.weight_singular_values.values[0, :6], torch.linalg.svdvals(dense.flatten(0, 1)))
    assert ds.weight_rank.values[0] == 6
    assert np.isfinite(ds.activation_singular_values.values[0, :6]).all()


def test_integers_as_input():
    net = nn.Sequential(nn.Embedding(5, 3), nn.Flatten(), nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 2))
    ds = profile(net, torch.arange(20).reshape(10, 2) % 5)
    assert list(ds.layer_name.values) == ["0", "2", "4"]
    assert list(ds.layer_kind.values) == ["embedding", "linear", "linear"]
    assert np.allclose(ds.weight_singular_values[0, :3], torch.linalg.svdvals(net[0].weight.detach().double()))
    assert np.isnan(ds.jacobian_singular_values).all()
    assert np.isfinite(ds.ntk_trace).all()
    assert any("x has integers" in line for line in describe(ds))


def test_class_indices_at_every_position():
    """Outputs (N, T, C) are T distributions, and not one over T x C classes."""
    net, tokens = nn.Sequential(nn.Embedding(5, 3), nn.Linear(3, 4)), torch.arange(30).reshape(10, 3) % 5
    y = tokens.flip(1) % 4
    expected = nn.functional.cross_entropy(net(tokens).flatten(0, 1), y.flatten())
    assert float(profile(net, tokens, y, what="weights", chunk_size=4).cost) == pytest.approx(float(expected), rel=1e-5)
    for wrong in (y[:, 0], y[:, :2]):
        with pytest.raises(ValueError, match=r"y: got shape .*, expected .* shape \(10, 3\) .* in the last dimension"):
            profile(net, tokens, wrong)
    with pytest.raises(ValueError, match="y: got class indices from 0 to 4, expected class indices from 0 to 3"):
        profile(net, tokens, tokens)
    image, x, y = nn.Conv2d(2, 3, 2), normal(9, 2, 2, 2), torch.arange(9) % 3  # (N, C, 1, 1)
    expected = nn.functional.cross_entropy(image(x).flatten(1), y)
    assert float(profile(image, x, y, what="weights").cost) == pytest.approx(float(expected), rel=1e-5)
    one = nn.Sequential(image, nn.Flatten(), nn.Unflatten(1, (1, 3)))  # (N, T, C) with T = 1
    for given in (y, y[:, None]):
        assert float(profile(one, x, given, what="weights").cost) == pytest.approx(float(expected), rel=1e-5)
    with pytest.raises(TypeError, match=r"y: got .*expected class indices: integers, shape \(N,\)"):
        profile(image, x, y[:, None])


class Pair(nn.Module):
    """Two layers with a forward that is given."""

    def __init__(self, forward):
        super().__init__()
        self.a, self.b, self.run = nn.Linear(5, 8), nn.Linear(8, 3), forward

    def forward(self, x):
        return self.run(self, x)


def imported(name):
    """Return a forward whose backward pass fails in a file with a name."""
    space = {"Function": torch.autograd.Function}
    source = """
class Failing(Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, g):
        raise RuntimeError("my kernel has no backward")
"""
    exec(compile(source, name, "exec"), space)
    return lambda own, x: own.b(space["Failing"].apply(own.a(x)))


def checkpointed(reentrant):
    return Pair(lambda own, x: own.b(checkpoint(lambda z: own.a(z).relu(), x, use_reentrant=reentrant)))


@pytest.mark.parametrize(
    ("net", "reason"),
    [
        (Pair(lambda own, x: own.b(own.a(x).relu_().mul_(2))), "modified by an inplace operation"),
        (checkpointed(True), "torch.utils.checkpoint with use_reentrant=True gives no gradients"),
        (
            Pair(lambda own, x: own.b(checkpoint(torch.relu, own.a(x), use_reentrant=True))),
            "or pass use_reentrant=False if no parameters are inside",
        ),
        (Pair(imported("my_checkpoint.py")), "my kernel has no backward"),
    ],
    ids=["in place", "reentrant checkpoint", "without parameters inside", "file of that name"],
)
def test_a_backward_pass_that_fails_is_skipped_with_the_reason(net, reason):
    ds = profile(net, normal(60, 5))
    assert np.isnan(ds.jacobian_singular_values).all()
    assert np.isnan(ds.ntk_trace).all()
    assert np.isfinite(ds.stable_rank).all()
    assert np.isfinite(ds.dimension_95).all()
    assert [reason in line for line in describe(ds)] == [True, True]
    for measure in (ntk.trace, ntk.gram, lambda *given: Jacobian(*given).matrices):
        with pytest.raises(ValueError, match=f"net: Pair cannot be differentiated: .*{reason}"):
            measure(net, normal(20, 5))
    only = bnrank.check(net, normal(20, 5), normal(20, 3), only=["T5", "T47"])
    assert {verdict.status for verdict in only} == {"not applicable"}


def test_what_a_checkpoint_runs_again_is_right_or_refused():
    net, x = checkpointed(False), normal(60, 5)
    ds, plain = profile(net, x), profile(nn.Sequential(net.a, nn.ReLU(), net.b), x)
    lines = [line for line in describe(ds) if "torch.utils.checkpoint runs parts of its forward again" in line]
    for name in ("jacobian_singular_values", "ntk_trace"):
        missing = bool(np.isnan(ds[name].values[:, :3] if ds[name].ndim > 1 else ds[name]).all())
        assert missing == any(name in line for line in lines)
        if not missing:
            np.testing.assert_allclose(ds[name], plain[name], rtol=1e-9)


class Experts(nn.Module):
    """Two experts: one for samples whose first entry is positive, and one for the others."""

    def __init__(self):
        super().__init__()
        self.experts, self.head = nn.ModuleList(nn.Linear(5, 4) for _ in range(2)), nn.Linear(4, 2)

    def forward(self, x):
        out, first = x.new_zeros(len(x), 4), x[:, 0] > 0
        for rows, expert in zip((first, ~first), self.experts, strict=True):
            if rows.any():
                out[rows] = expert(x[rows])
        return self.head(out.relu())


@pytest.mark.parametrize("chunk", [16, 4096])
def test_layers_that_only_some_samples_reach_are_left_out_wherever_they_show(chunk):
    """The first samples, with which the network is read, go to one expert; others tell that not all do."""
    x = normal(60, 5)
    x[:20, 0] = x[:20, 0].abs()
    ds = profile(Experts(), x, chunk_size=chunk)
    assert list(ds.layer_name.values) == ["head", "experts.0", "experts.1"]
    assert np.isfinite(ds.weight_singular_values[:, :2]).all()
    assert np.isfinite(ds.dimension_95.values).tolist() == [True, False, False]
    assert np.isnan(ds.activation_singular_values[1:]).all()
    notes = dict(zip(ds.note_name.values, ds.note_note.values, strict=True))
    assert notes["experts.0"].startswith("only its weight is measured: has no value for each of ")
    assert notes["experts.1"].startswith("only its weight is measured: never called on the example x")


def test_a_forward_that_leaves_torch_has_an_ntk():
    def signs(own, x):
        return own.b(own.a(x * torch.from_numpy(np.sign(x.numpy()))).relu())

    net, plain, x = Pair(signs), Pair(lambda own, x: own.b(own.a(x.abs()).relu())), normal(20, 5)
    plain.load_state_dict(net.state_dict())
    assert ntk.trace(net, x) == pytest.approx(ntk.trace(plain, x))
    assert profile(net, x).ntk_trace.values == pytest.approx(profile(plain, x).ntk_trace.values)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_outputs_that_are_not_finite_do_not_hide_weights_and_noise(value):
    def masked(own, x):
        return own.b(own.a(x).relu()).masked_fill(torch.tensor([True, False, False]), value)

    def noisy(own, x):
        return masked(own, x) + torch.randn(len(x), 1, dtype=x.dtype)

    x = normal(20, 5)
    for forward, is_random in ((masked, False), (noisy, True)):
        net = Pair(forward)
        assert np.isfinite(profile(net, x, what=["weights"]).stable_rank).all()
        assert Functional(net).is_random(x.double()) is is_random
        with pytest.raises(ValueError, match="got NaN, infinite or too large entries"):
            profile(net, x)
    nothing = Pair(lambda own, x: own.b(own.a(x)) * value - value)
    assert not Functional(nothing).is_random(x.double())


def test_the_other_measures_of_activations_leave_them_out_as_well():
    net, x = Experts(), normal(60, 5)
    x[:20, 0] = x[:20, 0].abs()
    found = bnrank.compare(net, Experts(), x=x)
    assert (list(found.data.layer_a.values), list(found.data.layer_b.values)) == (["head"], ["head"])
    assert list(spectra.activation_singular_values(net, x)) == ["head"]
    structure = bnrank.bottleneck(net, x)
    assert [layer.name for layer in structure.layers if layer.activation_values is not None] == ["head"]
    assert [layer.name for layer in structure.layers] == ["head", "experts.0", "experts.1"]


def test_a_forward_without_gradients_has_no_ntk():
    ds = profile(Pair(torch.no_grad()(lambda own, x: own.b(own.a(x).relu()))), normal(20, 5))
    assert np.isnan(ds.ntk_trace).all()
    assert any("ntk_trace: net: the output of Pair does not depend on its parameters" in s for s in describe(ds))


def test_a_forward_that_draws_noise_in_eval_mode_is_named():
    def noisy(own, x):
        return own.b((own.a(x) + 0.1 * torch.randn(len(x), 8, dtype=x.dtype)).relu())

    net = Pair(noisy)
    state = torch.get_rng_state()
    assert not any("random" in line for line in describe(profile(net, normal(60, 5), what=["weights"])))
    lines = describe(profile(net, normal(60, 5)))
    assert torch.equal(torch.get_rng_state(), state)
    assert any("jacobian_singular_values: net: the output of Pair is random, in eval mode, too" in s for s in lines)
    assert sum("activations contain the noise of one draw per pass" in line for line in lines) == 1
    for quiet in (nn.Dropout(), nn.BatchNorm1d(5, track_running_stats=False)):
        lines = describe(profile(nn.Sequential(quiet, nn.Linear(5, 3)), normal(60, 5)))
        assert not any("random" in line for line in lines)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"x": normal(9, 5)}, ValueError, "x: got shape"),
        ({"y": normal(9, 2)}, ValueError, "y: got 2 outputs"),
        ({"y": normal(8, 3)}, ValueError, "y: got 8 samples"),
        ({"y": torch.full((9,), 3)}, ValueError, "y: got class indices from 3 to 3"),
        ({"y": torch.ones(9, 3, dtype=torch.bool)}, TypeError, "y: got Tensor"),
        ({"weight_rtol": -1.0}, ValueError, "weight_rtol: got -1"),
        ({"atol": "a"}, TypeError, "atol: got 'a'"),
        ({"max_minutes": 0}, ValueError, "max_minutes: got 0"),
        ({"chunk_size": 0}, ValueError, "chunk_size: got 0"),
        ({"max_jacobian_samples": 0}, ValueError, "max_jacobian_samples: got 0"),
        ({"max_values": 0}, ValueError, "max_values: got 0"),
        ({"net": nn.Sequential(nn.ReLU())}, ValueError, "found no linear or convolutional layer"),
        ({"net": "net"}, ValueError, "net: got 'net'"),
        ({"net": 3}, TypeError, "net: got 3"),
    ],
)
def test_errors_name_the_argument(arguments, error, message):
    settings = {"net": bnrank.MLP([4, 5, 3]), "x": normal(9, 4), **arguments}
    with pytest.raises(error, match=message):
        profile(**settings)
    with pytest.raises(ValueError, match="profile: got a dataset without"):
        describe(xr.Dataset())


def test_targets_are_read_as_samples_are_and_refused_by_name():
    net, x, y = bnrank.MLP([3, 4, 2]), normal(6, 3), normal(6, 2).double().numpy()
    expected = profile(net, x, torch.tensor(y))
    for same in (y[::-1][::-1], y.astype(">f8"), np.asfortranarray(y), np.ma.masked_array(y)):
        xr.testing.assert_identical(profile(net, x, same), expected)
    assert profile(net, x, y[::-1]).sizes == expected.sizes
    for wrong in (
        np.ma.masked_array(y, y > 0),
        torch.tensor(y).to_sparse(),
        torch.tensor(y).to("meta"),
        "y",
        [[1], [2, 3]],
    ):
        with pytest.raises(TypeError, match=r"^y: got"):
            profile(net, x, wrong)


def test_masked_values_and_numbers_too_long_to_write_are_refused():
    with pytest.raises(TypeError, match="values: got a masked array"):
        real(np.ma.masked_array([1.0, 999.0], [0, 1]), "values")
    with pytest.raises(ValueError, match="std: got an integer of 16,610 bits"):
        number(10**5000, "std")


@pytest.mark.parametrize("plain", [True, False])
def test_one_sample_has_a_profile(plain):
    net = bnrank.MLP([4, 9, 3], seed=0)
    net, x, y = net if plain else nn.Sequential(nn.BatchNorm1d(4), net), normal(1, 4), normal(1, 3)
    ds = profile(net, x, y)
    assert (ds.attrs["samples"], ds.sizes["sample"]) == (1, 1)
    assert float(ds.cost) == pytest.approx(float((net.eval()(x) - y).detach().square().sum()), rel=1e-5)
    activations = ds.activation_singular_values.sel(layer=1).values
    assert activations[0] > 0  # one value, and rank one
    assert np.isnan(activations[1:]).all()
    many = profile(net, x.repeat(3, 1))
    assert np.allclose(many.jacobian_singular_values[0], ds.jacobian_singular_values[0], equal_nan=True)


def test_a_limit_that_is_not_reached_changes_nothing():
    net, x = bnrank.MLP([3, 8, 6, 2], seed=0), normal(23, 3)  # Jacobians of two samples at a time
    free, limited = bnrank.profile(net, x), bnrank.profile(net, x, max_minutes=60)
    for name in ("jacobian_singular_values", "ntk_trace", "activation_singular_values", "nonlinearity"):
        assert np.allclose(free[name], limited[name], rtol=0, atol=1e-12, equal_nan=True), name
    assert bool(np.isfinite(limited["ntk_trace"]).all())


def chains():
    """Functions of the activation: its argument, and the network of torch with it."""
    return {
        "relu": nn.ReLU(),
        "linear": nn.Identity(),
        0.1: nn.LeakyReLU(0.1),
        "tanh": nn.Tanh(),
        "gelu": nn.GELU(),
        "silu": nn.SiLU(),
    }


@pytest.mark.parametrize("activation", chains())
def test_a_state_dict_or_file_with_its_activation_is_the_network(activation, tmp_path):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 12), chains()[activation], nn.Linear(12, 3))
    x, y, path = normal(40, 6), normal(40, 3), tmp_path / "net.safetensors"
    save_file(net.state_dict(), path)
    torch.save(net.state_dict(), tmp_path / "net.pt")
    expected = profile(net, x, y)
    jacobians = torch.func.vmap(torch.func.jacrev(net.double()))(x.double())
    largest = torch.linalg.svdvals(jacobians)[:, 0]
    np.testing.assert_allclose(expected.jacobian_singular_values[:, 0], largest.detach(), rtol=1e-9)
    for source in (net.float().state_dict(), path, tmp_path / "net.pt"):
        found = profile(source, x, y, activation=activation)
        assert found.layer_name.values.tolist() == ["0", "2"]
        for name in expected.data_vars:
            np.testing.assert_allclose(found[name], expected[name], rtol=1e-9, atol=1e-12, err_msg=name)
    verdicts = bnrank.check(path, x, activation=activation, only="T4")
    assert verdicts[0].status == ("not applicable" if activation in ("tanh", "gelu", "silu") else "holds")


def test_an_activation_is_asked_for_where_tensors_do_not_say_it_and_nowhere_else(tmp_path):
    x, state = normal(9, 6), nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 3)).state_dict()
    save_file(state, tmp_path / "net.safetensors")
    for source in (state, tmp_path / "net.safetensors"):
        for call in (profile, bnrank.check):
            with pytest.raises(ValueError, match=r'activation: got none, .* expected "relu", "linear", a slope'):
                call(source, x)
    with pytest.raises(ValueError, match="activation: got none"):
        bnrank.load(tmp_path / "net.safetensors")
    for wrong in ("softmax", "dropout", "threshold", "", 2):
        random = torch.get_rng_state()
        with pytest.raises(ValueError, match="activation: got"):
            profile(state, x, activation=wrong)
        assert torch.equal(random, torch.get_rng_state())
    own = bnrank.save(bnrank.MLP([6, 5, 3], slope=0.1, seed=0), tmp_path / "own.safetensors")
    assert profile(own, x).layer_name.values.tolist() == ["layers.0", "layers.1"]
    profile(own, x, activation=0.1)
    for net, wrong in ((own, "relu"), (own, "tanh"), (nn.Linear(6, 3), "relu"), (bnrank.MLP([6, 3, 2]), 0.1)):
        with pytest.raises(ValueError, match=f"activation: got '?{wrong}'? for a .*, expected"):
            profile(net, x, activation=wrong)
    with pytest.raises(ValueError, match="activation: got 'relu' without x"):
        profile(state, activation="relu")
    assert profile({"weight": torch.ones(3, 6)}, x).layer_name.values.tolist() == ["weight"]  # one layer has none


@pytest.mark.parametrize(
    "make", [lambda: nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)), lambda: bnrank.MLP([3, 4, 2])]
)
def test_samples_with_a_graph_of_gradients_are_those_without(make):
    torch.manual_seed(0)
    net, x = make(), torch.randn(12, 3)
    assert profile(net, x.clone().requires_grad_()).equals(profile(net, x))


class Energy(nn.Module):
    """A network that turns gradients on inside, as one of energies and forces does."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x):
        with torch.enable_grad():
            return self.b(self.a(x.requires_grad_()).relu())


def test_values_of_a_network_that_turns_gradients_on_have_none():
    net, x = Energy(), torch.randn(12, 3)
    plain = nn.Sequential(net.a, nn.ReLU(), net.b)
    found, expected = profile(net, x), profile(plain, x)
    for name in ("activation_singular_values", "dimension_95", "ntk_trace"):
        assert np.allclose(found[name], expected[name], equal_nan=True)
    values = bnrank.spectra.activation_singular_values(net, x).values()
    assert not any(spectrum.requires_grad for spectrum in values)
