"""Your model, three steps and a comparison with eager PyTorch: python examples/check_model.py"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ortmodule_py import ORTModule, check


class Classifier(nn.Module):
    """Stands for your model: an encoder with dropout that returns its loss."""

    def __init__(self, width: int = 128, classes: int = 10) -> None:
        super().__init__()
        self.embed = nn.Embedding(1000, width)
        block = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.1, batch_first=True)
        self.blocks = nn.TransformerEncoder(block, num_layers=4)
        self.head = nn.Linear(width, classes)

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        hidden = self.blocks(self.embed(tokens)).mean(1)
        return nn.functional.cross_entropy(self.head(hidden), labels)


def main() -> None:
    """Trains three steps on random tokens, then compares a step with eager PyTorch."""
    torch.manual_seed(0)
    model = ORTModule(Classifier())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    tokens, labels = torch.randint(1000, (16, 128)), torch.randint(10, (16,))
    for _ in range(3):
        optimizer.zero_grad()
        model(tokens, labels).backward()
        optimizer.step()
    print(check(model, tokens, labels))


if __name__ == "__main__":
    main()
