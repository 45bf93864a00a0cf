"""Ranks of the checkpoints in a folder."""

import pytest
import torch
from safetensors.torch import save_file
from typer.testing import CliRunner

from bnrank.cli import app
from bnrank.training.checkpoints import read_checkpoints


def test_checkpoints_are_read_in_the_order_of_their_steps(tmp_path):
    for step in (2, 10):
        weight = torch.diag(torch.tensor([float(step), 1.0, 1e-41]))
        save_file({"0.weight": weight, "0.bias": torch.ones(3)}, tmp_path / f"model-{step}.safetensors")
    inner = tmp_path / "checkpoint-30"
    inner.mkdir()
    torch.save({"state_dict": {"0.weight": torch.eye(3)}}, inner / "model.pt")
    torch.save({"state": {0: torch.ones(3)}}, inner / "optimizer.pt")
    history = read_checkpoints(tmp_path).history
    assert history.step.values.tolist() == [2, 10, 30]
    assert [name for name in history.layer.values if name.endswith("0")]
    assert history["stable_rank"].values[0][0] == pytest.approx(1.25)
    assert history["subnormals"].values[0][0] == 1
    shown = CliRunner().invoke(app, ["watch", str(tmp_path), "--out", str(tmp_path / "page.html")])
    assert shown.exit_code == 0, shown.output
    assert "3 measurements, steps 2 to 30" in shown.output
    assert (tmp_path / "page.html").exists()


def test_what_is_no_series_of_checkpoints_is_refused(tmp_path):
    with pytest.raises(ValueError, match="folder: got"):
        read_checkpoints(tmp_path)
    for name in ("a-1", "b-1"):
        save_file({"0.weight": torch.eye(3)}, tmp_path / f"{name}.safetensors")
    with pytest.raises(ValueError, match="both of step 1"):
        read_checkpoints(tmp_path)


def test_numbers_other_than_steps_do_not_order_checkpoints(tmp_path):
    names = ("epoch=0-val_loss=0.93.ckpt", "epoch=1-val_loss=0.75.ckpt", "epoch=2-val_loss=0.23-v1.ckpt", "last.ckpt")
    for i, name in enumerate(names):
        torch.save({"state_dict": {"0.weight": (i + 1) * torch.eye(3)}}, tmp_path / name)
    found = read_checkpoints(tmp_path)
    assert found.history.step.values.tolist() == [0, 1, 2]
    assert found.history["operator_norm"].values[:, 0].tolist() == [1, 2, 3]
    assert found.notes == ["left out, since its name has no step: last.ckpt"]


def test_the_files_of_a_split_checkpoint_are_one_measurement(tmp_path):
    for step in (1, 2):
        folder = tmp_path / f"checkpoint-{step}"
        folder.mkdir()
        for part in (1, 2):
            file = folder / f"model-0000{part}-of-00002.safetensors"
            save_file({f"{part}.weight": step * torch.eye(3)}, file)
    history = read_checkpoints(tmp_path).history
    assert history.step.values.tolist() == [1, 2]
    assert history["operator_norm"].values.tolist() == [[1, 1], [2, 2]]


def test_a_single_split_checkpoint_needs_no_step(tmp_path):
    for part in (1, 2):
        save_file({f"{part}.weight": torch.eye(3)}, tmp_path / f"model-0000{part}-of-00002.safetensors")
    assert read_checkpoints(tmp_path).history["operator_norm"].values.tolist() == [[1, 1]]
    save_file({"3.weight": torch.eye(3)}, tmp_path / "other.safetensors")
    with pytest.raises(ValueError, match=r"folder: got model-00001-of-00002\.safetensors without a number of its step"):
        read_checkpoints(tmp_path)


def test_checkpoints_may_have_the_name_of_an_archive(tmp_path):
    for step in (1, 2):
        torch.save({"epoch": step, "state_dict": {"0.weight": step * torch.eye(3)}}, tmp_path / f"net_{step}.pth.tar")
    torch.save({"0.weight": torch.eye(3)}, tmp_path / "optimizer.pth.tar")
    found = read_checkpoints(tmp_path)
    assert (found.history.step.values.tolist(), found.notes) == ([1, 2], [])


def test_a_checkpoint_with_a_part_that_cannot_be_read_is_left_out(tmp_path):
    for step in (1, 2):
        for part in (1, 2):
            file = tmp_path / f"step-{step}-0000{part}-of-00002.safetensors"
            save_file({f"{part}.weight": step * torch.eye(3)}, file)
    (tmp_path / "step-1-00002-of-00002.safetensors").write_bytes(b"")
    found = read_checkpoints(tmp_path)
    assert found.history.step.values.tolist() == [2]
    assert len(found.notes) == 1
    assert found.notes[0].startswith("left out, since it cannot be read: step-1-00001-of-00002.safetensors (")
    assert "step-1-00002-of-00002" in found.notes[0]
