"""GPT, BERT and T5 as people write them by hand: attention spelled out, loss in the module."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def _split_heads(x: Tensor, heads: int) -> Tensor:
    batch, length, width = x.shape
    return x.view(batch, length, heads, width // heads).transpose(1, 2)


def _merge_heads(x: Tensor) -> Tensor:
    batch, heads, length, head_width = x.shape
    return x.transpose(1, 2).reshape(batch, length, heads * head_width)


def _init_weights(module: nn.Module) -> None:
    if isinstance(module, (nn.Linear, nn.Embedding)):
        nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)


class CausalAttention(nn.Module):
    """Fused qkv projection, causal attention (spelled out or as one op), output projection."""

    causal: Tensor

    def __init__(self, width: int, heads: int, length: int, dropout: float, fused: bool) -> None:
        super().__init__()
        self.heads = heads
        self.fused = fused
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.attention_dropout = nn.Dropout(dropout)
        self.residual_dropout = nn.Dropout(dropout)
        mask = torch.ones(length, length, dtype=torch.bool).tril().view(1, 1, length, length)
        self.register_buffer("causal", mask, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Attend over the earlier positions."""
        query, key, value = (_split_heads(t, self.heads) for t in self.qkv(x).chunk(3, dim=-1))
        if self.fused:
            y = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        else:
            length = x.shape[1]
            scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
            scores = scores.masked_fill(~self.causal[:, :, :length, :length], float("-inf"))
            y = self.attention_dropout(F.softmax(scores, dim=-1)) @ value
        return self.residual_dropout(self.out(_merge_heads(y)))


class GptBlock(nn.Module):
    """A pre-LN transformer block."""

    def __init__(self, width: int, heads: int, length: int, dropout: float, fused: bool) -> None:
        super().__init__()
        self.ln1 = nn.LayerNorm(width)
        self.attention = CausalAttention(width, heads, length, dropout, fused)
        self.ln2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Attention and MLP, each added to the residual stream."""
        x = x + self.attention(self.ln1(x))
        return x + self.dropout(self.down(F.gelu(self.up(self.ln2(x)))))


class Gpt(nn.Module):
    """A decoder-only language model with a tied head."""

    positions: Tensor

    def __init__(
        self,
        *,
        vocab: int,
        length: int,
        width: int,
        heads: int,
        layers: int,
        dropout: float,
        fused: bool,
    ) -> None:
        super().__init__()
        self.token_embedding = nn.Embedding(vocab, width)
        self.position_embedding = nn.Embedding(length, width)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(
            GptBlock(width, heads, length, dropout, fused) for _ in range(layers)
        )
        self.ln = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocab, bias=False)
        self.apply(_init_weights)
        self.head.weight = self.token_embedding.weight
        self.register_buffer("positions", torch.arange(length), persistent=False)

    def forward(self, idx: Tensor, targets: Tensor) -> Tensor:
        """Mean cross entropy of the next token."""
        positions = self.position_embedding(self.positions[: idx.shape[1]])
        x = self.dropout(self.token_embedding(idx) + positions)
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.ln(x))
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.reshape(-1))


class BertBlock(nn.Module):
    """A post-LN transformer block with separate q, k, v projections and a padding mask."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.out = nn.Linear(width, width)
        self.ln1 = nn.LayerNorm(width, eps=1e-12)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)
        self.ln2 = nn.LayerNorm(width, eps=1e-12)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Attention, then MLP; LayerNorm after each sum."""
        query = _split_heads(self.query(x), self.heads)
        key = _split_heads(self.key(x), self.heads)
        value = _split_heads(self.value(x), self.heads)
        scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1]) + mask
        context = _merge_heads(self.dropout(F.softmax(scores, dim=-1)) @ value)
        x = self.ln1(x + self.dropout(self.out(context)))
        return self.ln2(x + self.dropout(self.down(F.gelu(self.up(x)))))


class Bert(nn.Module):
    """An encoder with a masked-language-model head and loss."""

    positions: Tensor

    def __init__(
        self, *, vocab: int, length: int, width: int, heads: int, layers: int, dropout: float
    ) -> None:
        super().__init__()
        self.token_embedding = nn.Embedding(vocab, width)
        self.position_embedding = nn.Embedding(length, width)
        self.ln = nn.LayerNorm(width, eps=1e-12)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(BertBlock(width, heads, dropout) for _ in range(layers))
        self.transform = nn.Linear(width, width)
        self.head_ln = nn.LayerNorm(width, eps=1e-12)
        self.head = nn.Linear(width, vocab)
        self.apply(_init_weights)
        self.head.weight = self.token_embedding.weight
        self.register_buffer("positions", torch.arange(length), persistent=False)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor) -> Tensor:
        """Cross entropy of the masked tokens; labels of -100 are ignored."""
        x = self.token_embedding(input_ids)
        x = x + self.position_embedding(self.positions[: input_ids.shape[1]])
        x = self.dropout(self.ln(x))
        mask = (1.0 - attention_mask[:, None, None, :].to(x.dtype)) * torch.finfo(x.dtype).min
        for block in self.blocks:
            x = block(x, mask)
        logits = self.head(self.head_ln(F.gelu(self.transform(x))))
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), labels.view(-1))


class RmsNorm(nn.Module):
    """Scale by the root mean square, as in T5."""

    def __init__(self, width: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Normalize the last dimension."""
        variance = x.pow(2).mean(-1, keepdim=True)
        return self.weight * (x * torch.rsqrt(variance + self.eps))


