"""Full and read-only disks, quotas and folders that disappear, met by everything that writes."""

import os
import sys

import pytest
from tests import faults

root = pytest.mark.skipif(os.geteuid() != 0 or sys.platform != "linux", reason="root on Linux makes these faults")


@pytest.fixture
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("faults")
    for parent in (folder, *list(folder.parents)[:2]):  # another user must reach it
        parent.chmod(0o755)
    return folder


AS_ROOT = faults.AS_ROOT
SAMPLE = [
    ("full", "trained"),
    ("gone", "flowed"),
    ("nearly_full", "swept"),
    ("read_only", "ran"),
    ("quota", "saved_run"),
    ("denied", "saved_network"),
    ("a_file", "saved_compressed"),
    ("full", "saved_estimator"),
    ("nearly_full", "reported"),
]  # all of them: python -m tests.faults


@pytest.mark.parametrize(
    ("fault", "writer"), [pytest.param(*p, marks=[root] * (p[0] in faults.AS_ROOT)) for p in SAMPLE]
)
def test_an_error_names_the_argument_and_nothing_finished_is_lost(fault, writer, place):
    faults.judged(fault, writer, place)
