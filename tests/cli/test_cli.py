"""The command line as a user types it."""

import itertools
import re
import subprocess
import sys

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import bnrank
from bnrank.theory import STATEMENTS, Facts, Verdicts


@pytest.fixture
def own(tmp_path):
    """A network and data as in the README."""
    generator = torch.Generator().manual_seed(0)
    weights = {
        f"{2 * i}.{name}": torch.randn(shape, generator=generator)
        for i, (a, b) in enumerate([(6, 16), (16, 3)])
        for name, shape in [("weight", (b, a)), ("bias", (b,))]
    }
    save_file(weights, tmp_path / "model.safetensors")
    x = torch.randn(40, 6, generator=generator)
    np.savez(tmp_path / "data.npz", x=x.numpy(), y=x[:, :3].numpy())
    return tmp_path


def test_version_and_help(command):
    done = command("--version")
    assert done.out.strip() == f"bnrank {bnrank.__version__}"
    for verb in VERBS:
        text = command(verb, "--help").out
        assert f"Example: bnrank {verb}" in re.sub(r"\s+", " ", text)


VERBS = ("demo", "train", "profile", "watch", "compare", "check", "discover", "compress", "reproduce")


def test_examples_of_help_read_nothing_but_built_in_tasks_and_a_run_that_help_trains(command):
    for verb in VERBS:
        text = command(verb, "--help").out
        for words in map(str.split, re.findall(rf"Example: bnrank {verb} ([^│\n]*)", text)):
            given = list(itertools.takewhile(lambda word: not word.startswith("--"), words))
            known = {"F9", "all", *bnrank.tasks.NAMED} | ({"run"} if "bnrank train low-rank" in text else set())
            known |= {"checkpoints"} if "--checkpoints checkpoints" in text else set()
            assert set(given) <= known, (verb, words)


@pytest.mark.slow
def test_the_examples_of_help_work_as_typed(tmp_path, command):
    text = {verb: command(verb, "--help").out for verb in ("train", "profile", "check")}
    typed = {verb: re.findall(rf"Example: bnrank ({verb} [^│\n]*)", said)[0].strip() for verb, said in text.items()}
    for verb in ("profile", "check"):
        assert f"The folder run is written by bnrank {typed['train']}." in text[verb]
    for line in typed.values():
        done = command(*line.split())
        assert done.code == 0, done.error
    assert {path.name for path in tmp_path.rglob("*.html")} == {"report.html", "profile.html", "check.html"}


def test_profile_of_ones_own_network_on_ones_own_data(own, command):
    done = command("profile", "model.safetensors", "data.npz", "--activation", "relu", "--out", "profile.html")
    assert done.code == 0, done.error
    assert "The page: profile.html" in done.out
    assert (own / "profile.html").stat().st_size > 1_000_000


def test_profile_of_a_module_from_a_python_file_lists_what_it_skips(own, command):
    (own / "net.py").write_text(
        "from torch import nn\n\n"
        "def build():\n"
        "    return nn.Sequential(nn.Linear(6, 5), nn.LayerNorm(5), nn.Linear(5, 3))\n"
    )
    done = command("profile", "net.py:build", "data.npz")
    assert done.code == 0, done.error
    assert "LayerNorm" in done.out


def test_train_finishes_its_networks(tmp_path, command):
    sizes = ("--depth", 2, "--width", 3, "--steps", 50, "--ridge", 0.05)
    done = command("train", "low-rank", *sizes, "--finish", "--out", tmp_path, "--quiet")
    assert done.code == 0, done.error
    assert "Finished" in done.out
    assert done.out.count("minimum") + done.out.count("stationary") >= 2
    run = bnrank.Run.open(tmp_path)
    assert (run.summary.stationarity <= 1e-8).all()
    assert all(f"{float(loss):.4g}" in done.out for loss in run.summary.finished_loss)
    refused = command("train", "low-rank", *sizes, "--max-minutes", 1, "--out", tmp_path / "other", "--quiet")
    assert (refused.code, "--finish" in refused.error) == (2, True)
    without = command("train", "low-rank", *sizes[:-1], 0, "--finish", "--out", tmp_path / "other", "--quiet")
    assert (without.code, "--ridge" in without.error) == (2, True)


