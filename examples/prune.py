"""Prune a ConvNet for scikit-learn's digits, then save, quantize and run what is left.

Run it from the repository's root: python -m examples.prune

Unstructured pruning (`torch.nn.utils.prune`) makes weights zero; the file and the step stay as they
are, only a compressed copy gets smaller. Structured pruning takes whole channels; here they are
really removed, with what the following layers read of them. Each model is fine-tuned with
ORTModule, saved as ONNX, quantized, and run by an InferenceSession.
"""

from __future__ import annotations

import argparse
import copy
import gzip
import statistics
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.nn.utils import prune

from examples.train_digits import ConvNet, load_data
from ortmodule_py import InferenceSession, ORTModule
from ortmodule_py.quantization import quantize_dynamic

Data = tuple[Tensor, Tensor, Tensor, Tensor]


class Result(NamedTuple):
    """A model's file, and how it answers."""

    name: str
    accuracy: float
    file_bytes: int
    gzip_bytes: int
    step_ms: float  # of training, processor time; 0 if it cannot train
    run_ms: float  # of inference on all test images, processor time


def train(model: nn.Module, data: Data, epochs: int, rate: float) -> float:
    """Trains in place with ORTModule; returns the median processor time of a step in ms."""
    images, labels = data[:2]
    trained = ORTModule(model)
    optimizer = torch.optim.AdamW(trained.parameters(), lr=rate)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    times: list[float] = []
    for _ in range(epochs):
        for chunk in torch.randperm(len(labels)).split(64):
            began = time.process_time()
            optimizer.zero_grad()
            F.cross_entropy(trained(images[chunk]), labels[chunk]).backward()
            optimizer.step()
            times.append(1e3 * (time.process_time() - began))
        scheduler.step()
    return statistics.median(times)


def convolutions(model: nn.Module) -> list[nn.Conv2d]:
    """All convolutions, in order."""
    return [layer for layer in model.modules() if isinstance(layer, nn.Conv2d)]


# --- unstructured ---------------------------------------------------------------------------------
def zero_small_weights(model: ConvNet, amount: float) -> None:
    """Masks the smallest weights of all layers together; the masks stay while it is fine-tuned."""
    layers = [(layer, "weight") for layer in [*convolutions(model), model.classifier]]
    prune.global_unstructured(layers, pruning_method=prune.L1Unstructured, amount=amount)


def make_permanent(model: nn.Module) -> float:
    """Writes masked weights into the parameters; returns the share of zeros."""
    zeros = elements = 0
    for layer in model.modules():
        if prune.is_pruned(layer) and hasattr(layer, "weight_mask"):
            prune.remove(layer, "weight")
            zeros += int((layer.weight == 0).sum())
            elements += layer.weight.numel()
    return zeros / elements


# --- structured -----------------------------------------------------------------------------------
def mask_channels(model: ConvNet, amount: float) -> None:
    """Masks the output channels of each convolution with the smallest norms."""
    for layer in convolutions(model):
        prune.ln_structured(layer, "weight", amount=amount, n=2, dim=0)


def take_mask(layer: nn.Conv2d) -> Tensor:
    """The output channels that a mask leaves; the mask is removed."""
    kept = layer.weight_mask.flatten(1).any(dim=1).nonzero().flatten()
    prune.remove(layer, "weight")
    return kept


def smaller_convolution(layer: nn.Conv2d, inputs: Tensor, outputs: Tensor) -> nn.Conv2d:
    """The convolution of those input and output channels alone."""
    small = nn.Conv2d(len(inputs), len(outputs), 3, padding=1, bias=False)
    small.weight.data = layer.weight.data[outputs][:, inputs].clone()
    return small


def smaller_norm(layer: nn.BatchNorm2d, channels: Tensor) -> nn.BatchNorm2d:
    """The norm of those channels alone."""
    small = nn.BatchNorm2d(len(channels))
    for name, tensor in layer.state_dict().items():
        if tensor.dim():
            getattr(small, name).data = tensor[channels].clone()
    small.num_batches_tracked.data = layer.num_batches_tracked.clone()
    return small


