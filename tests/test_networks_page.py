"""The code of docs/practitioner.md runs as written, in order."""

import pytest

from pages import run_page


@pytest.mark.slow
def test_the_examples_run(tmp_path):
    after = run_page("practitioner.md", tmp_path)
    assert {"weights.html", "compare.html", "digits.safetensors"} <= after["files"]
    assert list(after["weights"].full_rank.values) == [64, 100, 10]
    assert len(after["comparison"].layers()) == 3
