"""Sequence, tabular and graph models as people write them by hand: each returns its own loss first."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

Batch = dict[str, Tensor]
Result = tuple[Tensor, ...]

_VOCABULARY = 50


def _next_token_loss(logits: Tensor, tokens: Tensor) -> Result:
    shifted = logits[:, :-1].reshape(-1, logits.shape[-1])
    return F.cross_entropy(shifted, tokens[:, 1:].reshape(-1)), logits


def _heads(x: Tensor, heads: int) -> Tensor:
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def _merged(x: Tensor) -> Tensor:
    return x.transpose(1, 2).flatten(2)


# ---- recurrent -----------------------------------------------------------------------------------


class RecurrentModel(nn.Module):
    """A language model over torch's own LSTM or GRU, with a tied head."""

    def __init__(self, kind: type[nn.LSTM] | type[nn.GRU], width: int = 32) -> None:
        super().__init__()
        self.embedding = nn.Embedding(_VOCABULARY, width)
        self.layers = kind(width, width, num_layers=2, batch_first=True)
        self.head = nn.Linear(width, _VOCABULARY)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Result:
        """Loss, scores and the last state."""
        x, state = self.layers(self.embedding(tokens))
        last = state[0] if isinstance(state, tuple) else state
        return *_next_token_loss(self.head(x), tokens), last


class AttentionSeq2Seq(nn.Module):
    """A bidirectional GRU encoder and an LSTMCell decoder with additive attention, fed its targets."""

    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.embedding = nn.Embedding(_VOCABULARY, width, padding_idx=0)
        self.encoder = nn.GRU(width, width, bidirectional=True, batch_first=True)
        self.cell = nn.LSTMCell(3 * width, width)
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(2 * width, width)
        self.energy = nn.Linear(width, 1, bias=False)
        self.head = nn.Linear(width, _VOCABULARY)

    def forward(self, tokens: Tensor, targets: Tensor) -> Result:
        """Loss and the weights of attention."""
        memory, _ = self.encoder(self.embedding(tokens))
        keys, padding = self.key(memory), tokens == 0
        hidden = memory.new_zeros(len(tokens), self.cell.hidden_size)
        cell, scores, seen = hidden, [], []
        for t in range(targets.shape[1] - 1):
            energy = self.energy(torch.tanh(self.query(hidden)[:, None] + keys)).squeeze(-1)
            weights = energy.masked_fill(padding, -torch.inf).softmax(-1)
            context = torch.einsum("bl,bld->bd", weights, memory)
            given = torch.cat([self.embedding(targets[:, t]), context], dim=-1)
            hidden, cell = self.cell(given, (hidden, cell))
            scores.append(self.head(hidden))
            seen.append(weights)
        logits = torch.stack(scores, dim=1)
        loss = F.cross_entropy(logits.transpose(1, 2), targets[:, 1:], ignore_index=0)
        return loss, torch.stack(seen, dim=1)


class SpeechCtc(nn.Module):
    """Strided convolutions over time, a bidirectional GRU, and the CTC loss."""

    def __init__(self, bands: int = 8, width: int = 16) -> None:
        super().__init__()
        self.convolutions = nn.Sequential(
            nn.Conv1d(bands, width, 5, stride=2, padding=2),
            nn.BatchNorm1d(width),
            nn.Hardtanh(0, 20),
        )
        self.layers = nn.GRU(width, width, bidirectional=True)
        self.head = nn.Linear(2 * width, 6)

    def forward(
        self, spectrum: Tensor, lengths: Tensor, labels: Tensor, label_lengths: Tensor
    ) -> Result:
        """Loss and log-probabilities."""
        x = self.convolutions(spectrum).permute(2, 0, 1)
        log_probabilities = self.head(self.layers(x)[0]).log_softmax(-1)
        loss = F.ctc_loss(
            log_probabilities, labels, (lengths + 1) // 2, label_lengths, zero_infinity=True
        )
        return loss, log_probabilities


