"""Batch norm in training, with new statistics as results, and with given statistics."""

from __future__ import annotations

import torch

from .case import Case, case, normal, positive

_TRAINING = "aten._native_batch_norm_legit_functional.default"
_TRAINED = torch.ops.aten._native_batch_norm_legit_functional.default
_GIVEN = torch.ops.aten._native_batch_norm_legit_no_training.default
_NATIVE = torch.ops.aten.native_batch_norm.default
_STATISTICS = (3, 4)  # running mean and variance
# With given statistics an empty batch ends torch's process; with one element it divides by zero.


def cases() -> list[Case]:
    return [
        case(_TRAINING, lambda n: (normal(n, 4, 5), normal(4), normal(4), normal(4), positive(4),
                                   True, 0.1, 1e-5), constant=_STATISTICS),
        case(_TRAINING, lambda n: (normal(n, 4), normal(4), normal(4), normal(4), positive(4),
                                   True, 0.3, 1e-3), constant=_STATISTICS, label="-2d", sizes=()),
        case(_TRAINING, lambda n: (normal(n, 4, 5), None, None, normal(4), positive(4), True, 0.1,
                                   1e-5), constant=(1, 2), label="-plain"),
        case(_TRAINING, lambda n: (normal(n, 4, 5), normal(4), normal(4), normal(4), positive(4),
                                   False, 0.1, 1e-5), constant=_STATISTICS, label="-given",
             sizes=(1,), function=lambda *args: _TRAINED(*args)[::3]),
        case("aten._native_batch_norm_legit_no_training.default",
             lambda n: (normal(n, 4, 5, 5), normal(4), normal(4), normal(4), positive(4), 0.1,
                        1e-5), gradient=False, sizes=(1,),
             function=lambda *args: _GIVEN(*args)[0]),
        case("aten.native_batch_norm.default",
             lambda n: (normal(n, 4, 5), normal(4), normal(4), normal(4), positive(4), False, 0.1,
                        1e-5), constant=_STATISTICS, sizes=(1,), function=lambda *args: _NATIVE(*args)[0],
             arrives_as="aten._native_batch_norm_legit_no_training.default"),
        case("aten._native_batch_norm_legit.no_stats",
             lambda n: (normal(n, 4, 5), normal(4), normal(4), True, 0.1, 1e-5)),
    ]  # fmt: skip
