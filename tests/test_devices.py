"""Public functions on a GPU: a real one where there is one, and otherwise a pretended one (``tests/devices``)."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from devices import moving, pretended
from devices.loops import LOOPS, READ
from fuzz.surface import functions, public

REASONS: dict[str, str] = {}
"""Targets that take a network, a tensor or a device and do not run on a GPU, with the reason."""

pytestmark = pytest.mark.skipif(
    not (pretended.AVAILABLE or torch.cuda.is_available()), reason="this version of torch has no devices made in Python"
)


@pytest.fixture(scope="module")
def outcomes():
    """What ``python -m devices`` finds, in a process of its own: torch counts devices once."""
    here = Path(__file__).parent
    paths = os.pathsep.join([str(here), *(p for p in sys.path if p)])
    environment = os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-m", "devices"], cwd=here, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    return {row["name"]: row for row in rows}


def test_every_public_function_runs_on_a_gpu_or_has_a_reason(outcomes):
    found = {name: row for name, row in outcomes.items() if name not in LOOPS}
    stopped = {name: row["text"] for name, row in found.items() if row["status"] in ("failed", "differs")}
    assert stopped.keys() - REASONS.keys() == set(), {name: stopped[name] for name in stopped.keys() - REASONS.keys()}
    assert REASONS.keys() <= stopped.keys()  # a reason for a function that runs is out of date
    assert {target.name for target in functions()} <= found.keys()
    assert sum(row["status"] == "ran" for row in found.values()) > 140


def test_loops_do_not_read_the_device(outcomes):
    if torch.cuda.is_available():
        pytest.skip("reads are counted on the pretended device")
    growing = {name for name in LOOPS if outcomes[name]["copies"][1] > outcomes[name]["copies"][0]}
    assert growing == READ.keys()
    assert all(outcomes[name]["copies"][0] > 0 for name in LOOPS)  # at the least, checks of the data are counted


def test_functions_that_take_a_device_are_concerned():
    taking = [target for target in functions() if "device" in target.parameters]
    assert "bnrank.sweep" in {target.name for target in taking}
    assert all(moving.concerned(target) for target in taking)
    assert not any(target.name not in public() and "discovery" not in target.name for target in taking)


MIXED = {
    "product": lambda a, b: a @ b,
    "sum": lambda a, b: a + b,
    "sum with a number": lambda a, b: a + b[0, 0].clone(),
    "in place": lambda a, b: a.clone().mul_(b),
    "joined": lambda a, b: torch.cat([a, b]),
    "stacked numbers": lambda a, b: torch.stack([a[0, 0], b[0, 0]]),
    "copied": lambda a, b: torch.empty_like(a).copy_(b),
    "rows": lambda a, b: a[torch.arange(2, device=b.device)],
    "put": lambda a, b: a.clone().index_put_((torch.arange(2, device=a.device),), b[:2]),
    "chosen": lambda a, b: torch.where(a > 0, a, b),
    "layer": lambda a, b: torch.nn.functional.linear(a, b),
    "solved": lambda a, b: torch.linalg.solve(a, b),
    "spread": lambda a, b: torch.einsum("ij,kj->ik", a, b),
    "alone": lambda a, b: torch.linalg.svdvals(a) * 2,
    "gathered": lambda a, b: a.gather(0, torch.zeros(1, 3, dtype=torch.int64, device=b.device)),
}
MOVED = "import json, sys; sys.path[:0] = json.loads(sys.argv[1]); import test_devices; test_devices.told()"


def refused(function, first, second) -> bool:
    """Whether an operation refuses a tensor on each of two devices."""
    a, b = (torch.eye(3).add(0.5).to(device) for device in (first, second))
    try:
        function(a, b)
    except RuntimeError:
        return True
    return False


def told():
    """Print which mixes the pretended device refuses; the first or the second tensor is on it, or both."""
    with pretended.gpu() as to:
        here = torch.device("cpu")
        found = {n: [refused(f, *pair) for pair in ((to, here), (here, to), (to, to))] for n, f in MIXED.items()}
    print(json.dumps(found))


def test_the_pretended_gpu_refuses_what_fake_cuda_tensors_refuse():
    here = Path(__file__).parent
    done = subprocess.run(
        [sys.executable, "-c", MOVED, json.dumps([str(here), *sys.path])], capture_output=True, text=True, cwd=here
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)
    with FakeTensorMode():
        pairs = ("cuda", "cpu"), ("cpu", "cuda"), ("cuda", "cuda")
        expected = {}
        for name, function in MIXED.items():
            row = []
            for pair in pairs:
                a, b = (torch.empty(3, 3, device=device) for device in pair)
                try:
                    function(a, b)
                    row.append(False)
                except RuntimeError as error:
                    row.append(True if "same device" in str(error) or "two devices" in str(error) else None)
            expected[name] = row
    known = {n: [(f, e) for f, e in zip(found[n], expected[n], strict=True) if e is not None] for n in MIXED}
    wrong = {name: pairs for name, pairs in known.items() if any(ours != fake for ours, fake in pairs)}
    # CPU rows by the numbers of a GPU: refused by a GPU, not by fake tensors. None: a build without CUDA lacks it.
    assert {name: [p for p in pairs if p[0] != p[1]] for name, pairs in wrong.items()} == {"rows": [(True, False)]}
    outcomes = [fake for pairs in known.values() for _, fake in pairs]
    assert outcomes.count(True) > 10
    assert outcomes.count(False) > 10
