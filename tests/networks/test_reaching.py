"""Copies of modules whose parts are reached in other ways than by attributes: followed, or refused in words."""

import collections
import copy
import functools
import gc
import threading
import types
import weakref

import pytest
import torch
from torch import nn

import bnrank
from bnrank.networks.functional import Functional
from bnrank.networks.reading import read
from bnrank.networks.replicas import replica
from helpers import normal

X = normal(20, 3)


class Plain(nn.Module):
    """Two linear layers, of which a subclass reaches the first in its own way."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = nn.Linear(3, 4), nn.Linear(4, 2)
        self.prepare()

    def prepare(self):
        pass

    def first(self, x):
        return self.a(x)

    def forward(self, x):
        return self.b(torch.tanh(self.first(x)))


class InClosure(Plain):
    def prepare(self):
        before = self.a.forward
        self.a.forward = lambda x: before(x)


class InNestedClosure(Plain):
    def prepare(self):
        inner = lambda x: self.a(x)  # noqa: E731
        self.fns = [{"a": lambda x: inner(x)}]

    def first(self, x):
        return self.fns[0]["a"](x)


class InDefault(Plain):
    def prepare(self):
        def first(x, a=self.a):
            return a(x)

        self.first = first


class InPartial(Plain):
    def prepare(self):
        self.fns = (functools.partial(lambda a, x: a(x), self.a),)

    def first(self, x):
        return self.fns[0](x)


class InWeakReference(Plain):
    def prepare(self):
        self.held = weakref.ref(self.a)

    def first(self, x):
        return self.held()(x)


class Helper:
    def __init__(self, net):
        self.net, self.lock = net, threading.Lock()

    def __call__(self, x):
        with self.lock:
            return self.net.a(x)


class InHelperWithLock(Plain):
    def prepare(self):
        self.helper = Helper(self)

    def first(self, x):
        return self.helper(x)


class InObject(Plain):
    def prepare(self):
        self.held = types.SimpleNamespace(first=collections.deque([lambda x: self.a(x)]))

    def first(self, x):
        return self.held.first[0](x)


class Replaced(Plain):
    def prepare(self):
        before = self.forward
        self.forward = types.MethodType(lambda net, x: before(x), self)


class Compiled(Plain):
    def prepare(self):
        self.forward = torch.compile(self.forward, backend="eager")


@pytest.mark.parametrize(
    "kind",
    [
        InClosure,
        InNestedClosure,
        InDefault,
        InPartial,
        InWeakReference,
        InHelperWithLock,
        InObject,
        Replaced,
        Compiled,
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_parts_are_reached_in_the_copy(kind, dtype):
    def gradients(net):
        function = Functional(net, dtype)
        leaves = [p.requires_grad_() for p in function.parameters.values()]
        return torch.autograd.grad(function(X).square().sum(), leaves)

    for own, plain in zip(gradients(kind()), gradients(Plain()), strict=True):
        torch.testing.assert_close(own, plain)
    assert [layer.name for layer in read(kind(), X).layers] == ["a", "b"]


def test_a_weak_reference_stays_one_in_the_replica_of_a_replica():
    net = InWeakReference()
    for _ in range(2):
        net = replica(net)
        assert isinstance(net.held, weakref.ref)
        assert net.held() is net.a
    deep = copy.deepcopy(net)
    assert deep.held() is deep.a
    assert deep.a is not net.a


def test_what_reaches_the_original_is_refused_and_leaves_it_as_it_is():
    outside = {}

    class Global(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(3)
            outside["norm"] = self.norm

        def forward(self, x):
            return outside["norm"](x)

    net = Global().train()
    with pytest.raises(ValueError, match=r"^net: Global cannot be run as a copy: it computes with tensors that are"):
        Functional(net, torch.float32)(X)
    assert net.norm.num_batches_tracked == 0
    assert net.norm.running_mean.tolist() == [0, 0, 0]


class InList(Plain):
    def prepare(self):
        self.held = [self.a.weight]

    def first(self, x):
        return x @ self.held[0].mT


class TensorInDefault(Plain):
    def prepare(self):
        def first(x, weight=self.a.weight, *, bias=self.a.bias):
            return nn.functional.linear(x, weight, bias)

        first.weight = self.a.weight
        self.fns = [first]

    def first(self, x):
        return self.fns[0](x)


@pytest.mark.parametrize("kind", [InList, TensorInDefault])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_parameters_beside_the_modules_are_refused_as_no_gradient_reaches_them(kind, dtype):
    with pytest.raises(ValueError, match=r"a global variable, a list or a closure keeps them; let forward and hooks"):
        bnrank.measures.ntk.trace(kind(), X, dtype=dtype)


def test_a_module_that_copies_as_itself_is_refused():
    class Shared(nn.Dropout):
        def __deepcopy__(self, memo):
            return self

    net = nn.Sequential(Shared(), nn.Linear(3, 2)).train()
    with pytest.raises(ValueError, match="expected modules without a __deepcopy__ that returns themselves"):
        Functional(net)
    assert net[0].training


def test_hooks_with_locks_act_on_copies():
    class Counter:
        def __init__(self):
            self.lock, self.calls = threading.Lock(), 0

        def hook(self, *_):
            self.calls += 1

    counter, layer = Counter(), nn.Linear(3, 2)
    layer.register_forward_hook(counter.hook)
    layer.own = {"lock": threading.Lock()}
    layer.own["self"] = layer.own
    assert Functional(layer)(X).shape == (20, 2)
    assert counter.calls == 0


def test_what_a_hook_notes_outside_stays_as_it_was():
    noted, layer = {}, nn.Linear(3, 2)
    layer.register_forward_hook(lambda module, args, out: noted.update(out=out))
    assert Functional(layer)(X).shape == (20, 2)
    assert noted == {}


def test_what_cannot_be_copied_even_without_its_locks_is_shared():
    class Stubborn:
        def __init__(self):
            self.lock = threading.Lock()

        def __reduce_ex__(self, protocol):
            raise TypeError("cannot be copied")

    net = nn.Linear(3, 2)
    net.stubborn = [Stubborn()]
    assert Functional(net).module.stubborn[0] is net.stubborn[0]


def test_one_function_runs_in_several_threads():
    function, errors = Functional(nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)), []
    x = normal(5, 3, 4)
    right = function(x)

    def work():
        for _ in range(20):
            if not torch.equal(function(x), right):
                errors.append("differs")

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors


def test_layers_are_those_of_the_module_whatever_its_state_dict_says():
    class Saved(Plain):
        def state_dict(self, *args, **kwargs):
            return {f"b.{key}": value for key, value in self.b.state_dict(*args, **kwargs).items()}

    assert bnrank.profile(Saved(), X).layer_name.values.tolist() == ["a", "b"]


def test_values_of_own_attention_and_in_inference_mode_are_not_observed():
    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.in_proj_weight, self.out_proj = nn.Parameter(normal(18, 6)), nn.Linear(6, 6)

        def forward(self, x):
            q, k, v = nn.functional.linear(x, self.in_proj_weight).chunk(3, -1)
            return self.out_proj(nn.functional.scaled_dot_product_attention(query=q, key=k, value=v))

    reading = read(nn.Sequential(Attention()), normal(5, 4, 6))
    assert [layer.name for layer in reading.unobserved] == ["0.q", "0.k", "0.v"]

    class Inference(Plain):
        @torch.inference_mode()
        def forward(self, x):
            return super().forward(x)

    unobserved = read(Inference(), X).unobserved
    assert {layer.reason.partition(",")[0] for layer in unobserved} == {"it runs in torch.inference_mode"}


ABSENT = object()


class Defaulted(nn.Module):
    """A function on it tells by a mark that nothing was given."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)
        self.act = lambda z, scale=ABSENT: z if scale is ABSENT else 0 * z

    def forward(self, x):
        return self.act(self.layer(x))


