"""Which tensor of one network belongs to which tensor of another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher

from bnrank.networks.reading.stored import Stored

NAME, PREFIX, ORDER = "name", "name without prefix", "order and shape"
UNKNOWN = "has its name, or in its order its shape"
MERGE = "to compare the weights that are used, merge them first (in peft: merge_and_unload())"


@dataclass(frozen=True)
class Pair:
    """A tensor of network a, the tensor of b that it is compared with, and what says so."""

    a: Stored
    b: Stored
    by: str


@dataclass(frozen=True)
class Matching:
    """Pairs of tensors in the order of a, and the tensors of a and of b without a partner."""

    pairs: tuple[Pair, ...]
    only_a: tuple[Stored, ...]
    only_b: tuple[Stored, ...]

    @property
    def notes(self) -> list[dict[str, str]]:
        """What pairs tensors of different names, and adapters that are left out."""
        by = {how: [pair for pair in self.pairs if pair.by == how] for how in (PREFIX, ORDER)}
        found = []
        for how, pairs in by.items():
            if pairs:
                first = f"{pairs[0].a.name} with {pairs[0].b.name}"
                more = f" and {len(pairs) - 1} more" if len(pairs) > 1 else ""
                found.append({"name": f"matched by {how}", "note": f"{first}{more}; check that they belong together"})
        return found + self.adapters

    @property
    def alone(self) -> list[dict[str, str]]:
        """Tensors without a partner, with the reason."""
        rows = []
        for letter, other, entries in (("a", "b", self.only_a), ("b", "a", self.only_b)):
            known = {(pair.a if letter == "a" else pair.b).storage for pair in self.pairs} - {None}
            for e in entries:
                reason = f"no tensor of {other} {UNKNOWN}"
                if e.into:
                    reason = e.reason
                elif e.storage in known:
                    reason = "in the memory of a tensor that is compared"
                shape = " x ".join(map(str, e.shape))
                rows.append({"name": e.name, "shape": shape, "network": letter, "reason": reason})
        return rows

    @property
    def adapters(self) -> list[dict[str, str]]:
        """Low-rank adapters without a partner, with what to do."""
        found = []
        for letter, entries in (("a", self.only_a), ("b", self.only_b)):
            names = [e.name for e in entries if any(word.startswith("lora_") for word in e.name.split("."))]
            if names:
                more = f" and {len(names) - 1} more" if len(names) > 1 else ""
                note = f"{names[0]}{more}, not added to the weights beside them; {MERGE}"
                found.append({"name": f"adapters in {letter}", "note": note})
        return found


def matched(a: Sequence[Stored], b: Sequence[Stored]) -> Matching:
    """Return tensors in pairs: by equal names, else by names without a prefix; then by order and shape.

    Equal names match whatever the shapes are. By order and shape, floating-point tensors without a partner form pairs
    of equal shape: first, in order, those with the same end of the name (``weight_ih``); then runs that have the same
    order on both sides, the longest run first.

    Examples
    --------
    >>> import torch
    >>> from bnrank.networks.reading.stored import of_mapping
    >>> one = of_mapping({"fc.weight": torch.eye(2), "head.weight": torch.ones(3, 2), "x": torch.ones(1)})
    >>> other = of_mapping({"fc.weight": torch.eye(2), "classifier.weight": torch.ones(3, 2)})
    >>> found = matched(one, other)
    >>> [(pair.a.name, pair.b.name, pair.by) for pair in found.pairs], [left.name for left in found.only_a]
    ([('fc.weight', 'fc.weight', 'name'), ('head.weight', 'classifier.weight', 'order and shape')], ['x'])
    """
    a, b = [e for e in a if e.is_tensor], [e for e in b if e.is_tensor]
    chosen: dict[int, tuple[int, str]] = {}
    names = {entry.name: j for j, entry in enumerate(b)}
    chosen |= {i: (names[entry.name], NAME) for i, entry in enumerate(a) if entry.name in names}
    if not chosen:
        chosen |= _by_prefix([entry.name for entry in a], [entry.name for entry in b])
    _by_order(a, b, chosen)
    taken = {j for j, _ in chosen.values()}
    pairs = tuple(_alike(Pair(a[i], b[j], by)) for i, (j, by) in sorted(chosen.items()))
    only_a = tuple(entry for i, entry in enumerate(a) if i not in chosen)
    return Matching(pairs, only_a, tuple(entry for j, entry in enumerate(b) if j not in taken))


def _by_prefix(a: Sequence[str], b: Sequence[str]) -> dict[int, tuple[int, str]]:
    """Return names that are equal but for one prefix of modules on one side, "module." or "bert.", the commonest one.

    Examples
    --------
    >>> _by_prefix(["fc.weight", "fc.bias"], ["net.fc.bias", "net.fc.weight", "net.weight"])
    {0: (1, 'name without prefix'), 1: (0, 'name without prefix')}
    """
    found: dict[tuple[bool, str], dict[int, tuple[int, str]]] = {}
    for longer_b in (True, False):
        short, long = (a, b) if longer_b else (b, a)
        places = {name: i for i, name in enumerate(short)}
        for k, name in enumerate(long):
            words = name.split(".")
            for cut in range(1, len(words)):
                if (i := places.get(".".join(words[cut:]))) is not None:
                    pair = (i, k) if longer_b else (k, i)
                    found.setdefault((longer_b, ".".join(words[:cut])), {})[pair[0]] = (pair[1], PREFIX)
    return dict(sorted(max(found.values(), key=len).items())) if found else {}


def _by_order(a: Sequence[Stored], b: Sequence[Stored], chosen: dict[int, tuple[int, str]]) -> None:
    _by_last_name(a, b, chosen)
    for matrices in (True, False):  # of which a module has the weight first, and a file the bias
        _in_order(a, b, chosen, matrices)


def _by_last_name(a: Sequence[Stored], b: Sequence[Stored], chosen: dict[int, tuple[int, str]]) -> None:
    """Choose in order those that have one shape and the end of the name in common."""
    taken = {j for j, _ in chosen.values()}
    groups: list[dict[tuple[str, tuple[int, ...]], list[int]]] = []
    for entries, used in ((a, set(chosen)), (b, taken)):
        groups.append({})
        for i, entry in enumerate(entries):
            if i not in used and entry.floating:
                groups[-1].setdefault((entry.name.rpartition(".")[2], entry.shape), []).append(i)
    for key, places in groups[0].items():
        chosen.update({i: (j, ORDER) for i, j in zip(places, groups[1].get(key, []), strict=False)})


def _in_order(a: Sequence[Stored], b: Sequence[Stored], chosen: dict[int, tuple[int, str]], matrices: bool) -> None:
    taken = {j for j, _ in chosen.values()}
    free_a, free_b = (
        [
            i
            for i, entry in enumerate(entries)
            if i not in used and entry.floating and (len(entry.shape) > 1) == matrices
        ]
        for entries, used in ((a, chosen), (b, taken))
    )
    shapes = [a[i].shape for i in free_a], [b[j].shape for j in free_b]
    for block in SequenceMatcher(None, *shapes, autojunk=False).get_matching_blocks():
        for k in range(block.size):
            chosen[free_a[block.a + k]] = free_b[block.b + k], ORDER


def _alike(pair: Pair) -> Pair:
    """Return a pair of one shape read in one way: a module says more of a tensor than a file does."""
    a, b = pair.a, pair.b
    if a.shape != b.shape or a.role == b.role or (a.role and b.role):
        return pair
    known, bare = (a, b) if a.role else (b, a)
    told = replace(bare, role=known.role, groups=known.groups, gates=known.gates)
    return Pair(a, told, pair.by) if known is a else Pair(told, b, pair.by)
