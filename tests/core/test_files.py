"""Atomic file writes."""

import os
import stat

import pytest

from bnrank._core import files


def test_a_device_or_pipe_is_never_replaced(tmp_path):
    pipe = tmp_path / "pipe.html"
    os.mkfifo(pipe)
    with pytest.raises(ValueError, match=r"out: got .*pipe\.html', which is a device or pipe, expected a file name"):
        files.checked_path(pipe, "out")
    with pytest.raises(ValueError, match=r"path: got .*pipe\.html', which is a folder, device or pipe"):
        files.write_atomically(pipe, "page")
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_a_path_is_a_text_or_path_of_a_possible_length(tmp_path):
    with pytest.raises(TypeError, match=r"out: got 3 \(int\), expected a path"):
        files.checked_path(3, "out")
    with pytest.raises(ValueError, match=r"save: got 'a{20}\.\.\.' in a path, .*names of at most 255 bytes"):
        files.checked_path(tmp_path / ("a" * 300), "save")


def test_a_path_is_checked_before_anything_is_computed(tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ValueError, match=r"out: got .*expected a path in a folder that exists"):
        files.checked_path(tmp_path / "new" / "page.html", "out")
    for path in (tmp_path / "file" / "page.html", tmp_path / "file" / "deeper" / "page.html", tmp_path / ("n" * 300)):
        with pytest.raises(ValueError, match=r"out: (cannot write to|got) "):
            files.checked_path(path, "out", parents=True)
    path = files.checked_path(tmp_path / "new" / "deeper" / "page.html", "out", parents=True)
    assert not path.parent.exists()
    assert sorted(found.name for found in tmp_path.iterdir()) == ["file"]
