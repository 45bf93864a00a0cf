"""Rooms, and what one call takes to follow, keep within their budgets of code lines, which pyproject.toml sets."""

import ast
import sys
import tomllib
from pathlib import Path

import pytest
import torch
from torch import nn

import bnrank

ROOT = Path(__file__).parents[1]
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["bnrank"]
BUDGETS, REACH = SETTINGS["budgets"], SETTINGS["reach"]
DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def numbers_of_code(path):
    """Return the numbers of the lines of a file that are not blank, a comment, or part of a docstring."""
    text, prose = path.read_text(encoding="utf-8"), set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            prose |= set(range(node.body[0].lineno, node.body[0].end_lineno + 1))
    lines = enumerate(text.splitlines(), 1)
    return {i for i, line in lines if line.strip() and not line.lstrip().startswith("#") and i not in prose}


def code_lines(path):
    return len(numbers_of_code(path))


def lines_run(call):
    """Return the number of code lines of all functions of the library that a call runs."""
    package, codes = Path(bnrank.__file__).parent, set()
    before = sys.getprofile()
    sys.setprofile(lambda frame, event, argument: codes.add(frame.f_code) if event == "call" else None)
    try:
        call()
    finally:
        sys.setprofile(before)
    total = 0
    for path in {Path(code.co_filename) for code in codes}:
        if path.is_relative_to(package):
            firsts = {code.co_firstlineno for code in codes if Path(code.co_filename) == path}
            lines, code = set(), numbers_of_code(path)
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.FunctionDef):
                    first = min([node, *node.decorator_list], key=lambda part: part.lineno).lineno
                    lines |= set(range(node.lineno, node.end_lineno + 1)) if first in firsts else set()
            total += len(lines & code)
    return total


def watched(net, x):
    with bnrank.watch(net, every=2) as watch:
        for _ in range(6):
            net(x)
            watch.step()


def test_lines_of_code_are_counted_without_comments_and_docstrings(tmp_path):
    path = tmp_path / "example.py"
    prose = '"""A module\n\nof three lines."""\n\n# a comment\n'
    path.write_text(prose + 'x = """\na string"""\n\n\ndef f():\n    """F."""\n    return x  # x\n')
    assert code_lines(path) == 4


@pytest.mark.parametrize("folder", BUDGETS)
def test_every_room_keeps_within_its_budget(folder):
    size = sum(map(code_lines, (ROOT / folder).rglob("*.py")))
    assert size <= BUDGETS[folder], f"{folder} has {size} code lines, its budget is {BUDGETS[folder]}"


def test_every_room_has_a_budget():
    rooms = {
        str(path.relative_to(ROOT)) for path in (ROOT / "src" / "bnrank").iterdir() if (path / "__init__.py").exists()
    }
    assert rooms <= set(BUDGETS)


@pytest.mark.parametrize("name", REACH)
def test_what_a_call_takes_to_follow_keeps_within_its_budget(name):
    task = bnrank.tasks.low_rank_map(n=60, d_in=6, d_out=6, latent=3, rank=2, seed=0)
    net, plain, x = bnrank.MLP([6, 12, 12, 12, 6], seed=0), nn.Sequential(nn.Linear(6, 16), nn.ReLU()), task.x.float()
    plain.extend([nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 3)])
    calls = {
        "profile": lambda: bnrank.profile(plain, x),
        "bottleneck": lambda: bnrank.bottleneck(net, x),
        "rank": lambda: bnrank.rank(net, x),
        "invariants.find": lambda: bnrank.invariants.find(plain, x[:2]),
        "watch": lambda: watched(plain, x),
    }
    run = lines_run(calls[name])
    assert 100 < run <= REACH[name], f"{name} runs {run} code lines, its budget is {REACH[name]}"


def test_the_lines_of_a_call_are_those_of_the_functions_that_it_runs():
    assert lines_run(lambda: torch.ones(2).sum()) == 0
    assert 0 < lines_run(lambda: bnrank.spectra.stable_rank([2.0, 1.0])) < 60
