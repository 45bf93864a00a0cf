"""docs/sweeps.md is true: its code runs as written, in order, where Dask is installed, which one block imports."""

import re

import pytest

from pages import run_page, text_of


@pytest.fixture(scope="module")
def after(tmp_path_factory):
    pytest.importorskip("distributed")
    return run_page("sweeps.md", tmp_path_factory.mktemp("sweeps"))


@pytest.mark.slow
def test_the_sweep_of_the_page_is_finished_and_drawn(after):
    assert (after["stored"].to_frame().status == "finished").all()
    assert len(after["stored"].rows) == 16
    assert {"sweep", "sweep.html"} <= after["files"]
    assert after["run"].network(0).depth == 6
    assert len(after["table"]) == 32
    assert set(after["table"].status) == {"finished"}


@pytest.mark.slow
def test_the_block_on_dask_finds_the_same_sweep(after, tmp_path, monkeypatch):
    block = next(
        block for block in re.findall(r"```python\n(.*?)```", text_of("sweeps.md"), re.DOTALL) if "dask" in block
    )
    names = {name: after[name] for name in ("bnrank", "task", "settings")} | {"__name__": "__main__"}
    monkeypatch.chdir(tmp_path)
    exec(compile(block, "docs/sweeps.md", "exec"), names)
    assert names["results"].attrs["ran"] == 16
    assert (
        names["results"].loss.values.tolist()
        == after["stored"]
        .to_frame()
        .pivot_table("loss", ["depth", "ridge"], "seed")
        .values.reshape(2, 1, 1, 2, 4)
        .tolist()
    )