def test_train_writes_a_run_that_can_be_opened(own, command):
    options = ["--depth", 3, "--width", 8, "--steps", 20, "--out", "run", "--quiet"]
    done = command("train", "data.npz", *options)
    assert done.code == 0, done.error
    run = bnrank.Run.open(own / "run")
    assert run.members == 2
    assert run.network(1).widths == [6, 8, 8, 3]
    assert (own / "run" / "report.html").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("train", "lowrank"), "did you mean 'low-rank'"),
        (("train", "data.npz", "--optimizer", "adm", "--steps", 1), "did you mean 'adam'"),
        (("train", "data.npz", "--ridge", -1), "ridge: got -1"),
        (("train", "nothing.npz"), "nothing.npz"),
        (("profile", "model.pt", "data.npz"), "save_file(model.state_dict()"),
        (
            ("profile", "model.safetensors", "data.npz", "--weights", "w.safetensors"),
            "weights only with file.py:function",
        ),
        (("reproduce", "F99"), "FIGURE: got 'F99'"),
        (("reproduce", "F9", "--scale", "large"), "scale: got 'large'"),
    ],
)
def test_errors_are_one_message_without_a_traceback(own, command, arguments, message):
    (own / "model.pt").write_bytes(b"\x80\x04.")
    done = command(*arguments)
    assert done.code == 2
    assert message in re.sub(r"\s+", " ", done.error)
    assert "Traceback" not in done.error


def test_an_output_folder_that_is_a_file_is_refused(own, command):
    (own / "taken").write_text("mine")
    done = command("train", "data.npz", "--steps", 1, "--out", "taken")
    assert done.code == 2
    assert "taken" in done.error
    assert (own / "taken").read_text() == "mine"


