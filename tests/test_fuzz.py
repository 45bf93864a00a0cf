"""A sample of the calls of ``python -m tests.fuzz``, and the fuzzer's own judgment on planted faults."""

import random
import time
import warnings
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor

from fuzz import calls, surface, valid, workers
from fuzz.plan import sample


def of(function: Any) -> surface.Target:
    return surface.Target("planted", "measures", lambda: function, ("x",))


def answers(x: Tensor) -> Tensor:
    return x * 2


def raises(x: Tensor) -> None:
    raise KeyError("x")


def names_nothing(x: Tensor) -> None:
    raise ValueError("not that")


def says_module(x: Tensor) -> None:
    raise TypeError("module: got something else than x: a network")


def changes_x(x: Tensor) -> Tensor:
    return x.mul_(2)


def draws(x: Tensor) -> float:
    return random.random()


def draws_torch(x: Tensor) -> Tensor:
    return torch.rand(2)


def loses_numbers(x: Tensor) -> dict[str, Tensor]:
    return {"slope": x * float("nan")}


def refuses(x: Tensor) -> None:
    raise ValueError("x: got NaN, expected numbers")


def loses_numbers_late(x: Tensor) -> list[np.float32]:
    return [np.float32(0.0)] * 60 + [np.float32("nan")]


def loses_numbers_in_a_frame(x: Tensor) -> pd.DataFrame:
    warnings.warn("matplotlib is old", stacklevel=1)
    return pd.DataFrame({"a": [1.0, float("nan")]})


def draws_otherwise(x: Tensor) -> None:
    matplotlib.rcParams["lines.linewidth"] = 7.0


def leaves_a_gradient(x: Tensor) -> None:
    x.grad = torch.ones_like(x)


class Counter:
    def __init__(self) -> None:
        self.total = np.zeros(1)

    def add(self, x: Tensor) -> None:
        self.total += 1


@pytest.mark.parametrize(
    ("function", "kind"),
    [
        (answers, ""),
        (raises, "other exception"),
        (names_nothing, "argument not named"),
        (says_module, "says module"),
        (changes_x, "argument changed"),
        (draws, "global state changed"),
        (draws_torch, "global state changed"),
        (loses_numbers, "NaN without a warning"),
        (refuses, "valid call refused"),
        (loses_numbers_late, "NaN without a warning"),
        (loses_numbers_in_a_frame, "NaN without a warning"),
        (draws_otherwise, "global state changed"),
        (leaves_a_gradient, "argument changed"),
        (Counter().add, "owner changed"),
    ],
)
def test_a_planted_fault_is_found(function, kind):
    assert calls.run(of(function), seed=0, call=-1).kind == kind


def knows_tensors(x: Any) -> Tensor:
    return torch.as_tensor(x) * (2 if isinstance(x, Tensor) else 3)


def names_y(x: Any, y: Any = None) -> None:
    if not isinstance(x, Tensor):
        raise TypeError("y: got something else than a tensor")


@pytest.mark.parametrize(
    ("function", "change", "kind"),
    [(knows_tensors, "numpy", "another answer"), (names_y, "text", "names another argument")],
)
def test_a_planted_fault_of_bad_input_is_found(function, change, kind):
    target = surface.Target("planted", "measures", lambda: function, ("x", "y"))
    assert calls.judged(target, (("x", change),)).kind == kind


def takes_anything(x: Any) -> None:
    return None


def test_an_object_that_is_taken_is_found():
    pairs = [calls.drawn(of(takes_anything), 0, call) for call in range(60)]
    call = next(i for i, changes in enumerate(pairs) if changes == (("x", "object"),))
    assert calls.run(of(takes_anything), 0, call).kind == "object accepted"


def hangs(x: Tensor) -> None:
    time.sleep(5)


def ends(x: Tensor) -> None:
    import os

    os._exit(3)


def allocates(x: Tensor) -> np.ndarray:
    return np.ones(10**10)


def test_calls_that_hang_end_the_process_or_fill_memory_are_found(monkeypatch):
    monkeypatch.setattr(workers, "SECONDS", 1.0)
    jobs = [(of(function), -1) for function in (hangs, ends, allocates, answers)]
    assert [outcome.kind for outcome in workers.outcomes(jobs, 0)] == ["too slow", "process ended", "memory", ""]


def test_the_fence_keeps_files_elsewhere(tmp_path):
    def writes(x: Tensor) -> None:
        (tmp_path / "file").write_text("x")

    (outcome,) = workers.outcomes([(of(writes), -1)], 0)
    assert outcome.kind == "other exception"
    assert "PermissionError" in outcome.text
    assert not (tmp_path / "file").exists()


