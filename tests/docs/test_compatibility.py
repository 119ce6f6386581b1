"""Each row of docs/compatibility.md is a case here, and the case's outcome is the word of the row."""

from __future__ import annotations

import copy
import io
import pickle
import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from ortmodule_py import ORTModule, last_run_report
from tests.docs import library_blocks
from tests.docs.library_blocks import Convolution, Lit, LoraLinear, UNetBlock, count, tripled
from tests.docs.trained_cases import (
    Report,
    calls as _calls,
    layer_drop,
    rows_of as _rows_of,
    tested as _tested,
    trained as _trained,
    word as _word,
)
from tests.fresh_process import ROOT
from tests.semantics import QUIET, Calls, as_in_eager, original

PAGE = (ROOT / "docs" / "compatibility.md").read_text()
Case = Callable[[], Report | str]


def _rows() -> dict[str, str]:
    """The word of each row, by the name in its first column."""
    found = re.findall(
        r"^\| ([^|]+) \| (compiled|partly|eager|error)\b[^|]*\| [^|]+ \|$", PAGE, re.M
    )
    return dict(found)


CASES: dict[str, Case] = {}


def _case(name: str) -> Callable[[Case], Case]:
    def add(case: Case) -> Case:
        CASES[name] = case
        return case

    return add


def test_every_row_has_a_case() -> None:
    assert list(_rows()) == list(CASES)


@pytest.mark.parametrize("name", CASES)
def test_the_outcome_is_the_word_of_the_row(name: str) -> None:
    assert _word(CASES[name]()) == _rows().get(name)


# ---- libraries -------------------------------------------------------------------------------------

CASES["transformers, `Trainer`"] = _tested("tests/integrations/test_hugging_face.py::test_trainer")


@_case("accelerate")
def _() -> Report:
    accelerate = pytest.importorskip("accelerate")

    accelerator = accelerate.Accelerator(cpu=True)
    model = ORTModule(nn.Sequential(nn.Linear(4, 4), nn.Tanh()), QUIET)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    prepared, optimizer = accelerator.prepare(model, optimizer)
    accelerator.backward(prepared(torch.ones(3, 4)).sum())
    optimizer.step()
    assert accelerator.unwrap_model(prepared) is not None
    return last_run_report(model)


CASES["PEFT: LoRA"] = lambda: _trained(LoraLinear(), _rows_of(4))
CASES["PEFT: DoRA"] = lambda: _trained(LoraLinear(dora=True), _rows_of(4))
CASES["PEFT: LoHa, LoKr, VB-LoRA"] = lambda: _trained(library_blocks.LohaLinear(), _rows_of(4))

CASES["PEFT with gradient checkpointing (`enable_input_require_grads`)"] = _tested(
    "tests/dynamo/test_required_gradients.py::test_a_hook_of_a_frozen_layer_that_turns_gradients_on"
)


@_case("Lightning: `training_step` that calls `self(...)`")
def _() -> Report:
    def step(model: Any) -> Tensor:
        loss: Tensor = model.training_step(torch.ones(3, 4), 0)
        loss.backward()
        return loss

    return as_in_eager(Lit(), step)


@_case("timm: drop path")
def _() -> Report:
    def drop_path(self: Any, x: Tensor) -> Tensor:
        kept = x.new_empty((x.shape[0], 1)).bernoulli_(0.9)
        kept.div_(0.9)
        return self.fc(x) * kept

    model = ORTModule(Calls(drop_path), QUIET)  # its draws are others than eager's
    model(torch.ones(3, 4)).sum().backward()
    return last_run_report(model)


CASES["diffusers: UNet"] = lambda: _trained(
    UNetBlock(), torch.linspace(-1, 1, 1024).view(2, 8, 8, 8), torch.tensor([3, 70])
)


CASES["torch_geometric: message passing"] = lambda: _trained(
    Convolution(),
    _rows_of(4),
    lambda i: torch.tensor([[0, 1, 2, 0, 1][: 4 + i], [1, 2, 0, 2, 0][: 4 + i]]),
)

