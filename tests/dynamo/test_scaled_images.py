"""`F.interpolate` by a factor that rounds the sizes: one capture for all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate

from tests.semantics import Calls, as_in_eager, assert_whole

SCALED: dict[str, Callable[[Tensor], Any]] = {
    "a row": lambda x: interpolate(x.flatten(1)[None], scale_factor=1.7),
    "a row, transposed": lambda x: interpolate(x.sum(2), scale_factor=0.3, mode="linear"),
    "nearest": lambda x: interpolate(x, None, (1.3, 0.7)),
    "nearest, exact": lambda x: interpolate(x, scale_factor=[2, 1.1], mode="nearest-exact"),
    "bilinear": lambda x: interpolate(x, None, 1.37, "bilinear"),
    "bicubic, aligned": lambda x: interpolate(
        x, scale_factor=0.45, mode="bicubic", align_corners=True
    ),
    "smoothed": lambda x: interpolate(x, scale_factor=0.7, mode="bilinear", antialias=True),
    "factors of the sizes": lambda x: interpolate(
        x, scale_factor=1.7, mode="bilinear", recompute_scale_factor=True
    ),
    "area": lambda x: interpolate(x, scale_factor=0.6, mode="area"),
    "volumes": nn.Upsample(scale_factor=1.2, mode="trilinear"),
}


@pytest.mark.parametrize("name", SCALED)
def test_a_scaled_image(name: str) -> None:
    def forward(m: Any, x: Tensor) -> Tensor:
        y = m.fc(x)
        y = y.reshape(1, 1, *y.shape) if name != "volumes" else y.reshape(1, 1, -1, 2, 2)
        result: Tensor = SCALED[name](y)
        return result

    def step(model: Any) -> list[Any]:
        results = [model(torch.randn(n, 4)) for n in (10, 13, 16, 9, 21)]
        sum(result.square().sum() for result in results).backward()
        return [(result, result.stride()) for result in results]

    assert_whole(as_in_eager(Calls(forward), step))


def test_an_error_stays_that_of_eager() -> None:
    def forward(m: Any, x: Tensor) -> Tensor:
        return interpolate(m.fc(x)[None, None], scale_factor=1.7, align_corners=True)

    def step(model: Any) -> str:
        with pytest.raises(ValueError, match="align_corners") as error:
            model(torch.ones(5, 4))
        return type(error.value).__name__

    as_in_eager(Calls(forward), step)
