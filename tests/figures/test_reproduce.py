"""`bnrank reproduce`: outcomes stored whole, resumed after an interruption."""

import contextlib
import hashlib
import importlib.util
import itertools
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest
import torch
import xarray as xr

import bnrank
from bnrank import figures
from bnrank._core import locks
from bnrank.figures.harness.claims import Claim
from bnrank.figures.harness.figure import Outcome
from bnrank.reporting import Section
from bnrank.training.interruption import interruptions

from .reproduce_common import FAILED, PASSED, drawn, history, page_of, planted, profile, raises, rich_outcome, row_of

pytestmark = pytest.mark.usefixtures("small_pictures")


def test_an_outcome_is_opened_as_it_was(tmp_path):
    made = planted("a", lambda *_, **__: rich_outcome())[0].run("quick", tmp_path, progress=False)
    assert made.error == ""
    again = Outcome.open(tmp_path / "a-name")
    assert (again.figure, again.version) == ("A a-name", bnrank.__version__)
    assert again.settings == {"scale": "quick", "width": 3, "depths": [], "end": 0.0, "data": "planted"}
    assert again.seconds == pytest.approx(made.seconds, abs=1e-3)
    assert [c.passed for c in again.claims] == [True, False, True]
    assert (again.claims[0], again.claims[2].measured) == (PASSED, "1, 2")
    assert np.isnan(again.claims[1].measured)
    assert again.captions == {"large": "L"}
    rows, data, shown = again.sections
    (row,) = rows.rows
    assert (rows.text, row["n"], row["y"], row["z"], row["t"]) == ("First.\n\nSecond.", 3, np.inf, None, [1, 2.5])
    assert np.isnan(row["x"])
    assert data.claims == (FAILED,)
    xr.testing.assert_identical(data.histories["planted"], history())
    assert list(data.profiles) == ["deep", "flat"]
    xr.testing.assert_equal(data.profiles["flat"], profile())
    assert data.profiles["deep"].attrs["nested"] == '{"a": [1, "b"]}'
    assert shown.figures["own"].read_bytes().startswith(b"\x89PNG")
    assert shown.figures["moving"]["data"][0]["type"] == "scatter"
    assert shown.all_settings == {"settings": {"a.b": 1}}
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in again.pictures.values())
    assert (tmp_path / "a-name" / "a-b.svg").exists()
    assert not (tmp_path / "a-name" / "large.svg").exists()
    json.loads((tmp_path / "a-name" / "claims.json").read_text(), parse_constant=pytest.fail)


def test_keys_results_and_indices_of_any_kind_are_stored(tmp_path):
    several = profile().expand_dims(depth=[2, 3], seed=[0]).stack(run=("depth", "seed"))
    claims = [Claim("of a tensor", torch.tensor(False), 1.0, "2"), Claim("open", None, 1.0, "2")]
    rows = [{np.int64(3): 1, (1, 2): 2, "x": range(2)}]
    Outcome("A", claims, [Section("S", rows=rows, profile=several)], settings={"a": [{(1, 2): 3}]}).save(tmp_path)
    found = Outcome.open(tmp_path)
    assert [claim.passed for claim in found.claims] == [False, None]
    (section,) = found.sections
    assert list(section.rows) == [{"3": 1, "(1, 2)": 2, "x": [0, 1]}]
    assert found.settings == {"a": [{"(1, 2)": 3}]}
    (stored,) = section.profiles.values()
    assert stored["depth"].values.tolist() == [2, 3]
    assert stored["weight_singular_values"].sizes["run"] == 2


def test_a_picture_that_is_damaged_is_made_again(tmp_path, plant):
    plant(planted("a", lambda *_, **__: Outcome("A", (PASSED,), (), {"large": drawn(3000)})))
    figures.reproduce("all", tmp_path, progress=False)
    picture = tmp_path / "quick" / "a-name" / "large.png"
    picture.write_bytes(bytes(picture.stat().st_size))
    (again,) = figures.reproduce("all", tmp_path, progress=False)
    assert again.passed
    assert "A. a in words" in page_of(tmp_path)


