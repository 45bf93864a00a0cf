"""Hostile files: tiny ones that claim to be huge, bombs, wrong formats, and what only looks like a file."""

import gc
import gzip
import io
import json
import os
import shutil
import struct
import tempfile
import time
import zipfile
from dataclasses import asdict
from pathlib import Path

import h5py
import numpy as np
import torch

import bnrank
from bnrank._core import checksums, store
from bnrank.discovery import BottleneckRegressor
from bnrank.figures.harness.figure import Outcome
from bnrank.networks.files import load_module
from bnrank.tasks import load_table
from bnrank.tasks.images import LABELS, parse_idx
from bnrank.training import Run

ONE = {"layers.0.weight": torch.ones(1, 1), "layers.0.bias": torch.ones(1)}
MLP = {"kind": "MLP", "widths": [1, 1], "slope": 0.0, "bias": True, "init": "he", "seed": 0}
RESNET = {"kind": "ResNetFree", "d_in": 1, "d_out": 1, "width": 1, "hidden": 1, "blocks": 1, "slope": 0.0}
RESNET |= {"tail": [], "after": None, "bias": False, "init": "he", "seed": 0}
WINDOW = {"kernel": 3, "stride": 1, "padding": "zeros", "pool": 1}
CONV = {"kind": "Convolutional", "shape": [1, 8], "channels": [1], "d_out": 1, "window": WINDOW, "tail": []}
CONV |= {"slope": 0.0, "bias": False, "init": "he", "seed": 0}


def cases():
    """Yield (name, function that writes a file and returns what to give, call): each call must refuse what it gets."""
    yield from _plans()
    yield from _headers()
    yield from _tables()
    yield from _folders()
    yield from _code()
    yield from _no_files()


def _plans():
    plans = {
        "a layer of 40000 x 40000": MLP | {"widths": [40_000, 40_000]},
        "two narrow ends": MLP | {"widths": [1, 10**9, 1]},
        "a width of 400 digits": MLP | {"widths": [10**400, 1]},
        "a million layers": MLP | {"widths": [1] * 1_000_000},
        "widths that are texts": MLP | {"widths": ["a" * 1000] * 1000},
        "10^8 blocks": RESNET | {"blocks": 10**8},
        "wide blocks": RESNET | {"width": 50_000, "hidden": 50_000},
        "a long tail": RESNET | {"tail": [30_000, 30_000]},
        "a huge kernel": CONV | {"window": WINDOW | {"kernel": 10**6}},
        "a huge image": CONV | {"shape": [1, 10**9]},
        "many channels": CONV | {"channels": [100_000, 100_000]},
        "an unknown kind": MLP | {"kind": ["MLP"]},
        "a device": MLP | {"device": "cuda"},
    }
    for name, plan in plans.items():
        yield f"network: {name}", _stored("network", {"plan": plan}), bnrank.load
    for name, plan in (("a list", [1]), ("missing", None), ("a text", "MLP")):
        yield f"network: a plan that is {name}", _stored("network", {"plan": plan}), bnrank.load

    def layer(kind, **arguments):
        return {"plan": {"": [{"type": kind, "arguments": arguments}]}}

    linear = {"in_features": 40_000, "out_features": 40_000}
    compressed = {
        "a layer of 40000 x 40000": layer("Linear", **linear),
        "a convolution of 10^12 taps": layer("Conv2d", in_channels=1, out_channels=1, kernel_size=[10**6, 10**6]),
        "10^12 features of a norm": layer("BatchNorm1d", num_features=10**12),
        "a size of 400 digits": layer("Linear", in_features=10**400, out_features=1),
        "a layer on a device": layer("Linear", **linear, device="cpu"),
        "10^5 layers": {"plan": {"": [{"type": "ReLU", "arguments": {}}] * 100_000}},
        "layers that are none": {"plan": {"": [1, 2]}},
        "a plan that is a list": {"plan": [1]},
        "another class": layer("Module"),
    }
    for name, about in compressed.items():
        yield f"compressed network: {name}", _stored("compressed network", about), bnrank.load
    texts = {"strings": ["a"], "dtype": "<U1000000000"}
    huge = {"network": MLP | {"widths": [40_000, 40_000]}, "name": "n"}
    deep = {"list": []}
    for _ in range(30):
        deep = {"list": [deep, deep]} if _ < 3 else {"list": [deep]}
    for name, value in {
        "texts of 4 GB": texts,
        "texts of 4 GB and 4 bytes": texts | {"dtype": "<U1073741825"},
        "a network of 40000 x 40000": huge,
        "a record of another class": {"record": "Path", "fields": {}},
        "a missing array": {"array": "none"},
        "a list without items": {"items": deep},
    }.items():
        about = {"class": "BottleneckRegressor", "parameters": {}, "fitted": {"x_": value}}
        yield f"estimator: {name}", _stored("estimator", about, {"n/layers.0.weight": torch.ones(1, 1)}), bnrank.load
    yield "estimator: another class", _stored("estimator", {"class": "Path"}), BottleneckRegressor.load


