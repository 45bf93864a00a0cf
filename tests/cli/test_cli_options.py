"""Every argument and option of every verb with bad values: one message that names it as typed, and exit status 2."""

import os
import re

import numpy as np
import pytest
import torch
import typer
from safetensors.torch import save_file

from bnrank import cli

VALID = {
    "demo": [],
    "train": ["data.npz", "--depth", 2, "--width", 3, "--steps", 2, "--members", 1, "--quiet"],
    "sweep": ["grid.toml", "--processes", 1, "--quiet"],
    "profile": ["model.safetensors", "data.npz"],
    "check": ["model.safetensors", "data.npz", "--only", "T4"],
    "discover": ["data.npz", "--ridges", 0.1, "--depth", 2, "--width", 3, "--steps", 5, "--members", 1, "--quiet"],
    "compress": ["model.safetensors", "data.npz"],
    "reproduce": ["F12", "--quiet"],
    "watch": ["checkpoints"],
    "compare": ["model.safetensors", "model.safetensors"],
}
BAD = {  # by option; the others by their kind
    "MODEL": ["", "none.safetensors", "folder", "empty.safetensors", "bytes.safetensors", "net.py", "net.py:none"],
    "DATA": ["", "none.npz", "folder", "empty.npz", "empty.csv", "bytes.npz", "bytes.csv", "ragged.csv", "low rank"],
    "FIGURE": ["", "F99"],
    "GRID": ["", "none.toml", "folder", "data.npz", "pipe"],
    "--worker": ["", "none", "folder", "data.npz", "pipe"],
    "--processes": ["0", "-1", "x"],
    "--executor": ["", "0", "-1", "x", "none.json", "folder"],
    "--idle": ["-1", "nan", "x"],
    "--threads": ["0", "-1", "x"],
    "--table": ["", "folder", "none/t.csv", "t.txt"],
    "FOLDER": ["", "none", "folder", "data.npz", "pipe"],
    "--out": ["data.npz/x", "a" * 300],
    "A": ["", "none.safetensors", "bytes.safetensors", "net.py", "net.py:none", "pipe"],
    "B": ["none.safetensors", "folder", "bytes.safetensors", "net.py:none", "pipe"],
    "--x": ["none.npz", "folder", "bytes.csv"],
    "--code": ["net.py", "net.py:none"],
    "--top": ["0", "-1"],
    "--checkpoints": ["data.npz", "data.npz/x", "a" * 300],
    "--keep": ["data.npz", "data.npz/x", "a" * 300],
    "--tag": ["", " "],
    "--save": ["", "folder", "none/net.safetensors", "net.pt"],
    "--coordinates": ["", "folder", "none/z.csv", "z.txt"],
    "--weights": ["none.safetensors", "bytes.safetensors"],
    "--components": ["", "0", "9", "many"],
    "--ridges": ["0", "-1", "nan", "a,b"],
    "--ridge": ["-1", "nan", "inf"],
    "--depth": ["0", "-1", "1000000000"],
    "--width": ["0", "-1", "1000000000"],
    "--members": ["0", "-1", str(10**30)],
    "--jobs": ["0"],
    "--activation": ["2", "nan", "-1", "softmax", "x"],
    "--member": ["1", "-1"],
    "--steps": ["-1", str(10**30)],
    "--record-every": ["0", "-1"],
    "--tune": ["-1"],
    "--seed": ["-1", str(10**30)],
    "--batch-size": ["0", "-1", "1000"],
    "--rtol": ["-1", "1", "nan"],
    "--lr": ["0", "-1", "nan"],
    "--tol": ["-1", "nan", "inf"],
    "--max-minutes": ["0", "-1", "nan"],
    "--every": ["0", "-1", "nan", "1e9"],  # of checkpoints: any number
}
OUT = {
    verb: ["folder", "pipe"] for verb in ("profile", "check", "discover", "compress", "watch", "compare")
}  # pages, not folders
TEXTS = {
    "--optimizer": ["", "adm"],
    "--targets": ["z"],
    "--ignore": ["z"],
    "--sep": ["", "x", ";"],
    "--decimal": ["", "x", ","],
    "--groups": ["z"],
    "--units": ["", "x", "z=m"],
    "--kind": ["", "x"],
    "--only": ["T99"],
    "--dtype": ["", "x", "int32"],
    "--outputs": ["x", "1:"],
    "--what": ["x", "weights,x"],
    "--scale": ["", "x"],
}
TABLE = ("--targets", "--ignore", "--sep", "--decimal")
NUMBERS = {"--top", "--depth", "--width", "--members", "--member", "--steps", "--record-every", "--tune", "--seed"}
NUMBERS |= {"--batch-size", "--rtol", "--lr", "--tol", "--ridge", "--max-minutes", "--every"}


