"""Segments: parts of a module that run one after another."""

from collections.abc import Iterator
from dataclasses import dataclass

from torch import nn

from bnrank.networks.functional import hooked, is_plain_mlp
from bnrank.networks.stack import activation

_NEUTRAL = (nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout)  # in eval mode


@dataclass(frozen=True)
class Segment:
    """Parts of a module that run one after another, so that they can be replaced together.

    Attributes
    ----------
    name : str
        The submodule's name; "" for the whole module.
    parts : tuple of torch.nn.Module
        In order: layers, activations and anything else. Dropout and identities are left out.
    names : tuple of str
        The name of each part.
    folded : int
        Number of batch normalizations that were folded into the layers before them; 0 as read.
    """

    name: str
    parts: tuple[nn.Module, ...]
    names: tuple[str, ...] = ()
    folded: int = 0


def parts_of(net: nn.Module, name: str = "", *, through_hooks: bool = False) -> Iterator[tuple[str, nn.Module]]:
    """Iterate over the parts of a module that run one after another, with their names.

    Sequential modules, nested ones too, and MLPs are taken apart; dropout and identities are left out. Any other
    module is one part, and so is a module with hooks, which could change its output, unless ``through_hooks``.
    """
    inside = f"{name}." if name else ""
    if _sequential(net, through_hooks):
        for child, part in net._modules.items():  # named_children omits repeated modules
            if part is not None:
                yield from parts_of(part, inside + child, through_hooks=through_hooks)
    elif is_plain_mlp(net):
        for i, layer in enumerate(net.layers):
            if i and net.slope != 1:
                yield f"{inside}activation{i}", activation(net.slope)
            yield f"{inside}layers.{i}", layer
    elif type(net) not in _NEUTRAL or (hooked(net) and not through_hooks):
        yield name, net


def outermost(net: nn.Module, single: set[nn.Module], name: str = "") -> Iterator[tuple[str, nn.Module]]:
    """Iterate over the outermost sequential submodules, MLPs and modules in ``single``, with their names."""
    if _sequential(net) or is_plain_mlp(net) or net in single:
        if any(True for _ in parts_of(net)):
            yield name, net
    elif not isinstance(net, nn.MultiheadAttention):
        for child, sub in net.named_children():
            yield from outermost(sub, single, f"{name}.{child}" if name else child)


def _sequential(net: nn.Module, through_hooks: bool = False) -> bool:
    plain = isinstance(net, nn.Sequential) and type(net).forward is nn.Sequential.forward and "forward" not in vars(net)
    return plain and (through_hooks or not hooked(net))
