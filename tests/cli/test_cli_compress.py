"""`bnrank compress` as a user types it."""

import re

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import bnrank
from bnrank import cli

pytestmark = pytest.mark.filterwarnings("error")


def flat(text):
    return re.sub(r"\s+", " ", text)


@pytest.fixture
def network(tmp_path):
    """Write a network of depth 7 that carries one number, and samples, and return them."""
    generator = torch.Generator().manual_seed(0)
    first, last = torch.randn(20, 6, generator=generator), torch.randn(3, 20, generator=generator)
    direction = torch.ones(20) / 20**0.5
    first = torch.outer(direction, first[0])
    inner = torch.outer(direction, direction)
    biases = [torch.zeros(20)] * 6 + [torch.zeros(3)]
    net = bnrank.networks.from_layers([first, *[inner] * 5, last], biases)
    net = net.float()
    bnrank.networks.save(net, tmp_path / "net.safetensors")
    x = torch.randn(200, 6, generator=generator)
    np.savez(tmp_path / "x.npz", x=x.numpy())
    return net, x


def test_compress_writes_a_smaller_network_and_its_certificate(tmp_path, command, network):
    net, x = network
    done = command("compress", "net.safetensors", "x.npz", "--tol", 0.02, "--save", "small.safetensors")
    assert done.code == 0, done.error
    assert "tolerance 2 % of the spread: met" in done.out
    assert "bnrank.load('small.safetensors')" in done.out
    small = bnrank.load(tmp_path / "small.safetensors")
    assert sum(p.numel() for p in small.parameters()) < sum(p.numel() for p in net.parameters()) / 5
    with torch.no_grad():
        change = (small(x) - net(x)).norm() / (net(x) - net(x).mean(0)).norm()
    assert change <= 0.02
    assert "Linear" in (tmp_path / "compress.html").read_text()
    # and it can be given to the other verbs, although it is no chain with an activation after every layer
    found, _ = cli.arguments.ModelFiles().read("small.safetensors")
    assert isinstance(found, nn.Sequential)
    assert torch.equal(found(x), small(x))


def test_compress_certifies_on_held_out_samples_of_the_file(tmp_path, command, network):
    _, x = network
    np.savez(tmp_path / "both.npz", x=x.numpy(), x_test=x[:37].numpy())
    assert "held out (37 samples)" in command("compress", "net.safetensors", "both.npz").out
    assert "held out (40 samples)" in command("compress", "net.safetensors", "x.npz").out


def test_compress_reads_columns_that_are_no_targets(tmp_path, command, network):
    net, x = network
    with torch.no_grad():
        rows = np.hstack([x.numpy(), net(x)[:, :1].numpy()])
    np.savetxt(tmp_path / "x.csv", rows, delimiter=",", header="a,b,c,d,e,f,y", comments="")
    done = command("compress", "net.safetensors", "x.csv", "--targets", "y")
    assert done.code == 0, done.error
    assert (tmp_path / "compressed.safetensors").exists()
    assert command("compress", "net.safetensors", "x.csv").code == 2


def test_stretches_of_a_larger_module_say_how_they_are_loaded(tmp_path, command, network):
    net, x = network
    (tmp_path / "own.py").write_text(
        "import bnrank, torch\nfrom torch import nn\n\n"
        "class Own(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        chain = bnrank.networks.load('net.safetensors')\n"
        "        layers = [m for layer in chain.layers for m in (layer, nn.ReLU())][:-1]\n"
        "        self.body = nn.Sequential(*layers)\n"
        "    def forward(self, x):\n"
        "        return self.body(x) + 1\n"
    )
    done = command("compress", "own.py:Own", "x.npz", "--save", "part.safetensors")
    assert done.code == 0, done.error
    assert "bnrank.load('part.safetensors', net)" in done.out
    found, _ = cli.arguments.ModelFiles(tmp_path / "part.safetensors").read("own.py:Own")
    with torch.no_grad():
        assert (found(x) - net(x) - 1).norm() <= 0.01 * (net(x) - net(x).mean(0)).norm()
    assert sum(p.numel() for p in found.parameters()) < sum(p.numel() for p in net.parameters()) / 5


def test_a_network_that_cannot_be_identified_needs_a_tag_before_the_search(tmp_path, command, network):
    net, _ = network
    (tmp_path / "own.py").write_text(
        "import bnrank\nfrom torch import nn\n\n"
        "class Own(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.body, self.source = bnrank.networks.load('net.safetensors'), iter([1])\n"
        "    def forward(self, x):\n"
        "        return self.body(x) + 1\n"
        "def whole():\n"
        "    net = nn.Sequential(*Own().body.layers[:1], nn.ReLU(), *Own().body.layers[-1:])\n"
        "    net.source = iter([1])\n"
        "    return net\n"
    )
    refused = command("compress", "own.py:Own", "x.npz", "--save", "part.safetensors")
    assert refused.code == 2
    assert "MODEL: got net.source = builtins.list_iterator" in flat(refused.error)
    assert "name a version of it with --tag, as in --tag v1, and another one when it changes" in flat(refused.error)
    assert not (tmp_path / "compress.html").exists()
    done = command("compress", "own.py:Own", "x.npz", "--save", "part.safetensors", "--tag", "v1")
    assert done.code == 0, done.error
    found, _ = cli.arguments.ModelFiles(tmp_path / "part.safetensors").read("own.py:Own")
    assert sum(p.numel() for p in found.parameters()) < sum(p.numel() for p in net.parameters()) / 5
    layers = command("compress", "own.py:whole", "x.npz", "--save", "whole.safetensors")  # which the file holds
    assert layers.code == 0, layers.error
    assert isinstance(bnrank.load(tmp_path / "whole.safetensors"), nn.Sequential)


