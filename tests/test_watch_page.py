"""The code of docs/watch.md runs as it stands."""

import re
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs" / "watch.md"


def test_the_page_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for code in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S):
        exec(code, names)
    printed = capsys.readouterr().out
    assert "watch of Sequential: 7 measurements, steps 1 to 300" in printed
    assert "collapsed at step 3" in printed
    assert (tmp_path / "watch.html").exists()
    assert names["bnrank"].training.read_csv("ranks.csv").history.sizes["step"] == 7
