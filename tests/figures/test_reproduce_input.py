"""`bnrank reproduce`: bad input, missing data, too little memory, full disks."""

import errno
import os
import re
import resource
from pathlib import Path

import pytest

import bnrank
from bnrank import figures
from bnrank.figures.harness import gallery, requirements, store
from bnrank.figures.harness.claims import Claim
from bnrank.figures.harness.figure import Outcome
from bnrank.tasks import images

from .reproduce_common import PASSED, drawn, page_of, part_of, planted, row_of

pytestmark = pytest.mark.usefixtures("small_pictures")


def test_names_are_checked_before_anything_runs_and_run_once(tmp_path, plant, monkeypatch):
    a, b = planted("a"), planted("b")
    plant(a, b)
    for names in (["A", "c-nam"], ["all", "c-nam"], "c-nam"):
        with pytest.raises(ValueError, match=r"names: got 'c-nam'.*did you mean"):
            figures.reproduce(names, tmp_path, progress=False)
    with pytest.raises(ValueError, match=r"names: got 'c-nam', 'zzz', expected .*did you mean '.-name'\?$"):
        figures.reproduce(["A", "c-nam", "zzz"], tmp_path, progress=False)
    for names in (None, 3, a, ["A", None], [a]):
        with pytest.raises(TypeError, match=r"names: got .*, expected ids or names of figures"):
            figures.reproduce(names, tmp_path, progress=False)
    with pytest.raises(ValueError, match="names: got none"):
        figures.reproduce([], tmp_path, progress=False)
    assert not list(tmp_path.iterdir())
    assert len(figures.reproduce(["b-name", "all", "A", "b"], tmp_path, progress=False)) == 2
    assert (len(a[1]), len(b[1])) == (1, 1)


def test_too_little_memory_is_said_before_the_figure_starts(tmp_path, plant, monkeypatch):
    a, b = planted("a", gigabytes={"quick": 3.0, "paper": 1.0}), planted("b")
    plant(a, b)
    monkeypatch.setattr(requirements, "memory", lambda: 2.0)
    first, second = figures.reproduce("all", tmp_path, progress=False)
    assert "needs 3 GB, and 2 GB are available" in first.error
    assert "needs 3 GB" in part_of(page_of(tmp_path), "a")
    assert (a[1], second.passed) == ([], True)
    assert not (tmp_path / "quick" / "a-name").exists()
    assert figures.reproduce("a", tmp_path, "paper", progress=False)[0].passed
    monkeypatch.setattr(requirements, "memory", lambda: None)  # where it cannot be told
    assert figures.reproduce("a", tmp_path, progress=False)[0].passed


