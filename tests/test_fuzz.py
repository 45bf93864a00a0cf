"""A sample of the calls of ``python -m tests.fuzz``, and the fuzzer's own judgment on planted faults."""

import random
import time
from typing import Any

import numpy as np
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
    ],
)
def test_a_planted_fault_is_found(function, kind):
    assert calls.run(of(function), seed=0, call=-1).kind == kind


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
    found = [outcome for outcome in workers.outcomes(sample(150, seed=0), 0) if outcome.status == "finding"]
    assert not found, "\n".join(map(str, found))
