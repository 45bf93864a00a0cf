"""The README is true: its code and its commands run as written."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from bnrank import cli

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "README.md").read_text()
WRITTEN = {"_build", "api", "gallery", "notebooks"}  # folders of docs/ that a build of the site writes
DOCS = [path.relative_to(ROOT) for path in sorted((ROOT / "docs").rglob("*.md"))]
PAGES = ["README.md", "CONTRIBUTING.md", *(str(path) for path in DOCS if path.parts[1] not in WRITTEN)]


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", TEXT, re.DOTALL)


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder of its own, without data of other folders."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BNRANK_DATA", str(tmp_path))
    return tmp_path


@pytest.fixture
def run(here, capsys):
    """Run Python code in a folder of its own, in this process, and return what it prints."""

    def made(code):
        exec(compile(code, "README.md", "exec"), {})
        return capsys.readouterr().out

    return made


def alone(folder, *arguments):
    """Run Python in a folder, in a process of its own, and return what it prints."""
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env={**os.environ, "BNRANK_DATA": str(folder)},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_python_examples_run_and_find_rank_two(tmp_path):
    example, theory, *_ = blocks("python")
    assert len([line for line in example.splitlines() if line.strip()]) <= 10
    last = "\nassert rank.exact and z.shape == (300, 2) and float(error) < 1e-5 and verdicts.ok"
    printed = alone(tmp_path, "-c", example + theory + last)
    assert "rank 2, layers" in printed
    assert "rank in [2, 2] (on the data), cut at" in printed
    assert (tmp_path / "report.html").exists()
    assert (tmp_path / "verdicts.html").exists()


@pytest.mark.slow
def test_the_staircase_example_runs(run):
    last = """
first = bnrank.escape.first_escape(flow, task.x, g)
assert abs(first.predicted / first.observed - 1) < 0.02
assert flow.plateaus[1].ranks[1:] == (1, 1, 1)
"""
    printed = run("import bnrank\n" + blocks("python")[2] + last)
    assert "residual" in printed


@pytest.mark.slow
def test_the_invariances_example_runs(run):
    last = """
end = monitor.history.isel(member=0, row=-1)
before, step, decay = (float(end[name].max()) for name in ("drift", "by_step", "by_decay"))
assert 0 < step < decay <= 1.1 * before
"""
    printed = run("import bnrank\n" + blocks("python")[3] + last)
    assert "matrix 2 | 3" in printed
    assert "by weight decay" in printed


@pytest.mark.slow
def test_the_discovery_examples_run_and_find_what_was_planted(run, here):
    last = """
assert (found.n_components_, found.n_components_interval_, z.shape) == (2, (2, 2), (200, 2))
alone = str(symmetries(found, x))
assert symmetries(found, x).dimension == 4 and all(f"x{i}" in alone for i in range(6)) and "x6" not in alone, alone
assert small.certificate.met and small.certificate.parameters < small.certificate.parameters_before / 4
assert (again(task.x) - small.network(task.x)).abs().max() < 1e-5
"""
    printed = run("import bnrank\n" + blocks("python")[4] + blocks("python")[5] + last)
    assert "components: 2 (interval 2 to 2" in printed
    assert (here / "found.html").exists()


@pytest.mark.slow
def test_the_command_line_example_runs(here, run, monkeypatch):
    *_, setup = blocks("python")
    run(setup)
    lines = [line for block in blocks("sh") for line in block.splitlines() if line.startswith("bnrank ")]
    assert len(lines) == 8
    for number, line in enumerate(lines):
        command = shlex.split(line, comments=True)[1:]
        if command == ["reproduce", "all"]:  # minutes: its figures, tiny, are in tests/figures
            continue
        if number == 0:
            alone(here, "-m", "bnrank", *command)
            continue
        monkeypatch.setattr(sys, "argv", ["bnrank", *command])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        assert not ended.value.code, line
    assert (here / "reproduction" / "quick" / "index.html").exists()
    for verb in ("profile", "check", "compress", "discover"):
        assert (here / f"{verb}.html").exists()
    assert (here / "z.csv").read_text().startswith("row,z1,z2\n")
    assert (here / "run" / "report.html").exists()


@pytest.mark.parametrize("page", PAGES)
def test_files_named_in_the_documents_exist(page):
    text = (ROOT / page).read_text()
    outside = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)  # code shows links of other pages
    for link in re.findall(r"\]\((?!https?:)([^)#]+)\)", outside):
        assert ((ROOT / page).parent / link).exists(), link
    made = re.findall(r"^\+\+\+ (\S+)", text, flags=re.MULTILINE)  # by the reader
    for path in re.findall(r"`((?:tests|src|docs|benchmarks)/[\w./-]+\.\w+)`", text):
        assert (ROOT / path).exists() or path in made, path
    rooms = "tasks|networks|measures|training|theory|discovery|reporting|figures"
    for path in re.findall(rf"`((?:{rooms})/[\w./-]+\.py)`", text):
        assert (ROOT / "src" / "bnrank" / path).exists(), path


def test_the_make_targets_named_exist():
    makefile = (ROOT / "Makefile").read_text()
    for target in set(re.findall(r"`?make ([a-z]+)", TEXT + (ROOT / "CONTRIBUTING.md").read_text())):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
