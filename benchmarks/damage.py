"""Random damage to every kind of stored file: ``python -m benchmarks.damage [--trials N] [--seed S]``.

Each trial damages one file (a flipped bit, a truncation, swapped or foreign bytes, another file of the same kind) and
makes the call that a user makes next. State dicts of other programs hold no checksum and are left out; so is a file
that stands alone, replaced by a whole one of the same kind, which is what a user may want.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import hashlib
import pickle
import random
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

import bnrank
from benchmarks.rows import Row, Spread
from bnrank import compress
from bnrank.discovery import BottleneckRegressor
from bnrank.figures.harness.claims import Claim
from bnrank.figures.harness.figure import Figure, Outcome
from bnrank.reporting import Section
from bnrank.training import Adam, GradientDescent, Limits, Record, Run, Save, Solver

TRIALS = 2000
OUTCOMES = ("error", "fell back", "computed again", "SILENT", "RAW", "UNNAMED")
"""An error that names the file or its folder; a warning that does; the right or a wrong result without a word; an
exception that is no ValueError or TypeError; one that names no file."""
RESUMED = {
    "going on from": "fell back",
    "over": "computed again",
    "again": "computed again",
    "from 0": "computed again",
}


@dataclass(frozen=True)
class Kind:
    """A kind of file, with the files of its folder and what a user calls next.

    Attributes
    ----------
    name : str
        What it is.
    files : mapping
        Path in the folder -> contents.
    targets : tuple of str
        Files to damage.
    others : tuple of bytes
        Whole files of the same kind.
    act : callable
        Folder -> the result that the user sees, as bytes.
    bound : bool
        Whether a whole file of the same kind in its place is damage.
    """

    name: str
    files: Mapping[str, bytes]
    targets: tuple[str, ...]
    others: tuple[bytes, ...]
    act: Callable[[Path], bytes]
    bound: bool = True

    def write(self, folder: Path) -> None:
        """Write the files into a folder."""
        for name, content in self.files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)


# damage --------------------------------------------------------------------------------------------------------------


def damaged(data: bytes, kind: Kind, rng: random.Random) -> bytes:
    """Return other bytes than the given ones."""
    while True:
        result = rng.choices(FAULTS, (6, 2, 2, 1, 1, 1, 2 * kind.bound))[0](data, kind, rng)
        if result != data and (kind.bound or result not in kind.others):
            return result


def _flip(data: bytes, kind: Kind, rng: random.Random) -> bytes:
    head = rng.random() < 0.5  # metadata, of which there is little
    place = rng.randrange(min(len(data), 1500) if head else len(data))
    return data[:place] + bytes([data[place] ^ 1 << rng.randrange(8)]) + data[place + 1 :]


def _cut(data: bytes, kind: Kind, rng: random.Random) -> bytes:
    return data[: rng.choice([0, 1, len(data) - 1, rng.randrange(len(data))])]


def _swap(data: bytes, kind: Kind, rng: random.Random) -> bytes:
    length = rng.choice([n for n in (1, 8, 64, 512) if 2 * n <= len(data)])
    a, b = sorted(rng.randrange(len(data) // length) * length for _ in range(2))
    blocks = bytearray(data)
    blocks[a : a + length], blocks[b : b + length] = blocks[b : b + length], blocks[a : a + length]
    return bytes(blocks)


def _append(data: bytes, kind: Kind, rng: random.Random) -> bytes:
    return data + rng.choice([b"\n", b" ", b"\0", data, rng.randbytes(100)])


def _foreign(data: bytes, kind: Kind, rng: random.Random) -> bytes:
    whole = [b"", bytes(len(data)), rng.randbytes(len(data)), pickle.dumps([1]), b"{}", b"[]", b"\x89HDF\r\n\x1a\n"]
    return rng.choice(whole)


def _overwrite(data: bytes, kind: Kind, rng: random.Random) -> bytes:
    place, length = rng.randrange(len(data)), rng.choice([1, 4, 64])
    return (data[:place] + rng.randbytes(length) + data[place + length :])[: len(data)]


def _other(data: bytes, kind: Kind, rng: random.Random) -> bytes:
    other = rng.choice(kind.others)
    return rng.choice([other, other, other[: len(other) // 2] + data[len(other) // 2 :]])


FAULTS = (_flip, _cut, _swap, _append, _foreign, _overwrite, _other)


def trial(kind: Kind, expected: bytes, rng: random.Random) -> tuple[str, str]:
    """Return the outcome of damage to one file, and what was said."""
    target = rng.choice(kind.targets)
    content = damaged(kind.files[target], kind, rng)
    with tempfile.TemporaryDirectory() as scratch, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        folder = Path(scratch) / "folder"
        kind.write(folder)
        (folder / target).write_bytes(content)
        try:
            result = kind.act(folder)
        except (ValueError, TypeError) as error:
            named = Path(target).name in str(error) or str(folder) in str(error)
            return "error" if named else "UNNAMED", f"{target}: {error}"
        except Exception as error:
            return "RAW", f"{target}: {error!r}"
        said = " ".join(str(warning.message) for warning in caught if str(folder) in str(warning.message))
        if result == expected:
            for text, outcome in RESUMED.items():
                if text in said:
                    return outcome, said
        return "SILENT", f"{target}: {said or 'not a word'}"


def run(kinds: list[Kind], trials: int, seed: int = 0) -> tuple[dict[str, collections.Counter[str]], list[str]]:
    """Return the outcomes of every kind of file, and what was said where one is not as it must be."""
    rng, counts, bad = random.Random(seed), {kind.name: collections.Counter[str]() for kind in kinds}, list[str]()
    expected = {}
    for kind in kinds:
        with tempfile.TemporaryDirectory() as scratch:
            kind.write(Path(scratch) / "folder")
            expected[kind.name] = kind.act(Path(scratch) / "folder")
    for i in range(trials):
        kind = kinds[i % len(kinds)]
        outcome, said = trial(kind, expected[kind.name], rng)
        counts[kind.name][outcome] += 1
        if outcome.isupper():
            bad.append(f"trial {i}, {kind.name}, {outcome}: {said}")
    return counts, bad


# kinds of files ------------------------------------------------------------------------------------------------------


def prepare() -> list[Kind]:
    """Return all kinds of files, of small results."""
    with tempfile.TemporaryDirectory() as scratch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [kind for make in (_training, _flows, _sweeps, _single, _figures) for kind in make(Path(scratch))]


def _bytes(*arrays: Any) -> bytes:
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.digest()


def _files(folder: Path) -> dict[str, bytes]:
    paths = [path for path in folder.rglob("*") if path.is_file() and not path.name.startswith(".")]
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(paths)}


def _net(seed: int = 0) -> bnrank.MLP:
    return bnrank.MLP([20, 4, 20], seed=seed)


def _train(folder: Path, seed: int = 0) -> Run:
    task, save = bnrank.tasks.low_rank_map(n=20, seed=seed), Save(folder, checkpoint_every=4)
    options: dict[str, Any] = {"steps": 12, "record": 4, "optimizer": Adam(), "members": 2, "seed": 0}
    return bnrank.train(_net(), task, ridge=1e-3, out=save, progress=False, **options)


def _of_run(run: Run) -> bytes:
    return _bytes(run.parameters, run.history["loss"], run.history["weight_singular_values"], run.summary["cost"])


def _training(scratch: Path) -> Iterator[Kind]:
    _train(scratch / "run"), _train(scratch / "twin", seed=1)
    files, twin = _files(scratch / "run"), _files(scratch / "twin")
    last, before = "checkpoint.safetensors", "checkpoint.previous.safetensors"

    def resume(folder: Path) -> bytes:
        return _of_run(_train(folder))

    yield Kind("checkpoint of train", files, (last,), (twin[last],), resume)
    alone = {name: content for name, content in files.items() if name != last}
    yield Kind("checkpoint before", alone, (before,), (twin[before],), resume)
    for name in ("history.nc", "summary.nc", "networks.safetensors", "settings.json", "SHA256SUMS"):
        yield Kind(f"run: {name}", files, (name,), (twin[name],), lambda folder: _of_run(Run.open(folder)))


def _flow(folder: Path, step: float = 0.02, most: int | None = None) -> Any:
    net = bnrank.MLP([20, 3, 20], bias=False, init=0.3, seed=1)
    limits = Limits(max_networks=4, max_evaluations=most)
    save = Save(folder, checkpoint_every=5)
    task = bnrank.tasks.low_rank_map(n=10, seed=0)
    return bnrank.flow(net, task, 0.4, solver=Solver("euler", step=step), record=Record(2), limits=limits, out=save)


def _flows(scratch: Path) -> Iterator[Kind]:
    for most in (8, 16):
        _flow(scratch / "flow", most=most)
    _flow(scratch / "other", step=0.04)
    files, twin = _files(scratch / "flow"), _files(scratch / "other")
    networks = tuple(name for name in files if name.startswith("network-"))

    def resume(folder: Path) -> bytes:
        flow = _flow(folder)
        return _bytes(flow.loss, flow.times, *(p.detach() for net in flow.networks for p in net.parameters()))

    main = "flow.safetensors"
    yield Kind("checkpoint of flow", files, (main,), (twin[main],), resume)
    others = tuple(content for each in (files, twin) for name, content in each.items() if name.startswith("network-"))
    needed = bnrank._core.store.read(main, data=files[main]).about["kept"]
    targets = tuple(name for name in networks if name[8:].split(".")[0] in needed)
    yield Kind("networks of flow", files, targets, others, resume)


def _sweeps(scratch: Path) -> Iterator[Kind]:
    task = bnrank.tasks.low_rank_map(n=10, seed=0)

    def sweep(folder: Path) -> bytes:
        options: dict[str, Any] = {"steps": 3, "optimizer": GradientDescent(), "processes": 1, "progress": False}
        found = bnrank.sweep(task, depths=[2, 3], ridges=[1e-3], grid={"width": [3]}, out=folder, **options)
        return _bytes(found["loss"], found["cost"], found["weight_singular_values"])

    def arrays(folder: Path) -> bytes:
        return b"".join(_bytes(bnrank.Sweep.open(folder).run(depth=depth).parameters) for depth in (2, 3))

    sweep(scratch / "sweep")
    files = _files(scratch / "sweep")
    for name, act in (("arrays", arrays), ("tasks", sweep)):  # rows: a cut row is no damage, but a killed process
        mine = tuple(path for path in files if path.startswith(name))
        yield Kind(f"sweep: {name}", files, mine[:1], (files["sweep.json"], *(files[path] for path in mine[1:])), act)


def _single(scratch: Path) -> Iterator[Kind]:
    x, task = torch.randn(40, 20, generator=torch.Generator().manual_seed(0)), bnrank.tasks.low_rank_map(n=40, seed=0)
    name = "stored.safetensors"

    def network(folder: Path) -> bytes:
        net = bnrank.load(folder / name)
        return _bytes(net(x).detach()) + repr(net).encode()

    def estimator(folder: Path) -> bytes:
        found = bnrank.load(folder / name)
        return _bytes(found.predict(x.numpy())) + str(found.summary()).encode()

    fitted = BottleneckRegressor(1, n_networks=1, steps=20, width=4, depth=2, ridges=[1e-3])
    fitted.fit(task.x.numpy(), task.y.numpy())
    results = {
        "network": (bnrank.MLP([20, 4, 20]), network),
        "residual network": (bnrank.networks.ResNetFree(20, 20, width=3, hidden=3), network),
        "compressed network": (compress(bnrank.MLP([20, 8, 20]), task.x, tol=0.5), network),
        "estimator": (fitted, estimator),
    }
    for what, (result, act) in results.items():
        content = bnrank.save(result, scratch / name).read_bytes()
        yield Kind(what, {name: content}, (name,), (content,), act, bound=False)


@dataclass(frozen=True)
class _Settings:
    width: int = 3


def _outcome(value: float) -> Outcome:
    from matplotlib.figure import Figure as Canvas

    canvas = Canvas(figsize=(2, 2))
    canvas.subplots().plot([0, value], [0, 1])
    spectra = bnrank.profile(_net(int(value)), bnrank.tasks.low_rank_map(n=8, seed=0).x)
    sections = [Section("Spectra", "A text.", rows=[{"value": value}], profile={"first": spectra, "second": spectra})]
    return Outcome("A", (Claim("one", True, value, "1"),), sections, {"picture": canvas})


def _figures(scratch: Path) -> Iterator[Kind]:
    scales = {"quick": _Settings(), "paper": _Settings(4)}

    def figure(value: float) -> Figure:
        return Figure("A", "a", "title", "source", "expected", scales, lambda *_: _outcome(value))

    for value in (1.0, 2.0):
        figure(value).run("quick", scratch / f"figure{value:g}", progress=False)
    files, twin = _files(scratch / "figure1"), _files(scratch / "figure2")
    other = dataclasses.replace(figure(2.0), version=2)
    other.run("quick", scratch / "version2", progress=False)
    twin["a/stamp.json"] = (scratch / "version2" / "a" / "stamp.json").read_bytes()

    def opened(folder: Path) -> bytes:
        found = Outcome.open(folder / "a")
        parts = [
            profile["weight_singular_values"] for section in found.sections for profile in section.profiles.values()
        ]
        pictures = [path.with_suffix(end).read_bytes() for path in found.pictures.values() for end in (".png", ".svg")]
        rows = [list(section.rows) for section in found.sections]
        return _bytes(*parts) + b"".join(pictures) + repr((found.claims, found.settings, rows)).encode()

    def again(folder: Path) -> bytes:
        return repr(figure(1.0).run("quick", folder, progress=False).claims).encode()

    for end in ("claims.json", "sections.json", "SHA256SUMS", ".nc", ".png", ".svg"):
        targets = tuple(name for name in files if name.endswith(end))
        yield Kind(f"figure: {end.lstrip('.')}", files, targets, tuple(twin[name] for name in targets), opened)
    for name in ("a/stamp.json", "a/spent.json"):
        # seconds of another attempt are a whole file, as good as any
        yield Kind(f"figure: {name[2:]}", files, (name,), (twin[name],), again, bound=name == "a/stamp.json")


# tables --------------------------------------------------------------------------------------------------------------


def measure(quick: bool) -> list[Row]:
    """Return the numbers of files used silently and of raw exceptions."""
    trials = 200 if quick else TRIALS
    counts, bad = run(prepare(), trials)
    total = sum(counts.values(), collections.Counter[str]())
    names = {"SILENT": "damaged files used without a word", "RAW": "raw exceptions", "UNNAMED": "errors without a file"}
    note = "; ".join(bad[:3]) or ", ".join(f"{total[name]} {name}" for name in OUTCOMES[:3])
    return [
        Row("damage", names[name], f"{trials} damaged files", Spread.of([total[name]]), at_most=0, unit="", note=note)
        for name in OUTCOMES[3:]
    ]


def main() -> None:
    """Print the outcomes of every kind of file; the exit status is 1 if one is not as it must be."""
    parser = argparse.ArgumentParser("python -m benchmarks.damage", description=__doc__)
    parser.add_argument("--trials", type=int, default=TRIALS)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    counts, bad = run(prepare(), arguments.trials, arguments.seed)
    counts["all"] = sum(counts.values(), collections.Counter[str]())
    print(f"{'file':32}" + "".join(f"{name:>16}" for name in OUTCOMES))
    for kind, found in counts.items():
        print(f"{kind:32}" + "".join(f"{found[name]:16}" for name in OUTCOMES))
    print(*bad[:20], sep="\n")
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