def test_an_opened_outcome_can_be_saved_again_elsewhere_and_over_itself(tmp_path):
    rich_outcome().save(tmp_path / "one")
    again = Outcome.open(tmp_path / "one")
    again.save(tmp_path / "two")
    again.save(tmp_path / "one")
    for folder in ("one", "two"):
        found = Outcome.open(tmp_path / folder)
        assert found.pictures["a-b"].read_bytes() == again.pictures["a-b"].read_bytes()
        assert (tmp_path / folder / "a-b.svg").exists()
        xr.testing.assert_identical(found.sections[1].profiles["deep"], again.sections[1].profiles["deep"])
        assert found.sections[2].figures["own"].exists()


def test_verdicts_of_a_section_are_stored_as_rows(tmp_path):
    net = bnrank.MLP([3, 4, 2], seed=0)
    verdicts = bnrank.check(net, torch.randn(9, 3, generator=torch.Generator().manual_seed(0)), only="T4")
    Outcome("F0 x", sections=(Section("V", verdicts=verdicts),)).save(tmp_path)
    assert Outcome.open(tmp_path).sections[0].rows[0]["id"] == "T4"


def test_what_cannot_be_stored_is_an_error_of_the_figure(tmp_path):
    bad = Section("bad", figures={"no figure": 3})
    made = planted("a", lambda *_, **__: Outcome("A", (PASSED,), (bad,)))[0].run("quick", tmp_path, progress=False)
    assert "cannot be stored" in made.error
    assert Outcome.open(tmp_path / "a-name").error == made.error


@pytest.mark.parametrize("spoil", ["claims.json", "sections.json", "a-b.png", "sections/1-profile-1.nc"])
@pytest.mark.parametrize("how", ["missing", "cut"])
def test_what_is_not_whole_is_not_opened_and_made_again(tmp_path, plant, spoil, how):
    data = Section("Data", profile={"p": profile()})
    figure, calls = planted("a", lambda *_, **__: Outcome("A", (PASSED,), (data,), {"a-b": drawn()}))
    plant((figure, calls))
    figures.reproduce("all", tmp_path, progress=False)
    path = tmp_path / "quick" / "a-name" / spoil
    if how == "missing":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-40])
    own = tmp_path / "quick" / "a-name"
    with pytest.raises(ValueError, match=r"damaged|holds no outcome"):
        Outcome.open(own)
    assert figures.stored(tmp_path) == {}
    (entry,) = figures.listing(tmp_path)
    assert entry.result == ("interrupted" if (spoil, how) == ("claims.json", "missing") else "damaged")
    said = contextlib.nullcontext() if entry.result == "interrupted" else pytest.warns(UserWarning, match=spoil)
    with said:
        (again,) = figures.reproduce("all", tmp_path, progress=False)
    assert (again.passed, len(calls)) == (True, 2)