CASES["torch_geometric: self-loops (GCN, GAT), global pooling"] = _tested(
    "tests/dynamo/test_content_numbers.py::test_the_edges_of_graphs_of_other_sizes"
)
CASES["MoCo: a momentum encoder (`p.data = ...`) and a queue"] = _tested(
    "tests/compile/test_assigned_data.py::test_the_piece_stays_in_the_engine"
)
CASES["EEGNet, WGAN, VQ-VAE: weights and codebooks changed in forward"] = _tested(
    "tests/trace/test_unseen_changes.py::test_a_parameter_keeps_its_gradient"
)
CASES["transformers: CTC models of speech (Wav2Vec2, HuBERT)"] = _tested(
    "tests/dynamo/test_ctc_loss.py::test_targets_in_one_row_without_cudnn"
)
CASES["opt_einsum, neural operators (neuraloperator, tensorly)"] = _tested(
    "tests/dynamo/test_einsum_paths.py::test_contractions_of_opt_einsum"
)

# ---- distributed and mixed precision ---------------------------------------------------------------

CASES["`DistributedDataParallel`"] = _tested(
    "tests/integrations/test_data_parallel.py::test_two_ranks"
)


CASES["FSDP2 (`fully_shard`)"] = _tested("tests/integrations/sharded.py::all_orders")
CASES["`ZeroRedundancyOptimizer`"] = _tested("tests/integrations/data_parallel.py::zero_redundancy")
CASES["`torch.distributed.pipelining`"] = _tested("tests/integrations/sharded.py::pipeline")
CASES["tensor parallelism (`parallelize_module`)"] = _tested(
    "tests/integrations/sharded.py::tensor_parallel", "eager"
)


@_case("`nn.DataParallel`")
def _() -> str:
    with pytest.raises(NotImplementedError, match="DistributedDataParallel"):
        ORTModule(nn.DataParallel(nn.Linear(4, 4)))
    return "error"


@_case("`torch.autocast`, `GradScaler`")
def _() -> Report:
    def step(model: Any) -> Tensor:
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
        with torch.autocast("cpu", torch.bfloat16):
            y: Tensor = model(torch.ones(3, 4))
        scaler.scale(y.float().sum()).backward()
        return y

    return as_in_eager(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2)), step)


# ---- compilers and transforms ----------------------------------------------------------------------


@_case("`torch.compile` of another model beside it")
def _() -> Report:
    module, x = nn.Sequential(nn.Linear(4, 4), nn.Tanh()), torch.ones(3, 4)
    torch.compile(copy.deepcopy(module), backend="eager")(x)
    return _trained(module, x)


@_case("`torch.compile` of the wrapper")
def _() -> Report:
    model = ORTModule(nn.Sequential(nn.Linear(4, 4), nn.Tanh()), QUIET)
    torch.compile(model, backend="eager")(torch.ones(3, 4)).sum().backward()
    return last_run_report(model)


@_case('`torch.compile(model, backend="ortmodule")`')
def _() -> str:
    module, x = nn.Sequential(nn.Linear(4, 4), nn.Tanh()), torch.ones(3, 4)
    y = torch.compile(module, backend="ortmodule", fullgraph=True)(x)
    assert "RangeNode" in y.grad_fn.name()
    torch.testing.assert_close(y, module(x))
    return "compiled"


@_case("`torch.jit.trace`, `torch.export` of the wrapper")
def _() -> str:
    model, x = ORTModule(nn.Sequential(nn.Linear(4, 4), nn.Tanh()), QUIET), torch.ones(3, 4)
    traced = torch.jit.trace(model, x)
    exported = torch.export.export(model, (x,)).module()
    torch.testing.assert_close([traced(x), exported(x)], [model.module(x)] * 2)
    return "eager"


@_case("`torch.func.vmap` in forward")
def _() -> Report:
    return _calls(lambda self, x: torch.vmap(lambda r: self.fc(r).tanh())(x))


@_case("`torch.autograd.grad`, `torch.func.grad`, `vjp`, `jacrev` in forward")
def _() -> Report:
    def forward(self: Any, x: Tensor) -> Tensor:
        slope = torch.func.grad(lambda weight: (x @ weight).square().sum())(self.fc.weight)
        return torch.autograd.grad(slope.sin().sum(), self.fc.weight, create_graph=True)[0]

    return _calls(forward)


@_case("`torch.func.functional_call` of the wrapper")
def _() -> Report:
    def step(model: Any) -> Tensor:
        weights = {name: p * 2 for name, p in model.named_parameters()}
        y: Tensor = torch.func.functional_call(model, weights, (torch.ones(3, 4),))
        y.sum().backward()
        return y

    return as_in_eager(nn.Sequential(nn.Linear(4, 4), nn.Tanh()), step)


