import functools

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import prune

import bnrank
import helpers
from bnrank import Jacobian
from bnrank.measures import ntk
from bnrank.networks.functional import Functional, check_unshared, example, is_plain_mlp
from oracles import input_jacobian
from oracles import ntk as dense_ntk

normal = functools.partial(helpers.normal, dtype=torch.float32)


def mlp():
    return bnrank.MLP([4, 4, 4, 2], seed=0, dtype=torch.float64)


def tied_weight(net):
    net.layers[1].weight = net.layers[0].weight


def tied_bias(net):
    net.layers[1].bias = net.layers[0].bias


def twice_the_layer(net):
    net.layers[1] = net.layers[0]


def hooked(net):
    def remember_and_double(module, args, out):
        module.seen = out
        return 2 * out

    net.layers[1].register_forward_hook(remember_and_double)


def hooked_before(net):
    net.register_forward_pre_hook(lambda module, args: (2 * args[0],))


def another_forward(net):
    net.layers[1].forward = lambda x: torch.tanh(x)


def pruned(net):
    prune.l1_unstructured(net.layers[1], "weight", 0.5)
    net.layers[1].weight = net.layers[1].weight.detach()  # made anew by a hook in every call


def normed(net):
    nn.utils.parametrizations.weight_norm(net.layers[1])


def without_a_bias(net):
    net.layers[1].bias = None


def other_width(net):
    net.layers[1], net.layers[2] = nn.Linear(4, 3).double(), nn.Linear(3, 2).double()


def one_layer_more(net):
    net.layers.append(nn.Linear(2, 2).double())


def another_parameter(net):
    net.scale = nn.Parameter(torch.ones(1, dtype=torch.float64))


CHANGES = [
    tied_weight,
    tied_bias,
    twice_the_layer,
    hooked,
    hooked_before,
    another_forward,
    pruned,
    normed,
    without_a_bias,
    other_width,
    one_layer_more,
    another_parameter,
]


@pytest.mark.parametrize("change", CHANGES)
def test_closed_forms_are_not_taken_of_a_changed_mlp(change):
    """What is measured is right all the same: tied parameters count once."""
    net, x = mlp(), normal(5, 4)
    assert is_plain_mlp(net)
    change(net)
    assert not is_plain_mlp(net)
    expected = input_jacobian(net, x)
    kernel = dense_ntk(net, x)
    jacobian = Jacobian(net, x)
    traces, values = jacobian.ntk_trace, jacobian.singular_values
    assert torch.allclose(jacobian.matrices, expected)
    assert torch.allclose(values, torch.linalg.svdvals(expected))
    assert torch.allclose(traces, torch.einsum("iiaa->i", kernel))
    assert torch.allclose(ntk.trace(net, x), torch.einsum("iiaa->i", kernel))
    assert torch.allclose(ntk.gram(net, x), kernel)
    matrix = kernel.permute(0, 2, 1, 3).reshape(10, 10)
    assert ntk.top_eigenvalue(net, x) == pytest.approx(float(torch.linalg.eigvalsh(matrix)[-1]))


def test_a_tied_network_is_not_the_untied_one():
    tied, untied, x = mlp(), mlp(), normal(5, 4)
    with torch.no_grad():
        untied.layers[1].weight.copy_(untied.layers[0].weight)
    tied_weight(tied)
    assert torch.equal(tied(x.double()), untied(x.double()))
    assert (ntk.trace(tied, x) - ntk.trace(untied, x)).abs().max() > 0.1
    with pytest.raises(TypeError, match="net: got an MLP that was changed"):
        ntk.mixed_derivative_norm(tied, x)


def same_memory(net):
    net.layers[1].weight.data = net.layers[0].weight.data


def transposed_memory(net):
    net.layers[1].weight.data = net.layers[0].weight.data.T


def overlapping_memory(net):
    net.layers[1].bias.data = net.layers[0].weight.data[1]