def remove_channels(model: ConvNet) -> None:
    """Removes the channels that mask_channels masked, in place.

    A channel goes from its convolution, its norm, and from what the next layer reads.
    """
    before = convolutions(model)[-1].out_channels
    channels = torch.arange(1)  # of the image
    for i, layer in enumerate(model.features):
        if isinstance(layer, nn.Conv2d):
            kept = take_mask(layer)
            model.features[i] = smaller_convolution(layer, channels, kept)
            channels = kept
        elif isinstance(layer, nn.BatchNorm2d):
            model.features[i] = smaller_norm(layer, channels)
    dense = model.classifier
    pixels = dense.in_features // before
    columns = (channels[:, None] * pixels + torch.arange(pixels)).flatten()
    model.classifier = nn.Linear(len(columns), dense.out_features)
    model.classifier.weight.data = dense.weight.data[:, columns].clone()
    model.classifier.bias.data = dense.bias.data.clone()


# --- files ----------------------------------------------------------------------------------------
def save(model: nn.Module, path: Path, data: Data) -> None:
    """As an ONNX file for any number of images."""
    ORTModule(model).eval().save_onnx(
        path, data[2][:2], input_names=["images"], dynamic_shapes={"images": {0: "batch"}}
    )


def measure(name: str, path: Path, data: Data, step_ms: float = 0.0) -> Result:
    """Runs a file on the test images."""
    session = InferenceSession(path)
    feed = {"images": data[2].numpy()}
    times: list[float] = []
    for _ in range(30):
        began = time.process_time()
        (logits,) = session.run(None, feed)
        times.append(1e3 * (time.process_time() - began))
    accuracy = float((np.argmax(logits, axis=1) == data[3].numpy()).mean())
    content = path.read_bytes()
    packed = len(gzip.compress(content))
    return Result(name, accuracy, len(content), packed, step_ms, statistics.median(times))


def save_and_quantize(
    name: str, model: nn.Module, data: Data, step_ms: float, folder: Path
) -> list[Result]:
    """A row for the file in float32, one for the quantized file."""
    path, quantized = folder / f"{name}.onnx", folder / f"{name}_int8.onnx"
    save(model, path, data)
    quantize_dynamic(path, quantized, samples=[{"images": data[0][:64].numpy()}], verbose=False)
    return [
        measure(name, path, data, step_ms),
        measure(f"{name}, quantized", quantized, data),
    ]


def print_table(console: Console, results: list[Result]) -> None:
    """One row for each file."""
    table = Table("model", "accuracy", "file KiB", "gzip KiB", "step ms", "run ms")
    for row in results:
        table.add_row(
            row.name,
            f"{row.accuracy:.2%}",
            f"{row.file_bytes / 1024:.1f}",
            f"{row.gzip_bytes / 1024:.1f}",
            f"{row.step_ms:.2f}" if row.step_ms else "",
            f"{row.run_ms:.2f}",
        )
    console.print(table)


def main() -> int:
    """Train, prune in both ways, and say by the exit code whether it went well."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--tuning-epochs", type=int, default=6)
    parser.add_argument("--zeros", type=float, default=0.8, help="share of weights that become 0")
    parser.add_argument("--channels", type=float, default=0.5, help="share of channels that go")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    torch.manual_seed(options.seed)
    data = load_data()
    dense = ConvNet()
    step_ms = train(dense, data, options.epochs, 2e-3)
    sparse, small = copy.deepcopy(dense), copy.deepcopy(dense)
    zero_small_weights(sparse, options.zeros)
    sparse_ms = train(sparse, data, options.tuning_epochs, 1e-3)
    share = make_permanent(sparse)
    mask_channels(small, options.channels)
    remove_channels(small)
    small_ms = train(small, data, options.tuning_epochs, 1e-3)
    console = Console()
    with tempfile.TemporaryDirectory() as folder:
        results = []
        for name, model, ms in (
            ("dense", dense, step_ms),
            ("unstructured", sparse, sparse_ms),
            ("structured", small, small_ms),
        ):
            results += save_and_quantize(name, model, data, ms, Path(folder))
    print_table(console, results)
    full, zeroed, fewer = results[0], results[2], results[4]
    console.print(
        f"{share:.0%} zeros: {full.gzip_bytes / zeroed.gzip_bytes:.1f}x smaller when compressed; "
        f"half of the channels: {full.file_bytes / fewer.file_bytes:.1f}x smaller, step "
        f"{full.step_ms / fewer.step_ms:.1f}x and run {full.run_ms / fewer.run_ms:.1f}x as fast"
    )
    kept = all(result.accuracy > full.accuracy - 0.02 for result in results)
    smaller = fewer.file_bytes < 0.5 * full.file_bytes and fewer.step_ms < full.step_ms
    return 0 if kept and smaller and zeroed.gzip_bytes < 0.6 * full.gzip_bytes else 1


if __name__ == "__main__":
    raise SystemExit(main())