# ---- attention and its replacements --------------------------------------------------------------


class DecoderStack(nn.Module):
    """Embeddings, two pre-norm blocks around a mixer of sequences, and a head."""

    def __init__(self, mixer: Callable[[int], nn.Module], width: int = 32) -> None:
        super().__init__()
        self.embedding = nn.Embedding(_VOCABULARY, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(4))
        self.mixers = nn.ModuleList(mixer(width) for _ in range(2))
        self.mlps = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 64), nn.SiLU(), nn.Linear(64, width)) for _ in range(2)
        )
        self.head = nn.Linear(width, _VOCABULARY)

    def forward(self, tokens: Tensor) -> Result:
        """Loss and scores of the next token."""
        x = self.embedding(tokens)
        for i, (mixer, mlp) in enumerate(zip(self.mixers, self.mlps, strict=True)):
            x = x + mixer(self.norms[2 * i](x))
            x = x + mlp(self.norms[2 * i + 1](x))
        return _next_token_loss(self.head(x), tokens)


class Retention(nn.Module):
    """RetNet's retention in its parallel form, with a decay per head and a group norm."""

    decay: Tensor

    def __init__(self, width: int, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.gate = nn.Linear(width, width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.norm = nn.GroupNorm(heads, width)
        rates = 1 - 2.0 ** (-5 - torch.arange(heads, dtype=torch.float32))
        self.register_buffer("decay", rates.log())

    def forward(self, x: Tensor) -> Tensor:
        """Weights fall off with distance instead of a softmax."""
        query, key, value = (_heads(t, self.heads) for t in self.qkv(x).chunk(3, dim=-1))
        steps = torch.arange(x.shape[1], device=x.device)
        distance = steps[:, None] - steps[None, :]
        mask = torch.exp(distance * self.decay[:, None, None]).masked_fill(distance < 0, 0)
        scores = query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5 * mask
        scores = scores / scores.detach().abs().sum(-1, keepdim=True).clamp(min=1)
        y = _merged(scores @ value)
        y = self.norm(y.flatten(0, 1)).view_as(x)
        return self.out(F.silu(self.gate(x)) * y)


class LinearAttention(nn.Module):
    """Causal linear attention: elu + 1 features and cumulative sums."""

    def __init__(self, width: int, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Attend over earlier positions in linear time."""
        query, key, value = (_heads(t, self.heads) for t in self.qkv(x).chunk(3, dim=-1))
        query, key = F.elu(query) + 1, F.elu(key) + 1
        state = torch.einsum("bhld,bhle->bhlde", key, value).cumsum(2)
        weight = torch.einsum("bhld,bhld->bhl", query, key.cumsum(2)).clamp(min=1e-6)
        y = torch.einsum("bhld,bhlde->bhle", query, state) / weight.unsqueeze(-1)
        return self.out(_merged(y))


class RelativeAttention(nn.Module):
    """Transformer-XL's attention: sinusoids of the distance, two biases, the shift by a padded view."""

    def __init__(self, width: int, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.relative = nn.Linear(width, width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.content_bias = nn.Parameter(torch.randn(heads, 1, width // heads) * 0.1)
        self.position_bias = nn.Parameter(torch.randn(heads, 1, width // heads) * 0.1)

    def _positions(self, length: int, width: int, x: Tensor) -> Tensor:
        rates = 10000 ** -(torch.arange(0, width, 2, device=x.device) / width)
        steps = torch.arange(length - 1, -1, -1, device=x.device)
        angles = steps[:, None] * rates[None, :]
        return torch.cat([angles.sin(), angles.cos()], dim=-1).to(x.dtype)

    def forward(self, x: Tensor) -> Tensor:
        """Scores by content and by distance."""
        batch, length, width = x.shape
        query, key, value = (_heads(t, self.heads) for t in self.qkv(x).chunk(3, dim=-1))
        relative = self.relative(self._positions(length, width, x))
        relative = relative.view(length, self.heads, -1).transpose(0, 1)
        content = (query + self.content_bias) @ key.transpose(-1, -2)
        position = (query + self.position_bias) @ relative.transpose(-1, -2)
        padded = F.pad(position, (1, 0)).view(batch, self.heads, length + 1, length)
        position = padded[:, :, 1:].view_as(position)
        future = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
        scores = (content + position) * query.shape[-1] ** -0.5
        weights = scores.masked_fill(future, -torch.inf).softmax(-1)
        return self.out(_merged(weights @ value))


class SelectiveScan(nn.Module):
    """Mamba's mixer: a causal depthwise convolution and a scan with input-dependent steps."""

    def __init__(self, width: int, states: int = 4) -> None:
        super().__init__()
        self.states = states
        self.project = nn.Linear(width, 2 * width, bias=False)
        self.convolution = nn.Conv1d(width, width, 3, padding=2, groups=width)
        self.parameters_of = nn.Linear(width, 2 * states + 1, bias=False)
        self.step_bias = nn.Parameter(torch.zeros(width))
        rates = torch.arange(1, states + 1, dtype=torch.float32)
        self.log_rates = nn.Parameter(rates.log().repeat(width, 1))
        self.skip = nn.Parameter(torch.ones(width))
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """A loop over time, which capture unrolls."""
        length = x.shape[1]
        x, gate = self.project(x).chunk(2, dim=-1)
        x = F.silu(self.convolution(x.mT)[..., :length].mT)
        split = (1, self.states, self.states)
        step, into, out_of = self.parameters_of(x).split(split, dim=-1)
        step = F.softplus(step + self.step_bias)
        decay = torch.exp(-step.unsqueeze(-1) * self.log_rates.exp())
        pushed = (step * x).unsqueeze(-1) * into.unsqueeze(2)
        state = torch.zeros_like(pushed[:, 0])
        outputs = []
        for t in range(length):
            state = decay[:, t] * state + pushed[:, t]
            outputs.append((state * out_of[:, t, None]).sum(-1))
        y = torch.stack(outputs, dim=1) + x * self.skip
        return self.out(y * F.silu(gate))


class FourierStateSpace(nn.Module):
    """S4D: a diagonal state space applied as a long convolution by real Fourier transforms."""

    def __init__(self, width: int, states: int = 4) -> None:
        super().__init__()
        self.rates = nn.Parameter(torch.rand(width, states))
        self.frequencies = nn.Parameter(torch.rand(width, states) * math.pi)
        self.weights = nn.Parameter(torch.randn(width, states))
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Convolve with the kernel of the state space."""
        length = x.shape[1]
        steps = torch.arange(length, device=x.device)
        decay = torch.exp(-F.softplus(self.rates)[..., None] * steps)
        waves = torch.cos(self.frequencies[..., None] * steps)
        kernel = (self.weights[..., None] * decay * waves).sum(1)
        spectrum = torch.fft.rfft(x.mT, n=2 * length) * torch.fft.rfft(kernel, n=2 * length)
        return self.out(F.gelu(torch.fft.irfft(spectrum, n=2 * length)[..., :length].mT))


class RoutedExperts(nn.Module):
    """Top-2 of four experts; tokens are gathered for each expert and added back, or mixed densely."""

    def __init__(self, width: int, *, sparse: bool, experts: int = 4) -> None:
        super().__init__()
        self.sparse = sparse
        self.router = nn.Linear(width, experts, bias=False)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 64), nn.GELU(), nn.Linear(64, width))
            for _ in range(experts)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Weighted outputs of the two experts that each token chooses."""
        flat = x.flatten(0, 1)
        weights, chosen = self.router(flat).softmax(-1).topk(2, dim=-1)
        weights = weights / weights.sum(-1, keepdim=True)
        if not self.sparse:
            shares = torch.zeros_like(self.router(flat)).scatter(-1, chosen, weights)
            outputs = torch.stack([expert(flat) for expert in self.experts], dim=1)
            return torch.einsum("te,ted->td", shares, outputs).view_as(x)
        result = torch.zeros_like(flat)
        for i, expert in enumerate(self.experts):
            token, slot = torch.where(chosen == i)
            result.index_add_(0, token, expert(flat[token]) * weights[token, slot, None])
        return result.view_as(x)


class TorchTransformer(nn.Module):
    """torch.nn.Transformer with its own masks: encoder, decoder, padding."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.embedding = nn.Embedding(_VOCABULARY, width)
        self.layers = nn.Transformer(width, 4, 2, 2, 64, dropout=0.0, batch_first=True)
        self.head = nn.Linear(width, _VOCABULARY)

    def forward(self, tokens: Tensor, targets: Tensor) -> Result:
        """Loss and scores."""
        padding = tokens == 0
        length = targets.shape[1]
        future = torch.ones(length, length, dtype=torch.bool, device=tokens.device).triu(1)
        y = self.layers(
            self.embedding(tokens),
            self.embedding(targets),
            tgt_mask=future,
            src_key_padding_mask=padding,
            memory_key_padding_mask=padding,
        )
        return _next_token_loss(self.head(y), targets)


class Wavenet(nn.Module):
    """Dilated causal convolutions with weight norm, gates, and skip connections."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.embedding = nn.Embedding(_VOCABULARY, width)
        self.gates = nn.ModuleList(
            weight_norm(nn.Conv1d(width, 2 * width, 2, dilation=2**i)) for i in range(3)
        )
        self.residuals = nn.ModuleList(nn.Conv1d(width, width, 1) for _ in range(3))
        self.skips = nn.ModuleList(nn.Conv1d(width, width, 1) for _ in range(3))
        self.head = nn.Conv1d(width, _VOCABULARY, 1)

    def forward(self, tokens: Tensor) -> Result:
        """Loss and scores of the next sample."""
        x = self.embedding(tokens).mT
        total = torch.zeros_like(x)
        for gate, residual, skip in zip(self.gates, self.residuals, self.skips, strict=True):
            value, open_ = gate(F.pad(x, (gate.dilation[0], 0))).chunk(2, dim=1)
            y = torch.tanh(value) * torch.sigmoid(open_)
            total = total + skip(y)
            x = x + residual(y)
        return _next_token_loss(self.head(F.relu(total)).mT, tokens)


# ---- tables, graphs and points -------------------------------------------------------------------


class TabTransformer(nn.Module):
    """Attention over the embedded categories of a row, joined with its numbers."""

    offsets: Tensor

    def __init__(self, cardinalities: tuple[int, ...] = (7, 5, 11), width: int = 16) -> None:
        super().__init__()
        starts = torch.tensor((0, *cardinalities[:-1])).cumsum(0)
        self.register_buffer("offsets", starts)
        self.embedding = nn.Embedding(sum(cardinalities), width)
        layer = nn.TransformerEncoderLayer(width, 4, 32, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm = nn.BatchNorm1d(4)
        self.head = nn.Sequential(nn.Linear(3 * width + 4, 32), nn.SELU(), nn.Linear(32, 1))

    def forward(self, categories: Tensor, numbers: Tensor, labels: Tensor) -> Result:
        """Binary cross entropy and score per row."""
        x = self.layers(self.embedding(categories + self.offsets)).flatten(1)
        logits = self.head(torch.cat([x, self.norm(numbers)], dim=1)).squeeze(1)
        return F.binary_cross_entropy_with_logits(logits, labels), logits


class Dlrm(nn.Module):
    """Bags of embeddings, their pairwise products with the dense features, and two MLPs."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.bags = nn.ModuleList(
            nn.EmbeddingBag(20, width, mode=mode) for mode in ("sum", "mean", "sum")
        )
        self.bottom = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, width), nn.ReLU())
        self.top = nn.Sequential(nn.Linear(width + 6, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, dense: Tensor, indices: Tensor, offsets: Tensor, labels: Tensor) -> Result:
        """Binary cross entropy and score per row."""
        x = self.bottom(dense)
        bags = [bag(i, o) for bag, i, o in zip(self.bags, indices, offsets, strict=True)]
        stacked = torch.stack([x, *bags], dim=1)
        products = stacked @ stacked.mT
        row, column = torch.tril_indices(4, 4, offset=-1)
        logits = self.top(torch.cat([x, products[:, row, column]], dim=1)).squeeze(1)
        return F.binary_cross_entropy_with_logits(logits, labels), logits


class GraphConvolution(nn.Module):
    """Two convolutions with symmetric normalization by index_add, and a mean per graph."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(6, width), nn.Linear(width, width)])
        self.head = nn.Linear(width, 3)

    def forward(self, nodes: Tensor, edges: Tensor, graph: Tensor, labels: Tensor) -> Result:
        """Cross entropy per graph, and its scores."""
        source, target = edges
        ones = torch.ones_like(nodes[:, 0])
        degree = (1 + torch.zeros_like(ones).index_add(0, target, ones[source])).rsqrt()
        x = nodes
        for layer in self.layers:
            x = layer(x)
            message = x[source] * (degree[source] * degree[target]).unsqueeze(1)
            total = torch.zeros_like(x).index_add(0, target, message)
            x = F.relu(total + x * (degree * degree).unsqueeze(1))
        count = torch.zeros_like(labels, dtype=x.dtype).scatter_add(0, graph, ones)
        pooled = x.new_zeros(len(labels), x.shape[1]).index_add(0, graph, x)
        logits = self.head(pooled / count.clamp(min=1).unsqueeze(1))
        return F.cross_entropy(logits, labels), logits


class GraphAttention(nn.Module):
    """Attention over the edges of a graph: a softmax per target node by scatter_reduce."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.embed = nn.Linear(6, width)
        self.source = nn.Linear(width, 1, bias=False)
        self.target = nn.Linear(width, 1, bias=False)
        self.head = nn.Linear(width, 3)

    def forward(self, nodes: Tensor, edges: Tensor, labels: Tensor) -> Result:
        """Cross entropy per node, and its scores."""
        source, target = edges
        x = self.embed(nodes)
        score = F.leaky_relu(self.source(x)[source] + self.target(x)[target], 0.2).squeeze(1)
        empty = score.new_zeros(len(nodes))
        top = empty.scatter_reduce(0, target, score.detach(), "amax", include_self=False)
        weight = torch.exp(score - top[target])
        share = weight / empty.scatter_add(0, target, weight)[target]
        x = F.elu(torch.zeros_like(x).index_add(0, target, share.unsqueeze(1) * x[source]))
        logits = self.head(x)
        return F.cross_entropy(logits, labels), logits


class PointNet(nn.Module):
    """A learned transform of the points, shared layers, a maximum over the points."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.transform = nn.Sequential(
            nn.Conv1d(3, width, 1), nn.BatchNorm1d(width), nn.ReLU(), nn.Conv1d(width, 9, 1)
        )
        self.shared = nn.Sequential(
            nn.Conv1d(3, width, 1), nn.BatchNorm1d(width), nn.ReLU(), nn.Conv1d(width, 32, 1)
        )
        self.head = nn.Linear(32, 5)

    def forward(self, points: Tensor, labels: Tensor) -> Result:
        """Cross entropy with a penalty on transforms that are not orthogonal."""
        identity = torch.eye(3, dtype=points.dtype, device=points.device)
        matrix = self.transform(points.mT).max(-1).values.view(-1, 3, 3) + identity
        x = self.shared(torch.bmm(points, matrix).mT)
        logits = self.head(x.max(dim=-1).values)
        penalty = (torch.bmm(matrix, matrix.mT) - identity).norm(dim=(1, 2)).mean()
        return F.cross_entropy(logits, labels) + 1e-3 * penalty, logits


# ---- batches -------------------------------------------------------------------------------------


def _tokens(size: int, length: int) -> Batch:
    return {"tokens": torch.randint(1, _VOCABULARY, (size, length))}


def _same_length(size: int, _: int) -> Batch:
    return _tokens(size, 8)


def _pairs(target_length: int | None, size: int, length: int) -> Batch:
    tokens = torch.randint(1, _VOCABULARY, (size, length))
    tokens[1::2, length * 3 // 4 :] = 0
    targets = torch.randint(1, _VOCABULARY, (size, target_length or length // 2))
    return {"tokens": tokens, "targets": targets}


def _speech(size: int, length: int) -> Batch:
    return {
        "spectrum": torch.randn(size, 8, 2 * length),
        "lengths": torch.randint(length, 2 * length + 1, (size,)),
        "labels": torch.randint(1, 6, (size, 3)),
        "label_lengths": torch.randint(1, 4, (size,)),
    }


def _table(size: int, _: int) -> Batch:
    # Batch norm needs two rows in training: a batch of one is two.
    size = max(size, 2)
    highest = torch.tensor((7, 5, 11))
    return {
        "categories": (torch.rand(size, 3) * highest).long(),
        "numbers": torch.randn(size, 4),
        "labels": torch.randint(2, (size,)).float(),
    }


def _clicks(size: int, length: int) -> Batch:
    lengths = torch.randint(1, 4, (3, size))
    total = int(lengths.sum(1).max())
    starts = F.pad(lengths.cumsum(1)[:, :-1], (1, 0))
    return {
        "dense": torch.randn(size, 4),
        "indices": torch.randint(20, (3, total + length % 3)),
        "offsets": starts,
        "labels": torch.randint(2, (size,)).float(),
    }


def _graphs(size: int, length: int) -> Batch:
    return _graph(size, length) | {
        "graph": torch.arange(size).repeat_interleave(length),
        "labels": torch.randint(3, (size,)),
    }


def _graph(size: int, length: int) -> Batch:
    count = size * length
    return {
        "nodes": torch.randn(count, 6),
        "edges": torch.randint(count, (2, 3 * count + size)),
        "labels": torch.randint(3, (count,)),
    }


def _points(size: int, length: int) -> Batch:
    return {"points": torch.randn(size, length, 3), "labels": torch.randint(5, (size,))}


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[int, int], Any]]] = {
    "lstm": (partial(RecurrentModel, nn.LSTM), _same_length),
    "gru": (partial(RecurrentModel, nn.GRU), _same_length),
    "attention-seq2seq": (AttentionSeq2Seq, lambda size, _: _pairs(5, size, 8)),
    "speech-ctc": (SpeechCtc, lambda size, _: _speech(size, 8)),
    "retnet": (partial(DecoderStack, Retention), _tokens),
    "linear-attention": (partial(DecoderStack, LinearAttention), _tokens),
    "transformer-xl": (partial(DecoderStack, RelativeAttention), _tokens),
    "selective-scan": (partial(DecoderStack, SelectiveScan), _same_length),
    "s4d": (partial(DecoderStack, FourierStateSpace), _tokens),
    "moe-sparse": (partial(DecoderStack, partial(RoutedExperts, sparse=True)), _tokens),
    "moe-dense": (partial(DecoderStack, partial(RoutedExperts, sparse=False)), _tokens),
    "nn-transformer": (TorchTransformer, partial(_pairs, None)),
    "wavenet": (Wavenet, _tokens),
    "tab-transformer": (TabTransformer, _table),
    "dlrm": (Dlrm, _clicks),
    "graph-convolution": (GraphConvolution, _graphs),
    "graph-attention": (GraphAttention, _graph),
    "pointnet": (PointNet, _points),
}
"""By name: a function that makes the module, and one that makes a batch of a size and a length."""
