"""Modules of many kinds, each with an x that it runs on."""

import dataclasses

import torch
from torch import nn
from torch.nn import functional


def numbers(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def tokens(*shape, seed=0):
    return torch.randint(11, shape, generator=torch.Generator().manual_seed(seed))


class Taggers(nn.Module):
    """Recurrent layers of every kind between an embedding and a head; time first inside."""

    def __init__(self, kind=nn.LSTM, **options):
        super().__init__()
        self.embed, self.rnn = nn.Embedding(11, 4), kind(4, 3, **options)
        self.head = nn.Linear(2 * 3 if options.get("bidirectional") else 3, 2)

    def forward(self, x):
        h = self.embed(x)
        h = self.rnn(h)[0] if self.rnn.batch_first else self.rnn(h.transpose(0, 1))[0].transpose(0, 1)
        return self.head(h[:, -1])


class Cells(nn.Module):
    """A cell that runs once, and one that runs at every time step."""

    def __init__(self):
        super().__init__()
        self.once, self.often = nn.LSTMCell(4, 3), nn.GRUCell(3, 3)

    def forward(self, x):
        h, _ = self.once(x)
        for _ in range(3):
            h = self.often(h, h)
        return h


class Attention(nn.Module):
    """Queries, keys and values in one layer, and the fused function of torch."""

    def __init__(self):
        super().__init__()
        self.qkv, self.proj = nn.Linear(6, 18), nn.Linear(6, 6)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, 3)).permute(2, 0, 3, 1, 4)
        return self.proj(functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class Vision(nn.Module):
    """Patches, a class token, positions and a transformer, as in a ViT."""

    def __init__(self):
        super().__init__()
        self.patches = nn.Conv2d(1, 8, 3, stride=3)
        self.token, self.positions = nn.Parameter(numbers(1, 1, 8)), nn.Parameter(numbers(1, 5, 8))
        self.body = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 12, batch_first=True), 2)
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        h = self.patches(x).flatten(2).mT
        h = torch.cat([self.token.expand(len(h), -1, -1), h], 1) + self.positions
        return self.head(self.body(h)[:, 0])


class Tied(nn.Module):
    """A language model whose head is its embedding; returns an object with logits."""

    @dataclasses.dataclass
    class Output:
        logits: torch.Tensor
        loss: object = None

    def __init__(self):
        super().__init__()
        self.embed, self.positions = nn.Embedding(11, 6), nn.Embedding(5, 6)
        self.middle, self.head = nn.Linear(6, 6), nn.Linear(6, 11, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, input_ids, attention_mask=None):
        h = self.embed(input_ids) + self.positions(torch.arange(input_ids.shape[1]))
        if attention_mask is not None:
            h = h * attention_mask[..., None]
        return self.Output(self.head(torch.relu(self.middle(h))))


class Transposed(nn.Module):
    """A weight stored (in, out), as in GPT-2, three projections in one."""

    def __init__(self, n_in, n_out):
        super().__init__()
        self.weight, self.bias = nn.Parameter(numbers(n_in, n_out)), nn.Parameter(numbers(n_out))

    def forward(self, x):
        return torch.addmm(self.bias, x.reshape(-1, x.shape[-1]), self.weight).view(*x.shape[:-1], -1)


class Odd(nn.Module):
    """Parameters on the module itself, of every shape."""

    def __init__(self):
        super().__init__()
        self.matrix, self.cube = nn.Parameter(numbers(4, 5)), nn.Parameter(numbers(2, 3, 5))
        self.scale, self.row = nn.Parameter(numbers(4)), nn.Parameter(numbers(1, 4))
        self.c_attn, self.bilinear, self.prelu = Transposed(4, 12), nn.Bilinear(4, 4, 3), nn.PReLU()

    def forward(self, x):
        h = (x * self.scale + self.row) @ self.matrix @ self.cube[0].T
        return self.prelu(self.bilinear(self.c_attn(x)[:, :4], x) + h)


class TwoInputs(nn.Module):
    """Two arguments, and a mapping as output."""

    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Linear(3, 4), nn.Linear(2, 4)

    def forward(self, a, b, scale=1.0):
        return {"hidden": None, "last_hidden_state": self.left(a) * scale + self.right(b)}


def effective():
    """Return layers with parametrizations, and with the older weight_norm and spectral_norm."""
    wrap = nn.utils.parametrizations
    return nn.Sequential(
        wrap.weight_norm(nn.Conv1d(2, 3, 3, padding=1)),
        nn.Flatten(),
        wrap.spectral_norm(nn.Linear(12, 5)),
        wrap.orthogonal(nn.Linear(5, 5)),
        nn.utils.weight_norm(nn.Linear(5, 4)),
        nn.utils.spectral_norm(nn.Linear(4, 3)),
    )


def decoder():
    """Return transposed convolutions, normalizations and a depthwise convolution."""
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1, groups=2),
        nn.BatchNorm2d(4),
        nn.ConvTranspose2d(4, 3, 2, stride=2),
        nn.GroupNorm(1, 3),
        nn.ConvTranspose2d(3, 2, 3, padding=1, output_padding=1, stride=2),
    )


ZOO = {
    "lstm": lambda: (Taggers(num_layers=2, bidirectional=True), tokens(6, 5)),
    "lstm with projections": lambda: (nn.LSTM(4, 5, proj_size=2, batch_first=True), numbers(6, 5, 4)),
    "gru": lambda: (Taggers(nn.GRU, batch_first=True, bias=False), tokens(6, 5)),
    "rnn": lambda: (Taggers(nn.RNN, nonlinearity="relu"), tokens(6, 5)),
    "cells": lambda: (Cells(), numbers(6, 4)),
    "attention": lambda: (Attention(), numbers(6, 5, 6)),
    "vision": lambda: (Vision(), numbers(6, 1, 6, 6)),
    "other widths": lambda: (
        nn.MultiheadAttention(4, 2, kdim=3, vdim=2, add_bias_kv=True, add_zero_attn=True, batch_first=True),
        (numbers(6, 5, 4), numbers(6, 3, 3), numbers(6, 3, 2)),
    ),
    "transformer": lambda: (nn.Transformer(4, 2, 1, 1, 6), (numbers(5, 6, 4), numbers(3, 6, 4))),
    "tied": lambda: (Tied(), {"input_ids": tokens(6, 5), "attention_mask": torch.ones(6, 5)}),
    "odd": lambda: (Odd(), numbers(6, 4)),
    "two inputs": lambda: (TwoInputs(), {"a": numbers(6, 3), "b": numbers(6, 2), "scale": 2.0}),
    "effective": lambda: (effective(), numbers(6, 2, 4)),
    "decoder": lambda: (decoder(), numbers(6, 2, 4, 4)),
    "bag": lambda: (nn.Sequential(nn.EmbeddingBag(11, 4), nn.Linear(4, 2)), tokens(6, 5)),
    "one twice": lambda: ((lambda layer: nn.Sequential(layer, nn.ReLU(), layer))(nn.Linear(4, 4)), numbers(6, 4)),
}


def made(name):
    torch.manual_seed(0)
    return ZOO[name]()
