"""Linear algebra, whose operators look at data and raise; assertions do alike."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from ortmodule_py import ORTModule, last_run_report

SPECTRA: dict[str, Callable[[Tensor], Tensor]] = {
    "eigvalsh": lambda w: torch.linalg.eigvalsh(w @ w.mT).max(),
    "svdvals": lambda w: torch.linalg.svdvals(w).square().sum(),
    "nuclear norm": lambda w: torch.linalg.matrix_norm(w, "nuc"),
    "spectral norm": lambda w: torch.linalg.matrix_norm(w, 2),
}


class _Spectrum(nn.Module):
    def __init__(self, use: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.weight, self.use = nn.Parameter(2 * torch.eye(4)), use

    def forward(self) -> Tensor:
        return self.use(self.weight)


@pytest.mark.parametrize("name", SPECTRA)
def test_equal_eigenvalues(name: str) -> None:
    """Vectors that nobody reads have no gradient, and no 0 / 0 in it."""
    torch._dynamo.reset()
    module = _Spectrum(SPECTRA[name])
    model = ORTModule(copy.deepcopy(module))
    module().backward()
    model().backward()
    assert module.weight.grad is not None and model.weight.grad is not None
    assert module.weight.grad.isfinite().all()
    torch.testing.assert_close(model.weight.grad, module.weight.grad)
    assert last_run_report(model)["compiled"]


class _Twice(nn.Module):
    """Calls alike, of which the first reads the values alone and the second the vectors too."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (nn.Parameter(_symmetric(torch.randn(4, 4))) for _ in range(2))

    def forward(self) -> Tensor:
        values = torch.linalg.eigh(self.first)[0]
        more, vectors = torch.linalg.eigh(self.second)
        return (values * more).sum() + (vectors.square() * more.tanh()).square().sum()


def test_calls_alike_that_are_read_otherwise() -> None:
    torch._dynamo.reset()
    module = _Twice()
    model = ORTModule(copy.deepcopy(module))
    module().backward()
    model().backward()
    for mine, wanted in zip(model.parameters(), module.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, wanted.grad, rtol=1e-3, atol=1e-4)
    assert last_run_report(model)["compiled"]


class _Solving(nn.Module):
    def __init__(self, solve: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4, dtype=torch.float64)
        self.solve = solve

    def forward(self, x: Tensor) -> Tensor:
        return self.solve(self.fc(x)).square().sum()


def _symmetric(x: Tensor) -> Tensor:
    return x @ x.mT + 4 * torch.eye(4, dtype=x.dtype)


def _complex_svd(x: Tensor) -> Tensor:
    """Torch looks at values in its gradient: the phases of the vectors must not matter."""
    u, s, vh = torch.linalg.svd(x, full_matrices=False)
    return ((u * s.sqrt().unsqueeze(-2)) @ vh).abs()


SOLVERS: dict[str, Callable[[Tensor], Tensor]] = {
    "inv": lambda x: torch.linalg.inv(x + 5 * torch.eye(4, dtype=x.dtype)),
    "solve": lambda x: torch.linalg.solve(_symmetric(x), x),
    "cholesky": lambda x: torch.linalg.cholesky(_symmetric(x)),
    "eigh": lambda x: torch.linalg.eigh(_symmetric(x))[0],
    "det": lambda x: torch.linalg.det(_symmetric(x)),
    "slogdet": lambda x: torch.linalg.slogdet(_symmetric(x))[1],
    "qr": lambda x: torch.linalg.qr(x)[1],
    "svd": lambda x: torch.linalg.svdvals(x),
    "complex svd": lambda x: _complex_svd(torch.complex(x, x.mT)),
    "pinv": lambda x: torch.linalg.pinv(x),
    "matrix_exp": lambda x: torch.linalg.matrix_exp(x / 8),
    "solve_triangular": lambda x: torch.linalg.solve_triangular(_symmetric(x), x, upper=True),
    "lu": lambda x: torch.linalg.lu(_symmetric(x))[2],
}


