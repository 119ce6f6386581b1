"""Scaled dot product attention: our own op on the CPU, with and without dropout."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from .case import Case, Outcome, case, flags, normal

_ATTENTION = "aten.scaled_dot_product_attention.default"
_OURS = "ScaledDotProductAttention"
# Drops nothing (the least that a 32-bit word decides is 2.3e-10), but takes the way of dropout.
_NEVER = 1e-12


def _qkv(n: int, heads: int = 2, keys: int = 0):
    return (
        normal(2, heads, n, 4),
        normal(2, heads, n + keys, 4),
        normal(2, heads, n + keys, 6 if keys else 4),
    )


def _shared(n: int, keys: int = 0):
    """Four heads of queries, two of keys and values."""
    return (normal(2, 4, n, 4), *_qkv(n, keys=keys)[1:])


def _attend_repeated(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """As models write it that repeat keys and values themselves."""
    k, v = (x.unsqueeze(2).expand(-1, -1, 2, -1, -1).flatten(1, 2) for x in (k, v))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def _transposed(n: int):
    q, k, v = (normal(2, n, 3, 4) for _ in range(3))
    return q, k, v


def _attend_transposed(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, dropout_p=_NEVER).transpose(1, 2)


def _blind(n: int):
    """The first row sees nothing."""
    mask = flags(n, n) if n < 2 else torch.ones(n, n, dtype=torch.bool)
    mask[:1] = False
    return (*_qkv(n), mask)


def _dropped(q: Tensor, k: Tensor) -> Tensor:
    """The dropped probabilities themselves: those of values that are an identity matrix."""
    keys = torch.arange(k.size(2), device=k.device)
    identity = (keys.unsqueeze(1) == keys).to(q.dtype).expand(k.size(0), k.size(1), -1, -1)
    return F.scaled_dot_product_attention(q, k, identity, dropout_p=0.5)


def _halves(outcome: Outcome) -> None:
    """Each probability is dropped or doubled, in the result and in the gradients alike."""
    y = outcome.outputs[0].detach()
    exact = torch.promote_types(y.dtype, torch.float32)
    q, k = (x.detach().to(exact).requires_grad_() for x in outcome.inputs)
    probabilities = (q @ k.transpose(-2, -1) / q.size(-1) ** 0.5).softmax(-1)
    kept = y != 0
    halves = 2 * probabilities * kept
    torch.testing.assert_close(y, halves.detach().to(y.dtype))
    share = kept.double().mean()
    assert y.numel() < 500 or 0.4 < share < 0.6, f"{share:.3f} of the elements are kept"
    wanted = torch.autograd.grad(halves, (q, k), outcome.grad_outputs[0].to(exact))
    for ours, gradient in zip(outcome.grads, wanted, strict=True):
        torch.testing.assert_close(ours, gradient.to(y.dtype))


def _attend_split(x: Tensor) -> Tensor:
    """Heads of one projection, neither of which is contiguous."""
    q, k, v = x.unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
    return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)


def _plain(build: object, label: str = "", **options: object) -> Case:
    return case(_ATTENTION, build, label=label, contains=_OURS, **options)


def _ours(build: object, label: str, **options: object) -> Case:
    return _plain(build, label, dropout_p=_NEVER, **options)


def cases() -> list[Case]:
    return [
        _plain(_qkv),
        _plain(_qkv, "-causal", is_causal=True),
        _plain(_qkv, "-scale", scale=0.3),
        _plain(lambda n: (*_qkv(n), normal(n, n)), "-learned-bias"),
        _plain(lambda n: (*_qkv(n), normal(n, n)), "-bias", constant=(3,)),
        _plain(lambda n: (*_qkv(n), flags(n, n)), "-mask"),
        _plain(lambda n: (*_qkv(n), flags(2, 1, 1, n)), "-padding-mask"),
        _plain(_blind, "-blind-row"),
        _plain(lambda n: _qkv(n, keys=3), "-cross"),
        _plain(lambda n: _qkv(n, keys=3), "-cross-causal", is_causal=True),
        _plain(lambda n: tuple(x[0] for x in _qkv(n)), "-rank-3"),
        # Several pieces of rows; several blocks of keys.
        _plain(lambda n: _qkv(n + 150), "-rows", is_causal=True, sizes=()),
        _plain(lambda n: _qkv(n + 40, keys=250), "-keys", sizes=()),
        _plain(lambda n: (normal(2, n, 24),), "-split", function=_attend_split),
        _plain(_shared, "-shared", enable_gqa=True),
        _plain(lambda n: (*_shared(n), flags(n, n)), "-shared-mask", enable_gqa=True),
        _plain(lambda n: (*_shared(n), normal(n, n)), "-shared-learned-bias", enable_gqa=True),
        _plain(lambda n: _shared(n + 40, keys=250), "-shared-keys", enable_gqa=True, sizes=()),
        _plain(lambda n: tuple(x[0] for x in _shared(n)), "-shared-rank-3", enable_gqa=True),
        _plain(_shared, "-repeated", function=_attend_repeated),
        _ours(_qkv, "-dropout"),
        _ours(lambda n: _qkv(n, keys=3), "-dropout-cross", scale=0.3),
        _ours(lambda n: _qkv(n, keys=3), "-dropout-cross-causal", is_causal=True),
        _ours(lambda n: tuple(x[0] for x in _qkv(n)), "-dropout-rank-3", is_causal=True),
        # Several strips of rows, and several groups of heads.
        _ours(lambda n: _qkv(n + 150), "-dropout-rows", is_causal=True, sizes=()),
        _ours(lambda n: _qkv(n + 130, heads=17), "-dropout-heads", sizes=()),
        _ours(lambda n: (*_qkv(n), flags(2, 1, n, n)), "-dropout-mask"),
        _ours(lambda n: (*_qkv(n), flags(n)), "-dropout-row-mask"),
        _ours(_blind, "-dropout-blind-row"),
        _ours(lambda n: (*_qkv(n), normal(2, n, n)), "-dropout-bias", constant=(3,)),
        # The bias has a gradient: the matrix exists as a whole in backward.
        _ours(lambda n: (*_qkv(n), normal(2, n, n)), "-dropout-learned-bias"),
        case(
            _ATTENTION,
            _transposed,
            function=_attend_transposed,
            contains=_OURS,
            label="-dropout-transposed",
        ),
        case(
            _ATTENTION,
            lambda n: (normal(2, 3, n + 20, 4), normal(2, 3, n + 20, 4)),
            function=_dropped,
            check=_halves,
            contains=_OURS,
            label="-dropout-half",
        ),
        case(_ATTENTION, _qkv, dropout_p=1.0, label="-dropout-one", contains=_OURS),
    ]
