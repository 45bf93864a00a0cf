"""Worker processes with limits of memory and time: a call that hangs, or ends its process, is a finding as well."""

import importlib
import multiprocessing
import os
import resource
import signal
import tempfile
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from .calls import SECONDS, Outcome, drawn, run
from .fence import raise_fence
from .made import FOLDER
from .surface import Target

MEMORY = 3 << 30
"""Bytes that a worker may allocate beyond what it has at its start."""

Job = tuple[Target, int]


class _TooLongError(BaseException):
    """Raised in a worker by its alarm; no ``except Exception`` of the library catches it."""


def _alarm(*_: Any) -> None:
    raise _TooLongError


def _work(jobs: Sequence[Job], seed: int, pipe: Connection) -> None:
    size = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (size + MEMORY, size + MEMORY))
    torch.set_num_threads(1)
    os.chdir(FOLDER)
    tempfile.tempdir = str(FOLDER)
    raise_fence(FOLDER)
    signal.signal(signal.SIGALRM, _alarm)
    for target, call in jobs:
        signal.setitimer(signal.ITIMER_REAL, SECONDS)
        try:
            pipe.send(run(target, seed, call))
        except _TooLongError:
            pipe.send(_lost(target, seed, call, "too slow", f"longer than {SECONDS:.0f} s"))
        except BaseException as error:
            pipe.send(_lost(target, seed, call, "other exception", f"{type(error).__name__}: {error}"[:200]))
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    pipe.close()
    os._exit(0)


def _lost(target: Target, seed: int, call: int, kind: str, text: str) -> Outcome:
    return Outcome(target.name, target.room, call, drawn(target, seed, call), "finding", kind, text)


def imported() -> None:
    """Import what the library imports where first needed, so that no call is charged for the time and the changes."""
    for module in (
        *("sklearn.base", "scipy.optimize", "matplotlib.pyplot", "plotly.graph_objects", "networkx", "sympy"),
        *("h5netcdf", "xarray.conventions", "torch._dynamo", "bnrank.cli"),
    ):
        importlib.import_module(module)


def outcomes(jobs: Sequence[Job], seed: int, batch: int = 400) -> Iterator[Outcome]:
    """Yield the outcomes of calls in their order, from one worker process at a time, renewed after a batch."""
    imported()
    context = multiprocessing.get_context("fork")
    done = 0
    while done < len(jobs):
        part = jobs[done : done + batch]
        receive, send = context.Pipe(duplex=False)
        worker = context.Process(target=_work, args=(part, seed, send), daemon=False)
        worker.start()
        send.close()
        count = 0
        while count < len(part):
            kind = ""
            try:
                if receive.poll(2 * SECONDS):
                    yield receive.recv()
                    count += 1
                    continue
                kind, text = "too slow", f"longer than {2 * SECONDS:.0f} s, deaf to its alarm"
            except EOFError:
                worker.join()
                kind, text = "process ended", f"exit code {worker.exitcode}"
            target, call = part[count]
            yield _lost(target, seed, call, kind, text)
            count += 1
            break
        if worker.is_alive():
            worker.kill()
        worker.join()
        receive.close()
        done += count
