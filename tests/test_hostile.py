"""Hostile files are refused by name, quickly and in little memory, and random damage to stored files is noticed."""

import json
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks import damage

HERE = Path(__file__).parent


def test_hostile_files_are_refused_at_once_in_little_memory():
    command = [sys.executable, str(HERE / "hostile.py")]
    printed = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=300).stdout
    results = json.loads(printed.splitlines()[-1])
    names = ("path", "spec", "out", "folder", "a.npz", "a.csv", "a.gz", "x", "y")
    wrong = [
        (name, kind, message)
        for name, kind, message, _, _ in results
        if kind not in ("ValueError", "TypeError") or not any(f"{start}:" in message[:200] for start in names)
    ]
    assert not wrong
    assert not [(name, seconds) for name, *_, seconds, _ in results if seconds > 1]
    assert not [(name, taken >> 20) for name, *_, taken in results if taken > 200 << 20]
    assert len(results) >= 50


def test_a_sample_of_random_damage_is_noticed():
    kinds = damage.prepare()
    opened = [kind for kind in kinds if kind.act.__name__ not in ("resume", "sweep", "again")]  # without training
    counts, bad = damage.run(kinds + 4 * opened, 200, seed=1)
    assert not bad
    assert sum(sum(found.values()) for found in counts.values()) == 200
