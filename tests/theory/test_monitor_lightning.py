"""The callback for PyTorch Lightning: with a stand-in for its Trainer, and in Lightning itself if it is there."""

import importlib
import sys
import types

import pytest
import torch
from torch import nn

from bnrank.theory.invariants.monitor import Monitor


def network():
    generator = torch.Generator().manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 1))
    with torch.no_grad():
        for p in net.parameters():
            p.copy_(0.5 * torch.randn(p.shape, generator=generator))
    return net


def data():
    generator = torch.Generator().manual_seed(1)
    return torch.randn(16, 3, generator=generator), torch.randn(16, 1, generator=generator)


def plain(steps):
    """Return the network after steps of a plain loop, and the monitor that was attached to it."""
    net, (x, y) = network(), data()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, weight_decay=0.01)
    with Monitor(net, x[:2], every=2).attach(optimizer) as monitor:
        for _ in range(steps):
            optimizer.zero_grad()
            (net(x) - y).square().mean().backward()
            optimizer.step()
    return net, monitor


@pytest.fixture
def without(monkeypatch):
    """Make Lightning look as if it was not installed; return what stand-ins are put in with."""
    for name in ("lightning", "lightning.pytorch", "pytorch_lightning"):
        monkeypatch.setitem(sys.modules, name, None)  # importing it raises ModuleNotFoundError
    return monkeypatch


@pytest.fixture(params=["lightning.pytorch", "pytorch_lightning"])
def stand_in(without, request):
    """Put in a base class for callbacks under either name of the package."""
    package = types.ModuleType(request.param)
    package.Callback = type("Callback", (), {})
    if "." in request.param:
        without.setitem(sys.modules, "lightning", types.ModuleType("lightning"))
    without.setitem(sys.modules, request.param, package)
    return package


class Trainer:
    """What of Lightning's Trainer the callback sees: its optimizers, and the hooks in their order."""

    def __init__(self, callbacks):
        self.callbacks, self.optimizers = callbacks, []

    def fit(self, net, optimizers, steps, fails_at=None):
        x, y = data()
        self.optimizers = optimizers
        self._call("on_train_start", net)
        try:
            for step in range(steps):
                if step == fails_at:
                    raise RuntimeError("stop")
                for optimizer in optimizers:
                    optimizer.zero_grad()
                (net(x) - y).square().mean().backward()
                for optimizer in optimizers:
                    optimizer.step()
        except RuntimeError as error:
            self._call("on_exception", net, error)
            raise
        self._call("on_train_end", net)

    def _call(self, hook, net, *more):
        for callback in self.callbacks:
            getattr(callback, hook)(self, net, *more)


def test_without_lightning_the_error_says_what_to_do(without):
    monitor = Monitor(network(), data()[0][:2])
    with pytest.raises(ImportError, match="pip install lightning"):
        monitor.callback()


def test_what_lightning_itself_lacks_is_not_hidden(without):
    def absent(name):
        raise ModuleNotFoundError("No module named 'torchmetrics'", name="torchmetrics")

    monitor = Monitor(network(), data()[0][:2])
    without.setattr(importlib, "import_module", absent)
    with pytest.raises(ModuleNotFoundError, match="torchmetrics"):
        monitor.callback()


def test_callback_records_what_attaching_by_hand_records(stand_in):
    net = network()
    monitor = Monitor(net, data()[0][:2], every=2)
    other = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)  # a second one that holds nothing of the module
    mine = torch.optim.SGD(net.parameters(), lr=0.05, weight_decay=0.01)
    Trainer([monitor.callback()]).fit(net, [other, mine], 9)
    _, expected = plain(9)
    assert monitor.history.drop_attrs().equals(expected.history.drop_attrs())
    assert not mine._optimizer_step_pre_hooks


def test_callback_detaches_where_training_fails(stand_in):
    net = network()
    monitor = Monitor(net, data()[0][:2], every=100)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    with pytest.raises(RuntimeError, match="stop"):
        Trainer([monitor.callback()]).fit(net, [optimizer], 9, fails_at=5)
    assert monitor.history.step[0, -1] == 5
    assert not optimizer._optimizer_step_pre_hooks


def test_callback_refuses(stand_in):
    net = network()
    callback = Monitor(net, data()[0][:2]).callback()
    assert isinstance(callback, stand_in.Callback)
    with pytest.raises(ValueError, match="the LightningModule has none"):
        Trainer([callback]).fit(net, [], 1)
    with pytest.raises(ValueError, match=r"does not hold 0\.weight"):
        Trainer([callback]).fit(net, [torch.optim.SGD([net[2].weight], lr=0.1)], 1)


def lightning():
    for name in ("lightning.pytorch", "pytorch_lightning"):
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    pytest.skip("PyTorch Lightning is not installed; the callback is optional")


def test_in_lightning_itself(tmp_path):
    pl = lightning()
    x, y = data()

    class Module(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = network()

        def training_step(self, batch, index):
            return (self.net(batch[0]) - batch[1]).square().mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.net.parameters(), lr=0.05, weight_decay=0.01)

    module = Module()
    monitor = Monitor(module.net, x[:2], every=2)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=len(x))
    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    trainer = pl.Trainer(
        max_epochs=9, accelerator="cpu", default_root_dir=tmp_path, callbacks=[monitor.callback()], **quiet
    )
    trainer.fit(module, loader)
    net, expected = plain(9)
    assert all(torch.equal(a, b) for a, b in zip(module.net.parameters(), net.parameters(), strict=True))
    assert monitor.history.drop_attrs().equals(expected.history.drop_attrs())
