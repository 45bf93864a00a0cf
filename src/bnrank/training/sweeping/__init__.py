"""Sweeps: members in a folder, leases, workers, and the driver."""
