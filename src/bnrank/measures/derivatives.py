"""Derivatives of a network at samples, by x and by its parameters."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property

import torch
from torch import Tensor, nn
from torch.utils import checkpoint

from bnrank._core import validation
from bnrank.measures import kinks
from bnrank.measures.backward import Layers
from bnrank.networks.functional import Functional, check_real, check_unshared, is_plain_mlp

CHUNK_ENTRIES = 2**24  # float64 entries of the Jacobians of a block: 128 MiB
OVERFLOW = "its derivatives with respect to the parameters are NaN or overflow"
NO_BATCHING = (RuntimeError, ValueError)  # raised for an operation without a batching rule


def derivatives(net: nn.Module, x: Tensor, dtype: torch.dtype, chunk_size: int | None = None) -> Derivatives | OfMLP:
    """Return the derivatives of a network, with copies of its parameters; in closed form for an unchanged MLP.

    Examples
    --------
    >>> import bnrank
    >>> x = torch.ones(5, 3)
    >>> for net in (bnrank.MLP([3, 4, 2], seed=0), nn.Sequential(bnrank.MLP([3, 4, 2], seed=0))):
    ...     found = derivatives(net, x, torch.float64)
    ...     type(found).__name__, found.spectra(x).shape, found.traces(x).shape
    ('OfMLP', torch.Size([5, 2]), torch.Size([5]))
    ('Derivatives', torch.Size([5, 2]), torch.Size([5]))
    """
    if is_plain_mlp(net):
        return OfMLP(Layers.of(net, dtype, copy=True), chunk_size)
    return Derivatives(Functional(net, dtype, whole=x), chunk_size)


class Derivatives:
    """The derivatives of a module at samples, by backward passes through its replica.

    Parameters
    ----------
    function : Functional
        The module.
    chunk_size : int, optional
        Samples per block; by default as many as have 2^24 entries.
    """

    def __init__(self, function: Functional, chunk_size: int | None = None) -> None:
        self.function, self.chunk_size = function, chunk_size

    @cached_property
    def parameters(self) -> dict[str, Tensor]:
        """The parameters that are real numbers, by the first name; they require gradients, trained or not."""
        check_unshared(self.function.net)
        check_real(self.function.module)
        named = {name: p for name, p in self.function.parameters.items() if p.is_floating_point()}
        if not named:
            raise ValueError(f"net: {type(self.function.module).__name__} has no parameters, expected at least one")
        return {name: p.detach().requires_grad_(True) for name, p in named.items()}

    def outputs(self, x: Tensor) -> int:
        """Return d_out; raise if the output for a sample depends on the other samples, as with batch statistics."""
        with torch.no_grad():
            together, alone = self.function(x[:2])[:1], self.function(x[:1])
        validation.expect(together.numel(), "net", "a network without outputs", "at least one output")
        tolerance = 1e-6 if self.function.dtype == torch.float64 else 1e-3
        scale = float(together.abs().max()) + float(alone.abs().max())
        if together.shape != alone.shape or float((together - alone).abs().max()) > tolerance * scale:
            raise self._not_of_one_sample(x)
        return together.numel()

    def _not_of_one_sample(self, x: Tensor) -> ValueError:
        kind = f"the output of {type(self.function.module).__name__}"
        if self.function.is_random(x[:1]):
            return ValueError(f"net: {kind} is random, in eval mode, too, expected a function of the sample")
        expected = "a function of one sample (batch normalization without running statistics?)"
        return ValueError(f"net: {kind} for one sample depends on the others in its batch, expected {expected}")

    def jacobians(self, x: Tensor) -> Iterator[Tensor]:
        """Iterate over df/dx, (n, d_out, d_in), for blocks of samples, by one backward pass per output."""
        for part in self._parts(x):
            leaf = part.to(self.function.device, self.function.dtype, copy=True).requires_grad_(True)
            rows = [row.flatten(1) for (row,) in self._gradients(self.differentiable(leaf), [leaf])]
            yield torch.stack(rows, 1)

    def spectra(self, x: Tensor) -> Tensor:
        """Return the singular values of df/dx, (N, min(d_in, d_out)), float64, descending."""
        return torch.cat([spectrum(block) for block in self.jacobians(x)])

    def traces(self, x: Tensor) -> Tensor:
        """Return Tr Theta(x_i, x_i) = ||df/dtheta||^2, (N,), float64."""
        squares = [torch.stack([torch.einsum("kp,kp->k", row, row) for row in rows]).sum(0) for rows in self.rows(x)]
        return finite(torch.cat(squares).view(len(x), -1).sum(1))

    def near_kinks(self, x: Tensor, rtol: float) -> Tensor:
        """Return a mask of samples near a kink, (N,)."""
        return torch.cat([kinks.of_module(self.function, part, rtol) for part in self._parts(x)])

    def _parts(self, x: Tensor) -> tuple[Tensor, ...]:
        """Return blocks of samples, which are independent, for their Jacobians in x."""
        entries = self.outputs(x) * x[0].numel()
        return x.split(self.chunk_size or max(1, CHUNK_ENTRIES // entries))

    def rows(self, x: Tensor, d_out: int | None = None) -> Iterator[tuple[Tensor, ...]]:
        """Iterate over df/dtheta, (k, numel) per parameter, for blocks of the N d_out pairs of sample and output.

        Rows of a block are computed together if they fit in memory and every operation has a batching rule, else one
        by one. ``d_out`` is given where the samples were tried already.
        """
        entries = (d_out or self.tried(x)) * sum(p.numel() for p in self.parameters.values())
        size = self.chunk_size or CHUNK_ENTRIES // entries
        for part in x.split(max(1, size)):
            yield from self._together(part) if size else self._one_by_one(part)

    def _together(self, x: Tensor) -> Iterator[tuple[Tensor, ...]]:
        """Iterate over the rows of a block of samples by automatic batching."""

        def output(parameters: dict[str, Tensor], sample: Tensor) -> Tensor:
            return self.function.with_parameters({**self.function.parameters, **parameters}, sample[None]).flatten()

        named = {name: p.detach() for name, p in self.parameters.items()}
        try:
            rows = torch.func.vmap(torch.func.jacrev(output), in_dims=(None, 0))(named, x)
        except NO_BATCHING:
            return self._one_by_one(x)
        return iter([tuple(rows[name].flatten(2).flatten(0, 1) for name in named)])

    def _one_by_one(self, x: Tensor) -> Iterator[tuple[Tensor, ...]]:
        """Iterate over the rows of a block of samples by one backward pass each."""
        for sample in x.split(1):
            out = self.differentiable(sample, self.parameters)
            for row in self._gradients(out, list(self.parameters.values())):
                yield tuple(gradient.reshape(1, -1) for gradient in row)

    def tried(self, x: Tensor) -> int:
        """Return d_out, after a backward pass at one sample: where that fails, torch.func would give zeros."""
        first = x[:1].clone().requires_grad_(x.is_floating_point())  # for the parts that are checkpointed
        try:
            out = self.differentiable(first, self.parameters)
        except ValueError:  # where it calls x.numpy(), for example
            out = self.differentiable(first.requires_grad_(False), self.parameters)
        leaves = [leaf for leaf in (first, *self.parameters.values()) if leaf.requires_grad]
        with differentiating(self.function.module):
            torch.autograd.grad(out, leaves, torch.ones_like(out), allow_unused=True)
        validation.expect(out.numel(), "net", "a network without outputs", "at least one output")
        return out.numel()

    def differentiable(self, x: Tensor, parameters: dict[str, Tensor] | None = None) -> Tensor:
        """Return the outputs, (n, d_out), with their graph, as functions of x, or of parameters that are given."""
        with torch.enable_grad():
            out = self.function.with_parameters({**self.function.parameters, **(parameters or {})}, x).flatten(1)
        if not out.requires_grad:
            what = "does not depend on its parameters" if parameters else "cannot be differentiated in x"
            raise ValueError(f"net: the output of {type(self.function.module).__name__} {what}")
        return out

    def _gradients(self, out: Tensor, leaves: list[Tensor]) -> Iterator[tuple[Tensor, ...]]:
        """Iterate over the gradients of each output, summed over samples, by one backward pass each."""
        for k in range(out.shape[1]):
            selected = torch.zeros_like(out)
            selected[:, k] = 1
            with differentiating(self.function.module):
                row = torch.autograd.grad(out, leaves, selected, retain_graph=True, materialize_grads=True)
            yield row


class OfMLP:
    """The derivatives of an MLP in closed form, as those of :class:`Derivatives`."""

    def __init__(self, layers: Layers, chunk_size: int | None = None) -> None:
        self.layers, self.chunk_size = layers, chunk_size

    def jacobians(self, x: Tensor, compact: bool = False) -> Iterator[Tensor]:
        """Iterate over df/dx, (n, d_out, d_in), for blocks of samples; ``compact`` ones are smaller, see `Layers`."""
        layers = self.layers.compact if compact else self.layers
        for part in self._parts(x, min(self._ends)):
            yield layers.jacobian(self.layers.forward(part))

    def spectra(self, x: Tensor) -> Tensor:
        """Return the singular values of df/dx, (N, min(d_in, d_out)), float64, descending."""
        return self._padded([spectrum(block) for block in self.jacobians(x, compact=True)])

    def traces(self, x: Tensor) -> Tensor:
        """Return Tr Theta(x_i, x_i), (N,), float64."""
        forwards = (self.layers.forward(part) for part in self._parts(x, self._ends[1]))
        return finite(torch.cat([self.layers.traced(at, matrix=False)[0] for at in forwards]))

    def traces_and_spectra(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return both by one backward pass."""
        traces, values = [], []
        for part in self._parts(x, self._ends[1]):
            trace, matrix = self.layers.traced(self.layers.forward(part))
            traces.append(trace)
            values.append(spectrum(matrix))
        return finite(torch.cat(traces)), self._padded(values)

    def near_kinks(self, x: Tensor, rtol: float) -> Tensor:
        """Return a mask of samples near a kink, (N,)."""
        parts = self._parts(x, min(self._ends))
        return torch.cat([kinks.of_layers(self.layers, self.layers.forward(part), rtol) for part in parts])

    @property
    def _ends(self) -> tuple[int, int]:
        """d_in and d_out."""
        return self.layers.widths[0], self.layers.widths[-1]

    def _parts(self, x: Tensor, rows: int) -> tuple[Tensor, ...]:
        """Return blocks of samples, for products of so many rows."""
        return x.split(self.chunk_size or self.layers.block(rows))

    def _padded(self, values: list[Tensor]) -> Tensor:
        """Return singular values with those that compact Jacobians leave out, which are 0."""
        found = torch.cat(values)
        return nn.functional.pad(found, (0, min(self._ends) - found.shape[1]))


