"""Functions with planted symmetries are made of these, and judges of networks with one output."""

import torch
from torch import nn

from bnrank.discovery.compression.judging import Judge

DOUBLE = torch.float64


class Function(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


def columns(*values):
    return torch.stack(values, 1)


def judge_of(fitted, selected, given):
    """Return the judge of one output, of tensors in place of lists."""

    def listed(x, rest, outputs):
        return x, lambda value: [rest(value).flatten(1).double()], [outputs.flatten(1).double()]

    return Judge(listed(*fitted), listed(*selected), [given.flatten(1).double()])
