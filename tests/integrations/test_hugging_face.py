"""Hugging Face's Trainer, Accelerate and `generate` with models under ORTModule."""

from __future__ import annotations

import copy
import importlib.util
import logging
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ortmodule_py import DebugOptions, LogLevel, ORTModule, last_run_report

transformers = pytest.importorskip("transformers")

needs_accelerate = pytest.mark.skipif(
    importlib.util.find_spec("accelerate") is None, reason="accelerate is not installed"
)
QUIET = DebugOptions(log_level=LogLevel.ERROR)


def _gpt2() -> Any:
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=97, n_positions=64, n_embd=32, n_layer=2, n_head=2, bos_token_id=1,
        eos_token_id=2, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(config)


class Labelled(nn.Module):
    """A model with the interface that Trainer asks for: loss and scores from keyword arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.Linear(16, 3))

    def forward(self, inputs: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        scores = self.body(inputs)
        if labels is None:
            return {"logits": scores}
        return {"loss": nn.functional.cross_entropy(scores, labels), "logits": scores}


def _samples(count: int = 22) -> list[dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(3)
    inputs = torch.randn(count, 6, generator=generator)
    return [{"inputs": row, "labels": row[:3].argmax()} for row in inputs]


def _losses(said: list[dict[str, Any]], key: str) -> list[float]:
    return [line[key] for line in said if key in line]


@needs_accelerate
@pytest.mark.slow
def test_trainer(tmp_path: Path) -> None:
    """Training, evaluation and checkpoints of Trainer: the same losses, and files that eager loads."""
    histories: list[list[dict[str, Any]]] = []
    torch.manual_seed(0)
    eager = Labelled()
    model = ORTModule(copy.deepcopy(eager), QUIET)
    for kind, module in (("eager", eager), ("ours", model)):
        arguments = transformers.TrainingArguments(
            output_dir=str(tmp_path / kind), num_train_epochs=3, per_device_train_batch_size=4,
            gradient_accumulation_steps=2, logging_steps=1, save_strategy="epoch",
            eval_strategy="epoch", report_to=[], use_cpu=True, seed=5, max_grad_norm=0.5,
            disable_tqdm=True, learning_rate=1e-2,
        )  # fmt: skip
        trainer = transformers.Trainer(
            model=module, args=arguments, train_dataset=_samples(), eval_dataset=_samples(9)
        )
        trainer.train()
        histories.append(trainer.state.log_history)
    for key in ("loss", "eval_loss"):
        theirs, mine = (_losses(history, key) for history in histories)
        assert len(mine) >= 3
        torch.testing.assert_close(torch.tensor(mine), torch.tensor(theirs), rtol=1e-3, atol=1e-3)
    assert histories[1][-1]["epoch"] == 3.0 and last_run_report(model)["compiled"]
    saved = sorted((tmp_path / "ours").glob("checkpoint-*/model.safetensors"))
    assert len(saved) == 3
    from safetensors.torch import load_file

    Labelled().load_state_dict(load_file(saved[-1]))


def _bert() -> Any:
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=32, max_position_embeddings=32, hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0, num_labels=3, problem_type="single_label_classification",
    )  # fmt: skip
    return transformers.BertForSequenceClassification(config)


@needs_accelerate
@pytest.mark.slow
def test_trainer_saves_what_from_pretrained_loads(tmp_path: Path) -> None:
    """A model of transformers': trained by the engine to eager's losses, saved with its config."""
    tokens = torch.randint(3, 50, (12, 7), generator=torch.Generator().manual_seed(3))
    samples = [{"input_ids": row, "labels": row[0] % 3} for row in tokens]
    eager = _bert()
    model = ORTModule(copy.deepcopy(eager), QUIET)
    losses = []
    for kind, module in (("eager", eager), ("ours", model)):
        arguments = transformers.TrainingArguments(
            output_dir=str(tmp_path / kind), num_train_epochs=2, per_device_train_batch_size=4,
            logging_steps=1, save_strategy="epoch", report_to=[], use_cpu=True, seed=5,
            disable_tqdm=True, learning_rate=1e-2,
        )  # fmt: skip
        trainer = transformers.Trainer(model=module, args=arguments, train_dataset=samples)
        trainer.train()
        losses.append(_losses(trainer.state.log_history, "loss"))
        trainer.save_model(str(tmp_path / kind / "last"))
    torch.testing.assert_close(torch.tensor(losses[1]), torch.tensor(losses[0]), rtol=1e-3, atol=0)
    report = last_run_report(model)
    assert report["compiled"] and report["captures"] == 1 and model._compiler.runs == 6, report
    for folder in (tmp_path / "ours" / "last", *(tmp_path / "ours").glob("checkpoint-*")):
        loaded = transformers.BertForSequenceClassification.from_pretrained(folder)
    loaded = loaded.from_pretrained(tmp_path / "ours" / "last")
    assert loaded.config.architectures == ["BertForSequenceClassification"]
    for name, value in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], value), name


@pytest.mark.slow
def test_a_wrapper_of_a_pretrained_model_is_one() -> None:
    """For `isinstance`, by which libraries choose what they do; copies of it, too."""
    model = ORTModule(_bert(), QUIET)
    tokens = torch.randint(3, 50, (2, 7))
    for made in (model, copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert isinstance(made, transformers.PreTrainedModel) and isinstance(made, ORTModule)
        assert "module" in dir(made) and type(made) is type(model)
        torch.testing.assert_close(made(tokens).logits, model.module(tokens).logits)
        assert last_run_report(made)["compiled"]
    assert not isinstance(ORTModule(nn.Linear(2, 2), QUIET), nn.Linear)


@needs_accelerate
def test_accelerate() -> None:
    """Accelerator.prepare, accumulation, clipping and unwrapping."""
    from accelerate import Accelerator

    torch.manual_seed(0)
    eager = Labelled()
    results = []
    for module in (copy.deepcopy(eager), ORTModule(copy.deepcopy(eager), QUIET)):
        accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
        loader = torch.utils.data.DataLoader(_samples(), batch_size=4)
        optimizer = torch.optim.AdamW(module.parameters(), lr=1e-2)
        model, optimizer, loader = accelerator.prepare(module, optimizer, loader)
        for batch in loader:
            with accelerator.accumulate(model):
                accelerator.backward(model(**batch)["loss"])
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 0.5)
                optimizer.step()
                optimizer.zero_grad()
        unwrapped = accelerator.unwrap_model(model)
        assert unwrapped is accelerator.unwrap_model(model, keep_fp32_wrapper=False)
        assert unwrapped is (module.module if isinstance(module, ORTModule) else module)
        state = unwrapped.state_dict()
        results.append({name: value.clone() for name, value in state.items()})
    assert results[0].keys() == results[1].keys()
    for name, theirs in results[0].items():
        torch.testing.assert_close(results[1][name], theirs, rtol=1e-3, atol=1e-4, msg=name)
        assert not torch.equal(theirs, eager.state_dict()[name])


def _train(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for _ in range(2):
        tokens = torch.randint(3, 97, (2, 12))
        optimizer.zero_grad()
        model(input_ids=tokens, labels=tokens).loss.backward()
        optimizer.step()


@pytest.mark.slow
def test_generate_between_training_steps(caplog: pytest.LogCaptureFixture) -> None:
    """Generation is eager PyTorch's, as it runs without gradients: the engine sees none of it, and the
    captures of training stay as they are."""
    model = ORTModule(_gpt2())
    model._logger.addHandler(caplog.handler)
    eager = copy.deepcopy(model.module)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    captures = []
    for turn in range(4):
        model.train()
        _train(model, optimizer)
        eager.load_state_dict(model.state_dict())
        model.eval()
        eager.eval()
        prompt = torch.randint(3, 97, (1 + turn % 2, 4 + turn))
        mask = torch.ones_like(prompt)
        options: dict[str, Any] = {
            "max_new_tokens": 6, "do_sample": False, "pad_token_id": 0, "attention_mask": mask
        }  # fmt: skip
        runs = model._compiler.runs
        got, want = model.generate(prompt, **options), eager.generate(prompt, **options)
        assert model._compiler.runs == runs
        assert torch.equal(got, want)
        captures.append(last_run_report(model)["captures"])
    assert captures[-1] <= 3 and captures[1:] == captures[:-1], captures
    said = [r for r in caplog.records if "runs in eager" in r.getMessage()]
    assert len(said) == len(last_run_report(model)["eager_pieces"]) <= 1


@pytest.mark.slow
def test_evaluation_token_by_token() -> None:
    """Calls of the wrapper itself with a growing cache, as a hand-written generation does them."""
    model = ORTModule(_gpt2(), QUIET)
    eager = copy.deepcopy(model.module).eval()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    captures = []
    for _ in range(3):
        model.train()
        _train(model, optimizer)
        model.eval()
        tokens = torch.randint(3, 97, (2, 5))
        with torch.no_grad():
            for length in range(6):
                got, want = (m(input_ids=tokens).logits[:, -1] for m in (model, eager))
                torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4, msg=str(length))
                tokens = torch.cat([tokens, want.argmax(-1, keepdim=True)], 1)
        captures.append(last_run_report(model)["captures"])
    assert captures[-1] <= 4 and captures[1:] == captures[:-1], captures
    assert last_run_report(model)["compiled"]


def test_logging_is_not_changed() -> None:
    """Neither the root logger nor that of transformers gets handlers from a wrapper."""
    before = [list(logging.getLogger(name).handlers) for name in ("", "transformers")]
    ORTModule(nn.Linear(2, 2))(torch.ones(1, 2))
    assert [list(logging.getLogger(name).handlers) for name in ("", "transformers")] == before