def spectrum(jacobians: Tensor) -> Tensor:
    """Return the singular values of a block of Jacobians in x, in float64."""
    return torch.linalg.svdvals(finite(jacobians, "its Jacobian has NaN or infinite entries"))


def finite(values: Tensor, otherwise: str = OVERFLOW) -> Tensor:
    """Return derivatives in float64; raise RangeError if one is NaN or infinite."""
    if not bool(torch.isfinite(values).all()):
        raise validation.RangeError(f"net: {otherwise}, expected finite ones")
    return values.double()


@contextmanager
def differentiating(net: nn.Module) -> Iterator[None]:
    """Raise ValueError, with the reason, where a backward pass through a module fails."""
    try:
        yield
    except (ValueError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        raise ValueError(f"net: {type(net).__name__} cannot be differentiated: {reason(error)}") from error


def reason(error: Exception) -> str:
    """Return why a backward pass failed."""
    frames = traceback.extract_tb(error.__traceback__)
    if any(frame.filename == checkpoint.__file__ for frame in frames):
        if frames[-1].filename == checkpoint.__file__ and frames[-1].name == "backward":  # raised by itself
            advice = "turn it off, or pass use_reentrant=False if no parameters are inside"
            return f"torch.utils.checkpoint with use_reentrant=True gives no gradients of single tensors; {advice}"
        return "torch.utils.checkpoint runs parts of its forward again, with other parameters; turn it off"
    return str(error).partition(" Hint:")[0].removesuffix(".") or type(error).__name__
