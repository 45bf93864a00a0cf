"""The workflow files of the repository: they are valid, and every command that they call exists."""

import os
import re
import shlex
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
FILES = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
KEYS = {"name", "on", "permissions", "concurrency", "env", "defaults", "jobs"}
JOB_KEYS = {"name", "runs-on", "timeout-minutes", "strategy", "steps", "needs", "if", "env"}
STEP_KEYS = {"name", "id", "if", "uses", "with", "run", "env", "working-directory", "shell", "continue-on-error"}
EVENTS = {"push", "pull_request", "workflow_dispatch", "schedule", "release"}


class Strict(yaml.SafeLoader):
    """YAML in which a key that occurs twice is an error, and `on` is a text, as GitHub reads it."""

    yaml_implicit_resolvers = {  # noqa: RUF012
        first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:bool"]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def construct_mapping(self, node, deep=False):
        keys = [self.construct_object(key) for key, _ in node.value]
        assert len(keys) == len(set(keys)), f"a key occurs twice: {keys}"
        return super().construct_mapping(node, deep)


def read(text):
    """Return a workflow after checking its structure."""
    workflow = yaml.load(text, Strict)
    assert text.count("${{") == len(re.findall(r"\$\{\{[^{}]*\}\}", text)), "an expression is not closed"
    assert set(workflow) <= KEYS
    assert {"name", "on", "jobs"} <= set(workflow)
    assert set(workflow["on"]) <= EVENTS
    for job in workflow["jobs"].values():
        assert set(job) <= JOB_KEYS
        assert job["runs-on"].startswith("ubuntu-")
        matrix = job.get("strategy", {}).get("matrix", {})
        named = set(re.findall(r"matrix\.(\w+)", yaml.dump(job)))
        assert named == set(matrix), "the names of the matrix that are used and given"
        for step in job["steps"]:
            assert set(step) <= STEP_KEYS
            assert ("uses" in step) != ("run" in step), step
            if "uses" in step:
                assert re.fullmatch(r"[\w.-]+/[\w./-]+@v\d+", step["uses"]), step
    return workflow


def commands(workflow):
    """Return the words of every command of a workflow."""
    steps = [step for job in workflow["jobs"].values() for step in job["steps"] if "run" in step]
    lines = [line.strip() for step in steps for line in step["run"].splitlines()]
    return [shlex.split(line) for line in lines if line]


def targets(words):
    return [word for word in words[1:] if "=" not in word and not word.startswith("-")]


def known_targets():
    (phony,) = re.findall(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    return set(phony.split())


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_command_of_a_workflow_exists(path):
    found = commands(read(path.read_text()))
    assert found
    for words in found:
        if words[0] == "make":
            assert targets(words), words
            assert set(targets(words)) <= known_targets(), words
        else:
            assert os.access(ROOT / words[0], os.X_OK), words


def test_the_workflows_test_three_pythons_the_lowest_versions_and_the_wheel():
    workflows = [read(path.read_text()) for path in FILES]
    jobs = {name: job for workflow in workflows for name, job in workflow["jobs"].items()}
    supported = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["classifiers"]
    versions = [text.rsplit(" ", 1)[1] for text in supported if re.search(r":: 3\.\d+$", text)]
    assert jobs["test"]["strategy"]["matrix"]["python"] == versions == ["3.11", "3.12", "3.13"]
    called = {target for workflow in workflows for words in commands(workflow) for target in targets(words)}
    assert {"test-lowest", "wheel"} <= called
    assert [".ci/run"] in [words for workflow in workflows for words in commands(workflow)]
    assert re.search(r"^make test$", (ROOT / ".ci" / "run").read_text(), re.MULTILINE)


@pytest.mark.parametrize(
    "change",
    [
        ("runs-on: ubuntu-latest", "runs_on: ubuntu-latest"),
        ("permissions:", "on:"),
        ("matrix.python", "matrix.pyhton"),
        ("${{ matrix.python }}", "${{ matrix.python }"),
        ("actions/checkout@v4", "actions/checkout"),
        ("    steps:\n", "    steps:\n\t"),
    ],
    ids=lambda change: change[1].strip(),
)
def test_a_faulty_workflow_is_found(change):
    text = (ROOT / ".github" / "workflows" / "ci.yml").read_text()
    assert change[0] in text
    with pytest.raises((AssertionError, KeyError, yaml.YAMLError)):
        read(text.replace(*change, 1))


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_make_knows_every_target():
    for target in sorted(known_targets()):
        done = subprocess.run(
            ["make", "--dry-run", "--always-make", target], cwd=ROOT, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