class RelativeBias(nn.Module):
    """T5's bucketed relative position bias, shared by the layers of a stack."""

    def __init__(self, heads: int, *, bidirectional: bool, buckets: int = 32) -> None:
        super().__init__()
        self.embedding = nn.Embedding(buckets, heads)
        self.bidirectional = bidirectional
        self.buckets = buckets

    def forward(self, length: int) -> Tensor:
        """The bias added to the scores: (1, heads, length, length)."""
        positions = torch.arange(length, device=self.embedding.weight.device)
        distance = positions[None, :] - positions[:, None]
        buckets = self.buckets
        if self.bidirectional:
            buckets //= 2
            offset = (distance > 0).long() * buckets
            distance = distance.abs()
        else:
            offset = torch.zeros_like(distance)
            distance = (-distance).clamp(min=0)
        exact = buckets // 2
        ratio = torch.log(distance.clamp(min=1).float() / exact) / math.log(128 / exact)
        far = (exact + (ratio * (buckets - exact)).long()).clamp(max=buckets - 1)
        bucket = offset + torch.where(distance < exact, distance, far)
        return self.embedding(bucket).permute(2, 0, 1).unsqueeze(0)


class T5Attention(nn.Module):
    """Unscaled multi-head attention without biases, over ``x`` itself or over ``memory``."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, width, bias=False)
        self.value = nn.Linear(width, width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, memory: Tensor, bias: Tensor) -> Tensor:
        """Attend from ``x`` to ``memory``; ``bias`` carries positions and masks."""
        query = _split_heads(self.query(x), self.heads)
        key = _split_heads(self.key(memory), self.heads)
        value = _split_heads(self.value(memory), self.heads)
        weights = F.softmax(query @ key.transpose(-1, -2) + bias, dim=-1)
        return self.out(_merge_heads(self.dropout(weights) @ value))


class T5Mlp(nn.Module):
    """ReLU feed-forward layer with dropout inside."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Expand, ReLU, drop, project."""
        return self.down(self.dropout(F.relu(self.up(x))))


class EncoderBlock(nn.Module):
    """T5 encoder block."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.norm1 = RmsNorm(width)
        self.attention = T5Attention(width, heads, dropout)
        self.norm2 = RmsNorm(width)
        self.mlp = T5Mlp(width, dropout)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        """Self-attention and MLP."""
        y = self.norm1(x)
        x = x + self.dropout(self.attention(y, y, bias))
        return x + self.dropout(self.mlp(self.norm2(x)))


class DecoderBlock(nn.Module):
    """T5 decoder block: self-attention, cross-attention, MLP."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.norm1 = RmsNorm(width)
        self.attention = T5Attention(width, heads, dropout)
        self.norm2 = RmsNorm(width)
        self.cross = T5Attention(width, heads, dropout)
        self.norm3 = RmsNorm(width)
        self.mlp = T5Mlp(width, dropout)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, memory: Tensor, bias: Tensor, memory_bias: Tensor) -> Tensor:
        """Attend to the decoder's past, then to the encoder's output."""
        y = self.norm1(x)
        x = x + self.dropout(self.attention(y, y, bias))
        x = x + self.dropout(self.cross(self.norm2(x), memory, memory_bias))
        return x + self.dropout(self.mlp(self.norm3(x)))


class T5(nn.Module):
    """Encoder-decoder with relative position bias, RMS norm and a tied head."""

    def __init__(self, *, vocab: int, width: int, heads: int, layers: int, dropout: float) -> None:
        super().__init__()
        self.width = width
        self.embedding = nn.Embedding(vocab, width)
        self.encoder_bias = RelativeBias(heads, bidirectional=True)
        self.decoder_bias = RelativeBias(heads, bidirectional=False)
        self.encoder = nn.ModuleList(EncoderBlock(width, heads, dropout) for _ in range(layers))
        self.decoder = nn.ModuleList(DecoderBlock(width, heads, dropout) for _ in range(layers))
        self.encoder_norm = RmsNorm(width)
        self.decoder_norm = RmsNorm(width)
        self.dropout = nn.Dropout(dropout)
        self.apply(_init_weights)
        nn.init.normal_(self.embedding.weight, std=0.05)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor) -> Tensor:
        """Cross entropy of the labels, which are shifted right to feed the decoder."""
        x = self.dropout(self.embedding(input_ids))
        lowest = torch.finfo(x.dtype).min
        padding = (1.0 - attention_mask[:, None, None, :].to(x.dtype)) * lowest
        bias = self.encoder_bias(input_ids.shape[1]) + padding
        for block in self.encoder:
            x = block(x, bias)
        memory = self.dropout(self.encoder_norm(x))

        y = self.dropout(self.embedding(F.pad(labels[:, :-1], (1, 0))))
        length = labels.shape[1]
        future = torch.ones(length, length, dtype=torch.bool, device=labels.device).triu(1)
        bias = self.decoder_bias(length).masked_fill(future, lowest)
        for block in self.decoder:
            y = block(y, memory, bias, padding)
        y = self.dropout(self.decoder_norm(y)) * self.width**-0.5
        logits = F.linear(y, self.embedding.weight)
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), labels.reshape(-1))
