"""The parts of a network that a watch measures: weight matrices, and the inputs of the layers that hold them."""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor, nn

from bnrank.networks.functional import unwrap
from bnrank.networks.reasons import Skipped

OUTPUT = "output"
"""Name of the row of the network's output."""
ENTERING = ("weight", "weight_ih_l0", "in_proj_weight")
_CONVOLUTIONS: dict[type[nn.Module], int] = {
    **{nn.Conv1d: 1, nn.Conv2d: 2, nn.Conv3d: 3},
    **{nn.ConvTranspose1d: 1, nn.ConvTranspose2d: 2, nn.ConvTranspose3d: 3},
}


@dataclass(frozen=True)
class Part:
    """A weight of a network.

    Attributes
    ----------
    name : str
        The layer's name; with the parameter's name, unless this is "weight".
    parameter : str
        The parameter's name in the network.
    module : nn.Module
        The layer that holds it.
    spatial : int
        Number of dimensions of the images that the layer takes: 0 for linear layers.
    enters : bool
        Whether the weight acts on the layer's own input, as the recurrent weights of an LSTM do not.
    """

    name: str
    parameter: str
    module: nn.Module
    spatial: int = 0
    enters: bool = True

    @property
    def unit_dim(self) -> int:
        """The dimension of units (features or channels) of the layer's input."""
        return -1 - self.spatial


def parts_of(net: nn.Module) -> tuple[list[Part], list[Skipped]]:
    """Return the weights of a network with at least two dimensions, in order of registration, and all other parameters.

    Examples
    --------
    >>> found, skipped = parts_of(nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)))
    >>> [part.name for part in found], [part.name for part in skipped]
    (['0'], ['0.bias', '1.weight', '1.bias'])
    """
    net = unwrap(net)
    modules = dict(net.named_modules())
    found, skipped = [], []
    for name, p in net.named_parameters():
        owner, _, own = name.rpartition(".")
        module = modules[owner]
        if reason := _reason(p):
            skipped.append(Skipped.part(name, module, reason))
            continue
        spatial = next((count for kind, count in _CONVOLUTIONS.items() if isinstance(module, kind)), 0)
        label = (owner or own) if own == "weight" else name
        found.append(Part(label, name, module, spatial, own in ENTERING))
    return found, skipped


def _reason(p: Tensor) -> str:
    """Return why a parameter is not measured as a matrix, or an empty string."""
    shape = tuple(p.shape)
    if not p.is_floating_point() or p.element_size() < 2:
        return f"entries of type {p.dtype}"
    if len(shape) < 2 or 0 in shape:
        return f"no matrix: shape {shape}"
    return f"a single row: shape {shape}" if len(shape) > 2 and shape[0] == 1 else ""


def matrices_of(tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], list[Skipped]]:
    """Return the weights of a state dict with at least two dimensions, named as by :func:`parts_of`, and the others.

    Examples
    --------
    >>> import torch
    >>> found, skipped = matrices_of({"0.weight": torch.eye(2), "0.bias": torch.ones(2)})
    >>> list(found), [str(part) for part in skipped]
    (['0'], ['0.bias (Tensor): no matrix: shape (2,)'])
    """
    found, skipped = {}, []
    for name, tensor in tensors.items():
        if reason := _reason(tensor):
            skipped.append(Skipped(name, type(tensor).__name__, reason))
            continue
        owner, _, own = name.rpartition(".")
        found[owner if own == "weight" and owner else name] = tensor
    return found, skipped
