"""LSTM and GRU whose matrices may be products of two."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from bnrank.discovery.attention import factors, has_bias, projection, rank_of, set_copies

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
        sizes = [input_size] * ways + [ways * hidden_size] * (count - ways)
        options = list(zip(self.ranks, self.biases, strict=True))
        self.input = nn.ModuleList(projection(sizes[i], gates, *options[2 * i]) for i in range(count))
        self.hidden = nn.ModuleList(projection(hidden_size, gates, *options[2 * i + 1]) for i in range(count))

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
        biases = (full.bias,) * (2 * count)
        with torch.device("meta"):  # nothing is drawn
            factored = cls(type(full).__name__, full.input_size, full.hidden_size, biases=biases, **settings)
        for i in range(count):
            end = f"_l{i // ways}{'_reverse' if i % ways else ''}" if "num_layers" in settings else ""
            for layer, part in ((factored.input[i], "ih"), (factored.hidden[i], "hh")):
                bias = getattr(full, f"bias_{part}{end}") if full.bias else None
                set_copies(layer, getattr(full, f"weight_{part}{end}"), bias)
        return factored.train(full.training)

    def refreshed(self) -> "FactoredRecurrent":
        """Set ``ranks``, ``biases`` and ``input_size`` to those of the layers, run fused; return the module."""
        layers: list[Any] = [layer for pair in zip(self.input, self.hidden, strict=True) for layer in pair]
        self.ranks, self.biases = tuple(map(rank_of, layers)), tuple(map(has_bias, layers))
        self.input_size, self.unrolled = factors(layers[0])[0].in_features, False
        return self

    def multiply_adds(self) -> int:
        """Return the multiply-adds of one step, as they run when fused."""
        dense = len(self.hidden) * KINDS[self.kind] * self.hidden_size**2
        return dense + sum(p.numel() for p in self.input.parameters() if p.ndim == 2)

    def forward(self, input: Tensor, hx: State | None = None) -> Any:
        """Return what the torch module returns."""
        if not isinstance(input, Tensor):
            raise TypeError(f"input: got a {type(input).__name__}, expected a tensor; packed sequences are not taken")
        cell = self.kind.endswith("Cell")
        if input.ndim not in ((1, 2) if cell else (2, 3)):
            expected = "(N, features) or (features,)" if cell else "three dimensions, or two for one sample"
            raise ValueError(f"input: got shape {tuple(input.shape)}, expected {expected}")
        batched = input.ndim == (2 if cell else 3)
        value = input if batched else input[None]
        if cell:
            value = value[:, None]
        swapped = batched and not cell and not self.batch_first
        value = value.transpose(0, 1) if swapped else value  # (N, length, features)
        shape = (*(() if cell else (len(self.hidden),)), *((len(value),) if batched else ()), self.hidden_size)
        starts, ends, ways = self._states(value, hx, shape), [], 2 if self.bidirectional else 1
        for layer in range(self.num_layers):
            outputs = []
            for way in range(ways):
                i = layer * ways + way
                run = self._unrolled if self.unrolled else self._fused
                output, end = run(i, value.flip(1) if way else value, starts[i])
                outputs.append(output.flip(1) if way else output)
                ends.append(end)
            value = torch.cat(outputs, -1)
            if layer < self.num_layers - 1:
                value = F.dropout(value, self.dropout, self.training)
        last = tuple(torch.stack(states).reshape(shape) for states in zip(*ends, strict=True))
        state = last if self.kind.startswith("LSTM") else last[0]
        value = value.transpose(0, 1) if swapped else value
        return state if cell else (value if batched else value[0], state)

    def _states(self, value: Tensor, hx: State | None, shape: tuple[int, ...]) -> list[tuple[Tensor, ...]]:
        """Return the initial states of each layer and direction, each (N, hidden)."""
        count, parts = len(self.hidden), 2 if self.kind.startswith("LSTM") else 1
        if hx is None:
            return [(value.new_zeros(len(value), self.hidden_size),) * parts] * count
        given = (hx,) if isinstance(hx, Tensor) else tuple(hx)
        if len(given) != parts or any(tuple(state.shape) != shape for state in given):
            got = ", ".join(str(tuple(state.shape)) for state in given)
            raise ValueError(f"hx: got {got}, expected {parts} of shape {shape}")
        return list(zip(*(state.reshape(count, -1, self.hidden_size) for state in given), strict=True))

    def _unrolled(self, i: int, value: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return the hidden states of one layer in one direction, (N, length, hidden), and the last state."""
        from_input, outputs = self.input[i](value), []
        for step in range(value.shape[1]):
            gates, back = from_input[:, step], self.hidden[i](state[0])
            if self.kind.startswith("LSTM"):
                keep, forget, new, out = (gates + back).chunk(4, 1)
                c = forget.sigmoid() * state[1] + keep.sigmoid() * new.tanh()
                state = out.sigmoid() * c.tanh(), c
            else:
                (reset, update, new), (reset_, update_, new_) = gates.chunk(3, 1), back.chunk(3, 1)
                new = (new + (reset + reset_).sigmoid() * new_).tanh()
                share = (update + update_).sigmoid()
                state = ((1 - share) * new + share * state[0],)
            outputs.append(state[0])
        return torch.stack(outputs, 1), state

    def _fused(self, i: int, value: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return the same as :meth:`_unrolled`, by torch's kernel."""
        *reading, first = factors(self.input[i])
        *known, hidden = factors(self.hidden[i])
        features = (reading or [first])[0].in_features
        if value.shape[-1] != features:  # torch's kernels read beyond it
            raise ValueError(f"input: got {value.shape[-1]} features, expected {features}")
        for part in reading:
            value = F.linear(value, part.weight, part.bias)
        weight = hidden.weight
        for part in known:
            weight = weight @ part.weight
        biases = [weight.new_zeros(len(weight)) if bias is None else bias for bias in (first.bias, hidden.bias)]
        start = [states[None].contiguous() for states in state]
        settings = ([first.weight, weight, *biases], True, 1, 0.0, self.training, False, True)
        if self.kind.startswith("LSTM"):
            output, h, c = torch.lstm(value, start, *settings)
            return output, (h[0], c[0])
        output, h = torch.gru(value, start[0], *settings)
        return output, (h[0],)
