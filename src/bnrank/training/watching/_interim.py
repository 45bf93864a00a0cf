"""Interim: the list of matrices, until networks.reading has it."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from bnrank.measures.tensors import opened
from bnrank.networks.functional import copied
from bnrank.training.watching.parts import matrices_of, parts_of

Other = Any


@dataclass(frozen=True)
class Matrix:
    name: str
    kind: str
    module: Any
    key: str
    take: Any

    def blocks(self) -> Tensor:
        return self.take()


class Listing:
    def __init__(self, matrices: Any, others: Any) -> None:
        self.matrices, self.others = matrices, others


@contextlib.contextmanager
def listing(source: Any, name: str = "net") -> Iterator[Listing]:
    if isinstance(source, nn.Module):
        parts, others = parts_of(source)
        found = []
        for part in parts:
            kind = (
                f"conv{part.spatial}d"
                if part.spatial
                else "embedding"
                if isinstance(part.module, nn.Embedding)
                else "linear"
            )
            if isinstance(part.module, nn.modules.conv._ConvTransposeNd):
                kind = "transposed " + kind

            def take(part: Any = part) -> Any:
                w = part.tensor(dict(source.named_parameters())).detach()
                return part.matrices(w.to_dense() if w.layout is not torch.strided else w)

            found.append(Matrix(part.name, kind, part.module, part.parameter.rpartition(".")[2], take))
        yield Listing(tuple(found), tuple(others))
    else:
        with opened(source, name) as (_, entries):
            found = [Matrix(k, "linear", None, "", lambda m=m: m) for k, m in matrices_of(entries).items()]
            yield Listing(tuple(found), ())


def replica(net: nn.Module) -> nn.Module:
    return copied(net).eval()


@contextlib.contextmanager
def sandbox() -> Iterator[None]:
    with torch.random.fork_rng([]):
        yield