@_case("`torch.cond`")
def _() -> Report:
    def forward(self: Any, x: Tensor) -> Tensor:
        y = self.fc(x)
        return torch.cond(x.sum() > 0, lambda v: v.sin(), lambda v: v.cos(), (y,))

    return _calls(forward)


@_case("a scripted submodule (`torch.jit.script`)")
def _() -> Report:
    return _calls(lambda self, x: self.inner(self.fc(x)), inner=torch.jit.script(nn.Tanh()))


@_case("second derivatives (`create_graph=True`)")
def _() -> Report:
    x = torch.ones(3, 4, requires_grad=True)
    model = ORTModule(nn.Sequential(nn.Linear(4, 4), nn.Tanh()), QUIET)
    (slope,) = torch.autograd.grad(model(x).square().sum(), x, create_graph=True)
    slope.square().sum().backward()
    return last_run_report(model)


# ---- layers ----------------------------------------------------------------------------------------


@_case("`nn.LSTM`, `nn.GRU`, `nn.RNN`")
def _() -> Report:
    return _calls(lambda self, x: self.rnn(self.fc(x)[:, None])[0], rnn=nn.LSTM(4, 4))


@_case("batch norm, `InstanceNorm` that keeps statistics")
def _() -> Report:
    layers = (nn.Conv1d(2, 3, 1), nn.BatchNorm1d(3), nn.InstanceNorm1d(3, track_running_stats=True))
    return _trained(nn.Sequential(*layers), torch.linspace(-1, 1, 16).view(2, 2, 4).sin())


@_case("`EmbeddingBag`, `nn.Embedding(max_norm=1)`")
def _() -> Report:
    def forward(self: Any, ids: Tensor) -> Tensor:
        return self.bag(ids, per_sample_weights=self.words(ids).sum(-1).sigmoid())

    bag = nn.EmbeddingBag(9, 4, mode="sum").requires_grad_(False)
    words = nn.Embedding(9, 4, max_norm=1)
    return _calls(forward, torch.tensor([[0, 3, 8], [2, 2, 5]]), bag=bag, words=words)


@_case("`weight_norm`, `spectral_norm`, parametrizations")
def _() -> Report:
    class Symmetric(nn.Module):
        def forward(self, weight: Tensor) -> Tensor:
            return weight.triu() + weight.triu(1).T

    first = parametrizations.weight_norm(nn.Linear(4, 4))
    second = nn.Linear(4, 4)
    parametrize.register_parametrization(second, "weight", Symmetric())
    third = parametrizations.spectral_norm(nn.Linear(4, 4))
    return _trained(nn.Sequential(first, second, third), _rows_of(4))


CASES["quantization-aware training (`prepare_qat`)"] = _tested(
    "tests/dynamo/test_quantization_training.py::test_the_model_is_one_piece"
)


@_case("tied weights, frozen layers, lazy layers")
def _() -> Report:
    tied, lazy = nn.Linear(4, 4), nn.LazyLinear(4)
    lazy(torch.ones(1, 4))
    layers = (tied, nn.Tanh(), tied, nn.Linear(4, 4).requires_grad_(False), lazy)
    return _trained(nn.Sequential(*layers), _rows_of(4))


# ---- gradients -------------------------------------------------------------------------------------


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return grads[0] * 3


@_case("`torch.autograd.Function`")
def _() -> Report:
    return _calls(lambda self, x: Doubled.apply(self.fc(x)))  # type: ignore[no-untyped-call]


@_case("`torch.utils.checkpoint`, `checkpoint_sequential`")
def _() -> Report:
    def forward(self: Any, x: Tensor) -> Tensor:
        x = checkpoint(self.fc, x, use_reentrant=False)
        result: Tensor = checkpoint_sequential(self.layers, 2, x, use_reentrant=False)
        return result

    return _calls(forward, layers=nn.Sequential(*(nn.Linear(4, 4) for _ in range(4))))


CASES["forward hooks of modules"] = _tested(
    "tests/dynamo/test_hooks.py::test_forward_hooks_of_submodules"
)


@_case("backward hooks of modules (`register_full_backward_hook`)")
def _() -> Report:
    module = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    module[1].register_full_backward_hook(lambda *_: None)
    return _trained(module, _rows_of(4))


