"""Which tensor of one network, with the matrices that it holds, belongs to which one of another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from bnrank._core import remarks
from bnrank.networks.reading import Listing, Matrix
from bnrank.networks.reading.stored import Stored

NAME, PREFIX, ORDER = "name", "name without prefix", "order and shape"
CHECK = "check that they belong together"
MERGE = (
    "not added to the weights beside them: merge them to compare the weights that are used (in peft, merge_and_unload)"
)
Partners = dict[int, tuple[int, str]]  # by the place in a: the place in b, and what says so


@dataclass(frozen=True)
class Pair:
    """A tensor of network a, the one of b that it is compared with, what says so, and their matrices, if any."""

    a: Stored
    b: Stored
    by: str
    matrices: tuple[tuple[Matrix, Matrix], ...]


def matched(a: Listing, b: Listing) -> tuple[list[Pair], dict[str, list[Stored]]]:
    """Return the tensors of two networks in pairs, with the matrices that they hold, and others of "a" and of "b".

    Tensors of floating-point numbers are matched by equal names, whatever their shapes; if there are none, by names
    without a prefix. Others of equal shape are matched in order, those whose names end alike first. A tensor of a file
    is read as its partner in a module: grouped, transposed or stacked. Tensors that are tied in both networks are
    compared once.

    Examples
    --------
    >>> import torch
    >>> from bnrank.networks.reading import listing
    >>> state = {"fc.weight": torch.eye(2), "head.weight": torch.ones(3, 2), "x": torch.ones(1)}
    >>> other = {"fc.weight": torch.eye(2), "classifier.weight": torch.ones(3, 2)}
    >>> with listing(state) as first, listing(other) as second:
    ...     pairs, alone = matched(first, second)
    >>> [(pair.a.name, pair.b.name, pair.by) for pair in pairs], [tensor.name for tensor in alone["a"]]
    ([('fc.weight', 'fc.weight', 'name'), ('head.weight', 'classifier.weight', 'order and shape')], ['x'])
    """
    first, second = ([t for t in held.records if t.is_tensor and t.floating and not t.into] for held in (a, b))
    parts: list[dict[object, list[Matrix]]] = [{}, {}]
    for held, matrices in zip((a, b), parts, strict=True):
        for matrix in held.matrices:
            matrices.setdefault(_key(matrix.stored), []).append(matrix)
    pairs: dict[tuple[object, object], Pair] = {}
    for i, (j, how) in sorted(_by_order(first, second, _by_name(first, second)).items()):
        one, other = first[i], second[j]
        mine, others = parts[0].get(_key(one), []), parts[1].get(_key(other), [])
        if one.shape == other.shape and one.module is not None and other.module is None:
            others = _read_as(mine, others, other, second)
        elif one.shape == other.shape and one.module is None and other.module is not None:
            mine = _read_as(others, mine, one, first)
        both = zip(mine, others, strict=True) if len(mine) == len(others) else ()
        pairs.setdefault((_key(one), _key(other)), Pair(one, other, how, tuple(both)))
    known = {one for one, _ in pairs}, {other for _, other in pairs}
    alone = {"a": [t for t in first if _key(t) not in known[0]], "b": [t for t in second if _key(t) not in known[1]]}
    return list(pairs.values()), alone


def read_as(held: Listing, module: Listing) -> list[Matrix]:
    """Return the matrices of a file, those of tensors that a module has too as it reads them."""
    matrices = [matrix for pair in matched(module, held)[0] for _, matrix in pair.matrices]
    known = {_key(matrix.stored) for matrix in matrices}
    return matrices + [matrix for matrix in held.matrices if _key(matrix.stored) not in known]


def notes(pairs: Sequence[Pair], alone: Mapping[str, Sequence[Stored]]) -> list[dict[str, str]]:
    """Return which tensors of different names are pairs, and which adapters have no partner."""
    groups = {
        (f"matched by {how}", CHECK): [f"{pair.a.name} with {pair.b.name}" for pair in pairs if pair.by == how]
        for how in (PREFIX, ORDER)
    }
    for letter, tensors in alone.items():
        groups[f"adapters in {letter}", MERGE] = [t.name for t in tensors if ".lora_" in f".{t.name}"]
    return [{"name": name, "note": f"{remarks.some(names)}; {text}"} for (name, text), names in groups.items() if names]


def _key(tensor: Stored) -> object:
    """Return what is equal for tensors that are one in memory."""
    return tensor.name if tensor.storage is None else tensor.storage


def _read_as(
    known: Sequence[Matrix], bare: Sequence[Matrix], tensor: Stored, tensors: Sequence[Stored]
) -> list[Matrix]:
    """Return the matrices of a tensor of a file, read as those of a module."""
    names = [matrix.name for matrix in (bare if len(bare) == len(known) else known)]
    read = []
    for matrix, name in zip(known, names, strict=True):
        last = "" if matrix.bias_stored is None else matrix.bias_stored.name.rpartition(".")[2]
        bias = next((t for t in tensors if last and t.name == f"{tensor.owner}.{last}".lstrip(".")), None)
        read.append(replace(matrix, name=name, stored=tensor, bias_stored=bias))
    return read


def _by_name(a: Sequence[Stored], b: Sequence[Stored]) -> Partners:
    """Return tensors of equal names; else of names that one prefix on one side makes equal, the commonest one.

    Examples
    --------
    >>> import torch
    >>> from bnrank.networks.reading.stored import of_mapping
    >>> one, other = dict.fromkeys(["fc.weight", "fc.bias"]), dict.fromkeys(["net.fc.bias", "net.fc.weight", "weight"])
    >>> _by_name(*(of_mapping({name: torch.ones(1) for name in names}) for names in (one, other)))
    {1: (0, 'name without prefix'), 0: (1, 'name without prefix')}
    """
    prefixes: dict[tuple[int, str], Partners] = {}
    for side, (short, long) in enumerate(((a, b), (b, a))):
        places = {tensor.name: i for i, tensor in enumerate(short)}
        for k, tensor in enumerate(long):
            words = tensor.name.split(".")
            for cut in range(len(words)):
                i = places.get(".".join(words[cut:]))
                if i is not None:
                    first, second = (k, i) if side else (i, k)
                    how = PREFIX if cut else NAME
                    prefixes.setdefault((side, ".".join(words[:cut])), {})[first] = second, how
    return prefixes.get((0, "")) or max(prefixes.values(), key=len, default={})


def _by_order(a: Sequence[Stored], b: Sequence[Stored], partners: Partners) -> Partners:
    """Return the partners, and those of equal shape among the others, in order: first where the names end alike."""
    partners = dict(partners)
    for ends in (True, False):
        taken = {j for j, _ in partners.values()}
        waiting: dict[object, list[int]] = {}
        for j, tensor in enumerate(b):
            if j not in taken:
                waiting.setdefault((tensor.name.rpartition(".")[2] if ends else "", tensor.shape), []).append(j)
        for i, tensor in enumerate(a):
            places = waiting.get((tensor.name.rpartition(".")[2] if ends else "", tensor.shape))
            if i not in partners and places:
                partners[i] = places.pop(0), ORDER
    return partners
