"""The examples of distributed training and of fine-tuning do what they say."""

from __future__ import annotations

import pytest

from tests.docs.test_examples import run


@pytest.mark.slow
def test_two_ranks_train_one_model() -> None:
    done = run("train_ddp.py", "--epochs", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    steps = [line for line in done.stdout.splitlines() if line.startswith("step ")]
    assert len(steps) == 8
    assert "captures 1, eager pieces 0" in done.stdout
    assert "the ranks hold the same parameters" in done.stdout


@pytest.mark.slow
def test_two_ranks_train_one_sharded_model() -> None:
    done = run("train_fsdp.py", "--steps", "11")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "captures 3, eager pieces 0" in done.stdout
    assert "units 5, a rank holds" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [["--loop"], []])
def test_sentences_of_many_lengths(arguments: list[str]) -> None:
    pytest.importorskip("transformers")
    if not arguments:
        pytest.importorskip("accelerate")
    done = run("finetune_bert.py", *arguments, "--epochs", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"training with {'a plain loop' if arguments else 'Trainer'}" in done.stdout
    assert "captures of training" in done.stdout