@_case("hooks of tensors, such as gradient reversal")
def _() -> Report:
    def forward(self: Any, x: Tensor) -> Tensor:
        y = self.fc(x)
        y.register_hook(lambda gradient: -0.5 * gradient)
        return y.tanh()

    return _calls(forward)


@_case("hooks of all modules (`register_module_forward_hook`)")
def _() -> Report:
    with nn.modules.module.register_module_forward_hook(lambda *_: None):
        return _trained(nn.Linear(4, 4), _rows_of(4))


@_case("accumulated, clipped and scaled gradients")
def _() -> Report:
    def step(model: Any) -> Tensor:
        for i in range(3):
            (model(torch.ones(3 + i, 4)).sum() / 3).backward()
        return nn.utils.clip_grad_norm_(model.parameters(), 0.5)

    return as_in_eager(nn.Sequential(nn.Linear(4, 4), nn.Tanh()), step)


@_case("moving averages (`AveragedModel`)")
def _() -> Report:
    def step(model: Any) -> Tensor:
        average = torch.optim.swa_utils.AveragedModel(model)
        model(torch.ones(3, 4)).sum().backward()
        torch.optim.SGD(model.parameters(), 0.1).step()
        average.update_parameters(model)
        result: Tensor = average(torch.ones(3, 4))
        return result

    return as_in_eager(nn.Sequential(nn.Linear(4, 4), nn.Tanh()), step)


@_case("in-place operations on values and buffers")
def _() -> Report:
    def forward(self: Any, x: Tensor) -> Tensor:
        self.count.add_(1)
        return self.fc(x).mul_(2).add_(1)

    return _calls(forward, count=nn.Buffer(torch.zeros(())))


@_case("in-place operations on an input that requires a gradient")
def _() -> Report:
    def step(model: Any) -> Tensor:
        x = torch.ones(3, 4, requires_grad=True) * 1
        y: Tensor = model(x)
        y.sum().backward()
        return y

    return as_in_eager(Calls(lambda self, x: self.fc(x.mul_(2))), step)


# ---- control flow ----------------------------------------------------------------------------------


@_case("a condition on a tensor (`if x.sum() > 0`, `.item()`)")
def _() -> Report:
    return _calls(lambda self, x: self.fc(x) if self.fc(x).sum() > 0 else self.fc(x).tanh())


CASES["an error for some data (`if x.isnan().any(): raise ValueError(...)`)"] = _tested(
    "tests/dynamo/test_checked_errors.py::test_a_condition_that_only_raises_is_captured"
)


@_case("shapes that depend on data (`x[x > 0]`)")
def _() -> Report:
    return _calls(lambda self, x: self.fc(x)[x.sum(1) > 0].tanh())


@_case(
    "masks, sizes and conditions from integer arguments (`x[labels > 0]`, `int(index.max())`, "
    "`if (labels == 1).any()`, `torch.unique(labels)`, `x.repeat_interleave(counts, 0)`)"
)
def _() -> Report:
    def forward(self: Any, x: Tensor, labels: Tensor) -> Tensor:
        y = self.fc(x)[labels > 0] * (2 if (labels == 1).any() else 1)
        y = y + torch.unique(labels).sum() + self.fc(x).repeat_interleave(labels, 0).sum()
        return y + x.new_zeros(int(labels.max()), 4).sum(0)

    return _calls(forward, _rows_of(4), lambda i: torch.arange(3 + i))


def _with_layers(function: Callable[..., Any]) -> Report:
    return _calls(function, layers=nn.ModuleList(nn.Linear(4, 4) for _ in range(3)))


CASES["layer drop (BART, Wav2Vec2), routers, a `print` in a loop"] = lambda: _with_layers(
    layer_drop
)
CASES["a loop over a size (`for t in range(x.size(1))`), as in recurrences of your own"] = _tested(
    "tests/dynamo/test_open_loops.py::test_a_loop_over_a_size", "partly"
)