class Attributed(nn.Module):
    """A function on it has its layer as an attribute."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)

        def act(x):
            return act.layer(x)

        act.layer, self.act = self.layer, act

    def forward(self, x):
        return self.act(x)


class Renamed(nn.Module):
    """It has a method of torch with fewer arguments."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def named_parameters(self, prefix="", recurse=True):
        return super().named_parameters(prefix, recurse)

    def forward(self, x):
        return self.layer(x)


def traced_with_lock():
    net = torch.fx.symbolic_trace(nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2)))
    first, net.lock = net.get_submodule("0"), threading.Lock()
    net.get_submodule("1").register_forward_hook(lambda part, given, out: out + first.weight.sum())
    return net


@pytest.mark.parametrize("make", [Defaulted, Attributed, Renamed, traced_with_lock])
def test_copies_compute_what_the_originals_do(make):
    torch.manual_seed(0)
    net, x = make().double(), normal(5, 3).double()
    with torch.no_grad():
        expected = net(x)
    assert torch.equal(Functional(net)(x).detach(), expected)
    assert bnrank.rank(net, x).upper == 2


def test_a_wrapper_that_hands_on_attributes_is_not_taken_for_what_it_holds():
    class Wrapper(nn.Module):
        def __init__(self, base):
            super().__init__()
            self.base, self.head = base, nn.Linear(3, 1)

        def __getattr__(self, name):
            try:
                return super().__getattr__(name)
            except AttributeError:
                if name == "base":
                    raise
                return getattr(self.base, name)

        def forward(self, x):
            return self.head(self.base(x))

    net = Wrapper(torch.compile(nn.Sequential(nn.Linear(3, 3)), backend="eager"))
    assert bnrank.rank(net, normal(5, 3)).upper == 1


def test_what_a_pass_notes_in_a_dictionary_does_not_reach_the_next():
    class Calibrated(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last, self.noted = nn.Linear(6, 3), nn.Linear(3, 2), {}

        def forward(self, x):
            z = self.first(x)
            if "mean" not in self.noted:
                self.noted["mean"] = z.detach().mean(0)
            return self.last(z - self.noted["mean"])

    torch.manual_seed(0)
    net, x = Calibrated().double(), normal(20, 6).double()
    found = bnrank.spectra.activation_singular_values(net, x, which="preactivations")["last"]
    with torch.no_grad():
        z = net.first(x)
        expected = torch.linalg.svdvals(net.last(z - z.mean(0))) / 20**0.5
    assert torch.allclose(found, expected, rtol=1e-12)
    assert net.noted == {}


def test_attention_with_a_mask_and_causal_applies_both():
    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self.q = nn.Linear(4, 4)

        def forward(self, x):
            q, mask = self.q(x)[:, None], torch.ones(5, 5, dtype=torch.bool)
            mask[2, 1] = False
            return nn.functional.scaled_dot_product_attention(q, q, q, attn_mask=mask, is_causal=True).flatten(1)

    torch.manual_seed(0)
    net, x = Masked().double(), normal(3, 5, 4).double()
    assert torch.allclose(Functional(net)(x), net(x), rtol=1e-12)


def test_an_error_is_raised_anew_and_keeps_nothing_alive():
    class Broken(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 2)

        def forward(self, x):
            raise RuntimeError("broken")

    function, x = Functional(Broken()), normal(4, 3)
    held = weakref.ref(x)
    for _ in range(3):
        with pytest.raises(ValueError, match="broken"):
            function(x)
    del x
    gc.collect()
    assert held() is None