def test_every_public_function_is_called_or_left_out_with_a_reason():
    called = {target.name for target in surface.functions()}
    public = {name for name, value in surface.public().items() if not surface.is_record(value)}
    assert public - called == {name for name in valid.SKIPPED if name in public}
    assert len(called) > 150


def test_a_call_is_drawn_from_its_seed():
    target = next(target for target in surface.functions() if target.name == "bnrank.ntk.trace")
    first = [calls.drawn(target, 3, call) for call in range(40)]
    assert first == [calls.drawn(target, 3, call) for call in range(40)]
    assert first != [calls.drawn(target, 4, call) for call in range(40)]
    assert len(set(first)) > 35


def test_a_sample_of_bad_calls_is_answered_or_refused_by_name():
    found = [outcome for outcome in workers.outcomes(sample(1500, seed=0), 0) if outcome.status == "finding"]
    assert not found, "\n".join(map(str, found))


ONCE_FOUND = [
    ("bnrank.Task", "class_names", "NaN"),
    ("bnrank.cost.imbalance", "net", "complex"),
    ("bnrank.cost.bracket", "net", "complex"),
    ("bnrank.escape.exit_time", "x", "1e300"),
    ("bnrank.escape.find", "polish", "array of objects"),
    ("bnrank.flow", "net", "numpy inside"),
    ("bnrank.graph.trace", "example", "negative strides"),
    ("bnrank.invariants.Monitor", "example", "sparse COO"),
    ("bnrank.load", "path", "folder"),
    ("bnrank.networks.CircularConvolutional", "shape", "set"),
    ("bnrank.networks.load", "order", "object"),
    ("bnrank.networks.read_chain", "multiply_out", "object"),
    ("bnrank.discovery.BottleneckAutoencoder", "ridges", "0-d tensor"),
    ("bnrank.compress", "net", "numpy inside"),
    ("bnrank.ntk.gram", "net", "returns NaN"),
    ("bnrank.ntk.gram", "x", "1e300"),
    ("bnrank.ntk.trace", "chunk_size", "numpy integer"),
    ("bnrank.ntk.trace", "net", "no outputs"),
    ("bnrank.plots.norm_versus_depth", "norms", "inf inside"),
    ("bnrank.rank", "net", "no outputs"),
    ("bnrank.rank", "net", "returns NaN"),
    ("bnrank.regions.along_line", "end", "bfloat16"),
    ("bnrank.regions.in_plane", "net", "wide"),
    ("bnrank.report", "source", "0-d tensor"),
    ("bnrank.save", "tag", "object"),
    ("bnrank.spectra.rank", "atol", "1e300"),
    ("bnrank.spectra.weight_singular_values", "size", "object"),
    ("bnrank.tasks.load_table", "ignore", "numpy"),
    ("bnrank.theory.Facts", "net", "returns inf"),
    ("bnrank.theory.Facts", "net", "returns integers"),
    ("bnrank.theory.Facts", "y", "numpy texts"),
    ("bnrank.theory.kernels.jacobian_ranks", "data_rtol", "bytes"),
    ("bnrank.theory.stability.output_error", "x", "1e300"),
    ("bnrank.theory.symmetry.classes_on_line", "x", "five dimensions"),
    ("bnrank.theory.symmetry.classes_on_line", "x", "subnormal"),
    ("bnrank.theory.symmetry.projection", "net", "returns inf"),
    ("bnrank.theory.symmetry.rank_bound", "net", "no outputs"),
    ("bnrank.ntk.top_eigenvalue", "normalized", "array of objects"),
    ("bnrank.tasks.distances_to_polyline", "corners", "1e300"),
    ("bnrank.cost.solve", "width", "10**12"),
    ("bnrank.theory.stability.output_error", "net", "half"),
    ("bnrank.theory.symmetry.rank_bound", "net", "returns NaN"),
    ("bnrank.train", "batch_size", "tensor"),
    ("bnrank.train", "members", "10**12"),
    ("bnrank.train", "task", "x huge"),
]


@pytest.mark.parametrize(("name", "argument", "change"), ONCE_FOUND)
def test_what_the_fuzzer_found_is_mended(name, argument, change):
    target = next(target for target in surface.functions() if target.name == name)
    outcome = calls.judged(target, ((argument, change),))
    assert outcome.status in ("answer", "refusal"), outcome
