"""Packed batches of sequences: one capture for all lengths, with values and gradients of eager PyTorch."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence
from torch.utils import _pytree as pytree

from ortmodule_py import _C, ORTModule, last_run_report
from ortmodule_py.trace.decompositions import recurrent_layers

STEPS, BATCH, WIDTH = 9, 4, 6


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield


class Model(nn.Module):
    """A recurrent network `rnn`, a layer `head` on its results, and a function of both."""

    def __init__(self, kind: type[nn.RNNBase], forward: Callable[..., Any], **options: Any) -> None:
        super().__init__()
        self.rnn = kind(WIDTH, 5, **options)
        width = options.get("proj_size") or 5
        self.head = nn.Linear(width * (2 if self.rnn.bidirectional else 1), WIDTH)
        self.function = forward

    def forward(self, *args: Any) -> Any:
        return self.function(self, *args)


def tag(model: Any, x: Tensor, lengths: Any, state: Any = None) -> Any:
    """Packs, tags each step and unpacks; returns the last states, too."""
    first = model.rnn.batch_first
    packed = pack_padded_sequence(x.tanh(), lengths, first, enforce_sorted=False)
    y, state = model.rnn(packed, state)
    y = PackedSequence(model.head(y.data).relu(), *y[1:])
    return pad_packed_sequence(y, first, total_length=x.size(1 if first else 0)), state


def batch(*, batch_first: bool = False) -> tuple[Tensor, Tensor]:
    lengths = torch.randint(1, STEPS + 1, (BATCH,))
    x = torch.randn(STEPS, BATCH, WIDTH)
    return x.transpose(0, 1).contiguous() if batch_first else x, lengths


def doubled(values: Any) -> Any:
    return pytree.tree_map(
        lambda v: v.double() if isinstance(v, Tensor) and v.is_floating_point() else v, values
    )


def results(model: nn.Module, *args: Any) -> list[Any]:
    """Outputs, and gradients of the sum of their squares."""
    model.zero_grad()
    outputs = pytree.tree_leaves(model(*args))
    sum(v.square().sum() for v in outputs if v.requires_grad).backward()
    return [*(v.detach() for v in outputs), *(p.grad for p in model.parameters())]


def check(model: Any, module: nn.Module, calls: list[tuple[Any, ...]], captures: int = 1) -> None:
    """Each call has the values and gradients of float64, and all are one piece without graph breaks."""
    exact = copy.deepcopy(module).double()
    for args in calls:
        for mine, wanted in zip(results(model, *args), results(exact, *doubled(args)), strict=True):
            torch.testing.assert_close(mine.to(wanted.dtype), wanted, rtol=1e-4, atol=1e-5)
    report = last_run_report(model)
    assert report["compiled"] and not report["graph_breaks"] and not report["eager_pieces"]
    assert report["captures"] == captures


@pytest.mark.parametrize("kind", [nn.LSTM, pytest.param(nn.RNN, marks=pytest.mark.slow)])
def test_one_capture_for_a_stream_of_lengths(kind: type[nn.RNNBase]) -> None:
    module = Model(kind, tag, bidirectional=True, num_layers=2, batch_first=True)
    model = ORTModule(module)
    check(model, module, [batch(batch_first=True) for _ in range(8)])
    with torch.no_grad():
        x, lengths = batch(batch_first=True)
        torch.testing.assert_close(model(x, lengths), module(x, lengths))


def test_forms_of_lengths() -> None:
    """A list, a tuple, other integers, and what is computed from an argument."""

    def run(model: Any, x: Tensor, given: Any, few: Any, short: Any, mask: Any, counts: Any) -> Any:
        forms = (given, few, short, mask.sum(1).cpu(), (counts + 1).to("cpu"))
        return [tag(model, x, form) for form in forms]

    def call() -> tuple[Any, ...]:
        x, lengths = batch()
        mask = torch.arange(STEPS) < lengths.unsqueeze(1)
        return x, lengths.tolist(), tuple(lengths.tolist()), lengths.int(), mask, lengths - 1

    module = Model(nn.GRU, run)
    check(ORTModule(module), module, [call() for _ in range(5)])


UNREAD: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "array": lambda lengths, _: lengths.numpy(),
    "changed": lambda lengths, _: lengths.sub_(1).clamp_(min=1),
}


@pytest.mark.parametrize("form", UNREAD)
def test_lengths_that_are_not_read_from_arguments(form: str) -> None:
    """The graph breaks where they are packed; the layer behind is compiled."""
    module = Model(nn.GRU, lambda model, x, *given: tag(model, x, UNREAD[form](*given)))
    model = ORTModule(module)
    for _ in range(3):
        x, lengths = batch()
        _, other = batch()
        wanted = module(x, lengths.clone(), other.clone())
        torch.testing.assert_close(model(x, lengths.clone(), other.clone()), wanted)
    report = last_run_report(model)
    assert report["compiled"] and report["graph_breaks"] and not report["eager_pieces"]


def test_lengths_in_order() -> None:
    """Without indices, cut to the longest sequence, with a padding that is not zero."""

    def run(model: Any, x: Tensor, lengths: Tensor) -> Any:
        y, _ = model.rnn(pack_padded_sequence(x, lengths))
        y, found = pad_packed_sequence(y, padding_value=-1.0)
        return model.head(y), found

    module = Model(nn.GRU, run)
    calls = [(x, lengths.sort(descending=True)[0]) for x, lengths in (batch() for _ in range(5))]
    check(ORTModule(module), module, calls)


def test_lists_of_other_lengths_and_tensors() -> None:
    """What a graph was captured for is checked in each call."""
    module = Model(nn.GRU, tag)
    model = ORTModule(module)
    x, lengths = batch()
    for given in (lengths.tolist(), lengths, (lengths + 0.0).tolist(), lengths[:3].tolist()):
        part = x[:, : len(given)]
        torch.testing.assert_close(model(part, given), module(part, given))


def test_arguments_and_results() -> None:
    """A PackedSequence keeps its sizes and its order, whatever its lengths."""
    module = Model(nn.LSTM, lambda model, packed: model.rnn(packed)[0], bidirectional=True)
    model = ORTModule(module)
    for sort in (False, False, True, True):
        x, lengths = batch()
        lengths = lengths.sort(descending=True)[0] if sort else lengths
        packed = pack_padded_sequence(x, lengths, enforce_sorted=sort)
        mine, wanted = model(packed), module(packed)
        assert type(mine) is PackedSequence
        torch.testing.assert_close(tuple(mine), tuple(wanted))
    report = last_run_report(model)
    assert report["captures"] == 2 and report["compiled"] and not report["graph_breaks"]


def test_states_passed_on() -> None:
    """Truncated backpropagation over parts of a packed batch, with states in the batch's order.

    States of another batch are an error.
    """
    module = Model(nn.LSTM, tag, num_layers=2)
    eager = copy.deepcopy(module)
    model = ORTModule(module)
    parts = [batch() for _ in range(4)]

    def losses(run: Any) -> Tensor:
        total, state = torch.zeros(()), None
        for i, (x, lengths) in enumerate(parts):
            (y, _), state = run(x, lengths, state)
            total = total + y.square().mean()
            state = tuple(s.detach() for s in state) if i % 2 else state
        return total

    mine, wanted = losses(model), losses(eager)
    torch.testing.assert_close(mine, wanted)
    mine.backward()
    wanted.backward()
    for a, b in zip(module.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-6)
    assert last_run_report(model)["compiled"]
    (x, lengths), state = parts[0], (torch.randn(2, BATCH - 1, 5), torch.randn(2, BATCH - 1, 5))
    for runner in (model, eager):
        with pytest.raises((RuntimeError, IndexError)):
            runner(x, lengths, state)


WRONG: dict[str, tuple[Any, ...]] = {
    "not in order": (torch.zeros(5, 3, WIDTH), torch.tensor([2, 3, 1]), True),
    "zero": (torch.zeros(5, 3, WIDTH), torch.tensor([2, 0, 1]), False),
    "too few": (torch.zeros(5, 3, WIDTH), torch.tensor([2, 1]), False),
    "of floats": (torch.zeros(5, 3, WIDTH), [2.5, 1.0, 1.0], True),
    "other width": (torch.zeros(5, 3, 4), torch.tensor([3, 2, 1]), True),
}


def test_errors_are_those_of_torch() -> None:
    """Also after other lengths were captured."""

    def run(model: Any, x: Tensor, lengths: Any, in_order: bool) -> Any:
        return model.rnn(pack_padded_sequence(x, lengths, enforce_sorted=in_order))[0].data

    module = Model(nn.GRU, run)
    model = ORTModule(module)
    right = (torch.randn(5, 3, WIDTH), torch.tensor([4, 3, 1]))
    for args in ((*right, True), (*right, False)):
        torch.testing.assert_close(model(*args), module(*args))
    for name, args in WRONG.items():
        outcomes = []
        for runner in (module, model):
            try:
                outcomes.append(str(runner(*args).shape))
            except Exception as error:
                outcomes.append(f"{type(error).__name__}: {error}".partition("\n")[0])
        assert outcomes[0] == outcomes[1], name
    torch.testing.assert_close(model(*right, True), module(*right, True))


def test_dropout_between_layers_draws_for_packed_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORTMODULE_RNG", "torch")
    module = Model(nn.LSTM, tag, num_layers=3, dropout=0.5, bidirectional=True)
    eager = copy.deepcopy(module)
    model = ORTModule(module)
    args = batch()
    outcomes = []
    for run in (model, eager):
        torch.manual_seed(3)
        outcomes.append(results(run, *args))
    for mine, wanted in zip(*outcomes, strict=True):
        torch.testing.assert_close(mine, wanted, rtol=1e-4, atol=1e-5)
    assert last_run_report(model)["compiled"]


def test_under_autocast() -> None:
    module = Model(nn.LSTM, tag)
    eager = copy.deepcopy(module)
    model = ORTModule(module)
    args = batch()
    outcomes = []
    for run in (model, eager):
        with torch.autocast("cpu", torch.bfloat16):
            outcomes.append(pytree.tree_leaves(run(*args)))
    for mine, wanted in zip(*outcomes, strict=True):
        torch.testing.assert_close(mine, wanted, rtol=0.05, atol=0.02, check_dtype=False)
    assert last_run_report(model)["compiled"]


def test_labels_packed_like_their_inputs() -> None:
    def loss(model: Any, x: Tensor, lengths: Tensor, labels: Tensor) -> Tensor:
        y = model.head(model.rnn(pack_padded_sequence(x, lengths, True, False))[0].data)
        wanted = pack_padded_sequence(labels, lengths, True, False).data
        return nn.functional.cross_entropy(y, wanted)

    module = Model(nn.GRU, loss, batch_first=True)
    labels = torch.randint(WIDTH, (BATCH, STEPS))
    calls = [(*batch(batch_first=True), labels) for _ in range(4)]
    check(ORTModule(module), module, calls)


def test_projected_states() -> None:
    """`proj_size` of nn.LSTM, packed and not."""

    def run(model: Any, x: Tensor, lengths: Tensor) -> Any:
        y, state = model.rnn(x)
        return model.head(y), state, tag(model, x, lengths)

    module = Model(nn.LSTM, run, proj_size=3, num_layers=2, bidirectional=True)
    x, lengths = batch()
    longer = torch.cat([x, x])
    check(ORTModule(module), module, [(x, lengths), (longer, lengths + 3), batch()])


@pytest.mark.parametrize(
    ("kind", "options"),
    [(nn.GRU, {}), (nn.LSTM, {"bidirectional": True, "proj_size": 3})],
)
def test_recomputed_gates_have_the_same_bits(
    kind: type[nn.RNNBase], options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    module = Model(kind, tag, num_layers=2, **options)
    args = (torch.randn(40, 8, WIDTH), torch.randint(20, 41, (8,)))
    outcomes, peaks = [], []
    for level in ("0", "1"):
        monkeypatch.setenv("ORTMODULE_MEMORY_OPT_LEVEL", level)
        model = ORTModule(copy.deepcopy(module))
        outcomes.append(results(model, *args))
        peaks.append(last_run_report(model)["planned_peak_bytes"])
    assert all(map(torch.equal, *outcomes))
    assert peaks[1] < peaks[0]


def test_pieces_left_to_eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dynamo's graph runs on torch's own functions then, with their gradients."""
    monkeypatch.setattr(recurrent_layers, "_is_whole", lambda *_: False)
    module = Model(nn.LSTM, tag)
    eager = copy.deepcopy(module)
    model = ORTModule(module)
    for args in (batch(), batch()):
        for mine, wanted in zip(results(model, *args), results(eager, *args), strict=True):
            torch.testing.assert_close(mine, wanted)
    assert not last_run_report(model)["compiled"]


