"""Recurrent layers of torch, gate by gate: their weights, and the hidden states that a call of the layer passes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from bnrank.networks.layers import Source

GATES = {"LSTM": ("input", "forget", "cell", "output"), "GRU": ("reset", "update", "new")}
Values = tuple[Tensor, Tensor, Tensor | None]  # before, after, activations


def gates(part: nn.Module) -> tuple[str, ...]:
    """Return the names of the gates in the order of the rows of the weights; one empty name for a simple layer."""
    kinds = [base.__name__ for base in type(part).__mro__ if base.__module__.startswith("torch.nn.modules")]
    return next((names for kind, names in GATES.items() if kinds[0].startswith(kind)), ("",))


def weights(part: nn.Module, owner: str) -> Iterator[tuple[str, Source]]:
    """Iterate over the weights of a recurrent layer or cell: a name and where it is stored, gate by gate.

    Examples
    --------
    >>> [name for name, _ in weights(nn.GRU(3, 2), "")]
    ['l0.ih.reset', 'l0.ih.update', 'l0.ih.new', 'l0.hh.reset', 'l0.hh.update', 'l0.hh.new']
    """
    cell = isinstance(part, nn.RNNCellBase)
    places = [""] if cell else [f"_{suffix}" for suffix in _places(cast(nn.RNNBase, part))]
    for place in places:
        for side in ("ih", "hh"):
            whole = getattr(part, f"weight_{side}{place}")
            size = len(whole) // len(gates(part))
            bias = f"bias_{side}{place}" if part.bias else None
            for i, gate in enumerate(gates(part)):
                name = ".".join(filter(None, (place.removeprefix("_"), side, gate)))
                yield name, Source(owner, f"weight_{side}{place}", bias, (i * size, (i + 1) * size))
        if getattr(part, "proj_size", 0):
            yield f"{place.removeprefix('_')}.hr", Source(owner, f"weight_hr{place}", None)


def observe(part: nn.Module, args: dict[str, Any], output: Any) -> list[Values | None]:
    """Return for every weight the values that enter it, what it returns, and the hidden states of its layer.

    Hidden states of inner layers are computed again, one layer and direction at a time, as the whole layer returns
    those of the last one only.
    """
    x, state = args["input"], args["hx"]
    if not isinstance(x, Tensor) or (not isinstance(part, nn.RNNCellBase) and x.ndim != 3):
        return [None] * sum(1 for _ in weights(part, ""))
    if isinstance(part, nn.RNNCellBase):
        hidden = output[0] if isinstance(output, tuple) else output
        before = torch.zeros_like(hidden) if state is None else state[0] if isinstance(state, tuple) else state
        return _of_place(part, "", x, before, hidden)
    rnn = cast(nn.RNNBase, part)
    found: list[Values | None] = []
    x = x.transpose(0, 1) if rnn.batch_first else x
    directions = 2 if rnn.bidirectional else 1
    states: list[Tensor] = []
    for i, place in enumerate(_places(rnn)):
        if i % directions == 0 and i:
            x = torch.cat(states[-directions:], -1)
        given = x.flip(0) if place.endswith("_reverse") else x
        first, hidden = _one_layer(rnn, place, given, state, i)
        before = torch.cat([first, hidden[:-1]])
        if place.endswith("_reverse"):
            hidden, before = hidden.flip(0), before.flip(0)
        states.append(hidden)
        found += _of_place(rnn, f"_{place}", x, before, hidden, rnn.batch_first)
        if rnn.proj_size:
            found.append(None)  # what enters the projection is not returned
    return found


def _places(rnn: nn.RNNBase) -> list[str]:
    ends = ("", "_reverse") if rnn.bidirectional else ("",)
    return [f"l{i}{end}" for i in range(rnn.num_layers) for end in ends]


def _of_place(
    part: Any, place: str, x: Tensor, before: Tensor, hidden: Tensor, swap: bool = False
) -> list[Values | None]:
    """Return the values of all gates of one layer and direction."""
    if swap:
        x, before, hidden = (value.transpose(0, 1) for value in (x, before, hidden))
    found: list[Values | None] = []
    for side, given in (("ih", x), ("hh", before)):
        bias = getattr(part, f"bias_{side}{place}") if part.bias else None
        after = linear(given, getattr(part, f"weight_{side}{place}"), bias)
        found += [(given, gate, hidden) for gate in after.chunk(len(gates(part)), -1)]
    return found


def _one_layer(rnn: nn.RNNBase, place: str, x: Tensor, state: Any, number: int) -> tuple[Tensor, Tensor]:
    """Return the initial and all hidden states of one layer in one direction, (1, N, h) and (time, N, h)."""
    kind = rnn.mode.lower()
    flat = [getattr(rnn, f"weight_{side}_{place}") for side in ("ih", "hh")]
    flat += [getattr(rnn, f"bias_{side}_{place}") for side in ("ih", "hh")] if rnn.bias else []
    flat += [getattr(rnn, f"weight_hr_{place}")] if rnn.proj_size else []
    if state is None:
        sizes = [rnn.proj_size or rnn.hidden_size, rnn.hidden_size][: 2 if kind == "lstm" else 1]
        initial = [x.new_zeros(1, x.shape[1], size) for size in sizes]
    else:
        initial = [s[number : number + 1].contiguous() for s in (state if kind == "lstm" else (state,))]
    run: Any = getattr(torch._VF, kind)
    given = tuple(initial) if kind == "lstm" else initial[0]
    hidden = run(x, given, flat, rnn.bias, 1, 0.0, False, False, False)[0]
    return initial[0], cast(Tensor, hidden)