class _SolvingAll(nn.Module):
    """Each solver on the result of a layer of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleDict({name: _Solving(solve) for name, solve in SOLVERS.items()})

    def forward(self, x: Tensor) -> Tensor:
        total = torch.zeros((), dtype=x.dtype)
        for part in self.parts.values():
            total = total + part(x)
        return total


def _least_squares() -> nn.Module:
    """Its result breaks the graph."""
    return _Solving(lambda x: torch.linalg.lstsq(_symmetric(x), x)[0])


@pytest.mark.parametrize(
    "make", [pytest.param(_SolvingAll, marks=pytest.mark.slow), _least_squares]
)
def test_linear_algebra_is_compiled(make: Callable[[], nn.Module]) -> None:
    module = make()
    model = ORTModule(copy.deepcopy(module))
    for batch in ((), (3,)):
        x = torch.randn(*batch, 4, 4, dtype=torch.float64)
        for m in (module, model):
            m.zero_grad()
            m(x).backward()
        for (name, p), q in zip(module.named_parameters(), model.parameters(), strict=True):
            assert p.grad is not None and q.grad is not None, name
            torch.testing.assert_close(q.grad, p.grad, rtol=1e-8, atol=1e-10, msg=name)
    report = last_run_report(model)
    assert not report["eager_pieces"]
    assert all("`torch.linalg.lstsq`" in reason for reason in report["graph_breaks"])


@pytest.mark.parametrize("name", ["inv", "cholesky"])
def test_a_singular_matrix_is_eagers_error(name: str) -> None:
    solve = {"inv": torch.linalg.inv, "cholesky": torch.linalg.cholesky}[name]
    model = ORTModule(_Solving(lambda x: solve(x * 0)))
    x = torch.randn(4, 4, dtype=torch.float64)
    for m in (model.module, model):
        with pytest.raises(torch.linalg.LinAlgError, match="linalg"):
            m(x)


class _Determinant(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(0.9, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return torch.linalg.det(x * self.scale)


def test_the_determinant_of_a_singular_matrix_with_a_gradient_of_its_gradient() -> None:
    """Torch has another formula there than for first gradients, which it gives as 0."""
    singular = torch.tensor([[1.0, 2, 3], [2, 4, 6], [1, 0, 5]], dtype=torch.float64)
    module = _Determinant()
    found = []
    for m in (module, ORTModule(copy.deepcopy(module))):
        x = singular.clone().requires_grad_()
        (slope,) = torch.autograd.grad(m(x), x, create_graph=True)
        (bend,) = torch.autograd.grad(slope.square().sum(), x)
        found.append((slope, bend))
    assert found[0][0].abs().max() > 1
    torch.testing.assert_close(found[1], found[0])


def test_an_assertion_is_eagers_error() -> None:
    def demand(x: Tensor) -> Tensor:
        torch._assert_async((x.abs() < 100).all(), "too large")
        return x

    model = ORTModule(_Solving(demand))
    model(torch.zeros(4, 4, dtype=torch.float64)).backward()
    for m in (model.module, model):
        with pytest.raises(RuntimeError, match="too large"):
            m(torch.full((4, 4), 1e6, dtype=torch.float64))
    assert not last_run_report(model)["eager_pieces"]


class _Factors(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return torch.linalg.lu(x @ x.mT + torch.eye(4))


def test_results_without_a_gradient_of_their_own() -> None:
    """The permutation of an LU decomposition requires no gradient, whatever its operand does."""
    torch._dynamo.reset()
    x = torch.randn(4, 4, requires_grad=True)
    model = ORTModule(_Factors())
    factors = model(x)
    assert [factor.requires_grad for factor in factors] == [False, True, True]
    for mine, wanted in zip(factors, _Factors()(x), strict=True):
        torch.testing.assert_close(mine, wanted)
    assert last_run_report(model)["compiled"]


class _SingularValues(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return torch.linalg.svd(x, full_matrices=False)


def test_matrices_without_elements() -> None:
    """A kernel of torch's that copies the memory of its operand finds none."""
    torch._dynamo.reset()
    x = torch.ones(3, 5, 0, requires_grad=True)
    factors = ORTModule(_SingularValues())(x)
    assert [factor.shape for factor in factors] == [(3, 5, 0), (3, 0), (3, 0, 0)]
    factors[1].sum().backward()
    assert x.grad is not None and x.grad.shape == x.shape
