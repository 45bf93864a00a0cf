"""Attention with separate projections, against ``nn.MultiheadAttention``."""

import itertools

import pytest
import torch
from torch import nn

from bnrank.discovery.attention import FactoredAttention
from helpers import normal

KINDS = list(itertools.product([True, False], [True, False], [None, (5, 7)]))


def pair(batch_first=True, bias=True, sizes=None, seed=0):
    kdim, vdim = sizes or (None, None)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        full = nn.MultiheadAttention(8, 2, bias=bias, batch_first=batch_first, kdim=kdim, vdim=vdim).double().eval()
        if bias:
            nn.init.normal_(full.in_proj_bias)
            nn.init.normal_(full.out_proj.bias)
    return full, FactoredAttention.like(full)


@pytest.mark.parametrize(("batch_first", "bias", "sizes"), KINDS)
@pytest.mark.parametrize("need_weights", [True, False])
def test_at_full_rank_it_is_the_same_attention(batch_first, bias, sizes, need_weights):
    full, same = pair(batch_first, bias, sizes)
    widths = (8, *(sizes or (8, 8)))
    query, key, value = (normal(3, n, d, seed=i) for i, (n, d) in enumerate(zip((4, 6, 6), widths, strict=True)))
    if not batch_first:
        query, key, value = (t.transpose(0, 1) for t in (query, key, value))
    padding = torch.zeros(3, 6, dtype=torch.bool)
    padding[1, 4:] = True
    causal = torch.ones(4, 6, dtype=torch.bool).triu(2)
    per_head = normal(6, 4, 6, seed=9)  # (N heads, length, keys)
    for mask, hidden in ((None, None), (causal, None), (None, padding), (causal, padding), (per_head, padding)):
        if mask is per_head:
            hidden = torch.zeros(3, 6, dtype=torch.float64).masked_fill(padding, -torch.inf)
        arguments = {"attn_mask": mask, "key_padding_mask": hidden, "need_weights": need_weights}
        expected, got = full(query, key, value, **arguments), same(query, key, value, **arguments)
        assert torch.allclose(got[0], expected[0], atol=1e-12)
        assert (got[1] is None) == (expected[1] is None) == (not need_weights)
        if need_weights:
            assert torch.allclose(got[1], expected[1], atol=1e-12)
    assert sum(p.numel() for p in same.parameters()) == sum(p.numel() for p in full.parameters())


def test_without_a_batch_and_with_weights_of_every_head():
    full, same = pair()
    x = normal(5, 8)
    for average in (True, False):
        expected = full(x, x, x, average_attn_weights=average)
        got = same(x, x, x, average_attn_weights=average)
        assert all(torch.allclose(a, b, atol=1e-12) for a, b in zip(got, expected, strict=True))


def test_in_an_encoder_the_fused_kernel_is_left_alone():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 12, batch_first=True, dropout=0.0).double().eval()
    x = normal(3, 5, 8)
    with torch.no_grad():
        expected = layer(x)  # fused
        layer.self_attn = FactoredAttention.like(layer.self_attn)
        layer.linear1 = nn.Sequential(layer.linear1)  # has no weight that a fused kernel could read
        assert torch.allclose(layer(x), expected, atol=1e-12)


def test_additional_keys_are_not_taken():
    assert FactoredAttention.accepts(nn.MultiheadAttention(8, 2))
    assert not FactoredAttention.accepts(nn.MultiheadAttention(8, 2, add_bias_kv=True))
    assert not FactoredAttention.accepts(nn.MultiheadAttention(8, 2, add_zero_attn=True))
    assert not FactoredAttention.accepts(nn.Linear(8, 2))


def test_ranks_and_biases_are_read_off_the_projections():
    _, same = pair(bias=False)
    same.k = nn.Sequential(nn.Linear(8, 3, bias=False), nn.Linear(3, 8)).double()
    assert same.refreshed().ranks == (0, 3, 0, 0)
    assert same.biases == (False, True, False, False)
    again = FactoredAttention(8, 2, same.ranks, biases=same.biases).double()
    assert {k: v.shape for k, v in again.state_dict().items()} == {k: v.shape for k, v in same.state_dict().items()}
