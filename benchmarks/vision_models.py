"""A vision transformer, a ResNet for small images, and a chain of many tiny layers."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class VitBlock(nn.Module):
    """A pre-LN transformer block with attention spelled out."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.ln1 = nn.LayerNorm(width, eps=1e-6)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.ln2 = nn.LayerNorm(width, eps=1e-6)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Attention and MLP, each added to the residual stream."""
        batch, length, width = x.shape
        qkv = self.qkv(self.ln1(x)).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        scores = query @ key.transpose(-2, -1) * (1.0 / math.sqrt(query.shape[-1]))
        y = self.dropout(F.softmax(scores, dim=-1)) @ value
        x = x + self.dropout(self.out(y.transpose(1, 2).reshape(batch, length, width)))
        return x + self.dropout(self.down(F.gelu(self.up(self.ln2(x)))))


class VisionTransformer(nn.Module):
    """Patches, a class token, learned positions, pre-LN blocks and a classifier."""

    def __init__(
        self,
        *,
        size: int,
        patch: int,
        width: int,
        heads: int,
        layers: int,
        classes: int,
        dropout: float,
    ) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, kernel_size=patch, stride=patch)
        self.class_token = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(torch.randn(1, (size // patch) ** 2 + 1, width) * 0.02)
        self.blocks = nn.ModuleList(VitBlock(width, heads, dropout) for _ in range(layers))
        self.ln = nn.LayerNorm(width, eps=1e-6)
        self.head = nn.Linear(width, classes)

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        """Cross entropy of the class token's prediction."""
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.class_token.expand(x.shape[0], -1, -1), x], dim=1)
        x = x + self.positions
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.ln(x)[:, 0]), labels)


class BasicBlock(nn.Module):
    """Two 3x3 convolutions with BatchNorm and a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        """The residual block."""
        y = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(y)) + self.shortcut(x))


class ResNet(nn.Module):
    """A ResNet for 32x32 images, with a max pool after the stem."""

    def __init__(self, *, classes: int, widths: tuple[int, ...], blocks_per_stage: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, widths[0], 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(widths[0])
        self.pool = nn.MaxPool2d(3, stride=1, padding=1)
        blocks: list[nn.Module] = []
        inputs = widths[0]
        for stage, width in enumerate(widths):
            for index in range(blocks_per_stage):
                stride = 2 if stage > 0 and index == 0 else 1
                blocks.append(BasicBlock(inputs, width, stride))
                inputs = width
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(inputs, classes)

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        """Cross entropy of the image's class."""
        x = self.pool(F.relu(self.bn(self.stem(images))))
        x = self.blocks(x).mean(dim=(2, 3))
        return F.cross_entropy(self.head(x), labels)


class MlpBlock(nn.Module):
    """Linear, ReLU and a sum: three tiny ops."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """The residual block."""
        return x + F.relu(self.linear(x))


class TinyMlp(nn.Module):
    """So many tiny layers that dispatch, not arithmetic, takes the time."""

    def __init__(self, *, width: int, layers: int, classes: int) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*(MlpBlock(width) for _ in range(layers)))
        self.head = nn.Linear(width, classes)
        for block in self.blocks:
            nn.init.normal_(block.linear.weight, std=1.0 / math.sqrt(width * layers))

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        """Cross entropy of the class."""
        return F.cross_entropy(self.head(self.blocks(x)), labels)
