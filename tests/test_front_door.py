"""What the top-level package offers: names on first use, one function that opens every stored result."""

import re
import subprocess
import sys

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from typer.testing import CliRunner

import bnrank
from bnrank import cli
from helpers import normal

HEAVY = ("torch", "sklearn", "pandas", "plotly", "matplotlib", "networkx", "scipy", "scipy.stats", "xarray", "jinja2")


def loaded_after(code):
    """Heavy packages that are loaded after running code in a new process."""
    report = f"{code}\nimport sys\nprint([name for name in {HEAVY} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", report], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()[-1]


@pytest.mark.parametrize(("code", "expected"), [("import bnrank", "[]"), ("import bnrank.cli", "['torch']")])
def test_nothing_heavy_is_imported_before_it_is_needed(code, expected):
    assert loaded_after(code) == expected


@pytest.mark.parametrize(
    "names", ["bnrank.train, bnrank.MLP, bnrank.profile, bnrank.Task", "bnrank.check, bnrank.rank"]
)
def test_training_and_checking_need_neither_plots_nor_tables_nor_estimators(names):
    used = loaded_after(f"import bnrank\n{names}")
    assert "torch" in used
    assert not [name for name in HEAVY if name in used and name not in ("torch", "scipy")]


def test_every_name_is_there_and_another_one_is_not():
    for name in bnrank.__all__:
        assert getattr(bnrank, name) is not None, name
    assert set(bnrank.__all__) <= set(dir(bnrank))
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        _ = bnrank.trian


def test_one_function_opens_every_stored_result(tmp_path):
    net = bnrank.MLP([4, 6, 3], seed=0)
    x, y = normal(60, 4), normal(60, 3)
    run = bnrank.train(net, bnrank.Task(x.float(), y.float()), steps=3, seed=0, progress=False)
    fitted = bnrank.discovery.BottleneckRegressor(1, ridges=[0.01], n_networks=1, steps=5).fit(x.numpy(), y.numpy())
    chain = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    with torch.no_grad():
        chain[0].weight[3:] = 0
    small = bnrank.compress(chain, x.float(), tol=0.05)
    assert small.changed
    for i, result in enumerate((net, run, fitted, small)):
        bnrank.save(result, tmp_path / (f"{i}" if result is run else f"{i}.safetensors"))
    again = bnrank.load(tmp_path / "0.safetensors")
    assert torch.equal(again(x.float()), net(x.float()))
    assert torch.equal(bnrank.load(tmp_path / "1").parameters, run.parameters)
    np.testing.assert_array_equal(bnrank.load(tmp_path / "2.safetensors").predict(x.numpy()), fitted.predict(x.numpy()))
    assert torch.equal(bnrank.load(tmp_path / "3.safetensors")(x.float()), small.network(x.float()))
    with pytest.raises(TypeError, match="result: got 3"):
        bnrank.save(3, tmp_path / "3.safetensors")


def test_a_state_dict_is_loaded_into_a_copy_of_a_network(tmp_path):
    net = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    save_file({name: tensor + 1 for name, tensor in net.state_dict().items()}, tmp_path / "w.safetensors")
    again = bnrank.load(tmp_path / "w.safetensors", net)
    assert all(torch.equal(tensor, before[name]) for name, tensor in net.state_dict().items())
    assert all(torch.equal(tensor, before[name] + 1) for name, tensor in again.state_dict().items())
    with pytest.raises(ValueError, match="does not fit net"):
        bnrank.load(tmp_path / "w.safetensors", nn.Linear(3, 2))


def test_the_command_line_repeats_what_rooms_define():
    shown = re.sub(r"\s+", " ", re.sub(r"[│╭╮╰╯─]", " ", CliRunner().invoke(cli.app, ["train", "--help"]).output))
    for name in bnrank.tasks.NAMED:
        assert name in shown, name
    assert bnrank.figures.OUT in CliRunner().invoke(cli.app, ["reproduce", "--help"]).output


def test_results_print_in_a_few_lines_and_in_notebooks():
    task = bnrank.tasks.low_rank_map(n=40, seed=0)
    run = bnrank.train(bnrank.MLP([20, 8, 20]), task, ridge=1e-2, steps=3, members=2, seed=0, progress=False)
    cost = bnrank.cost.bracket(run.network(0), task.x)
    assert str(task).startswith("low_rank_map: 40")
    assert "20 -> 20, loss 'mse', rank 2" in str(task)
    assert str(run).splitlines()[0].startswith("2 x MLP, ")
    assert str(run).count("finished") == 2
    assert str(cost).startswith("cost in [")
    for result in (task, run, cost):
        assert len(str(result).splitlines()) <= 4
        assert result._repr_html_().startswith("<div")


def test_arguments_without_effect_are_refused(tmp_path):
    path = bnrank.save(bnrank.MLP([3, 2]), tmp_path / "net.safetensors")
    with pytest.raises(ValueError, match=r"activation: got 0\.3 for a MLP"):
        bnrank.load(path, activation=0.3)
    with pytest.raises(ValueError, match="member: got 3"):
        cli.arguments.ModelFiles(member=3).read(str(path))
