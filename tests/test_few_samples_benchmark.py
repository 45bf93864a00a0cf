"""The command that measures errors of dimensions estimated from few samples."""

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks import few_samples


def test_ratios_are_near_one_with_many_samples_and_spread_with_few(monkeypatch):
    monkeypatch.setattr(few_samples, "DIMENSIONS", (5, 20))
    many, few = (few_samples.ratios(samples, 4, ["geometric"]) for samples in (5000, 10))
    assert len(many) == len(few) == 2 * len(few_samples.SHARES) * 4
    assert max(abs(ratio - 1) for ratio in many) < 0.05
    assert max(abs(ratio - 1) for ratio in few) > 0.3


def test_the_right_dimension_is_that_of_the_variances(monkeypatch):
    monkeypatch.setattr(few_samples, "DIMENSIONS", (20,))
    monkeypatch.setattr(few_samples, "SHARES", (0.95,))
    monkeypatch.setattr(few_samples, "centered_dimension", lambda x, shares: [19.0])
    assert few_samples.ratios(10, 1, ["isotropic"]) == pytest.approx([1.0])
    halves = np.concatenate([0.5 ** np.arange(1, 20), [0.5**19]])  # the first four hold 94 percent
    monkeypatch.setitem(few_samples.SPECTRA, "halves", lambda i: halves)
    assert few_samples.ratios(10, 1, ["halves"]) == pytest.approx([19 / 5])


def test_the_command_prints_a_row_for_each_number_of_samples(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["few_samples", "--draws", "1"])
    monkeypatch.setattr(few_samples, "DIMENSIONS", (5,))
    few_samples.main()
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [row[:2] for row in rows[-8:]] == [[str(n), s] for n in few_samples.SAMPLES for s in ("others", "gap")]
