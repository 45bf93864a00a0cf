"""Modules whose graphs the tests trace."""

import torch
from torch import nn
from torch.nn import functional


class Of(nn.Module):
    """A module made of a function of itself and x."""

    def __init__(self, function, **attributes):
        super().__init__()
        self.function = function
        for name, value in attributes.items():
            setattr(self, name, value)

    def forward(self, x):
        return self.function(self, x)


def seeded(make, seed=0):
    """Return a module in float64 with its own draw of weights, the global generator untouched."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        module = make().double()
        with torch.no_grad():
            for p in module.parameters():
                p.copy_(torch.randn(p.shape, dtype=torch.float64) / max(1, p[0].numel()) ** 0.5 if p.ndim else p)
    return module


class BasicBlock(nn.Module):
    """As in torchvision, with normalization or without."""

    def __init__(self, channels, out, stride=1, norm=False):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, out, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(out) if norm else nn.Identity()
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(out) if norm else nn.Identity()
        self.downsample = None
        if stride != 1 or channels != out:
            self.downsample = nn.Sequential(nn.Conv2d(channels, out, 1, stride, bias=False))

    def forward(self, x):
        identity = x
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        if self.downsample is not None:
            identity = self.downsample(x)
        out += identity
        return self.relu(out)


class ResNet(nn.Module):
    def __init__(self, widths, norm=False, stem=4):
        super().__init__()
        self.conv1 = nn.Conv2d(2, stem, 3, padding=1)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        pairs = zip([stem, *widths], widths, strict=False)
        self.layers = nn.Sequential(*(BasicBlock(a, b, 1 + (a != b), norm) for a, b in pairs))
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(widths[-1], 3)

    def forward(self, x):
        x = self.maxpool(torch.relu(self.conv1(x)))
        return self.fc(torch.flatten(self.avgpool(self.layers(x)), 1))


class DenseNet(nn.Module):
    """Every layer takes all values before it."""

    def __init__(self, depth=3, growth=3):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4 + growth * i, growth) for i in range(depth))
        self.head = nn.Linear(4 + growth * depth, 2)

    def forward(self, x):
        held = [x]
        for layer in self.layers:
            held.append(functional.leaky_relu(layer(torch.cat(held, 1)), 0.1))
        return self.head(torch.cat(held, 1))


class Skips(nn.Module):
    """Residual blocks with identity, diagonal and free skip."""

    def __init__(self):
        super().__init__()
        self.inside = nn.ModuleList(nn.Linear(4, 5, bias=False) for _ in range(3))
        self.outside = nn.ModuleList(nn.Linear(5, 4) for _ in range(3))
        self.diagonal = nn.Parameter(torch.ones(4))
        self.free = nn.Linear(4, 4, bias=False)

    def forward(self, x):
        branch = [lambda v, y=y, z=z: z(torch.relu(y(v))) for y, z in zip(self.inside, self.outside, strict=True)]
        x = x + branch[0](x)
        x = self.diagonal * x + branch[1](x)
        return self.free(x) + branch[2](x)


class TransformerBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.norm1, self.norm2 = nn.LayerNorm(4), nn.LayerNorm(4)
        self.up, self.down = nn.Linear(4, 8), nn.Linear(8, 4)

    def forward(self, x):
        h = self.norm1(x)
        attended, _ = self.attention(h, h, h, need_weights=False)
        x = x + attended
        return x + self.down(torch.relu(self.up(self.norm2(x))))


class Branches(nn.Module):
    """Three ways of different length from the input to one sum, and a value cut in two."""

    def __init__(self):
        super().__init__()
        self.long = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4))
        self.short = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 4))
        self.gate = nn.Linear(4, 8)
        self.scale = nn.Parameter(torch.ones(4))
        self.out = nn.Linear(4, 1)

    def forward(self, x):
        left, right = self.gate(x).chunk(2, -1)
        return self.out(self.long(x) + self.short(x) + torch.relu(left) - self.scale * right + x)
