"""LSTM and GRU whose matrices may be products of two."""

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from bnrank.networks.attention import projection, rank_of

KINDS = {"LSTM": 4, "LSTMCell": 4, "GRU": 3, "GRUCell": 3}  # gates
State = Tensor | tuple[Tensor, Tensor]


class FactoredRecurrent(nn.Module):
    r"""A recurrent module like ``nn.LSTM``, ``nn.GRU`` or their cells, with matrices of any rank.

    The matrices that read the input and the hidden state are Linear layers or, where their rank is given, two each. It
    takes and returns what the torch module does, except packed sequences. By default torch's fused kernels run, on
    W_hh = U V multiplied out: a low rank of W_hh saves parameters, one of W_ih also multiply-adds. With ``unrolled``
    set, the layers are called one by one, step by step, so that they can be observed and replaced.

    Parameters
    ----------
    kind : str
        "LSTM", "GRU", "LSTMCell" or "GRUCell".
    input_size, hidden_size : int
        As in torch.
    ranks : tuple of int, optional
        Of W_ih and W_hh, for each layer and direction in torch's order; 0 for a single Linear. Default: all 0.
    biases : tuple of bool, optional
        Whether these have biases. Default: all.
    num_layers, bidirectional, batch_first, dropout
        As in torch; for LSTM and GRU.

    Examples
    --------
    >>> full = nn.LSTM(5, 4, 2, bidirectional=True, batch_first=True)
    >>> same, x = FactoredRecurrent.like(full), torch.randn(3, 6, 5)
    >>> torch.allclose(same(x)[0], full(x)[0], atol=1e-6)
    True
    """

    def __init__(
        self,
        kind: str,
        input_size: int,
        hidden_size: int,
        ranks: Sequence[int] | None = None,
        biases: Sequence[bool] | None = None,
        *,
        num_layers: int = 1,
        bidirectional: bool = False,
        batch_first: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.kind, self.input_size, self.hidden_size = kind, input_size, hidden_size
        self.num_layers, self.bidirectional, self.batch_first = num_layers, bidirectional, batch_first
        self.dropout, self.unrolled = dropout, False
        ways = 2 if bidirectional else 1
        count = num_layers * ways
        self.ranks = tuple(ranks or (0,) * (2 * count))
        self.biases = tuple(biases or (True,) * (2 * count))
        gates = KINDS[kind] * hidden_size
        sizes = [input_size if i < ways else ways * hidden_size for i in range(count)]
        self.input, self.hidden = (
            nn.ModuleList(projection(size, gates, self.ranks[2 * i + j], self.biases[2 * i + j]) for i, size in own)
            for j, own in enumerate((enumerate(sizes), enumerate([hidden_size] * count)))
        )

    @staticmethod
    def accepts(full: nn.Module) -> bool:
        """Return whether a module is a ``nn.LSTM`` or ``nn.GRU`` without ``proj_size``, or one of their cells."""
        return type(full) in (nn.LSTM, nn.GRU, nn.LSTMCell, nn.GRUCell) and not getattr(full, "proj_size", 0)

    @classmethod
    def like(cls, full: Any) -> "FactoredRecurrent":
        """Return the same module as one of torch, with copies of its parameters, at full rank."""
        names = ("num_layers", "bidirectional", "batch_first", "dropout")
        settings = {name: getattr(full, name) for name in names if hasattr(full, name)}
        ways = 2 if settings.get("bidirectional") else 1
        count = settings.get("num_layers", 1) * ways
        with torch.device("meta"):  # draws nothing
            found = cls(
                type(full).__name__, full.input_size, full.hidden_size, biases=(full.bias,) * (2 * count), **settings
            )
        for i in range(count):
            end = f"_l{i // ways}{'_reverse' if i % ways else ''}" if hasattr(full, "num_layers") else ""
            for layers, own in ((found.input, "ih"), (found.hidden, "hh")):
                layer = cast(Any, layers[i])
                for kind in ("weight", "bias") if full.bias else ("weight",):
                    given = getattr(full, f"{kind}_{own}{end}")
                    setattr(layer, kind, nn.Parameter(given.detach().clone(), given.requires_grad))
        return found.train(full.training)

    def refreshed(self) -> "FactoredRecurrent":
        """Set ``ranks``, ``biases`` and ``input_size`` to those of the layers, run fused; return the module."""
        layers: list[Any] = [layer for pair in zip(self.input, self.hidden, strict=True) for layer in pair]
        self.ranks = tuple(map(rank_of, layers))
        lasts = [layer[-1] if isinstance(layer, nn.Sequential) else layer for layer in layers]
        self.biases = tuple(last.bias is not None for last in lasts)
        reading: Any = layers[0][0] if isinstance(layers[0], nn.Sequential) else layers[0]
        self.input_size, self.unrolled = reading.in_features, False
        return self

    def multiply_adds(self) -> int:
        """Return the multiply-adds of one step, as they run when fused."""
        dense = len(self.hidden) * KINDS[self.kind] * self.hidden_size**2
        return dense + sum(p.numel() for p in self.input.parameters() if p.ndim == 2)

    def forward(self, input: Tensor, hx: State | None = None) -> Any:
        """Return what the torch module returns."""
        if not isinstance(input, Tensor):
            raise TypeError(f"input: got a {type(input).__name__}, expected a tensor; packed sequences are not taken")
        lstm, cell = self.kind.startswith("LSTM"), self.kind.endswith("Cell")
        if input.ndim not in ((1, 2) if cell else (2, 3)):
            expected = "(N, features) or (features,)" if cell else "three dimensions, or two for one sample"
            raise ValueError(f"input: got shape {tuple(input.shape)}, expected {expected}")
        if cell:
            given = input if input.ndim == 2 else input[None]
            states = self._states(given[:, None], hx, input.ndim == 2)
            _, end = self._run(0, given[:, None], states[0])
            end = tuple(state if input.ndim == 2 else state[0] for state in end)
            return end if lstm else end[0]
        batched = input.ndim == 3
        value = input if batched else input[None]
        value = value.transpose(0, 1) if batched and not self.batch_first else value
        ways = 2 if self.bidirectional else 1
        starts, ends = self._states(value, hx, batched), []
        for layer in range(self.num_layers):
            outputs = []
            for way in range(ways):
                i = layer * ways + way
                out, end = self._run(i, value.flip(1) if way else value, starts[i])
                outputs.append(out.flip(1) if way else out)
                ends.append(end)
            value = torch.cat(outputs, -1)
            if layer < self.num_layers - 1:
                value = F.dropout(value, self.dropout, self.training)
        last = tuple(torch.stack(some) if batched else torch.cat(some) for some in zip(*ends, strict=True))
        value = value.transpose(0, 1) if batched and not self.batch_first else value
        return (value if batched else value[0]), (last if lstm else last[0])

    def _states(self, value: Tensor, hx: State | None, batched: bool) -> list[tuple[Tensor, ...]]:
        """Return the initial states of each layer and direction, each (N, hidden)."""
        count, parts = len(self.hidden), 2 if self.kind.startswith("LSTM") else 1
        if hx is None:
            return [(value.new_zeros(len(value), self.hidden_size),) * parts] * count
        given = (hx,) if isinstance(hx, Tensor) else tuple(hx)
        shape: tuple[int, ...] = () if self.kind.endswith("Cell") else (count,)
        shape = (*shape, len(value), self.hidden_size) if batched else (*shape, self.hidden_size)
        if len(given) != parts or any(tuple(state.shape) != shape for state in given):
            got = ", ".join(str(tuple(state.shape)) for state in given)
            raise ValueError(f"hx: got {got}, expected {parts} of shape {shape}")
        rows = [state.reshape(count, -1, self.hidden_size) for state in given]
        return [tuple(state[i] for state in rows) for i in range(count)]

    def _run(self, i: int, value: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return the hidden states of one layer in one direction, (N, length, hidden), and the last state."""
        return self._unrolled(i, value, state) if self.unrolled else self._fused(i, value, state)

    def _unrolled(self, i: int, value: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, tuple[Tensor, ...]]:
        given, found = self.input[i](value), []
        for step in range(value.shape[1]):
            gates, back = given[:, step], self.hidden[i](state[0])
            if self.kind.startswith("LSTM"):
                keep, forget, new, out = (gates + back).chunk(4, 1)
                c = forget.sigmoid() * state[1] + keep.sigmoid() * new.tanh()
                state = out.sigmoid() * c.tanh(), c
            else:
                (reset, update, new), (reset_, update_, new_) = gates.chunk(3, 1), back.chunk(3, 1)
                new = (new + (reset + reset_).sigmoid() * new_).tanh()
                share = (update + update_).sigmoid()
                state = ((1 - share) * new + share * state[0],)
            found.append(state[0])
        return torch.stack(found, 1), state

    def _fused(self, i: int, value: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, tuple[Tensor, ...]]:
        first, hidden = (cast(Any, layers[i]) for layers in (self.input, self.hidden))
        reading: Any = first[0] if isinstance(first, nn.Sequential) else first
        if value.shape[-1] != reading.in_features:  # torch's kernels read beyond it
            raise ValueError(f"input: got {value.shape[-1]} features, expected {reading.in_features}")
        if isinstance(first, nn.Sequential):
            value = F.linear(value, reading.weight, reading.bias)
            first = first[1]
        if isinstance(hidden, nn.Sequential):
            narrow, hidden = cast(Any, hidden)
            weight = hidden.weight @ narrow.weight
        else:
            weight = hidden.weight
        biases = [weight.new_zeros(len(weight)) if bias is None else bias for bias in (first.bias, hidden.bias)]
        weights = [first.weight, weight, *biases]
        start = [one[None].contiguous() for one in state]
        settings = (weights, True, 1, 0.0, self.training, False, True)
        if self.kind.startswith("LSTM"):
            out, h, c = torch.lstm(value, start, *settings)
            return out, (h[0], c[0])
        out, h = torch.gru(value, start[0], *settings)
        return out, (h[0],)
