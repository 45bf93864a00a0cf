"""Still pictures (matplotlib) of profiles, histories, fits and verdicts.

Every function draws into the given axes, or into a new figure, and returns the axes. No function uses pyplot, so no
figure stays open; save with ``ax.figure.savefig(...)``.
"""

from bnrank._core.axes import OKABE_ITO
from bnrank.reporting.stills.frequencies import frequency_spectra
from bnrank.reporting.stills.results import discovered, tightness
from bnrank.reporting.stills.spectra import bottleneck_spectra, norm_versus_depth, weight_spectra
from bnrank.reporting.stills.sweeps import phase_diagram
from bnrank.reporting.stills.training import plateaus, spectra_over_steps, training_curves

__all__ = [
    "OKABE_ITO",
    "bottleneck_spectra",
    "discovered",
    "frequency_spectra",
    "norm_versus_depth",
    "phase_diagram",
    "plateaus",
    "spectra_over_steps",
    "tightness",
    "training_curves",
    "weight_spectra",
]
