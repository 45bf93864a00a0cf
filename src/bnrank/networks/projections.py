"""Attention layers: the projections of queries, keys and values, split where they are stored as one, and the output."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from bnrank.networks.layers import Source

Values = tuple[Tensor, Tensor, Tensor | None]
FUSED = ("qkv", "c_attn", "wqkv", "in_proj")  # last parts of names of layers that hold three projections, in this order


def weights(part: nn.MultiheadAttention, owner: str) -> Iterator[tuple[str, Source]]:
    """Iterate over the projections of an attention layer of torch: a name and where it is stored.

    Examples
    --------
    >>> [(name, source.rows) for name, source in weights(nn.MultiheadAttention(4, 2), "")]
    [('q', (0, 4)), ('k', (4, 8)), ('v', (8, 12)), ('out_proj', None)]
    """
    size, bias = part.embed_dim, None if part.in_proj_bias is None else "in_proj_bias"
    for i, name in enumerate("qkv"):
        rows = (i * size, (i + 1) * size)
        if part._qkv_same_embed_dim:
            yield name, Source(owner, "in_proj_weight", bias, rows)
        else:
            yield name, Source(owner, f"{name}_proj_weight", bias, bias_rows=rows)
    inside = f"{owner}.out_proj" if owner else "out_proj"
    yield "out_proj", Source(inside, "weight", None if part.out_proj.bias is None else "bias")


def thirds(part: Any, owner: str, weight: Tensor, transposed: bool) -> list[tuple[str, Source]]:
    """Return the three projections of a layer that is named as one of queries, keys and values, or nothing.

    Examples
    --------
    >>> [name for name, _ in thirds(nn.Linear(4, 12), "block.attn.qkv", torch.zeros(12, 4), False)]
    ['q', 'k', 'v']
    """
    out, size = reversed(weight.shape) if transposed else weight.shape
    if owner.rpartition(".")[2].lower() not in FUSED or out != 3 * size:
        return []
    bias = None if getattr(part, "bias", None) is None else "bias"
    return [
        (name, Source(owner, "weight", bias, (i * size, (i + 1) * size), transposed)) for i, name in enumerate("qkv")
    ]


def observe(part: nn.MultiheadAttention, args: dict[str, Any], output: Any) -> list[Values | None]:
    """Return what enters and leaves the projections in one call; the output projection reads the joined heads.

    These are not returned, so the layer runs again for the weights of every head; they are given only where the output
    projection of them is what the layer returned.
    """
    given = [args[name] for name in ("query", "key", "value")]
    if any(not isinstance(value, Tensor) or value.ndim != 3 or value.is_nested for value in given):
        return [None] * 4
    found: list[Values | None] = []
    biases: Any = (None,) * 3 if part.in_proj_bias is None else part.in_proj_bias.chunk(3)
    for i, (name, value) in enumerate(zip("qkv", given, strict=True)):
        weight = part.in_proj_weight.chunk(3)[i] if part._qkv_same_embed_dim else getattr(part, f"{name}_proj_weight")
        after = linear(value, weight, biases[i])
        found.append((value, after, after))
    joined = _joined(part, args, found[2])
    if joined is None:
        return [*found, None]
    return [*found, (joined, output[0], None)]


def _joined(part: Any, args: dict[str, Any], value: Values | None) -> Tensor | None:
    """Return the heads side by side, in the layout of the output, or None where they cannot be told."""
    again, weights = part.forward(**(args | {"need_weights": True, "average_attn_weights": False}))
    assert value is not None
    v = value[1] if part.batch_first else value[1].transpose(0, 1)  # (N, S, E)
    if part.bias_v is not None:
        v = torch.cat([v, part.bias_v.expand(len(v), 1, -1)], 1)
    if part.add_zero_attn:
        v = torch.cat([v, v.new_zeros(len(v), 1, v.shape[2])], 1)
    heads = v.unflatten(-1, (part.num_heads, -1)).transpose(1, 2)  # (N, heads, S, E / heads)
    if weights is None or weights.shape[-1] != heads.shape[2]:
        return None
    joined = (weights @ heads).transpose(1, 2).flatten(2)
    joined = joined if part.batch_first else joined.transpose(0, 1)
    projected = linear(joined, part.out_proj.weight, part.out_proj.bias)
    tolerance = 1e3 * torch.finfo(again.dtype).eps * max(1.0, float(again.abs().max()))
    return joined if torch.allclose(projected, again, rtol=0, atol=tolerance) else None