def _headers():
    def raw(header, data=b"", length=None):
        text = header if isinstance(header, bytes) else json.dumps(header).encode()
        return _written("a.safetensors", struct.pack("<Q", len(text) if length is None else length) + text + data)

    def entry(shape, end, dtype="F32"):
        return {"w": {"dtype": dtype, "shape": shape, "data_offsets": [0, end]}}

    files = {
        "a header of 2^63 bytes": raw(b"{}", length=2**63),
        "a header of 4 GB": raw(b"{}", length=2**32),
        "a deep header": raw(b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
        "a deep header of objects": raw(b'{"a":' * 50_000 + b"1" + b"}" * 50_000),
        "16 MB of header": raw(b"{" + b" " * (1 << 24) + b"}"),
        "a tensor of 10^12 numbers": raw(entry([10**6, 10**6], 4 * 10**12)),
        "a shape of 400 digits": raw(entry([10**400], 4), bytes(4)),
        "a shape of 10^5 dimensions": raw(entry([1] * 100_000, 4), bytes(4)),
        "a negative shape": raw(entry([-1, -1], 4), bytes(4)),
        "a shape with zero and 2^62": raw(entry([0, 2**62], 0)),
        "another type": raw(entry([1], 4, "X"), bytes(4)),
        "offsets that are texts": raw({"w": {"dtype": "F32", "shape": [1], "data_offsets": "ab"}}, bytes(4)),
        "data of nothing": raw(entry([1], 4), bytes(400)),
        "names of bytes": raw(b'{"\xff": 1}'),
        "a number of 10^5 digits": raw(b'{"a": ' + b"9" * 100_000 + b"}"),
        "metadata that is a list": raw({"__metadata__": [1]}, b""),
        "a name of 5000 digits": raw(entry([1], 4) | {}, bytes(4)),
    }
    for name, write in files.items():
        yield f"safetensors: {name}", write, bnrank.load

    def sparse(folder):
        path = folder / "a.safetensors"
        with path.open("wb") as file:
            header = json.dumps(entry([2**38], 2**40)).encode()
            file.write(struct.pack("<Q", len(header)) + header)
            file.truncate(8 + len(header) + 2**40)
        return path

    yield "safetensors: a terabyte of holes", sparse, bnrank.load


def _tables():
    def bomb(folder):
        path = folder / "a.npz"
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
            with archive.open("x.npy", "w") as file:
                shape = {"shape": (1 << 25,), "descr": "<f4", "fortran_order": False}
                np.lib.format.write_array_header_1_0(file, shape)
                for _ in range(128):
                    file.write(bytes(1 << 20))
            archive.writestr("y.npy", b"")
        return path

    def header(text, method=zipfile.ZIP_DEFLATED, name="x.npy"):
        def write(folder):
            content = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text.encode() + bytes(64)
            with zipfile.ZipFile(folder / "a.npz", "w", method) as archive:
                archive.writestr(name, content)
                archive.writestr("y.npy", content)
            return folder / "a.npz"

        return write

    shape = "{{'descr': '{}', 'fortran_order': False, 'shape': {}, }}\n".format
    yield "npz: 128 MB of zeros", bomb, load_table
    yield "npz: a shape of 10^12", header(shape("<f4", "(10**12,)").replace("10**12", str(10**12))), load_table
    yield "npz: numbers of 10^9 bytes", header(shape("|V1000000000", "(1,)")), load_table
    yield "npz: a negative shape", header(shape("<f4", "(-4, -4)")), load_table
    yield "npz: a shape of 400 digits", header(shape("<f4", f"({10**400},)")), load_table
    yield "npz: a deep header", header("(" * 5000), load_table
    yield "npz: signs", header("-" * 9000 + "1"), load_table
    yield "npz: LZMA", header(shape("<f4", "(16,)"), zipfile.ZIP_LZMA), load_table
    yield "npz: another ending", header(shape("<f4", "(16,)"), name="x"), load_table
    yield "npz: objects", header(shape("|O", "(8,)")), load_table
    yield "csv: one row without an end", _written("a.csv", b"a" * (1 << 23)), load_table
    yield "csv: a million columns", _written("a.csv", b"," * (1 << 20)), load_table
    yield "csv: a row over many lines", _written("a.csv", b"a,b\n" + b'"x\n",' * (1 << 21)), load_table
    yield "csv: a cell of a megabyte", _written("a.csv", b'a,b\n1,"' + b"x" * (1 << 20) + b'"\n'), load_table
    yield "csv: 200,000 columns", _written("a.csv", ",".join(map(str, range(200_000))).encode() + b"\n"), load_table

    def idx(path):
        return parse_idx(path, LABELS)

    packed = gzip.compress(struct.pack(">II", LABELS, 2**32 - 1) + bytes(1 << 27), 1)
    yield "gzip: 128 MB of zeros", _written("a.gz", packed), idx
    yield "gzip: a size of 4 GB", _written("a.gz", gzip.compress(struct.pack(">II", LABELS, 2**32 - 1))), idx
    yield "gzip: none", _written("a.gz", b"no gzip"), idx


def _folders():
    def run(content, settings=b"{}"):
        def write(folder):
            stored = lambda path: store.save(path, {"parameters": torch.ones(1, 2)}, _about(), "run")  # noqa: E731
            files = {"history.nc": content, "summary.nc": content, "settings.json": settings}
            checksums.replace(folder, {**files, "networks.safetensors": stored})
            return folder

        return write

    def hdf5(make):
        buffer = io.BytesIO()
        with h5py.File(buffer, "w") as file:
            make(file)
        return buffer.getvalue()

    big = hdf5(lambda f: f.create_dataset("x", (2**30,), "f8", chunks=(2**20,), compression="gzip"))
    external = hdf5(lambda f: f.__setitem__("x", h5py.ExternalLink("/dev/zero", "x")))
    raw = hdf5(lambda f: f.create_dataset("x", (100,), "u1", external=[("/etc/hostname", 0, 100)]))
    text = hdf5(lambda f: f.create_dataset("x", data=["a" * 1000] * 10, dtype=h5py.string_dtype()))
    yield "run: 8 GB of zeros in NetCDF", run(big), Run.open
    yield "run: NetCDF in another file", run(external), Run.open
    yield "run: data in another file", run(raw), Run.open
    yield "run: no dataset in NetCDF", run(b"\x89HDF\r\n\x1a\n" + bytes(100)), Run.open
    yield "run: a truncated NetCDF", run(text[: len(text) // 2]), Run.open

    def outcome(claims, sections=b"[]"):
        def write(folder):
            checksums.replace(folder, {"claims.json": claims, "sections.json": sections})
            return folder

        return write

    deep = b"[" * 100_000 + b"]" * 100_000
    yield "figure: deep JSON", outcome(deep), Outcome.open
    yield "figure: deep sections", outcome(b'{"passed": true}', deep), Outcome.open
    yield "figure: JSON that is a number", outcome(b"9" * 10_000), Outcome.open
    yield "figure: bytes that are no text", outcome(b"\xff\xfe"), Outcome.open
    escape = b'{"passed": true, "claims": [], "pictures": {"a": "../../secret"}}'
    yield "figure: a picture elsewhere", outcome(escape), Outcome.open

    def sums(content):
        def write(folder):
            outcome(b"{}")(folder)
            (folder / "SHA256SUMS").write_bytes(content)
            return folder

        return write

    yield "figure: checksums of 32 MB", sums(b"a" * (1 << 25)), Outcome.open
    yield "figure: checksums that are none", sums(b"\xff" * 100), Outcome.open


def _code():
    codes = {
        "exits": "import sys; sys.exit(0)",
        "exits in the function": "import sys\ndef f(): sys.exit(0)",
        "is endless brackets": "(" * 10_000,
        "is bytes": "\0",
        "recurs": "def f(): return f()",
        "takes all memory": "def f(): return bytearray(10**15)",
    }
    for name, code in codes.items():
        yield f"spec: code that {name}", _written("code.py", code.encode(), ":f"), load_module


def _no_files():
    calls = {"load": bnrank.load, "load_table": load_table, "estimator": BottleneckRegressor.load, "run": Run.open}
    suffix = {"load": ".safetensors", "load_table": ".npz", "estimator": ".safetensors", "run": ""}

    def pipe(ending):
        def write(folder):
            os.mkfifo(folder / f"pipe{ending}")
            return folder / f"pipe{ending}"

        return write

    def link(ending, to):
        def write(folder):
            path = folder / f"link{ending}"
            path.symlink_to(path if to is None else to)
            return path

        return write

    def inside(folder):
        os.mkfifo(folder / "networks.safetensors")
        (folder / "SHA256SUMS").symlink_to("/dev/zero")
        return folder

    def taken(folder):
        (folder / "a.csv").mkdir()
        return folder / "a.csv"

    for name, call in calls.items():
        yield f"{name}: a pipe", pipe(suffix[name]), call
        yield f"{name}: a link to /dev/zero", link(suffix[name], "/dev/zero"), call
        yield f"{name}: a link to itself", link(suffix[name], None), call
    yield "run: a folder of pipes and devices", inside, Run.open
    yield "load_table: a folder", taken, load_table
    yield "load: a name of a megabyte", lambda folder: folder / ("a" * (1 << 20)), bnrank.load


def _stored(kind, about, tensors=ONE):
    return lambda folder: store.save(folder / "a.safetensors", tensors, about, kind)


def _written(name, content, ending=""):
    def write(folder):
        (folder / name).write_bytes(content)
        path = folder / name
        return f"{path}{ending}" if ending else path

    return write


def _run(folder):
    """A good run."""
    data = torch.ones(2, 2), torch.ones(2, 2)
    return bnrank.train(bnrank.MLP([2, 2]), data, steps=0, progress=False, out=folder)


def _about():
    settings = bnrank.train(bnrank.MLP([2, 2]), (torch.ones(2, 2), torch.ones(2, 2)), steps=0, progress=False).settings
    return {"settings": asdict(settings), "seconds": 1.0, "network": MLP}


def _warm_up(folder):
    """Import what the calls need, by good files."""
    _run(folder / "run")
    Run.open(folder / "run")
    np.savez(folder / "a.npz", x=np.ones((3, 1)), y=np.ones((3, 1)))
    (folder / "a.csv").write_text("a,b\n1,2.5\n3,4.5\n")
    load_table(folder / "a.npz")
    load_table(folder / "a.csv", targets="b")
    bnrank.load(bnrank.save(bnrank.networks.ResNetFree(2, width=2), folder / "a.safetensors"))
    Outcome("A").save(folder / "figure")
    Outcome.open(folder / "figure")


def _memory(name):
    """Resident memory of this process in bytes, now (VmRSS) or at most since the last reset (VmHWM)."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name))
    return int(line.split()[1]) << 10


def main():
    """Print, for every case, the error, the seconds of processor time and the bytes of memory it took, as JSON."""
    results = []
    with tempfile.TemporaryDirectory() as scratch:
        (Path(scratch) / "warm").mkdir()
        _warm_up(Path(scratch) / "warm")
        gc.freeze()  # what was imported is not searched again
        for i, (name, write, call) in enumerate(cases()):
            folder = Path(scratch) / str(i)
            folder.mkdir()
            given = write(folder)
            gc.collect()
            Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM
            before, began, error = _memory("VmRSS"), time.process_time(), None
            try:
                call(given)
            except BaseException as raised:  # SystemExit, too
                error = raised
            seconds, taken = time.process_time() - began, _memory("VmHWM") - before
            kind = "" if error is None else "ValueError" if isinstance(error, ValueError) else type(error).__name__
            results.append([name, kind, str(error)[:300], seconds, taken])
            shutil.rmtree(folder)
    print(json.dumps(results))


if __name__ == "__main__":
    main()
