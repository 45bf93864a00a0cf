"""Multi-head attention with separate projections, each of which may be a product of two matrices."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812


class FactoredAttention(nn.Module):
    r"""Multi-head attention like ``nn.MultiheadAttention``, with four separate projections of any rank.

    Each projection (of queries, keys, values and outputs) is a Linear or, where its rank is given, two. It replaces a
    ``nn.MultiheadAttention``, also inside ``nn.TransformerEncoderLayer``, whose fused kernel it turns off: that kernel
    reads the weights of the original projections.

    Parameters
    ----------
    embed_dim, num_heads : int
        As in ``nn.MultiheadAttention``.
    ranks : tuple of int
        Of the projections q, k, v and out; 0 for a single Linear.
    biases : tuple of bool
        Whether the projections q, k, v and out have biases.
    kdim, vdim : int, optional
        Dimensions of keys and values; default: ``embed_dim``.
    batch_first : bool
        Whether inputs are (N, length, features) instead of (length, N, features).
    dropout : float
        Of the attention weights, in training.

    Examples
    --------
    >>> full = nn.MultiheadAttention(8, 2, batch_first=True).eval()
    >>> same, x = FactoredAttention.like(full), torch.randn(3, 5, 8)
    >>> torch.allclose(same(x, x, x)[0], full(x, x, x)[0], atol=1e-6)
    True
    """

    in_proj_bias = None  # with this nn.TransformerEncoderLayer does not take its fused path
    _qkv_same_embed_dim = False

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        ranks: tuple[int, int, int, int] = (0, 0, 0, 0),
        *,
        biases: tuple[bool, bool, bool, bool] = (True, True, True, True),
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.embed_dim, self.num_heads, self.ranks = embed_dim, num_heads, tuple(ranks)
        self.biases, self.batch_first, self.dropout = tuple(biases), batch_first, dropout
        self.kdim, self.vdim = kdim or embed_dim, vdim or embed_dim
        inputs = (embed_dim, self.kdim, self.vdim, embed_dim)
        self.q, self.k, self.v, self.out = (
            projection(size, embed_dim, rank, bias)
            for size, rank, bias in zip(inputs, self.ranks, self.biases, strict=True)
        )

    @classmethod
    def like(cls, full: nn.MultiheadAttention) -> "FactoredAttention":
        """Return the same attention as a ``nn.MultiheadAttention``, with copies of its parameters, at full rank."""
        bias, fused = full.in_proj_bias is not None, full.in_proj_weight
        names = ("embed_dim", "num_heads", "kdim", "vdim", "batch_first", "dropout")
        biases = (bias, bias, bias, full.out_proj.bias is not None)
        with torch.device("meta"):  # nothing is drawn
            factored = cls(**{name: getattr(full, name) for name in names}, biases=biases)
        parts = (full.q_proj_weight, full.k_proj_weight, full.v_proj_weight) if fused is None else fused.chunk(3)
        shifts = full.in_proj_bias.chunk(3) if bias else (None,) * 3
        for layer, weight, shift in zip((factored.q, factored.k, factored.v), parts, shifts, strict=True):
            set_copies(layer, weight, shift)
        set_copies(factored.out, full.out_proj.weight, full.out_proj.bias)
        return factored.train(full.training)

    @staticmethod
    def accepts(full: nn.Module) -> bool:
        """Return whether a module is a ``nn.MultiheadAttention`` without additional keys and values."""
        if type(full) is not nn.MultiheadAttention:
            return False
        return full.bias_k is None and full.bias_v is None and not full.add_zero_attn

    def refreshed(self) -> "FactoredAttention":
        """Set ``ranks`` and ``biases`` to those of the present projections; return the module itself."""
        parts: list[Any] = [self.q, self.k, self.v, self.out]
        self.ranks, self.biases = tuple(map(rank_of, parts)), tuple(map(has_bias, parts))
        return self

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Return the output and, if requested, the attention weights, as ``nn.MultiheadAttention`` does."""
        batched, axis = query.ndim == 3, 0 if self.batch_first else 1
        if not batched:
            query, key, value = (t.unsqueeze(axis) for t in (query, key, value))
            key_padding_mask = None if key_padding_mask is None else key_padding_mask.unsqueeze(0)
        inputs = ((self.q, query), (self.k, key), (self.v, value))
        q, k, v = (self._heads(part(t if self.batch_first else t.transpose(0, 1))) for part, t in inputs)
        mask = self._mask(attn_mask, key_padding_mask, q)
        dropout, weights = self.dropout if self.training else 0.0, None
        if need_weights:
            scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
            weights = F.dropout((scores if mask is None else scores + mask).softmax(-1), dropout, self.training)
            mixed = weights @ v
            weights = weights.mean(1) if average_attn_weights else weights
            weights = weights if batched else weights.squeeze(0)
        else:
            mixed = F.scaled_dot_product_attention(q, k, v, mask, dropout)
        output = self.out(mixed.transpose(1, 2).flatten(2))
        output = output if self.batch_first else output.transpose(0, 1)
        return (output if batched else output.squeeze(axis)), weights

    def _heads(self, value: Tensor) -> Tensor:
        return value.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)

    def _mask(self, attn_mask: Tensor | None, padding: Tensor | None, q: Tensor) -> Tensor | None:
        """Return the sum of both masks, to be added to the scores, (N or 1, heads or 1, length, keys)."""
        if attn_mask is not None and attn_mask.ndim == 3:  # (N heads, length, keys)
            attn_mask = attn_mask.unflatten(0, (-1, self.num_heads))
        masks = [mask for mask in (attn_mask, None if padding is None else padding[:, None, None]) if mask is not None]
        for i, mask in enumerate(masks):
            hidden = mask.dtype == torch.bool
            masks[i] = torch.zeros_like(mask, dtype=q.dtype).masked_fill_(mask, -torch.inf) if hidden else mask.to(q)
        return sum(masks[1:], masks[0]) if masks else None


def projection(size: int, out: int, rank: int, bias: bool) -> nn.Module:
    """Return a Linear, two where a rank is given."""
    if not rank:
        return nn.Linear(size, out, bias)
    return nn.Sequential(nn.Linear(size, rank, bias=False), nn.Linear(rank, out, bias))


def factors(made: nn.Module) -> list[Any]:
    """Return the one or two layers of a projection."""
    return list(made) if isinstance(made, nn.Sequential) else [made]


def rank_of(made: nn.Module) -> int:
    """Return the rank of a projection, as :func:`projection` takes it."""
    first, *rest = factors(made)
    return len(first.weight) if rest else 0


def has_bias(made: nn.Module) -> bool:
    """Return whether a projection has a bias."""
    return factors(made)[-1].bias is not None


def set_copies(layer: Any, weight: Tensor, bias: Tensor | None) -> None:
    """Set the parameters of a layer to copies of these, frozen where these are."""
    layer.weight = nn.Parameter(weight.detach().clone(), weight.requires_grad)
    layer.bias = None if bias is None else nn.Parameter(bias.detach().clone(), bias.requires_grad)