@_case("`torch.utils.checkpoint` in such a loop")
def _() -> Report:
    def forward(self: Any, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = checkpoint(layer, self.fc(x), use_reentrant=False)
            torch._dynamo.graph_break()
        return x.tanh()

    report = _with_layers(forward)
    assert any("6 of 8 parameters" in piece for piece in report["eager_pieces"])
    return report


@_case("a graph break in a `try` or in a context manager of your own")
def _() -> Report:
    def forward(self: Any, x: Tensor) -> Tensor:
        try:
            x = self.fc(x)
            torch._dynamo.graph_break()
            x = self.layers[0](x.tanh())
        finally:
            x = x * 2
        return x

    return _with_layers(forward)


@_case("numbers that change, such as schedules")
def _() -> Report:
    return _calls(lambda m, x, t: m.fc(x) * np.exp(-t) / len(x), _rows_of(4), lambda i: 0.2 * i)


@_case("`random.random()`, `random.uniform(...)`")
def _() -> Report:
    return _calls(lambda self, x: self.fc(x) * random.uniform(1, 2) * random.random())


CASES["batches and lengths that change"] = lambda: _trained(
    Calls(lambda self, x: self.fc(x).softmax(0)), _rows_of(4), steps=4
)
CASES["lists that grow"] = _tested("tests/dynamo/test_unread_lists.py::test_a_hook_that_notes")
CASES[
    "lists of tensors of other lengths and sizes in each call (targets of detectors such as DETR and YOLOS)"
] = _tested(
    "tests/dynamo/test_open_lists.py::test_what_stands_around_the_list_is_captured_once", "partly"
)


@_case("numpy in forward")
def _() -> Report:
    return _calls(lambda self, x: self.fc(x) * torch.from_numpy(np.sin(np.ones(4, np.float32))))


CASES["`warnings.warn`, `logging`, loguru in forward"] = _tested(
    "tests/dynamo/test_graph_breaks.py::test_what_only_logs_is_skipped"
)

# ---- kinds of tensors ------------------------------------------------------------------------------


@_case("complex numbers")
def _() -> Report:
    def forward(self: Any, x: Tensor) -> Tensor:
        turned = torch.view_as_complex(self.fc(x).view(-1, 2, 2)) * torch.polar(
            torch.ones(2), torch.arange(2.0)
        )
        return torch.view_as_real(turned).flatten(1)

    return _calls(forward)


@_case("sparse tensors (`torch.sparse.mm`)")
def _() -> Report:
    return _calls(
        lambda self, x: torch.sparse.mm(torch.eye(x.shape[0]).to_sparse(), self.fc(x)),
    )


CASES["`nn.Embedding(sparse=True)`, `EmbeddingBag(sparse=True)`"] = _tested(
    "tests/compile/test_sparse_lookups.py::test_only_the_lookup_runs_in_eager", "partly"
)


@_case("nested tensors (jagged)")
def _() -> Report:
    def forward(self: Any, x: Tensor) -> Tensor:
        nested = torch.nested.nested_tensor([x[:1], x[1:]], layout=torch.jagged)
        return self.fc(nested).values()

    return _calls(forward)


@_case("channels-last images")
def _() -> Report:
    images = torch.linspace(-1, 1, 96).view(2, 3, 4, 4).to(memory_format=torch.channels_last)
    return _trained(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()), images)


# ---- operators and files ---------------------------------------------------------------------------


@_case("custom operators (`torch.library.custom_op`)")
def _() -> Report:
    return _calls(lambda self, x: tripled(self.fc(x)))


@_case("custom operators with `mutates_args`")
def _() -> Report:
    def forward(self: Any, x: Tensor) -> Tensor:
        count(self.counter)
        return self.fc(x)

    return _calls(forward, counter=nn.Buffer(torch.zeros(())))


@_case("`copy.deepcopy`, `pickle`, `state_dict`, `torch.save`")
def _() -> Report:
    model = ORTModule(nn.Sequential(nn.Linear(4, 4), nn.Tanh()), QUIET)
    x = torch.ones(3, 4)
    model(x).sum().backward()
    copies = [copy.deepcopy(model), pickle.loads(pickle.dumps(model))]
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    original(model).load_state_dict(torch.load(file))
    for other in copies:
        torch.testing.assert_close(other(x), model(x))
    return last_run_report(copies[0])


@dataclass
class Output:
    loss: Tensor
    logits: Tensor


@_case("outputs and arguments in dicts, dataclasses, named tuples")
def _() -> Report:
    def step(model: Any) -> Tensor:
        out = model({"x": torch.ones(3, 4)})
        out.loss.backward()
        loss: Tensor = out.loss
        return loss

    return as_in_eager(
        Calls(lambda self, given: Output((y := self.fc(given["x"])).square().mean(), y)), step
    )
