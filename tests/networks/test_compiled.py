"""Modules that are compiled in place, or hold compiled ones, are measured as they are written."""

import copy
import subprocess
import sys

import pytest
import torch
from torch import nn

import bnrank
from bnrank._core import terminal
from bnrank.networks import functional


class Inner(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 12)

    def forward(self, x):
        return self.activation(self.layer(x))

    @staticmethod
    def activation(x):
        return x.relu()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = Inner(), nn.Linear(12, 3)

    def forward(self, x):
        return self.head(self.body(x))


@pytest.mark.parametrize("kind", ["in place", "a part", "a function"])
def test_a_compiled_module_gives_what_it_gives_as_it_is_written(kind):
    torch.manual_seed(0)
    net, x = Net(), torch.randn(60, 6)
    plain, passes = copy.deepcopy(net), []

    def backend(graph, inputs):
        passes.append(graph)
        return graph.forward

    torch._dynamo.reset()
    if kind == "a function":
        net.body.activation = torch.compile(Inner.activation, backend=backend, fullgraph=True)
    else:
        net.get_submodule("body" if kind == "a part" else "").compile(backend=backend, fullgraph=True)
    net(x)
    compiled = len(passes)
    assert str(bnrank.compare(net, net, x)) == str(bnrank.compare(plain, plain, x))
    found, expected = (bnrank.profile(f, x, what=("weights", "activations")) for f in (net, plain))
    assert found.drop_attrs().equals(expected.drop_attrs())
    found, expected = (str(bnrank.graph.trace(f, x)) for f in (net, plain))
    assert found == expected
    assert len(passes) == compiled == 1


def test_a_function_that_is_compiled_can_measure_a_network():
    net, x = Net(), torch.randn(60, 6)
    function, stance = functional.Functional(net), torch._dynamo.eval_frame._stance
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: function(2 * x), backend=lambda graph, inputs: graph.forward)
    assert torch.equal(compiled(x), function(2 * x))
    assert torch._dynamo.eval_frame._stance == stance


def test_tables_draw_no_numbers_from_the_generator_of_random():
    code = (
        "import importlib.util, random, sys; random.seed(0); before = random.getstate(); "
        "spec = importlib.util.spec_from_file_location('terminal', sys.argv[1]); "
        "spec.loader.exec_module(importlib.util.module_from_spec(spec)); "
        "assert 'rich.style' in sys.modules; sys.exit(random.getstate() != before)"
    )
    assert subprocess.run([sys.executable, "-c", code, terminal.__file__], check=False).returncode == 0