@pytest.mark.parametrize("change", [same_memory, transposed_memory, overlapping_memory])
def test_different_parameters_in_the_same_memory_are_refused_by_name(change):
    net, x = mlp(), normal(5, 4)
    change(net)
    assert not is_plain_mlp(net)
    for call in (
        ntk.trace,
        ntk.gram,
        ntk.top_eigenvalue,
        ntk.mixed_derivative_norm,
        lambda net, x: Jacobian(net, x).ntk_trace,
    ):
        with pytest.raises(ValueError, match=r"same memory \(layers\.0\.weight and layers\.1\.(weight|bias)\)"):
            call(net, x)
    assert torch.allclose(Jacobian(net, x).matrices, input_jacobian(net, x))


def test_neighbors_in_one_memory_are_separate():
    net, flat = mlp(), torch.randn(100, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    begin = 0
    for p in net.parameters():
        p.data = flat[begin : begin + p.numel()].view(p.shape)
        begin += p.numel()
    check_unshared(net)
    assert is_plain_mlp(net)
    check_unshared(nn.Sequential(nn.Linear(3, 2, device="meta"), nn.Linear(2, 2, device="meta")))


@pytest.mark.parametrize("change", [*CHANGES, same_memory])
def test_a_call_leaves_everything_as_it_was(change):
    net = mlp()
    change(net)
    net.register_buffer("table", torch.ones(2))
    net.layers[0].register_buffer("same", net.table)
    before = [(m, dict(vars(m)), dict(m._parameters), dict(m._buffers)) for m in net.modules()]
    function = Functional(net)
    function(normal(3, 4))
    torch.func.vmap(torch.func.jacrev(lambda s: function(s[None])[0]))(normal(3, 4))
    Jacobian(net, normal(3, 4)).near_kinks()
    for module, attributes, parameters, buffers in before:
        for was, now in ((attributes, vars(module)), (parameters, module._parameters), (buffers, module._buffers)):
            assert was.keys() == now.keys()
            assert all(was[k] is now[k] for k in was)


class Registers(nn.Module):
    """Registers hooks, tensors and a submodule in its first forward pass, and removes a hook."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 8), nn.Linear(8, 2)
        self.once = self.b.register_forward_hook(lambda *_: None)
        self.installed = False

    def forward(self, x):
        if not self.installed:
            self.once.remove()
            nothing = lambda *_, **__: None  # noqa: E731
            self.a.register_forward_hook(nothing, with_kwargs=True, always_call=True)
            self.a.register_forward_pre_hook(nothing, with_kwargs=True)
            self.a.register_full_backward_hook(nothing)
            self.a.register_full_backward_pre_hook(nothing)
            self.a.register_state_dict_post_hook(nothing)
            self.a.register_state_dict_pre_hook(nothing)
            self.a.register_load_state_dict_pre_hook(nothing)
            self.a.register_load_state_dict_post_hook(nothing)
            self.b.register_buffer("table", torch.ones(3), persistent=False)
            self.b.register_parameter("scale", nn.Parameter(torch.ones(())))
            self.b.extra = nn.Identity()
            self.installed = True
        return self.b(self.a(x).relu())


def test_a_module_of_an_older_torch_that_lacks_a_registry_runs():
    net = nn.Linear(4, 2)
    del net._forward_hooks_always_called
    assert torch.equal(Functional(net)(torch.ones(3, 4)), net.double()(torch.ones(3, 4).double()))


def watched(net, x):
    with bnrank.watch(net, x=x, every=1) as watch:
        watch.step()


@pytest.mark.parametrize(
    "run",
    [
        bnrank.networks.read,
        bnrank.profile,
        bnrank.bottleneck,
        lambda net, x: bnrank.compare(net, net, x),
        bnrank.check,
        lambda net, x: bnrank.compress(net, x, tune=0, timing=bnrank.discovery.Timing(repeats=1)),
        watched,
    ],
    ids=["read", "profile", "bottleneck", "compare", "check", "compress", "watch"],
)
def test_what_a_network_registers_in_its_first_pass_does_not_stay_on_it(run):
    net = Registers()
    registered = [
        (m, key, held) for m in net.modules() for key, held in vars(m).items() if isinstance(held, dict | set)
    ]
    before = [held.copy() for _, _, held in registered]
    run(net, normal(60, 4))
    assert not net.installed
    for (module, key, held), content in zip(registered, before, strict=True):
        assert vars(module)[key] is held
        assert held == content, key
    net(normal(2, 4))
    assert net.installed
    assert len(net.a._forward_hooks) == 1
    assert not net.b._forward_hooks


def test_one_tensor_in_several_places_is_replaced_in_all():
    class Shares(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)
            self.c = self.a
            self.b.weight = self.a.weight
            self.register_buffer("one", torch.ones(1))
            self.b.register_buffer("two", self.one)

        def forward(self, x):
            return self.c(self.b(self.a(x * self.one))) * self.b.two

    net = Shares()
    function = Functional(net)
    assert list(function.parameters) == ["a.weight"]
    doubled = {"a.weight": 2 * function.parameters["a.weight"]}
    assert torch.allclose(function.with_parameters(doubled, normal(3, 2)), 8 * function(normal(3, 2)))
    function.buffers["one"] *= 3
    assert torch.allclose(function(normal(3, 2)), 9 * Functional(net)(normal(3, 2)))


def test_the_samples_are_left_as_they_are_by_a_module_that_works_in_place():
    x = torch.randn(5, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    kept = x.clone()
    assert torch.equal(Functional(nn.Sequential(nn.ReLU(inplace=True)))(x), kept.relu())
    assert torch.equal(x, kept)


def test_integer_samples_are_checked_as_others_are():
    embed = nn.Embedding(9, 3)
    ints = np.arange(12).reshape(6, 2) % 9
    assert torch.equal(example(embed, ints[::-1]), torch.tensor(ints).flip(0))
    assert torch.equal(example(embed, ints.astype(">i8")), torch.tensor(ints))
    for wrong in (np.ma.masked_array(ints, ints > 3), torch.tensor(ints).to_sparse(), torch.tensor(ints).to("meta")):
        with pytest.raises(TypeError, match=r"x: got a (masked|sparse|tensor on the meta)"):
            example(embed, wrong)


@pytest.mark.parametrize(
    ("x", "got"),
    [
        (
            torch.ones(5, 3, dtype=torch.int64),
            r"^x: got integers of dtype torch.int64, .*; convert it with .float\(\)$",
        ),
        (np.ones((5, 3), dtype=np.int32), r"^x: got integers of dtype torch.int32, .*; convert it with .float\(\)$"),
        ((torch.ones(5, 3) > 0,), r"^x: got truth values of dtype torch.bool, .*; convert it with .float\(\)$"),
        ((torch.ones(5, 3) * 1j,), r"^x: got complex numbers of dtype torch.complex64, .*real and imaginary parts"),
        ({"input": torch.ones(5, 3).int()}, r"^x\['input'\]: got integers of dtype torch.int32, .*"),
        (torch.ones(5, 3) * 1j, r"^x: got dtype torch.complex64, .*real and imaginary parts"),
        (np.ones((5, 3)) * 1j, r"^x: got dtype torch.complex128, .*real and imaginary parts"),
    ],
)
def test_integers_and_complex_numbers_for_a_network_of_real_numbers_are_named(x, got):
    for call in (bnrank.profile, bnrank.networks.read):
        with pytest.raises(TypeError, match=got) as caught:
            call(nn.Sequential(nn.Linear(3, 2)), x)
        assert "buffers" not in str(caught.value)
        assert ".float()" not in str(caught.value) or "complex" not in str(caught.value)  # it drops the imaginary part


def test_the_integers_that_a_network_takes_are_not_blamed():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.linear = nn.Embedding(7, 3), nn.Linear(3, 2)

        def forward(self, tokens, features):
            return self.linear(self.embed(tokens) + features)

    tokens, features = torch.arange(5), torch.ones(5, 3)
    assert Functional(Two())(bnrank.networks.inputs.Inputs((tokens, features.long()))).shape == (5, 2)
    with pytest.raises(TypeError, match=r"^x\[1\]: got complex numbers"):
        bnrank.profile(Two(), (tokens, features * 1j))
    for wrong in ((tokens + 9, features), (tokens, features[:, :2].long())):  # of another reason
        with pytest.raises(ValueError, match=r"^net: Two failed on x of shape"):
            bnrank.profile(Two(), wrong)


class InInferenceMode(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = bnrank.MLP([4, 8, 1], seed=0)

    @torch.inference_mode()
    def forward(self, x):
        return self.body(x)


class Ends(nn.Module):
    """Fails with a text."""

    def __init__(self, text="The dtypes differ."):
        super().__init__()
        self.text = text

    def forward(self, x):
        raise RuntimeError(self.text)


def test_a_forward_in_inference_mode_is_measured_but_for_its_gradients():
    net, x = InInferenceMode(), normal(20, 4)
    profile = bnrank.profile(net, x)
    assert profile.weight_rank.values.tolist() == bnrank.profile(net.body, x).weight_rank.values.tolist()
    assert "InInferenceMode cannot be differentiated in x" in str(bnrank.measures.describe(profile))


def test_a_reason_that_ends_in_a_period_gets_no_second_one():
    with pytest.raises(ValueError, match=r"in torch.float64: The dtypes differ$"):
        Functional(Ends())(normal(2, 4))


class Bounded(nn.Linear):
    def forward(self, x):
        if bool((x > 2).any()):
            raise RuntimeError("x exceeds 2")
        return super().forward(x.to(self.weight.dtype))


def test_a_module_of_integers_says_so_and_one_that_fails_for_another_reason_does_not():
    with pytest.raises(ValueError, match=r"^x: got real numbers of dtype torch.float32, .* integers; convert it with"):
        Functional(nn.Embedding(5, 2))(torch.ones(4, 3))
    with pytest.raises(ValueError, match=r"^net: Bounded failed on x .*: x exceeds 2$"):
        Functional(Bounded(3, 2))(3 * torch.ones(4, 3))


def test_shapes_in_errors_are_of_any_number_of_samples():
    with pytest.raises(ValueError, match=r"^net: Ends failed on x of shape \(N, 4\) in torch.float64: It ends$"):
        bnrank.profile(Ends("It ends."), normal(60, 4))


def test_a_module_without_forward_is_refused():
    with pytest.raises(ValueError, match=r"^net: ModuleList has no forward, expected a module that runs on x$"):
        bnrank.profile(nn.ModuleList([nn.Linear(4, 2)]), normal(60, 4))


class Force(nn.Module):
    """The gradient of an energy in x, with gradients turned on for it or not."""

    def __init__(self, enabled):
        super().__init__()
        self.energy, self.enabled = bnrank.MLP([4, 8, 1], seed=0), enabled

    def forward(self, x):
        with torch.set_grad_enabled(self.enabled or torch.is_grad_enabled()):
            x.requires_grad_()
            return torch.autograd.grad(self.energy(x).sum(), x, create_graph=True)[0]


def test_a_forward_that_needs_gradients_is_told_how_to_get_them():
    assert bnrank.profile(Force(True), normal(20, 4)).sizes["layer"] == 2
    with pytest.raises(ValueError, match=r"^net: Force takes gradients in its forward, .*torch.enable_grad\(\)"):
        bnrank.profile(Force(False), normal(20, 4))


@pytest.mark.parametrize(
    ("last", "what"),
    [(lambda out: out.argmax(1), "integers of dtype torch.int64"), (lambda out: out > 0, "truth values")],
)
def test_outputs_that_are_no_real_numbers_are_refused(last, what):
    class Decided(nn.Sequential):
        def forward(self, x):
            return last(super().forward(x))

    net, x = Decided(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)), normal(20, 3)
    for call, name in ((lambda: bnrank.profile(net, x), "net"), (lambda: bnrank.compare(net, net, x), "a")):
        with pytest.raises(ValueError, match=f"^{name}: Decided returns {what}.*, expected floating-point numbers"):
            call()
