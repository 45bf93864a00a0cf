"""The folder of a sweep takes what extends it along its axes, and refuses any other sweep by what differs."""

import json

import pytest
import torch

import bnrank
from bnrank.training import GradientDescent

TASK, OTHER = (bnrank.tasks.low_rank_map(n=40, d_in=5, d_out=4, latent=3, rank=2, seed=seed) for seed in (1, 2))
MADE = bnrank.tasks.low_rank_map
PLAIN = {"depths": [2], "grid": {"width": [4]}, "steps": 3, "record": 1, "processes": 1, "progress": False}
TASKS = {"task.rank": [1, 2], "task.n": 40, "width": [4]}


def made(settings):
    return MADE if any(name.startswith("task.") for name in settings["grid"]) else TASK


@pytest.mark.parametrize(
    ("first", "second", "ran"),
    [
        ({}, {"seeds": [0, 1]}, 1),
        ({}, {"depths": [3], "ridges": [0.1], "seeds": [5]}, 1),
        ({}, {"grid": {"width": [4, 5], "size": [30, 40]}}, 3),
        ({}, {"grid": {"width": [4], "init": ["he", 0.1]}}, 1),
        ({}, {"steps": 3, "grid": {"width": [4], "gradient_norm": [0.0, 1e-3]}}, 1),
        ({"optimizer": "adam"}, {"optimizer": "adam", "grid": {"width": [4], "lr": [3e-3, 1e-2]}}, 1),
        ({"optimizer": "adam"}, {"grid": {"width": [4], "optimizer": ["adam", "gd"]}}, 1),
        ({}, {"grid": [{"depth": 2, "width": 4, "slope": slope} for slope in (0.0, 0.1)]}, 1),
        ({"grid": TASKS}, {"grid": TASKS | {"task.rank": [2, 3]}}, 1),
        ({}, {"checkpoint_every": 2}, 0),
    ],
)
def test_a_sweep_grows_along_its_axes(tmp_path, first, second, ran):
    bnrank.sweep(made(PLAIN | first), out=tmp_path, **PLAIN | first)
    second = PLAIN | second
    if not isinstance(second["grid"], dict):
        del second["depths"]
    task = made(second) if isinstance(second["grid"], dict) else TASK
    found = bnrank.sweep(task, out=tmp_path, **second)
    assert found.attrs["ran"] == ran


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        ({}, {"steps": 4}, "with steps 3, and this one has 4; expected the same, 'steps' as an axis"),
        ({}, {"steps": 4, "seeds": [7]}, "with steps 3, and"),  # nothing overlaps
        ({}, {"dtype": torch.float64}, "with dtype torch.float32, and this one has torch.float64"),
        ({}, {"batch_size": 10}, "with optimizer adam.kfac-lbfgs, and this one has Adam"),
        ({"optimizer": "gd"}, {"optimizer": GradientDescent(schedule="cosine")}, "with schedule constant, and"),
        (
            {"optimizer": "gd"},
            {"optimizer": GradientDescent(0.1)},
            "ridge=0.001, seed=0 has other data or another step",
        ),
        ({}, {"record": 2}, "with record Record.every=1"),
    ],
)
def test_a_sweep_with_another_setting_is_refused_and_the_setting_is_named(tmp_path, first, second, message):
    bnrank.sweep(TASK, out=tmp_path, **PLAIN | first)
    before = sorted((tmp_path / "plan").iterdir())
    with pytest.raises(ValueError, match=f"^out: got .*{tmp_path.name}.*{message}"):
        bnrank.sweep(TASK, out=tmp_path, **PLAIN | second)
    assert sorted((tmp_path / "plan").iterdir()) == before


def test_other_data_are_refused(tmp_path):
    bnrank.sweep(TASK, out=tmp_path, **PLAIN)
    with pytest.raises(ValueError, match="which holds a sweep of other data; expected these, or another folder"):
        bnrank.sweep(OTHER, out=tmp_path, **PLAIN | {"seeds": [3]})


def test_another_function_with_the_same_arguments_is_refused(tmp_path):
    def same_arguments(rank, n):
        return bnrank.tasks.low_rank_map(n=n, rank=rank, seed=17)

    bnrank.sweep(MADE, out=tmp_path, **PLAIN | {"grid": TASKS})
    with pytest.raises(ValueError, match=r"holds another sweep: its network at .*task.rank=1.* has other data"):
        bnrank.sweep(same_arguments, out=tmp_path, **PLAIN | {"grid": TASKS})


def test_a_folder_with_a_damaged_plan_takes_the_same_sweep_again(tmp_path):
    bnrank.sweep(TASK, out=tmp_path, **PLAIN)
    (plan,) = (tmp_path / "plan").iterdir()
    plan.write_text(json.dumps({"damaged": True}) + "\n")
    with pytest.warns(UserWarning, match="damaged in 1 group"):
        assert bnrank.sweep(TASK, out=tmp_path, **PLAIN).attrs["ran"] == 0
