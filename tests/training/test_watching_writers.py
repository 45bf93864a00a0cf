"""A watch and others: CSV files, loggers, and the callbacks of Lightning and Hugging Face."""

import re
import sys
import types
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn

import bnrank
from bnrank.training import Collapse, read_csv

ROOT = Path(__file__).parents[2]


def plain():
    net = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 9), nn.ReLU(), nn.Linear(9, 3))
    return net, torch.randn(40, 6)


def csv_of(path, steps=5, start=0):
    torch.manual_seed(0)
    net, x = plain()
    with bnrank.watch(net, every=1, x=x, writers=path) as found:
        for number in range(start + 1, start + steps + 1):
            found.step(number)
            with torch.no_grad():
                net[2].weight.mul_(1.1).add_(0.01)
    return found


def test_a_csv_file_holds_all_that_was_measured(tmp_path):
    path = tmp_path / "a.csv"
    found = csv_of(path)
    expected = found.history.drop_vars(["singular_values", "index"])
    assert read_csv(path).history.equals(expected)


def test_half_a_line_is_never_read_and_is_removed(tmp_path):
    path = tmp_path / "a.csv"
    whole = csv_of(path, steps=2).to_frame()
    data = path.read_bytes()
    lines = data.count(b"\n")
    for end in range(data.find(b"\n") + 1, len(data), 7):
        path.write_bytes(data[:end])
        kept = data[:end].count(b"\n") - 1
        frame = read_csv(path).to_frame() if kept else whole[:0]
        frame = frame[frame["norm"].notna() | frame["units"].notna()]
        assert len(frame) == kept
        for row, own in zip(frame.to_dict("records"), whole.to_dict("records"), strict=False):
            assert row == pytest.approx(own, nan_ok=True)
    path.write_bytes(data[:-5])
    csv_of(path, steps=1, start=2)
    again = path.read_bytes()
    assert again.startswith(data[: data[:-5].rfind(b"\n") + 1])
    assert again.count(b"\n") == lines - 1 + 4
    assert read_csv(path).history.step.values.tolist() == [1, 2, 3]


def test_a_step_written_again_counts_once(tmp_path):
    path = tmp_path / "a.csv"
    csv_of(path, steps=3)
    later = csv_of(path, steps=3, start=2)
    found = read_csv(path).history
    assert found.step.values.tolist() == [1, 2, 3, 4, 5]
    assert found["norm"].sel(step=3).equals(later.history["norm"].sel(step=3))
    assert read_csv(path).notes == ["left out: 4 lines of steps that the file has again"]


def test_a_second_training_in_a_file_is_not_mixed_with_the_first(tmp_path):
    path, alone = tmp_path / "a.csv", tmp_path / "b.csv"
    csv_of(path, steps=6)
    csv_of(alone, steps=3)
    second = csv_of(path, steps=3)
    found = read_csv(path)
    assert found.history.equals(read_csv(alone).history)
    assert found.history.equals(second.history.drop_vars(["singular_values", "index"]))
    assert found.notes == ["left out: 24 lines of steps that the file has again"]
    csv_of(path, steps=2, start=1)  # resumed from step 1
    assert read_csv(path).history.step.values.tolist() == [1, 2, 3]
    csv_of(path, steps=2, start=4)  # resumed from a later step
    assert read_csv(path).history.step.values.tolist() == [1, 2, 3, 5, 6]
    assert read_csv(path).notes == ["left out: 32 lines of steps that the file has again"]


