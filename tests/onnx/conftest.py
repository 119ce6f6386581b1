"""Fixtures of the tests of ONNX files."""

import pytest
import torch


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.onnx"


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)