def test_it_runs_as_a_module_too(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "bnrank", "--version"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == f"bnrank {bnrank.__version__}"


def test_check_prints_verdicts_and_writes_a_page(command, own):
    done = command(
        "check", "model.safetensors", "data.npz", "--activation", "relu", "--ridge", 0.01, "--out", "check.html"
    )
    assert done.code == 0, done.error
    assert re.search(r"T4 +Jacobian bound +holds", done.out)
    assert re.search(r"\d+ hold( \(\d+ vacuous\))?, 0 violated, \d+ inconclusive, \d+ not applicable", done.out)
    assert "Jacobian bound" in (own / "check.html").read_text()
    once = "\nnot applicable: T28: there is a convolution with circular padding: no convolutional layer\n"  # for two
    assert once in done.out
    assert re.search(r"^not applicable: .*T17 \(autoencoders", done.out, re.MULTILINE)


def test_the_activation_of_a_state_dict_is_asked_for_and_read(command, own):
    for verb in ("profile", "check"):
        done = command(verb, "model.safetensors", "data.npz")
        assert (done.code, "--activation: got none, but model.safetensors does not say" in done.error) == (2, True)
        assert command(verb, "model.safetensors", "data.npz", "--activation", "tanh").code == 0
    for wrong in ("softmax", "2", "x"):
        done = command("profile", "model.safetensors", "data.npz", "--activation", wrong)
        assert (done.code, "--activation: got" in done.error) == (2, True)
    (own / "net.py").write_text("from torch import nn\ndef build():\n    return nn.Linear(6, 3)\n")
    done = command("profile", "net.py:build", "data.npz", "--activation", "relu")
    assert (done.code, "--activation: got 'relu' with 'net.py:build'" in done.error) == (2, True)


def test_check_of_some_statements_and_with_the_ridge_of_a_run(command, own):
    trained = command("train", "data.npz", "--depth", 2, "--width", 5, "--steps", 5, "--members", 1, "--ridge", 0.03)
    assert trained.code == 0, trained.error
    done = command("check", "run", "data.npz", "--only", "T4, T14")
    assert done.code == 0, done.error
    assert "1 of 3 statements apply: 1 hold, 0 violated" in done.out
    assert re.search(r"^not applicable: T14: ", done.out, re.MULTILINE)
    assert "0.03" in re.sub("<[^>]*>", " ", (own / "check.html").read_text())
    wrong = command("check", "run", "data.npz", "--only", "T4x")
    assert (wrong.code, "did you mean 'T4'?" in wrong.error) == (2, True)


def test_check_fails_where_a_statement_is_violated(command, own, monkeypatch):
    def planted(*arguments, **options):
        facts = Facts(*arguments[:3]).altered(parameter_norm=1e-3)
        return Verdicts(tuple(s(facts) for s in STATEMENTS if s.id == "T4"), {})

    monkeypatch.setattr(bnrank, "check", planted)
    done = command("check", "model.safetensors", "data.npz", "--activation", "relu")
    assert done.code == 1
    assert re.search(r"T4 +Jacobian bound +violated", done.out)


def test_profile_of_a_file_of_weights_needs_neither_code_nor_data(own, command):
    torch.save({"a.weight": torch.eye(3), "b.weight": torch.ones(4, 2), "a.bias": torch.ones(3)}, own / "w.pt")
    done = command("profile", "w.pt", "--quiet")
    assert "2 of 3 tensors measured, with 17 of 20 entries" in done.out
    assert "not measured: bias (a.bias)" in done.out
    assert (own / "profile.html").is_file()
    for file in ("model.safetensors", "net.py:build"):
        (own / "net.py").write_text("from torch import nn\ndef build():\n    return nn.Linear(2, 3)\n")
        assert "tensors measured" in command("profile", file).out, file
    done = command("profile", "w.pt", "--weights", "model.safetensors")
    assert (done.code, "--weights: got" in done.error) == (2, True)
    done = command("profile", "none.pt")
    assert (done.code, "MODEL: got 'none.pt', expected a file that exists" in done.error) == (2, True)
    (own / "split").mkdir()
    for name in ("a.safetensors", "model.safetensors.index.json"):
        (own / "split" / name).touch()
    done = command("profile", "split")
    assert done.code == 2
    assert "MODEL: got 'split', a folder without a run, expected " in done.error
    assert "split/model.safetensors.index.json" in done.error
    done = command("profile", "a" * 300)
    assert (done.code, "MODEL: got 'aaa" in done.error) == (2, True)
    (own / "net.h5").write_bytes(b"any")
    done = command("profile", "net.h5")
    assert (done.code, "MODEL: got 'net.h5', expected a file of weights, one ending in" in done.error) == (2, True)
    bnrank.save(bnrank.MLP([3, 4, 2], seed=0), own / "net.safetensors").rename(own / "net")
    assert "2 of 4 tensors measured" in command("profile", "net").out


def test_watch_shows_a_sweep_and_writes_its_page(tmp_path, command):
    task = bnrank.tasks.low_rank_map(n=40, seed=0)
    settings = {"grid": {"width": [4]}, "steps": 3, "processes": 1, "progress": False}
    bnrank.sweep(task, depths=[2, 3], ridges=[1e-3, 1e-2], out=tmp_path / "sweep", **settings)
    page = tmp_path / "page.html"
    printed = command("watch", tmp_path / "sweep", "--out", page, "--every", 5).out
    assert "4 networks: 4 finished" in printed
    assert "4 of 4 networks are finished" in page.read_text()


def test_the_examples_of_watch_and_compare_work_as_typed(tmp_path, command):
    for verb in ("watch", "compare"):
        text = command(verb, "--help").out
        made = re.search(r"written by bnrank (train .*? checkpoints)\.", text)[1].replace("--steps 300", "--steps 20")
        example = re.search(rf"Example: bnrank ({verb} [^│\n]*)", text)[1]
        assert command(*made.split(), "--fresh", "--quiet").code == 0
        done = command(*example.split())
        assert done.code == 0, done.error
        assert "3 measurements, steps 0 to 20" in done.out
        assert (tmp_path / f"{verb}.html").exists()
    pair = re.search(r"with samples:[\s│]*bnrank (compare [^│\n]*)", text)[1].replace("300", "20")
    done = command(*pair.split(), "--out", "pair.html")
    assert done.code == 0, done.error
    assert "8 of 8 matrices changed" in done.out
    assert "1: layers.0" in done.out
    assert "step-0.safetensors" in (tmp_path / "pair.html").read_text()
    again = command("train", "low-rank", "--steps", 20, "--out", "watched", "--checkpoints", "other", "--quiet")
    assert "Checkpoints: none written" in again.out


def test_the_same_code_compares_two_files_of_weights(own, command):
    (own / "net.py").write_text(
        "from torch import nn\n\n\ndef build():\n"
        "    return nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.Linear(16, 3))\n"
    )
    other = {name: 2 * value for name, value in load_file(own / "model.safetensors").items()}
    save_file(other, own / "other.safetensors")
    files = ("model.safetensors", "other.safetensors")
    done = command("compare", *files, "--x", "data.npz", "--code", "net.py:build")
    assert (done.code, "2 of 2 matrices changed, by 1 times their norm" in done.out) == (0, True)
    assert "mean CCA" in done.out
    done = command("compare", "net.py:build", "net.py:build", "--x", "data.npz")
    assert (done.code, "2 of 2 matrices changed" in done.out) == (0, True)  # two draws
    (own / "step-2").mkdir()
    save_file(other, own / "step-2" / "model.safetensors")
    done = command("compare", "model.safetensors", "step-2/model.safetensors")
    assert done.out.startswith("model.safetensors and step-2/model.safetensors: 2 of 2 matrices changed")
    done = command("compare", *files, "--max-minutes", 1e-9)
    assert (done.code, "--max-minutes: got" in done.error) == (2, True)
    done = command("compare", *files, "--max-minutes", 5)
    assert (done.code, "2 of 2 matrices changed" in done.out) == (0, True)
    done = command("compare", *files, "--code", "net.py:build")
    assert (done.code, "--code: got 'net.py:build' without --x" in done.error) == (2, True)
    done = command("compare", "model.safetensors", "--x", "data.npz")
    assert (done.code, "--x: got 'data.npz' without B" in done.error) == (2, True)
