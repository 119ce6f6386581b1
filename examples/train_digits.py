"""Train a small ConvNet with BatchNorm on scikit-learn's handwritten digits, with ORTModule.

The last batch of an epoch is smaller than the others, and evaluation uses another size again.
"""

from __future__ import annotations

import argparse

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.progress import Progress
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn

from ortmodule_py import ORTModule, last_run_report

ACCURACY_LIMIT = 0.97


class ConvNet(nn.Module):
    """Three convolutions with BatchNorm, then a linear classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 32, 3, padding=1, bias=False),
            nn.BatchNorm2d(32),
            nn.ReLU(),
            nn.Conv2d(32, 32, 3, padding=1, bias=False),
            nn.BatchNorm2d(32),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 3, padding=1, bias=False),
            nn.BatchNorm2d(64),
            nn.ReLU(),
        )
        self.dropout = nn.Dropout(0.2)
        self.classifier = nn.Linear(64 * 4 * 4, 10)

    def forward(self, images: Tensor) -> Tensor:
        """Logits of the ten digits."""
        return self.classifier(self.dropout(self.features(images).flatten(1)))


def load_data() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Images and labels, to train on and to test on."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(digits.target)
    numbers = torch.arange(len(labels)).numpy()
    train, test = train_test_split(numbers, test_size=0.25, random_state=0, stratify=digits.target)
    return images[train], labels[train], images[test], labels[test]


def accuracy(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    """Share of the images whose digit is right."""
    model.eval()
    with torch.no_grad():
        right = model(images).argmax(dim=1) == labels
    model.train()
    return right.float().mean().item()


def main() -> int:
    """Train, test, and say by the exit code whether it went well."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--backend", choices=("ortmodule", "eager"), default="ortmodule")
    options = parser.parse_args()
    console = Console()
    torch.manual_seed(options.seed)
    images, labels, test_images, test_labels = load_data()
    model: nn.Module = ConvNet()
    if options.backend == "ortmodule":
        model = ORTModule(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, options.epochs)
    with Progress(console=console) as progress:
        for _ in progress.track(range(options.epochs), description="epochs"):
            for chunk in torch.randperm(len(labels)).split(options.batch_size):
                optimizer.zero_grad()
                loss = F.cross_entropy(model(images[chunk]), labels[chunk])
                loss.backward()
                optimizer.step()
            scheduler.step()
    result = accuracy(model, test_images, test_labels)
    console.print(f"test accuracy {result:.2%}, to be above {ACCURACY_LIMIT:.0%}")
    if options.backend == "ortmodule":
        report = last_run_report(model)
        keys = ("compiled", "captures", "plans", "graph_breaks", "eager_pieces")
        console.print("ORTModule: " + ", ".join(f"{key} {report.get(key)}" for key in keys))
    return 0 if result > ACCURACY_LIMIT else 1


if __name__ == "__main__":
    raise SystemExit(main())
