"""Complex numbers as pairs and back."""

from __future__ import annotations

import torch
from torch import Tensor

from .case import Case, case, normal


def _turned(x: Tensor) -> Tensor:
    """From pairs to pairs, by views of complex numbers, of which 16 bits have none."""
    wide = x.double() if x.dtype in (torch.float16, torch.bfloat16) else x
    z = torch.view_as_complex(wide.transpose(0, 1).contiguous())
    return torch.view_as_real(z[1:].transpose(0, 1).unsqueeze(1).flatten(0, 1)).to(x.dtype)


def cases() -> list[Case]:
    return [
        case("aten.view_as_complex.default", lambda n: (normal(n, 3, 2),), function=_turned),
        case("aten.view_as_real.default", lambda n: (normal(n, 3, 2),), function=_turned),
    ]
