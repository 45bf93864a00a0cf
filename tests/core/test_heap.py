"""Freed memory is given back to the operating system."""

import ctypes
import importlib
import subprocess
import sys

import pytest

from bnrank._core import heap

GROW = """
import sys
from pathlib import Path
from bnrank._core import heap

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 2**20

blocks = [bytearray(b"x" * 100_000) for _ in range(1000)]  # too small to be mapped by glibc, so on its heap
last = blocks.pop()  # in use above them, so that glibc keeps what is freed
blocks.clear()
before = resident()
if "keep" not in sys.argv:
    heap.give_back()
print(before - resident())
"""


def glibc() -> bool:
    try:
        return hasattr(ctypes.CDLL(None), "malloc_trim")
    except (OSError, TypeError):
        return False


@pytest.mark.skipif(not (sys.platform == "linux" and glibc()), reason="memory is given back with glibc alone")
def test_freed_memory_leaves_the_process():
    given, kept = (
        float(subprocess.run([sys.executable, "-c", GROW, *words], capture_output=True, check=True).stdout)
        for words in ((), ("keep",))
    )
    assert given > 60  # of 95 MiB
    assert kept < 10


@pytest.mark.parametrize("error", [AttributeError, OSError, TypeError])
def test_without_glibc_nothing_happens(monkeypatch, error):
    def none(name):
        raise error("no such library")

    monkeypatch.setattr(ctypes, "CDLL", none)
    try:
        importlib.reload(heap)
        assert heap._trim is None
        heap.give_back()
    finally:
        monkeypatch.undo()
        importlib.reload(heap)
