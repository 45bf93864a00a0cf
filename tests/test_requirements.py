"""The lower bounds of the dependencies are the versions that are tested."""

import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[1]


def pins(name):
    lines = (ROOT / name).read_text().splitlines()
    parts = [re.split("==|[+]", line) for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(package): Version(version) for package, version, *_ in parts}


def test_the_lowest_versions_of_all_dependencies_are_pinned():
    lowest, usual = pins("constraints-lowest.txt"), pins("constraints.txt")
    needed = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    for requirement in map(Requirement, needed):
        (bound,) = requirement.specifier
        package = canonicalize_name(requirement.name)
        assert bound.operator == ">=", requirement
        assert lowest[package] == Version(bound.version), requirement
        assert usual[package] >= lowest[package], requirement