def test_files_of_others_are_refused(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("a,b\n1,2\n")
    with pytest.raises(ValueError, match=r"^writers: got .* with other columns"):
        csv_of(path)
    assert path.read_text() == "a,b\n1,2\n"
    with pytest.raises(ValueError, match=r"expected a CSV file of bnrank\.watch"):
        read_csv(path)
    csv_of(tmp_path / "b.csv", steps=1)
    damaged = (tmp_path / "b.csv").read_text().replace("\n1,0,", "\none,0,")
    (tmp_path / "b.csv").write_text(damaged)
    with pytest.raises(ValueError, match="invalid literal for int"):
        read_csv(tmp_path / "b.csv")
    (tmp_path / "c.csv").write_text("one line of another file")
    for name in ("c.csv", "a.txt"):
        with pytest.raises(ValueError, match=r"^writers: got"):
            csv_of(tmp_path / name)
    assert (tmp_path / "c.csv").read_text() == "one line of another file"


class Logger:
    """Stands in for a SummaryWriter, a run of wandb, and mlflow."""

    def __init__(self):
        self.seen = []

    def add_scalar(self, name, value, step):
        self.seen.append((name, value, step))

    def log(self, values):
        self.seen += [(name, value, values["watch/step"]) for name, value in values.items() if name != "watch/step"]

    def log_metrics(self, values, step):
        self.seen += [(name, value, step) for name, value in values.items()]


def recipes(logger):
    """Return what docs/watch.md writes for loggers."""
    code = re.findall(r"```py\n(def .*?)```", (ROOT / "docs" / "watch.md").read_text(), re.S)
    names = {"board": logger, "run": logger, "mlflow": logger}
    for part in code:
        exec(part, names)
    return [names[name] for name in ("to_tensorboard", "to_wandb", "to_mlflow")]


@pytest.mark.parametrize("place", range(3))
def test_loggers_receive_every_number_by_the_recipes_of_the_page(place):
    net, x = plain()
    logger = Logger()
    found = bnrank.watch(net, every=1, x=x, writers=recipes(logger)[place])
    found.step()
    assert ("stable_rank/2", found.history["stable_rank"].sel(layer="2").item(), 1) in logger.seen
    assert len(logger.seen) == 3 * (8 + 7 + 1) + 7


# callbacks -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def stand_ins(monkeypatch):
    """Put in base classes for callbacks."""
    package, hugging = types.ModuleType("lightning.pytorch"), types.ModuleType("transformers")
    package.Callback = type("Callback", (), {})
    hugging.TrainerCallback = type("TrainerCallback", (), {})
    monkeypatch.setitem(sys.modules, "lightning", types.ModuleType("lightning"))
    monkeypatch.setitem(sys.modules, "lightning.pytorch", package)
    monkeypatch.setitem(sys.modules, "transformers", hugging)


@pytest.mark.parametrize("collapses", [False, True])
def test_lightning_logs_and_stops(stand_ins, collapses):
    net, x = plain()
    rule = Collapse(times=2)
    found = bnrank.watch(net, every=1, x=x if not collapses else 0 * x, collapse=rule)
    logged = []
    module = types.SimpleNamespace(log_dict=lambda values, **how: logged.append(values))
    trainer = types.SimpleNamespace(global_step=0, should_stop=False)
    callback = found.callback()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        for batch in range(6):  # of two per step
            trainer.global_step = (batch + 1) // 2
            callback.on_train_batch_end(trainer, module, None, None, batch)
    assert len(logged) == 3 - collapses
    assert logged[-1]["stable_rank/2"] == found.history["stable_rank"].sel(layer="2").values[-1]
    assert trainer.should_stop is collapses
    callback.on_train_end(trainer, module)
    trainer.global_step = 9
    with warnings.catch_warnings() if collapses else pytest.warns(RuntimeWarning, match="later steps are not measured"):
        callback.on_train_batch_end(trainer, module, None, None, 0)  # another training with this callback
    assert len(logged) == 3 - collapses


@pytest.mark.parametrize("collapses", [False, True])
def test_hugging_face_logs_and_stops(stand_ins, collapses):
    net, x = plain()
    found = bnrank.watch(net, every=2, x=x if not collapses else 0 * x, collapse=Collapse(times=2))
    state = types.SimpleNamespace(global_step=0, log_history=[])
    control = types.SimpleNamespace(should_training_stop=False)
    callback = found.callback("transformers")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        for number in range(1, 5):
            state.global_step = number
            assert callback.on_step_end(None, state, control) is control
    assert [row["step"] for row in state.log_history] == [1, 2, 4][: 3 - collapses]
    assert "dimension_95/output" in state.log_history[0]
    assert control.should_training_stop is collapses
    callback.on_train_end(None, state, control)
    state.global_step = 9
    with warnings.catch_warnings() if collapses else pytest.warns(RuntimeWarning, match="later steps are not measured"):
        callback.on_step_end(None, state, control)  # another training with this callback
    assert len(state.log_history) == 3 - collapses


@pytest.mark.parametrize(
    ("framework", "names"),
    [("lightning", ("lightning.pytorch", "pytorch_lightning")), ("transformers", ("transformers",))],
)
def test_frameworks_that_are_not_installed_are_named(monkeypatch, framework, names):
    for name in (*names, "lightning"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match=f"needs {framework}, which is not installed: pip install {framework}"):
        bnrank.watch(plain()[0]).callback(framework)
    with pytest.raises(ValueError, match="framework"):
        bnrank.watch(plain()[0]).callback("keras")


def test_lightning_itself(tmp_path):
    lightning = pytest.importorskip("lightning.pytorch")

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.body = plain()[0]

        def training_step(self, batch, index):
            return self.body(batch[0]).square().mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    module = Module()
    found = bnrank.watch(module, every=3, collapse=Collapse(below=1e6, times=2, layers=["body.2"]))
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(512, 6)), batch_size=32)
    options = {"enable_progress_bar": False, "enable_checkpointing": False, "logger": False, "accelerator": "cpu"}
    trainer = lightning.Trainer(max_epochs=2, callbacks=[found.callback()], default_root_dir=tmp_path, **options)
    with pytest.warns(RuntimeWarning, match="the trainer stops"):
        trainer.fit(module, loader)
    assert found.history.step.values[:2].tolist() == [1, 3]
    assert trainer.global_step < 32
    assert float(trainer.callback_metrics["stable_rank/body.2"]) > 0


def test_hugging_face_itself(tmp_path):
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = plain()[0]

        def forward(self, x, labels=None):
            return {"loss": self.body(x).square().mean(), "logits": self.body(x)}

    net = Net()
    found = bnrank.watch(net, every=2, collapse=Collapse(below=1e6, times=2, layers=["body.2"]))
    data = [{"x": row, "labels": 0} for row in torch.randn(512, 6)]
    options = transformers.TrainingArguments(
        output_dir=str(tmp_path),
        per_device_train_batch_size=32,
        max_steps=10,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
    )
    trainer = transformers.Trainer(net, options, train_dataset=data, callbacks=[found.callback("transformers")])
    with pytest.warns(RuntimeWarning, match="the trainer stops"):
        trainer.train()
    assert trainer.state.global_step == 2
    assert any("stable_rank/body.2" in row for row in trainer.state.log_history)