def test_a_network_without_bottleneck_is_left_with_the_reason(tmp_path, command):
    net = bnrank.MLP([4, 5, 4], seed=0)
    bnrank.networks.save(net, tmp_path / "wide.safetensors")
    np.savez(tmp_path / "x.npz", x=torch.randn(300, 4, generator=torch.Generator().manual_seed(1)).numpy())
    done = command("compress", "wide.safetensors", "x.npz", "--tol", 1e-6)
    assert done.code == 0, done.error
    assert "returned as it is" in done.out
    assert "cannot be reduced; none is written" in done.out
    assert not (tmp_path / "compressed.safetensors").exists()
    assert (tmp_path / "compress.html").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("net.safetensors", "x.npz", "--save", "net.safetensors"), "which is read, expected another name"),
        (("net.safetensors", "x.npz", "--save", "small.pt"), "expected a name ending in .safetensors"),
        (("net.safetensors", "x.npz", "--tol", 0), "tol: got 0"),
        (("nets.py", "x.npz"), "MODEL: got 'nets.py' without :function, expected nets.py:NAME"),
        (("none.safetensors", "x.npz"), "none.safetensors', expected a file that exists"),
        (("net.safetensors", "nan.npz"), "missing or infinite values in column x2 (1 of 9 rows)"),
        (("net.safetensors", "few.npz"), "x of DATA: got 3 sample(s), expected at least 8"),
        (("net.safetensors", "text.csv", "--targets", "y"), "text in column b, expected numbers"),
        (("net.safetensors", "x.npz", "--targets", "y"), "expected none for x.npz"),
    ],
)
def test_errors_of_compress_are_one_message(tmp_path, command, network, arguments, message):
    before = (tmp_path / "net.safetensors").read_bytes()
    bad = np.ones((9, 6))
    bad[4, 2] = np.nan
    np.savez(tmp_path / "nan.npz", x=bad)
    np.savez(tmp_path / "few.npz", x=np.ones((3, 6)))
    (tmp_path / "text.csv").write_text("a,b,y\n1,u,2\n1,v,3\n")
    done = command("compress", *arguments)
    assert done.code == 2
    assert message in flat(done.error)
    assert "Traceback" not in done.error
    assert (tmp_path / "net.safetensors").read_bytes() == before


def test_a_module_from_code_comes_with_weights_of_its_own(tmp_path, command):
    net = nn.Sequential(nn.Linear(4, 30), nn.ReLU(), nn.Linear(30, 2))
    generator = torch.Generator().manual_seed(0)
    weights = {name: torch.randn(p.shape, generator=generator) for name, p in net.state_dict().items()}
    weights["2.weight"][:, 5:] = 0  # all but five neurons are not read
    save_file(weights, tmp_path / "weights.safetensors")
    build = "def build():\n    return nn.Sequential(nn.Linear(4, 30), nn.ReLU(), nn.Linear(30, 2))\n"
    (tmp_path / "own.py").write_text("from torch import nn\n\n" + build)
    np.savez(tmp_path / "x.npz", x=torch.randn(100, 4, generator=generator).numpy())
    done = command("compress", "own.py:build", "x.npz", "--weights", "weights.safetensors", "--tol", 1e-4)
    assert done.code == 0, done.error
    assert bnrank.load(tmp_path / "compressed.safetensors")[0].out_features == 5
    assert "no --weights" not in done.out
    bare = command("compress", "own.py:build", "x.npz", "--tol", 1e-4)
    assert (bare.code, "no --weights: using the module as returned by the function\n" in bare.out) == (0, True), (
        bare.error
    )
    refused = command("compress", "own.py:build", "x.npz", "--weights", "w.safetensors", "--save", "w.safetensors")
    assert (refused.code, "which is read" in flat(refused.error)) == (2, True)


def test_outputs_and_precision_reach_compress(command, network):
    done = command("compress", "net.safetensors", "x.npz", "--outputs", "logits")
    assert done.code != 0
    assert "--outputs: got 'logits', expected no name: the network returns one tensor" in flat(done.error)
    done = command("compress", "net.safetensors", "x.npz", "--dtype", "float16")
    assert "--dtype: got 'float16' (str), expected one of 'float64', 'float32'" in flat(done.error)
    assert command("compress", "net.safetensors", "x.npz", "--dtype", "float32", "--tol", 0.02).code == 0
