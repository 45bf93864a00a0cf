"""Watching a training: ranks, dimensions, dead units and drifts along the way, in any loop."""

from bnrank.training.watching.collapse import Collapse, CollapseError
from bnrank.training.watching.live import Watch, watch
from bnrank.training.watching.records import Measured
from bnrank.training.watching.records import Record as WatchRecord
from bnrank.training.watching.writers import read_csv

__all__ = ["Collapse", "CollapseError", "Measured", "Watch", "WatchRecord", "read_csv", "watch"]