def machine(root, available=8_000_000, groups="", **files):
    """Write the files of a kernel; memory in kB."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/meminfo").write_text(f"MemTotal: 9000000 kB\nMemAvailable:  {available} kB\n")
    (root / "proc/self/statm").write_text("0 0 0 0")
    (root / "proc/self/cgroup").write_text(groups)
    for path, text in files.items():
        path = root / "sys/fs/cgroup" / path.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(str(text))
    return root


def group(at, limit, used, cache, version=2):
    names = ("memory.max", "memory.current", "inactive_file")
    if version == 1:
        names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
    stat = f"anon 5\n{names[2]} {cache}\n"
    return {f"{at}/{name}": text for name, text in zip((*names[:2], "memory.stat"), (limit, used, stat), strict=True)}


@pytest.mark.parametrize(
    ("files", "groups", "expected"),
    [
        ({}, "", 8.192),
        (group("", "max\n", 10**9, 0), "0::/\n", 8.192),
        (group("", 3 * 10**9, 10**9, 5 * 10**8), "0::/\n", 2.5),
        (group("", 3 * 10**9, 10**9, 0) | group("a/b", "max", 1, 0), "0::/a/b\n", 2.0),
        (group("", 3 * 10**9, 10**9, 0) | group("a/b", 10**9, 10**8, 0), "0::/a/b\n", 0.9),
        (group("memory", 4 * 10**9, 10**9, 10**8, 1), "3:cpu:/x\n2:memory,hugetlb:/docker/abc\n", 3.1),
        (group("memory", 2**63 - 4096, 10**9, 0, 1), "2:memory:/\n", 8.192),
    ],
)
def test_memory_is_what_kernel_and_control_groups_leave(tmp_path, files, groups, expected):
    assert requirements.memory(machine(tmp_path, groups=groups, **files)) == pytest.approx(expected)


def test_memory_is_no_more_than_the_limit_on_addresses_leaves(tmp_path, monkeypatch):
    page = os.sysconf("SC_PAGE_SIZE")
    machine(tmp_path)
    (tmp_path / "proc/self/statm").write_text("900 500 0 0")
    monkeypatch.setattr(resource, "getrlimit", lambda kind: {resource.RLIMIT_AS: (2 * 10**9, -1)}[kind])
    assert requirements.memory(tmp_path) == pytest.approx(2 - 400 * page / 1e9)
    assert requirements.memory(tmp_path / "nothing") <= 2


def test_memory_of_this_process_counts_and_elsewhere_that_of_the_machine(tmp_path):
    machine(tmp_path)
    (tmp_path / "proc/self/statm").write_text("900000 500000 0 0")
    assert requirements.memory(tmp_path) == pytest.approx(8.192 + 500000 * os.sysconf("SC_PAGE_SIZE") / 1e9)
    whole = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert requirements.memory(tmp_path / "nothing") == pytest.approx(whole / 1e9)
    here = requirements.memory()
    assert here is None or here > 0.05


def test_memory_of_the_kernel_counts_where_control_groups_cannot_be_read(tmp_path):
    machine(tmp_path)
    (tmp_path / "proc/self/cgroup").unlink()
    (tmp_path / "proc/self/cgroup").mkdir()
    assert requirements.memory(tmp_path) == pytest.approx(8.192)


def test_missing_data_are_said_before_the_figure_starts_with_what_to_fetch(tmp_path, plant, monkeypatch):
    monkeypatch.setenv("BNRANK_DATA", str(tmp_path / "empty"))
    monkeypatch.setattr("pooch.os_cache", lambda _: tmp_path / "cache")
    monkeypatch.setattr(images, "_download", lambda name, folder: (folder / name, ["no network"]))
    a, b = planted("a", data={"paper": ("mnist",)}), planted("b")
    plant(a, b)
    first, second = figures.reproduce("all", tmp_path, "paper", progress=False)
    for text in ("/train-images-idx3-ubyte.gz\n", "fetch 4 files and put them into", "BNRANK_DATA", "no network"):
        assert text in first.error
    assert (a[1], second.passed) == ([], True)
    assert figures.reproduce("a", tmp_path, "quick", progress=False)[0].passed


def test_what_will_not_run_is_said_before_the_first_starts_and_data_are_looked_for_once(plant, command, monkeypatch):
    asked = []

    def absent():
        asked.append("mnist")
        raise ValueError("no mnist")

    monkeypatch.setattr(requirements, "DATA", {"mnist": absent})
    monkeypatch.setattr(requirements, "memory", lambda: 2.0)
    needs = {"quick": ("mnist",)}
    a, b, c = planted("a"), planted("b", data=needs), planted("c", data=needs)
    d = planted("d", gigabytes={"quick": 3.0})
    plant(a, b, c, d)
    code, out, _ = command("--quiet")
    assert (code, asked) == (1, ["mnist"])
    order = [
        "B b-name, quick scale, not run: data that",
        "C c-name, quick",
        "D d-name, quick",
        "A a in words ...",
        "Summ",
    ]
    places = [out.index(text) for text in order]
    assert places == sorted(places)
    summary = out[out.index("Summary") :]
    assert re.search(r"A +a-name +pass +1 of 1", summary)
    for name in "bcd":
        assert re.search(rf"{name}-name +not run +–", summary)
    assert [len(calls) for _, calls in (a, b, c, d)] == [1, 0, 0, 0]


def test_memory_that_went_meanwhile_is_noticed(tmp_path, plant, monkeypatch):
    free = [4.0]
    monkeypatch.setattr(requirements, "memory", lambda: free[0])

    def make(*_, **__):
        free[0] = 1.0
        return Outcome("A", (PASSED,))

    b = planted("b", gigabytes={"quick": 3.0})
    plant(planted("a", make), b)
    first, second = figures.reproduce("all", tmp_path, progress=False)
    assert (first.passed, b[1]) == (True, [])
    assert "needs 3 GB, and 1 GB are available" in second.error


def test_one_bad_figure_or_folder_does_not_stop_the_others(tmp_path, plant):
    bad = {
        "a": lambda *_, **__: Outcome("A", (PASSED,), (), {"a/b": drawn()}),
        "b": lambda *_, **__: Outcome("B", (Claim("who knows", None, 1.0, "1"),)),
        "c": lambda *_, **__: None,
        "d": lambda *_, **__: Outcome("D", (None,)),
    }
    plant(*(planted(name, make) for name, make in bad.items()), planted("e"), planted("f"), planted("g"))
    (tmp_path / "quick" / "f-name" / "claims.json").mkdir(parents=True)
    (tmp_path / "quick" / "e-name").write_text("mine")
    for resume in (True, False):
        outcomes = figures.reproduce("all", tmp_path, progress=False, resume=resume)
        assert [outcome.passed for outcome in outcomes] == [False] * 6 + [True]
    expected = ["pictures: got the name 'a/b'", "", "", "", "cannot write to", "cannot write to"]
    assert all(text in outcome.error for text, outcome in zip(expected, outcomes, strict=False))
    page = page_of(tmp_path)
    assert "1 not decided 0 of 1" in row_of(page, "b")
    assert [name for name in "acdef" if "failed –" not in row_of(page, name)] == []
    assert "cannot write to" in part_of(page, "e")


def test_a_checkpoint_that_is_none_is_answered_with_what_the_caller_can_do(tmp_path, plant):
    def make(settings, folder, progress):
        net, task = bnrank.MLP([20, 3, 20], seed=0), bnrank.tasks.low_rank_map(n=20)
        bnrank.train(net, task, steps=2, out=folder / "one", progress=progress)
        bnrank.save(net, folder / "one" / "checkpoint.safetensors")
        bnrank.train(net, task, steps=2, out=folder / "one", progress=progress)

    plant(planted("a", make))
    (outcome,) = figures.reproduce("all", tmp_path, progress=False)
    assert outcome.error.startswith("--fresh (resume=False) discards the stored results of the figure; Value")


def test_every_figure_says_what_it_needs():
    for figure in figures.FIGURES:
        assert set(figure.gigabytes) == set(figures.SCALES), figure.id
        assert set(figure.data) <= set(figures.SCALES)
        assert all(name in requirements.DATA for names in figure.data.values() for name in names)
        assert 0.2 < figure.gigabytes["quick"] <= 8


@pytest.mark.parametrize("at", ["claims.json", "stamp.json", "p.png", "index.html", "spent.json"])
def test_a_full_disk_is_one_clear_error(tmp_path, plant, monkeypatch, at):
    def full(path, data):
        if Path(path).name == at:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        path.write_bytes(data.encode() if isinstance(data, str) else data)

    monkeypatch.setattr(store, "write_atomically", full)
    monkeypatch.setattr("bnrank._core.files.write_atomically", full)
    monkeypatch.setattr("bnrank._core.checksums._write", full)
    plant(planted("a", lambda *_, **__: Outcome("A", (PASSED,), (), {"p": drawn()})))
    with pytest.raises(ValueError, match="No space left on device"):
        figures.reproduce("all", tmp_path, progress=False)


def test_a_folder_that_cannot_be_written_to_is_one_clear_error(tmp_path, plant, command):
    plant(planted("a"))
    (tmp_path / "taken").write_text("mine")
    code, _, error = command("--out", "taken")
    assert code == 2
    assert error.startswith("error --out: cannot write to 'taken/quick'")
    assert len(error.splitlines()) <= 2


def test_figures_that_cannot_run_are_reported_first_on_a_page_that_is_written_once(tmp_path, plant, monkeypatch):
    plant(
        *(planted(name, gigabytes=needed) for name, needed in (("a", {}), ("b", {"quick": 3.0}), ("c", {"quick": 4.0})))
    )
    monkeypatch.setattr(requirements, "memory", lambda: 2.0)
    write, pages, ended = gallery.write, [], []
    monkeypatch.setattr(gallery, "write", lambda *given: pages.append(list(ended)) or write(*given))
    done = figures.reproduce(
        "all", tmp_path, progress=False, on_end=lambda figure, outcome: ended.append((figure.name, outcome.error[:10]))
    )
    assert [outcome.passed for outcome in done] == [True, False, False]
    assert ended == [("b-name", "not enough"), ("c-name", "not enough"), ("a-name", "")]
    assert pages == [[], ended[:2]]