@pytest.mark.parametrize("step", range(6))
def test_a_save_that_is_cut_short_leaves_the_outcome_before_or_nothing_that_looks_whole(step, tmp_path, monkeypatch):
    rich_outcome().save(tmp_path)
    other = Outcome("F0 other", (FAILED,), (), {"a-b": drawn(), "large": drawn()})
    rename, count = Path.replace, itertools.count()

    def killed(path, target):
        if next(count) == step:
            raise KeyboardInterrupt
        return rename(path, target)

    monkeypatch.setattr(Path, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        other.save(tmp_path)
    monkeypatch.undo()
    with pytest.raises(ValueError, match=r"holds no outcome, expected a file claims\.json|SHA256SUMS' is damaged"):
        Outcome.open(tmp_path)
    other.save(tmp_path)
    assert Outcome.open(tmp_path).figure == "F0 other"


def test_checksums_are_those_of_sha256sum(tmp_path):
    rich_outcome().save(tmp_path)
    command = ["sha256sum", "--strict", "--quiet", "-c", "SHA256SUMS"]
    assert subprocess.run(command, cwd=tmp_path, check=False).returncode == 0
    names = {line.split("  ")[1] for line in (tmp_path / "SHA256SUMS").read_text().splitlines()}
    found = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert found == names | {"SHA256SUMS"}


def test_damaged_seconds_are_counted_anew_and_said(tmp_path, plant):
    plant(planted("a"))
    figures.reproduce("all", tmp_path, progress=False)
    path = tmp_path / "quick" / "a-name" / "spent.json"
    path.write_text(path.read_text().replace(" ", "\t", 1))
    (tmp_path / "quick" / "a-name" / "claims.json").unlink()
    with pytest.warns(UserWarning, match=r"spent\.json' is damaged: .*; time is counted from 0"):
        assert figures.reproduce("all", tmp_path, progress=False)[0].passed


def test_a_save_removes_the_files_of_the_outcome_before_and_no_others(tmp_path):
    rich_outcome().save(tmp_path)
    mine = [
        tmp_path / name for name in ("mine.png", "mine.svg", "sections/mine.nc", "claims.svg", "sections/notes.svg")
    ]
    for path in mine:
        path.write_text("mine")
    Outcome("F0 x", (PASSED,), (), {"other": drawn()}).save(tmp_path)
    left = {path for path in tmp_path.rglob("*") if path.is_file()}
    assert left == {
        *mine,
        *(tmp_path / name for name in ("other.png", "other.svg", "sections.json", "claims.json", "SHA256SUMS")),
    }
    (tmp_path / "SHA256SUMS").unlink()  # as a save that was cut short leaves it
    Outcome("F0 x", (PASSED,), (), {"other": drawn(3000)}).save(tmp_path)
    assert not (tmp_path / "other.svg").exists()
    assert all(path.read_text() == "mine" for path in mine)


def test_what_the_list_of_files_names_outside_the_folder_is_left_alone(tmp_path):
    (tmp_path / "mine").write_text("mine")
    Outcome("F0 x", (PASSED,)).save(tmp_path / "own")
    with (tmp_path / "own" / "SHA256SUMS").open("a") as file:
        file.write(f"{hashlib.sha256(b'mine').hexdigest()}  ../mine\n{'0' * 64}  ..\n")
    assert Outcome.open(tmp_path / "own").passed
    Outcome("F0 x", (PASSED,)).save(tmp_path / "own")
    assert (tmp_path / "mine").read_text() == "mine"


def test_what_a_live_process_may_be_writing_is_left_alone(tmp_path, plant):
    plant(planted("a"))
    own = tmp_path / "quick" / "a-name"
    killed, live = (own / f".claims.json.{name}.partial" for name in ("killed", "live"))
    for path in (killed, live):
        path.mkdir(parents=True)
    os.utime(live, (time.time() - 3600,) * 2)  # as after a jump of the clock
    lock = locks.folder(live)
    assert figures.reproduce("all", tmp_path, progress=False)[0].passed
    assert (killed.exists(), live.exists()) == (False, True)
    locks.release(lock)


def test_what_is_finished_is_opened_and_what_failed_is_tried_again(tmp_path, plant):
    pictures = {"picture": drawn()}
    made = [planted("a", lambda *_, **__: Outcome("A", (PASSED,), (), pictures))]
    made += [planted("b", lambda *_, **__: Outcome("B", (PASSED, FAILED))), planted("c", raises)]
    plant(*made)
    told = []
    for _ in range(2):
        told.append(([], []))
        outcomes = figures.reproduce(
            ["all"],
            tmp_path,
            progress=False,
            on_start=lambda f: told[-1][0].append(f.id),
            on_end=lambda f, o: told[-1][1].append((f.id, o.passed)),
        )
        assert [o.passed for o in outcomes] == [True, False, False]
        assert "no such luck" in outcomes[2].error
        assert outcomes[0].pictures["picture"].name == "picture.png"
    assert [len(calls) for _, calls in made] == [1, 1, 2]
    assert [start for start, _ in told] == [["A", "B", "C"], ["C"]]
    assert told[0][1] == told[1][1] == [("A", True), ("B", False), ("C", False)]


def test_time_goes_on_after_an_interruption_and_is_kept_with_the_outcome(tmp_path, plant):
    waits = iter([0.3, 0.0])

    def slow(*_, **__):
        wait = next(waits)
        time.sleep(wait)
        if wait:
            raise KeyboardInterrupt
        return Outcome("A", (PASSED,))

    plant(planted("a", slow))
    with pytest.raises(KeyboardInterrupt):
        figures.reproduce("all", tmp_path, progress=False)
    assert "interrupted" in row_of(page_of(tmp_path), "a")
    (outcome,) = figures.reproduce("all", tmp_path, progress=False)
    assert outcome.seconds >= 0.3
    (again,) = figures.reproduce("all", tmp_path, progress=False)
    assert again.seconds == outcome.seconds


def test_ctrl_c_ends_the_training_under_way_well_and_then_all(tmp_path, plant):
    before = signal.getsignal(signal.SIGINT)

    ended, begun = [], []

    def make(settings, folder, progress):
        with interruptions() as interrupted:
            signal.raise_signal(signal.SIGINT)
            ended.append(interrupted.is_set())
        begun.append("the next run")
        return Outcome("B", (PASSED,))

    plant(planted("a"), planted("b", make), planted("c"))
    with pytest.raises(KeyboardInterrupt):
        figures.reproduce("all", tmp_path, progress=False)
    assert (ended, begun) == ([True], [])
    assert signal.getsignal(signal.SIGINT) is before
    assert list(figures.stored(tmp_path)) == ["a-name"]
    assert "not run yet" in row_of(page_of(tmp_path), "c")


def test_ctrl_c_that_is_swallowed_stores_no_outcome(tmp_path, plant):
    def make(settings, folder, progress):
        signal.signal(signal.SIGINT, lambda *_: None)
        signal.raise_signal(signal.SIGINT)
        return Outcome("B", (PASSED,))

    before = signal.getsignal(signal.SIGINT)
    plant(planted("a"), planted("b", make))
    with pytest.raises(KeyboardInterrupt):
        figures.reproduce("all", tmp_path, progress=False)
    assert signal.getsignal(signal.SIGINT) is before
    assert list(figures.stored(tmp_path)) == ["a-name"]


SCRIPT = """
    import os, signal, sys, time
    from dataclasses import dataclass
    from types import SimpleNamespace
    import bnrank
    from bnrank import cli, figures, tasks
    from bnrank.figures.harness.claims import Claim
    from bnrank.figures.harness.figure import Figure, Outcome
    from bnrank.training import Record

    @dataclass(frozen=True)
    class Settings:
        pass

    PASSED = Claim("one is one", True, 1.0, "1")

    def log(text):
        with open("log", "a") as file:
            file.write(text + "\\n")

    def first(settings, folder, progress):
        log("a made")
        return Outcome("A", (PASSED,))

    def second(settings, folder, progress):
        rows = []
        watch = SimpleNamespace(observe=lambda **row: rows.append(row))
        net, task = bnrank.MLP([20, 3, 20], seed=0), tasks.low_rank_map(n=20)
        record = bnrank.training.Record(every=2, watch=watch)
        run = bnrank.train(net, task, steps=4, out=folder / "one", progress=progress, record=record)
        log(f"b {len(rows)} rows")
        if __name__ == "__main__":
            os.kill(os.getpid(), signal.SIGKILL)
        return Outcome("B", (Claim("loss", True, float(run.summary.loss[0]), ""),))

    def third(settings, folder, progress):
        log("c made")
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(60)

    names, scales = {"a": first, "b": second, "c": third}, {"quick": Settings(), "paper": Settings()}
    FIGURES = tuple(Figure(k.upper(), f"{k}-name", f"{k} in words", "s", "x", scales, f) for k, f in names.items())

    if __name__ == "__main__":
        figures.FIGURES = FIGURES
        sys.argv = ["bnrank", "reproduce", "all", "--out", "out", "--quiet"]
        cli.main()
"""


def test_a_killed_run_leaves_a_page_and_goes_on_from_its_training_runs(tmp_path, command, monkeypatch):
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(SCRIPT))
    killed = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, timeout=120, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert (tmp_path / "log").read_text().splitlines() == ["a made", "b 3 rows"]
    assert "all pass 1 of 1" in row_of(page_of(tmp_path / "out"), "a")
    assert list(figures.stored(tmp_path / "out")) == ["a-name"]

    spec = importlib.util.spec_from_file_location("script", script)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(figures, "FIGURES", module.FIGURES)
    code, out, error = command("all", "--out", "out", "--quiet")
    assert code == 130
    assert (tmp_path / "log").read_text().splitlines()[2:] == ["b 0 rows", "c made"]
    assert "A a-name, quick scale, under 1 s, stored before" in out
    assert "Interrupted in c-name; rerun to resume" in out
    assert "Traceback" not in error
    page = page_of(tmp_path / "out")
    assert "all pass 1 of 1" in row_of(page, "b")
    assert "interrupted" in row_of(page, "c")
    assert list(figures.stored(tmp_path / "out")) == ["a-name", "b-name"]
