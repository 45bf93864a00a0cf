"""What depends on the kind of device: waiting."""

from __future__ import annotations

import torch


def synchronize(device: torch.device) -> None:
    """Wait until a device has finished what it was given."""
    if device.type == "mps":
        torch.mps.synchronize()
    elif device.type != "cpu":
        torch.get_device_module(device).synchronize(device)