@pytest.mark.parametrize("emulated", ["0", "1"])
def test_a_packed_sequence_that_contradicts_itself(
    emulated: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batch sizes are data: the kernels check them. torch packs sequences longer than the batch so."""
    if emulated == "1" and not _C.build_info()["cuda_emulation"]:
        pytest.skip("this build has no CUDA kernels for the host")
    monkeypatch.setenv("ORTMODULE_CUDA_EMULATION", emulated)
    module = Model(nn.GRU, lambda model, packed: model.rnn(packed)[0].data)
    model = ORTModule(module)
    x, lengths = batch()
    packed = pack_padded_sequence(x, lengths, enforce_sorted=False)
    torch.testing.assert_close(model(packed), module(packed))
    longer = pack_padded_sequence(x, torch.tensor([STEPS + 1, 1, 1, 1]))
    turned = PackedSequence(packed.data, packed.batch_sizes.flip(0) + 1, *packed[2:])
    for wrong in (longer, turned):
        with pytest.raises(RuntimeError):
            module(wrong)
        with pytest.raises(RuntimeError, match=r"\[PackedSequence\]"):
            model(wrong)
    x, lengths = batch()[0], torch.tensor([STEPS, 3, 2, 1])
    packed = pack_padded_sequence(x, lengths)
    swapped = packed.batch_sizes.clone()
    swapped[1:3] = packed.batch_sizes[1:3].flip(0)
    with pytest.raises(RuntimeError, match=r"descending order, but found 3 at step 2"):
        model(PackedSequence(packed.data, swapped))
