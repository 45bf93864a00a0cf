"""Trained modules compressed to their bottleneck, with a certificate."""

from bnrank.discovery.compression.certificate import Accuracy, Bound, Certificate, Change
from bnrank.discovery.compression.parts import multiply_adds, parameters
from bnrank.discovery.compression.result import Compressed, open_compressed
from bnrank.discovery.compression.search import compress
from bnrank.discovery.compression.stages import Step
from bnrank.discovery.compression.timing import Latency, Subnormals, Timing, latency, subnormals

__all__ = [
    "Accuracy",
    "Bound",
    "Certificate",
    "Change",
    "Compressed",
    "Latency",
    "Step",
    "Subnormals",
    "Timing",
    "compress",
    "latency",
    "multiply_adds",
    "open_compressed",
    "parameters",
    "subnormals",
]
