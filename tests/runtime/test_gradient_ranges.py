"""Gradients that leave before the end of backward, and what is read of them later."""

from __future__ import annotations

import copy
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor, nn

from ortmodule_py import ORTModule, last_run_report

WIDTH = 1024


class Residual(nn.Module):
    """The gradient of `pos` is that of the sum, which the first layer's gradient reads later."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in "123")
        self.pos = nn.Parameter(torch.randn(WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x) + self.pos
        return self.third(self.second(h.tanh()).tanh()).square().mean()


def test_what_was_handed_over_is_not_read_again() -> None:
    torch.manual_seed(0)
    eager = Residual()
    ours = ORTModule(copy.deepcopy(eager))
    seen: list[Tensor] = []

    def change(p: Tensor) -> None:
        assert p.grad is not None
        seen.append(p.grad.clone())
        p.grad.zero_()  # as an optimizer that steps in backward

    ours.module.pos.register_post_accumulate_grad_hook(change)
    x = torch.randn(WIDTH, WIDTH)
    for _ in range(2):
        eager(x).backward()
        ours(x).backward()
    assert last_run_report(ours)["compiled"]
    torch.testing.assert_close(seen[0] + seen[1], eager.pos.grad)
    for name, p in eager.named_parameters():
        if name != "pos":
            torch.testing.assert_close(ours.module.get_parameter(name).grad, p.grad, msg=name)


def test_threads_of_different_shapes() -> None:
    """Each call runs with its own plan."""
    module = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))
    model = ORTModule(module)
    sizes = (2, 3, 5, 300)

    def run(size: int) -> list[str]:
        wrong = []
        x = torch.randn(size, 16)
        with torch.no_grad():
            want = module(x)
            for _ in range(500):
                got = model(x)
                if got.shape != want.shape or not torch.allclose(got, want, atol=1e-5):
                    wrong.append(f"{tuple(want.shape)} but {tuple(got.shape)}")
        return wrong

    with torch.no_grad():
        for size in sizes:
            model(torch.randn(size, 16))
    with ThreadPoolExecutor(len(sizes)) as pool:
        assert [text for wrong in pool.map(run, sizes) for text in wrong] == []
