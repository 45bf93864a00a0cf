"""What depends on the kind of device: random generators and waiting."""

from __future__ import annotations

from contextlib import AbstractContextManager

import torch


def forked(device: torch.device) -> AbstractContextManager[None]:
    """Return a context that restores PyTorch's random generators, of the CPU and of a device."""
    if device.type in ("cpu", "mps"):  # the one of MPS has no state per device, which fork_rng reads
        return torch.random.fork_rng([])
    return torch.random.fork_rng([device], device_type=device.type)


def synchronize(device: torch.device) -> None:
    """Wait until a device has finished what it was given."""
    if device.type == "mps":
        torch.mps.synchronize()
    elif device.type != "cpu":
        torch.get_device_module(device).synchronize(device)
