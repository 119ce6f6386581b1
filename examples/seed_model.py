"""A small transformer on which every plan of the memory optimizer's documents can be seen.

Under bf16 autocast its attention is spelled out in float32 (widening casts), with a mask, dropout
and a loss on the scores; its MLP has GELU. Try

    python examples/seed_model.py
    ORTMODULE_MEMORY_OPT_CONFIG='BiasGelu+:1:-1,Dropout+:1:1' python examples/seed_model.py
    ORTMODULE_MEMORY_OPT_LEVEL=1 python examples/seed_model.py
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor, nn

from ortmodule_py import DebugOptions, LogLevel, ORTModule, last_run_report


class Block(nn.Module):
    """Post-attention residual block; `x` is the residual stream in float32."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.out = nn.Linear(width, width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.local = nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(dropout)

    def attention(self, x: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        """Softmax attention in float32; the squared scores keep the logits small."""
        batch, length, width = x.shape
        q, k, v = (f(x).float() for f in (self.query, self.key, self.value))
        with torch.autocast("cpu", enabled=False):
            q, k, v = (
                t.view(batch, length, self.heads, width // self.heads).transpose(1, 2)
                for t in (q, k, v)
            )
            scores = (q @ k.transpose(-1, -2)) / (width // self.heads) ** 0.5
            weights = self.dropout(torch.softmax(scores + bias, -1))
            mixed = (weights @ v).transpose(1, 2).reshape(batch, length, width)
        return self.out(mixed), scores.square().mean()

    def forward(self, x: Tensor, mask: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        """The next residual stream and the loss on the scores."""
        batch, length, _ = x.shape
        mixed, penalty = self.attention(self.norm1(x), bias)
        # Padded positions do not take part in the local mixing.
        split = x.reshape(batch, length, self.heads, -1)
        kept = torch.where(mask[:, :, None, None], split, 0.0)
        with torch.autocast("cpu", enabled=False):
            local = self.local(kept.reshape(batch, length, -1))
        x = x + self.dropout(mixed.float()) + local
        hidden = nn.functional.gelu(self.up(self.norm2(x)))
        return x + self.down(hidden).float(), penalty


class SeedModel(nn.Module):
    """Returns its own loss."""

    def __init__(self, vocab: int = 512, width: int = 64, heads: int = 4, layers: int = 2) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab, width)
        self.blocks = nn.ModuleList(Block(width, heads, 0.1) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocab)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor) -> Tensor:
        """Cross entropy plus a small penalty on large attention scores."""
        mask = attention_mask.bool()
        bias = (1.0 - attention_mask[:, None, None, :].float()) * -1e4
        x = self.embedding(input_ids)
        penalty = x.new_zeros(())
        for block in self.blocks:
            x, term = block(x, mask, bias)
            penalty = penalty + term
        logits = self.head(self.norm(x))
        loss = nn.functional.cross_entropy(logits.float().flatten(0, 1), labels.flatten())
        return loss + 1e-3 * penalty


def make_batch(batch: int, length: int, vocab: int = 512) -> dict[str, Tensor]:
    """Random tokens, the last eighth of every second row padded."""
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(0, vocab, (batch, length + 1), generator=generator)
    mask = torch.ones(batch, length, dtype=torch.long)
    mask[1::2, length * 7 // 8 :] = 0
    return {
        "input_ids": tokens[:, :-1].contiguous(),
        "attention_mask": mask,
        "labels": tokens[:, 1:].contiguous(),
    }


def main() -> None:
    """Train a few steps and print the table and what was planned and measured."""
    parser = argparse.ArgumentParser(description="Plans of the memory optimizer on a small model")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--length", type=int, default=128)
    options = parser.parse_args()
    torch.manual_seed(0)
    model = ORTModule(SeedModel(), DebugOptions(log_level=LogLevel.INFO))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    batch = make_batch(options.batch, options.length)
    for step in range(options.steps):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(**batch)
        loss.backward()
        optimizer.step()
        print(f"step {step}: loss {loss.item():.4f}")
    report = last_run_report(model)
    print(
        f"planned peak {report['planned_peak_bytes']:,} bytes, "
        f"measured {report['measured_peak_bytes']:,} bytes"
    )


if __name__ == "__main__":
    main()