@pytest.fixture
def own(tmp_path):
    """Write a network, data, and files that are neither."""
    generator = torch.Generator().manual_seed(0)
    save_file({"0.weight": torch.randn(3, 6, generator=generator)}, tmp_path / "model.safetensors")
    x = torch.randn(40, 6, generator=generator).numpy()
    np.savez(tmp_path / "data.npz", x=x, y=x[:, :3])
    for suffix in ("npz", "csv", "safetensors"):
        (tmp_path / f"empty.{suffix}").touch()
        (tmp_path / f"bytes.{suffix}").write_bytes(bytes(range(256)) * 4)
    (tmp_path / "ragged.csv").write_text("a,b\n1,2\n3\n")
    (tmp_path / "net.py").write_text("from torch import nn\n\ndef build():\n    return nn.Linear(6, 3)\n")
    (tmp_path / "folder").mkdir()
    (tmp_path / "grid.toml").write_text('[task]\nfile = "data.npz"\n[grid]\ndepth = 2\nwidth = 3\n[train]\nsteps = 2\n')
    (tmp_path / "swept").mkdir()
    (tmp_path / "swept" / "sweep.json").write_text("{}")
    (tmp_path / "checkpoints").mkdir()
    for step in (1, 2):
        save_file({"0.weight": torch.randn(3, 6)}, tmp_path / "checkpoints" / f"step-{step}.safetensors")
    os.mkfifo(tmp_path / "pipe")
    return tmp_path


def shown(parameter):
    """Return the argument or option as typed."""
    return parameter.opts[0] if parameter.param_type_name == "option" else parameter.metavar


def cases():
    """Return verb, arguments and what they are bad values of, for all parameters of the commands themselves."""
    for verb, command in typer.main.get_command(cli.app).commands.items():
        arguments = [shown(p) for p in command.params if p.param_type_name == "argument"]
        for parameter in command.params:
            name = shown(parameter)
            if getattr(parameter, "is_flag", False):
                continue
            values = [*BAD.get(name, ()), *TEXTS.get(name, ()), *(["", "x"] if name in NUMBERS else ())]
            for value in values + (OUT.get(verb, ["data.npz"]) if name == "--out" else []):
                given = list(VALID[verb])
                if name in ("--code", *TABLE) and verb == "compare":
                    given += ["--x", "data.npz"]
                if verb == "sweep" and name in ("--worker", "--idle", "--threads", "--max-minutes"):
                    given = [] if name == "--worker" else ["--worker", "swept"]
                if name == "--weights" and verb != "discover":
                    given[0] = "net.py:build"
                if name in arguments:
                    given[arguments.index(name)] = value
                else:
                    given += [name, value]
                yield verb, given, name


def test_every_option_is_tried():
    parameters = [p for command in typer.main.get_command(cli.app).commands.values() for p in command.params]
    asked = {shown(p) for p in parameters if not getattr(p, "is_flag", False)}
    assert asked == {*BAD, *TEXTS}
    assert {name for _, _, name in cases()} == asked


def test_bad_values_are_one_message_that_names_the_option(own, command):
    before = sorted(own.iterdir())
    silent = []
    for verb, given, name in cases():
        done = command(verb, *given)
        said = re.sub(r"\s+", " ", done.error)
        if done.code != 2 or not re.search(rf"(?<![\w-]){name}(?![\w-])", said) or "Traceback" in said:
            silent.append((verb, *given, done.code, said))
    assert not silent
    assert sorted(own.iterdir()) == before


def test_a_network_that_exits_the_program_is_an_error(own, command):
    (own / "exits.py").write_text(
        "import sys\nfrom torch import nn\n\n\nclass Net(nn.Module):\n    def forward(self, x):\n        sys.exit(0)\n"
    )
    done = command("profile", "exits.py:Net", "data.npz")
    assert done.code == 2
    assert "MODEL: the code of the network called sys.exit(0)" in done.error


def test_an_unforeseen_error_is_one_message_with_a_status_of_its_own(own, command, monkeypatch):
    def fails(*arguments, **options):
        raise RuntimeError("[bold]broken[/]")

    monkeypatch.setattr("bnrank.profile", fails)
    done = command("profile", "model.safetensors", "data.npz")
    assert done.code == 70
    assert "unexpected error RuntimeError: [bold]broken[/]" in done.error
    assert "Traceback" not in done.error


def test_pages_replace_none_of_the_files_that_are_read(own, command):
    before = (own / "data.npz").read_bytes()
    done = command("profile", "model.safetensors", "data.npz", "--out", "data.npz")
    assert (done.code, "--out: got 'data.npz', which is read" in done.error) == (2, True)
    assert (own / "data.npz").read_bytes() == before


def test_options_of_a_table_that_is_not_read_are_refused(own, command):
    for verb, source in (("profile", "DATA"), ("compare", "--x")):
        given = ["model.safetensors"] * (1 + (verb == "compare"))
        for option, value in (("--targets", "a"), ("--decimal", ","), ("--drop-missing", True)):
            done = command(verb, *given, option, *([] if value is True else [value]))
            expected = f"{option}: got {value!r} without {source}, expected it with {source}"
            assert (done.code, expected in done.error) == (2, True)
        assert not command(verb, *given).code


def test_advice_on_integers_is_for_files(own, command):
    (own / "words.py").write_text("from torch import nn\ndef build():\n    return nn.Embedding(7, 2)\n")
    x = np.arange(80).reshape(40, 2) % 7
    np.savez(own / "halves.npz", x=x / 2)
    for verb in ("profile", "check", "compress"):
        done = command(verb, "words.py:build", "halves.npz")
        assert (done.code, "x of DATA: got " in done.error) == (2, True)
        assert done.error.rstrip().endswith("expected integers; store it as integers")
