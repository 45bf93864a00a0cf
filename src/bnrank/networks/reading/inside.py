"""What acts inside attention and recurrent layers of torch, which call no layers for it: one entry for each weight."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from bnrank.networks.reading.matrices import GATES

Values = tuple[Tensor, Tensor, Tensor | None]  # what enters, what leaves, and the activations where they are known


def attention(part: nn.MultiheadAttention, given: Mapping[str, Any], output: Any) -> dict[str, Values]:
    """Return what enters and leaves the projections in one call of a replica; the last reads the joined heads."""
    tensors = [given[name] for name in ("query", "key", "value")]
    if any(not isinstance(tensor, Tensor) or tensor.ndim != 3 or tensor.is_nested for tensor in tensors):
        return {}
    values: dict[str, Values] = {}
    biases: Any = (None,) * 3 if part.in_proj_bias is None else part.in_proj_bias.chunk(3)
    for i, (name, tensor) in enumerate(zip("qkv", tensors, strict=True)):
        weight = part.in_proj_weight.chunk(3)[i] if part._qkv_same_embed_dim else getattr(part, f"{name}_proj_weight")
        after = linear(tensor, weight, biases[i])
        values[name] = tensor, after, after
    joined = _joined_heads(part, values["v"][1])
    return values if joined is None else values | {"out_proj": (joined, output[0], None)}


def _joined_heads(part: Any, v: Tensor) -> Tensor | None:
    """Return the heads side by side, in the layout of the output, or None where they cannot be told."""
    products = vars(part).get("products")
    v = v if part.batch_first else v.transpose(0, 1)  # (N, S, E)
    if part.bias_v is not None:
        v = torch.cat([v, part.bias_v.expand(len(v), 1, -1)], 1)
    if part.add_zero_attn:
        v = torch.cat([v, v.new_zeros(len(v), 1, v.shape[2])], 1)
    heads = v.unflatten(-1, (part.num_heads, -1)).transpose(1, 2)  # (N, heads, S, E / heads)
    if products is None or products.shape[-1] != heads.shape[2]:
        return None
    joined = (products @ heads).transpose(1, 2).flatten(2)
    return joined if part.batch_first else joined.transpose(0, 1)


def recurrent(part: nn.Module, given: Mapping[str, Any], output: Any) -> dict[str, Values]:
    """Return for every gate the values that enter it, what it returns, and the hidden states of its layer.

    Hidden states of inner layers are computed again, one layer and direction at a time, as the whole layer returns
    those of the last one only. What enters a projection of hidden states is not known.
    """
    x, state = given["input"], given["hx"]
    if not isinstance(x, Tensor) or (isinstance(part, nn.RNNBase) and x.ndim != 3):
        return {}
    if not isinstance(part, nn.RNNBase):
        hidden = output[0] if isinstance(output, tuple) else output
        before = torch.zeros_like(hidden) if state is None else state[0] if isinstance(state, tuple) else state
        return _gates(part, "", x, before, hidden)
    x = x.transpose(0, 1) if part.batch_first else x
    ends = ("", "_reverse") if part.bidirectional else ("",)
    values: dict[str, Values] = {}
    for number in range(part.num_layers):
        states = []
        for direction, end in enumerate(ends):
            place, dims = f"l{number}{end}", [0] if end else []  # in which time is turned
            first, hidden = _one_direction(part, place, x.flip(dims), state, len(ends) * number + direction)
            before, hidden = torch.cat([first, hidden[:-1]]).flip(dims), hidden.flip(dims)
            states.append(hidden)
            tensors = (t.transpose(0, 1) if part.batch_first else t for t in (x, before, hidden))
            values |= _gates(part, place, *tensors)
        x = torch.cat(states, -1)
    return values


def _gates(part: Any, place: str, x: Tensor, before: Tensor, hidden: Tensor) -> dict[str, Values]:
    """Return the values of all gates of one layer and direction, by the names that the list of matrices has."""
    values: dict[str, Values] = {}
    for side, tensor in (("ih", x), ("hh", before)):
        key = f"{side}_{place}" if place else side
        weight = getattr(part, f"weight_{key}")
        after = linear(tensor, weight, getattr(part, f"bias_{key}") if part.bias else None)
        labels = GATES[len(weight) // part.hidden_size]
        for label, gate in zip(labels, after.chunk(len(labels), -1), strict=True):
            values[".".join(filter(None, (place, side, label)))] = tensor, gate, hidden
    return values


def _one_direction(rnn: nn.RNNBase, place: str, x: Tensor, state: Any, number: int) -> tuple[Tensor, Tensor]:
    """Return the initial and all hidden states of one layer in one direction, (1, N, h) and (time, N, h)."""
    kind, names = rnn.mode.lower(), [f"weight_ih_{place}", f"weight_hh_{place}"]
    names += [f"bias_ih_{place}", f"bias_hh_{place}"] if rnn.bias else []
    names += [f"weight_hr_{place}"] if rnn.proj_size else []
    if state is None:
        sizes = [rnn.proj_size or rnn.hidden_size, rnn.hidden_size][: 2 if kind == "lstm" else 1]
        initial = [x.new_zeros(1, x.shape[1], size) for size in sizes]
    else:
        initial = [s[number : number + 1].contiguous() for s in (state if kind == "lstm" else (state,))]
    run: Any = getattr(torch._VF, kind)
    given = tuple(initial) if kind == "lstm" else initial[0]
    hidden = run(x, given, [getattr(rnn, name) for name in names], rnn.bias, 1, 0.0, False, False, False)[0]
    return initial[0], hidden
