"""Fine-tunes a tiny BERT on sentences of many lengths: one capture serves all of them.

The model is built from a configuration, so nothing is downloaded. Where transformers' Trainer can
run (it needs accelerate) it does the training, otherwise a plain loop; `--loop` chooses the loop.
"""

from __future__ import annotations

import argparse
import importlib.util
import tempfile
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import BertConfig, BertForSequenceClassification

from ortmodule_py import DebugOptions, LogLevel, ORTModule, last_run_report

VOCABULARY = 100
Sample = dict[str, Any]


def make_model() -> BertForSequenceClassification:
    """Two layers of width 32, with dropout."""
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=64, max_position_embeddings=64, num_labels=2,
        problem_type="single_label_classification",  # else the model notes it in its first step
    )  # fmt: skip
    return BertForSequenceClassification(config)


def make_samples(count: int, seed: int) -> list[Sample]:
    """Sentences of 4 to 32 tokens; positive if more tokens are from the upper half."""
    generator = torch.Generator().manual_seed(seed)
    samples = []
    for _ in range(count):
        length = int(torch.randint(4, 33, (1,), generator=generator))
        positive = int(torch.randint(2, (1,), generator=generator))
        low, high = (VOCABULARY // 3, VOCABULARY) if positive else (4, 2 * VOCABULARY // 3)
        tokens = torch.randint(low, high, (length,), generator=generator)
        samples.append({"input_ids": tokens, "labels": positive})
    return samples


def collate(samples: list[Sample]) -> dict[str, Tensor]:
    """A batch as long as its longest sentence."""
    longest = max(len(sample["input_ids"]) for sample in samples)
    tokens = torch.zeros(len(samples), longest, dtype=torch.long)
    mask = torch.zeros_like(tokens)
    for row, sample in enumerate(samples):
        length = len(sample["input_ids"])
        tokens[row, :length] = sample["input_ids"]
        mask[row, :length] = 1
    labels = torch.tensor([sample["labels"] for sample in samples])
    return {"input_ids": tokens, "attention_mask": mask, "labels": labels}


def train_with_trainer(model: ORTModule, samples: list[Sample], epochs: int) -> None:
    """The usual Trainer script."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(
            output_dir=folder, num_train_epochs=epochs, per_device_train_batch_size=16,
            learning_rate=2e-3, logging_steps=10, save_strategy="no", report_to=[], use_cpu=True,
            disable_tqdm=True,
        )  # fmt: skip
        trainer = transformers.Trainer(
            model=model, args=arguments, train_dataset=samples, data_collator=collate
        )
        trainer.train()


def train_with_loop(model: ORTModule, samples: list[Sample], epochs: int) -> None:
    """The same by hand."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    loader: Any = torch.utils.data.DataLoader(
        samples, batch_size=16, shuffle=True, collate_fn=collate
    )
    step = 0
    for _ in range(epochs):
        for batch in loader:
            optimizer.zero_grad()
            loss = model(**batch).loss
            loss.backward()
            optimizer.step()
            step += 1
            if step % 10 == 0:
                print(f"step {step:3d}  length {batch['input_ids'].shape[1]:2d}  loss {loss:.4f}")


def accuracy(model: ORTModule, samples: list[Sample]) -> float:
    """The share of sentences that are classified rightly."""
    model.eval()
    right = 0
    with torch.no_grad():
        for start in range(0, len(samples), 16):
            batch = collate(samples[start : start + 16])
            scores = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"])
            right += int((scores.logits.argmax(1) == batch["labels"]).sum())
    model.train()
    return right / len(samples)


def main() -> int:
    """0 if most held-out sentences are classified rightly."""
    parser = argparse.ArgumentParser(description="Fine-tunes a tiny BERT")
    parser.add_argument("--loop", action="store_true", help="a plain loop instead of Trainer")
    parser.add_argument("--epochs", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    model = ORTModule(make_model(), DebugOptions(log_level=LogLevel.ERROR))
    samples, held_out = make_samples(320, seed=1), make_samples(100, seed=2)
    has_trainer = importlib.util.find_spec("accelerate") is not None
    train = train_with_trainer if has_trainer and not options.loop else train_with_loop
    print(f"training with {'Trainer' if train is train_with_trainer else 'a plain loop'}")
    train(model, samples, options.epochs)
    training_captures = last_run_report(model)["captures"]
    score = accuracy(model, held_out)
    print(f"held-out accuracy {score:.2f}")
    print(f"captures of training {training_captures}")
    return 0 if score > 0.8 and training_captures == 1 else 1


if __name__ == "__main__":
    raise SystemExit(main())
