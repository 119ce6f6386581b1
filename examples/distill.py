"""Distill a large classifier of scikit-learn's digits into a small one, save it and quantize it.

Run it from the repository's root: python -m examples.distill

The teacher is in evaluation mode and runs without gradients on the engine; the student trains on
its softened answers and on the labels (Hinton, Vinyals, Dean: "Distilling the Knowledge in a
Neural Network", 2015). Few images have labels, all have answers of the teacher, so the student
learns more from the teacher than from the labels alone.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from examples.train_digits import ConvNet, accuracy, load_data
from ortmodule_py import InferenceSession, ORTModule
from ortmodule_py.quantization import quantize_dynamic

TEMPERATURE = 4.0
LABELED = 100  # images


class Student(nn.Module):
    """One hidden layer."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.hidden = nn.Linear(64, width)
        self.classifier = nn.Linear(width, 10)

    def forward(self, images: Tensor) -> Tensor:
        """Logits of the ten digits."""
        return self.classifier(F.relu(self.hidden(images.flatten(1))))


def distillation_loss(student: Tensor, teacher: Tensor) -> Tensor:
    """Cross entropy of softened answers, times the square of the temperature, as in the paper."""
    soft = F.softmax(teacher / TEMPERATURE, dim=1)
    return TEMPERATURE**2 * -(soft * F.log_softmax(student / TEMPERATURE, dim=1)).sum(1).mean()


def train_teacher(images: Tensor, labels: Tensor, epochs: int) -> ORTModule:
    """On all labels."""
    teacher = ORTModule(ConvNet())
    optimizer = torch.optim.AdamW(teacher.parameters(), lr=2e-3)
    for _ in range(epochs):
        for chunk in torch.randperm(len(labels)).split(64):
            optimizer.zero_grad()
            F.cross_entropy(teacher(images[chunk]), labels[chunk]).backward()
            optimizer.step()
    return teacher.eval()


def train_student(
    images: Tensor, labels: Tensor, epochs: int, teacher: ORTModule | None
) -> ORTModule:
    """On the first LABELED labels; with a teacher, on its answers for all images too."""
    student = ORTModule(Student())
    optimizer = torch.optim.AdamW(student.parameters(), lr=3e-3)
    seen = torch.arange(len(labels) if teacher else LABELED)
    for _ in range(epochs):
        for chunk in seen[torch.randperm(len(seen))].split(64):
            optimizer.zero_grad()
            logits = student(images[chunk])
            known = chunk < LABELED
            loss = F.cross_entropy(logits[known], labels[chunk][known], reduction="sum") / len(
                chunk
            )
            if teacher is not None:
                with torch.no_grad():
                    answers = teacher(images[chunk])
                loss = loss + distillation_loss(logits, answers)
            loss.backward()
            optimizer.step()
    return student.eval()


class Row(NamedTuple):
    """A model and how it answers."""

    name: str
    accuracy: float
    file_bytes: int


def saved(name: str, model: ORTModule, images: Tensor, labels: Tensor, folder: Path) -> list[Row]:
    """The module, its file and the quantized file."""
    path, quantized = folder / f"{name}.onnx", folder / f"{name}_int8.onnx"
    sizes = {"images": {0: "batch"}}
    model.save_onnx(path, images[:2], input_names=["images"], dynamic_shapes=sizes)
    quantize_dynamic(path, quantized, verbose=False)
    rows = [Row(name, accuracy(model, images, labels), path.stat().st_size)]
    model.eval()
    for title, file in ((f"{name}, session", path), (f"{name}, quantized", quantized)):
        (logits,) = InferenceSession(file).run(None, {"images": images.numpy()})
        right = float((logits.argmax(axis=1) == labels.numpy()).mean())
        rows.append(Row(title, right, file.stat().st_size))
    return rows


def main() -> int:
    """Train teacher and students, and say by the exit code whether it went well."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--student-epochs", type=int, default=40)
    parser.add_argument("--seeds", type=int, default=3, help="students of each kind")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    torch.manual_seed(options.seed)
    images, labels, test_images, test_labels = load_data()
    teacher = train_teacher(images, labels, options.epochs)
    weights = [parameter.clone() for parameter in teacher.parameters()]
    scores: dict[bool, list[float]] = {True: [], False: []}
    for seed in range(options.seeds):
        for guided in (False, True):
            torch.manual_seed(options.seed + seed)
            student = train_student(
                images, labels, options.student_epochs, teacher if guided else None
            )
            scores[guided].append(accuracy(student, test_images, test_labels))
            student.eval()
    with tempfile.TemporaryDirectory() as folder:
        rows = saved("teacher", teacher, test_images, test_labels, Path(folder))
        rows += saved("student", student, test_images, test_labels, Path(folder))
    console = Console()
    table = Table("model", "accuracy", "file KiB")
    for row in rows:
        table.add_row(row.name, f"{row.accuracy:.2%}", f"{row.file_bytes / 1024:.1f}")
    console.print(table)
    alone, distilled = (statistics.mean(scores[guided]) for guided in (False, True))
    console.print(
        f"students of {LABELED} labels: {alone:.2%} alone, {distilled:.2%} with the teacher "
        f"(mean of {options.seeds})"
    )
    pairs = zip(weights, teacher.parameters(), strict=True)
    unchanged = all(torch.equal(old, new) for old, new in pairs)
    last = rows[-1]
    small = last.file_bytes < rows[0].file_bytes / 10
    exact = last.accuracy > distilled - 0.05
    return 0 if unchanged and small and exact and distilled > alone + 0.02 else 1


if __name__ == "__main__":
    raise SystemExit(main())
