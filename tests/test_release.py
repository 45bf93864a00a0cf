"""The wheel and the sdist: what is in them, and that the wheel runs outside the source tree."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

import bnrank

ROOT = Path(__file__).parents[1]
STRAYS = (
    "src/bnrank/__pycache__/made.cpython-311.pyc",
    "tests/__pycache__/made.pyc",
    "docs/_build/page.html",
    "docs/api/made.rst",
    "docs/gallery/made.md",
    "docs/notebooks/made.ipynb",
    "demo/report.html",
    ".venv/pyvenv.cfg",
)
BUILD = "import sys, setuptools.build_meta as b; b.build_sdist(sys.argv[1])"


def call(*command, cwd, **environment):
    """Run a command and return what it prints."""
    kept = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={**kept, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The sdist of a copy of the source tree with files that do not belong in it, and the wheel made from the sdist."""
    folder = tmp_path_factory.mktemp("release")
    tree, out = folder / "tree", folder / "dist"
    ignored = shutil.ignore_patterns(".git", ".venv*", "*.egg-info", "__pycache__", ".*_cache", "build", "dist", "demo")
    shutil.copytree(ROOT, tree, ignore=ignored)
    for stray in STRAYS:
        (tree / stray).parent.mkdir(parents=True, exist_ok=True)
        (tree / stray).write_text("stray")
    call(sys.executable, "-c", BUILD, out, cwd=tree)
    (sdist,) = out.glob("*.tar.gz")
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet")
    call(*pip, "wheel", "--no-index", "--no-deps", "--no-build-isolation", "--wheel-dir", out, sdist, cwd=folder)
    (wheel,) = out.glob("*.whl")
    return sdist, wheel


def package_files():
    """Return the files of the package that belong in a release, relative to src/."""
    source = ROOT / "src"
    files = [path for path in (source / "bnrank").rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    return {path.relative_to(source).as_posix() for path in files}


@pytest.mark.slow
def test_the_wheel_has_every_file_of_the_package_and_nothing_else(built):
    with zipfile.ZipFile(built[1]) as wheel:
        names = set(wheel.namelist())
        metadata = next(wheel.read(name).decode() for name in names if name.endswith("METADATA"))
    about = f"bnrank-{bnrank.__version__}.dist-info"
    expected = {f"{about}/{name}" for name in ("METADATA", "WHEEL", "RECORD", "entry_points.txt", "top_level.txt")}
    assert names == package_files() | expected | {f"{about}/licenses/LICENSE"}
    assert f"\nVersion: {bnrank.__version__}\n" in metadata
    assert "bnrank/py.typed" in names
    assert "bnrank/reporting/templates/page.html.j2" in names


@pytest.mark.slow
def test_the_sdist_has_the_tests_and_what_they_read(built):
    with tarfile.open(built[0]) as sdist:
        names = {name.split("/", 1)[1] for name in sdist.getnames() if "/" in name}
    assert {f"src/{name}" for name in package_files()} <= names
    for folder in ("tests", "docs", "benchmarks", ".github"):
        files = [path for path in (ROOT / folder).rglob("*") if path.is_file()]
        kept = {path.relative_to(ROOT).as_posix() for path in files if not {"__pycache__", "_build"} & set(path.parts)}
        kept = {name for name in kept if not name.startswith(("docs/api/", "docs/gallery/", "docs/notebooks/"))}
        assert kept, folder
        assert kept <= names, folder
    assert {"CHANGELOG.md", "LICENSE", "Makefile", "constraints.txt", "constraints-lowest.txt"} <= names
    assert not names & set(STRAYS)
    assert not [name for name in names if name.endswith((".pyc", ".safetensors"))]


@pytest.mark.slow
def test_the_wheel_runs_the_demo_in_an_empty_folder(built, tmp_path):
    site, empty = tmp_path / "site", tmp_path / "empty"
    empty.mkdir()
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet")
    call(*pip, "install", "--no-index", "--no-deps", "--target", site, built[1], cwd=empty)
    where = call(sys.executable, "-P", "-c", "import bnrank; print(bnrank.__file__)", cwd=empty, PYTHONPATH=str(site))
    assert Path(where.strip()).is_relative_to(site)
    options = {"PYTHONPATH": str(site), "BNRANK_DATA": str(empty), "OMP_NUM_THREADS": "1"}
    printed = call(sys.executable, "-P", "-m", "bnrank", "demo", "--quick", "--quiet", cwd=empty, **options)
    ranks = {int(depth): int(rank) for depth, rank in re.findall(r"low_rank_map +(\d+) +0 +(\d+)", printed)}
    assert ranks[16] == 2 < ranks[4]
    page = (empty / "demo" / "report.html").read_text()
    assert f"bnrank {bnrank.__version__}" in page
    assert {path.name for path in empty.iterdir()} == {"demo"}


def test_the_version_is_written_in_one_place():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert "version" in project["project"]["dynamic"]
    assert project["tool"]["setuptools"]["dynamic"]["version"]["attr"] == "bnrank._version.__version__"
    assert f"\nversion: {bnrank.__version__}\n" in (ROOT / "CITATION.cff").read_text()
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest is not None
    assert newest[1] == bnrank.__version__
