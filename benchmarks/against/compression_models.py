"""Networks of other kinds that are compressed: small transformers, and the networks of two packages for sound."""

from __future__ import annotations

import itertools
import sysconfig
from importlib import util
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

__all__ = ["Block", "Characters", "Vision", "Voice", "characters", "convolutional", "perceptron", "sounds"]

LENGTH, KNOWN = 24, 96  # characters of a text, and printable ones with one for all others
MASK = KNOWN


def perceptron() -> nn.Sequential:
    """Return a network 784-300-100-10."""
    layers = [nn.Linear(a, b) for a, b in itertools.pairwise((784, 300, 100, 10))]
    return nn.Sequential(nn.Flatten(), layers[0], nn.ReLU(), layers[1], nn.ReLU(), layers[2])


def convolutional() -> nn.Sequential:
    """Return two convolutions with pooling and two linear layers."""
    convolutions = [nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    convolutions += [nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*convolutions, nn.Flatten(), nn.Linear(1568, 64), nn.ReLU(), nn.Linear(64, 10))


class Vision(nn.Module):
    """A vision transformer of 16 patches, built on ``nn.TransformerEncoder``."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, 0.0, "gelu", batch_first=True, norm_first=True)
        self.patches = nn.Linear(49, width)
        self.place = nn.Parameter(0.1 * torch.randn(16, width))
        self.encoder = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Return (N, 10) for images (N, 1, 28, 28)."""
        parts = F.unfold(x, 7, stride=7).transpose(1, 2)
        return self.head(self.norm(self.encoder(self.patches(parts) + self.place)).mean(1))


class Block(nn.Module):
    """A layer of an encoder, with separate projections."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.output = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        """Return the next representation, (N, length, width)."""
        split = (part(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in (self.query, self.key, self.value))
        mixed = F.scaled_dot_product_attention(*split).transpose(1, 2).flatten(2)
        x = self.first(x + self.output(mixed))
        return self.second(x + self.down(F.gelu(self.up(x))))


class Characters(nn.Module):
    """An encoder of two layers that predicts the character masked."""

    def __init__(self, width: int = 48) -> None:
        super().__init__()
        self.embedding = nn.Embedding(KNOWN + 1, width)
        self.place = nn.Parameter(0.1 * torch.randn(LENGTH, width))
        self.blocks = nn.ModuleList([Block(width, 4) for _ in range(2)])
        self.head = nn.Linear(width, KNOWN)

    def forward(self, x: Tensor) -> Tensor:
        """Return (N, 96) for texts (N, 24) with one character masked."""
        z = self.embedding(x) + self.place
        for block in self.blocks:
            z = block(z)
        return self.head((z * (x == MASK)[..., None]).sum(1))


def characters(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return texts of Python's standard library with one character masked, (n, 24), and that character, (n,)."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    files = (
        "argparse",
        "ast",
        "calendar",
        "csv",
        "datetime",
        "decimal",
        "difflib",
        "doctest",
        "inspect",
        "pathlib",
        "typing",
    )
    text = "".join(p.read_text("utf-8") for name in files if (p := folder / f"{name}.py").exists())
    codes = torch.tensor([ord(c) - 31 if 32 <= ord(c) < 127 else 0 for c in text])
    generator = torch.Generator().manual_seed(seed)
    starts = torch.randint(0, len(codes) - LENGTH, (n,), generator=generator)
    x = codes[starts[:, None] + torch.arange(LENGTH)]
    masked = torch.randint(8, LENGTH - 8, (n,), generator=generator)
    y = x[torch.arange(n), masked].clone()
    x[torch.arange(n), masked] = MASK
    return x, y


def sounds(n: int, length: int, seed: int, rate: float = 16_000.0) -> Tensor:
    """Return synthetic sounds, (n, length): harmonics of a gliding pitch, with formants, and noise."""
    generator = torch.Generator().manual_seed(seed)
    draw = lambda low, high: low + (high - low) * torch.rand(n, 1, generator=generator)  # noqa: E731
    pitch, glide = 70 * 2 ** draw(0, 3.3), draw(-0.1, 0.1)
    time = torch.arange(length) / rate
    cycles = pitch * (time + glide * time.square() / (length / rate))
    total = torch.zeros(n, length)
    formants, phase = (draw(300, 900), draw(900, 2600)), torch.rand(n, 30, generator=generator)
    for k in range(1, 31):
        heights = sum(torch.exp(-((k * pitch - f) / 250).square()) for f in formants) + 0.3 / k
        audible = (k * pitch < rate / 2.2).float()
        total += audible * heights * torch.sin(2 * torch.pi * (k * cycles + phase[:, k - 1 : k]))
    noise = torch.randn(n, length, generator=generator)
    voiced = (torch.rand(n, 1, generator=generator) > 0.2).float()
    loud = 10 ** draw(-2, -0.7)
    return loud * (voiced * total / total.std(1, keepdim=True) + 10 ** draw(-2, 0) * noise)


def _folder(package: str) -> Path:
    """Return the folder of a package, without importing it."""
    found = util.find_spec(package)
    if found is None or found.origin is None:
        raise ModuleNotFoundError(f"No module named {package!r}", name=package.replace("_", "-"))
    return Path(found.origin).parent


class Voice(nn.Module):
    """The voice detector of silero-vad at 16 kHz, a few steps from the zero state, with the weights in the package."""

    def __init__(self) -> None:
        super().__init__()
        folder = _folder("silero_vad") / "data"
        self.stft_conv = nn.Conv1d(1, 258, 256, stride=128, bias=False)
        self.conv1, self.conv2 = nn.Conv1d(129, 128, 3, padding=1), nn.Conv1d(128, 64, 3, stride=2, padding=1)
        self.conv3, self.conv4 = nn.Conv1d(64, 64, 3, stride=2, padding=1), nn.Conv1d(64, 128, 3, padding=1)
        self.lstm = nn.LSTM(128, 128, batch_first=True)
        self.final_conv = nn.Conv1d(128, 1, 1)
        from safetensors.torch import load_file

        stored = load_file(folder / "silero_vad_16k.safetensors")
        cell = "lstm_cell."
        self.load_state_dict(
            {(f"lstm.{k.removeprefix(cell)}_l0" if k.startswith(cell) else k): tensor for k, tensor in stored.items()}
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return logits (N, steps) for sounds (N, 64 + 512 steps)."""
        frames = x.unfold(1, 576, 512)
        waves = self.stft_conv(F.pad(frames.flatten(0, 1), (0, 64), "reflect").unsqueeze(1))
        z = (waves[:, :129].square() + waves[:, 129:].square() + 1e-12).sqrt()
        for part in (self.conv1, self.conv2, self.conv3, self.conv4):
            z = part(z).relu()
        h, _ = self.lstm(z.squeeze(-1).unflatten(0, frames.shape[:2]))
        return self.final_conv(h.relu().transpose(1, 2)).squeeze(1)
