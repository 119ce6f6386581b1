"""Execution providers: chosen, left out with a warning, and checked."""

from __future__ import annotations

import warnings
from typing import Any

import onnxruntime as stock
import pytest

import ortmodule_py.onnxruntime as ort
from ortmodule_py.inference import InvalidArgument
from tests.inference.test_session import assert_close, mlp, x_of

CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"
# As the documents have it, and as rapidocr passes it.
LIMITS = {
    "device_id": 0,
    "arena_extend_strategy": "kNextPowerOfTwo",
    "gpu_mem_limit": 2 * 1024 * 1024 * 1024,
    "cudnn_conv_algo_search": "DEFAULT",
    "do_copy_in_default_stream": True,
}


def opened(**given: Any) -> tuple[ort.InferenceSession, list[str]]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        session = ort.InferenceSession(mlp(), **given)
    return session, [str(warning.message) for warning in caught]


@pytest.mark.parametrize(
    "given",
    [
        {"providers": [CUDA, CPU]},
        {"providers": [(CUDA, LIMITS), CPU]},
        {"providers": [CUDA]},
        {"providers": [CUDA, CPU], "provider_options": [LIMITS, {}]},
        {"providers": ["TensorrtExecutionProvider", CUDA]},
    ],
)
def test_the_cpu_takes_over_with_one_warning(given: dict[str, Any]) -> None:
    session, messages = opened(**given)
    assert len(messages) == 1 and "is not in available provider names" in messages[0]
    assert CUDA in messages[0]
    assert session.get_providers() == [CPU] and session.get_provider_options() == {CPU: {}}
    expected = stock.InferenceSession(mlp()).run(None, {"x": x_of(2)})
    assert_close(session.run(None, {"x": x_of(2)}), expected)


def test_the_cpu_does_not_take_over_where_that_is_forbidden() -> None:
    options = ort.SessionOptions()
    options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    with pytest.raises(InvalidArgument, match="the CPU must not take over"):
        ort.InferenceSession(mlp(), options, providers=[CUDA, CPU])
    assert ort.InferenceSession(mlp(), options, providers=[CPU]).get_providers() == [CPU]


def test_devices_by_which_a_provider_is_chosen() -> None:
    """As in onnxruntime's documents since 1.22."""
    (theirs,) = stock.get_ep_devices()
    devices = [device for device in ort.get_ep_devices() if device.ep_name == CPU]
    assert len(devices) == 1 and devices[0].device.type == ort.OrtHardwareDeviceType.CPU
    assert devices[0].memory_info(ort.OrtDeviceMemoryType.DEFAULT) is None
    for name in ("ep_name", "ep_options"):
        assert getattr(devices[0], name) == getattr(theirs, name)
    options = ort.SessionOptions()
    options.add_provider_for_devices(devices, {"use_arena": "0"})
    assert options.has_providers()
    session = ort.InferenceSession(mlp(), options)
    assert session.get_provider_options() == {CPU: {"use_arena": "0"}}
    assert [device.ep_name for device in session.get_input_epdevices()] == [CPU]
    for wrong in ([], [theirs]):
        with pytest.raises(InvalidArgument, match="some of get_ep_devices"):
            options.add_provider_for_devices(wrong, {})


def test_providers_of_the_options_and_of_the_session() -> None:
    options = ort.SessionOptions()
    assert not options.has_providers()
    options.append_execution_provider(CPU, {"arena_extend_strategy": "kSameAsRequested"})
    assert options.has_providers()
    session = ort.InferenceSession(mlp(), options)
    assert session.get_provider_options() == {CPU: {"arena_extend_strategy": "kSameAsRequested"}}
    options = ort.SessionOptions()
    options.add_provider(CUDA, LIMITS)
    with pytest.warns(UserWarning, match=CUDA):
        ort.InferenceSession(mlp(), options)
    session = ort.InferenceSession(mlp(), options, providers=[CPU])  # these count
    with pytest.warns(UserWarning, match=CUDA):
        session.set_providers([CUDA])
    session.set_providers([CPU], [{"arena_extend_strategy": "kNextPowerOfTwo"}])
    assert session.get_provider_options() == {CPU: {"arena_extend_strategy": "kNextPowerOfTwo"}}
    assert session.run(["y"], {"x": x_of(2)})[0].shape == (2, 8)
    session.disable_fallback()
    session.enable_fallback()


@pytest.mark.parametrize(
    "name,value,message",
    [
        ("gpu_mem_limt", "1", "did you mean 'gpu_mem_limit'"),
        ("gpu_mem_limit", "two GB", "must be an integer of at least 1, but found 'two GB'"),
        ("gpu_mem_limit", 0, "must be an integer of at least 1"),
        ("device_id", -1, "must be an integer of at least 0"),
        ("device_id", 2**31, "at most 2147483647, but found '2147483648'"),
        ("arena_extend_strategy", "kNextPowerOf2", "kNextPowerOfTwo, kSameAsRequested"),
        ("cudnn_conv_algo_search", "FAST", "EXHAUSTIVE, HEURISTIC, DEFAULT"),
        ("do_copy_in_default_stream", "maybe", "must be one of 0, 1"),
    ],
)
def test_options_of_providers_are_checked(name: str, value: Any, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        ort.InferenceSession(mlp(), providers=[(CUDA, {name: value}), CPU])
    with pytest.raises(InvalidArgument, match=message):
        ort.SessionOptions().append_execution_provider(CUDA, {name: value})


def test_misspelled_names_and_forms() -> None:
    with pytest.raises(InvalidArgument, match="did you mean 'CUDAExecutionProvider'"):
        ort.InferenceSession(mlp(), providers=["CudaExecutionProvider"])
    session, messages = opened(providers=["ZebraExecutionProvider", CPU])
    assert len(messages) == 1 and session.get_providers() == [CPU]
    with pytest.raises(RuntimeError, match="Unknown Provider Type: ZebraExecutionProvider"):
        session.set_providers(["ZebraExecutionProvider"])
    assert session.get_providers() == [CPU]
    session, messages = opened(providers=[CPU, CPU])
    assert messages == [f"Duplicate provider '{CPU}' encountered, ignoring."]
    assert opened(providers=[])[0].get_providers() == [CPU]
    assert opened(providers=CPU)[0].get_providers() == [CPU]
    for given, message in (
        ({"providers": {CPU}}, "should be a sequence"),
        ({"providers": [3]}, "either strings or"),
        ({"providers": [CPU], "provider_options": []}, "same length"),
        ({"providers": [(CPU, {})], "provider_options": [{}]}, "Only string values"),
        ({"providers": [CPU], "provider_options": [3]}, "must be dicts"),
    ):
        for package in (stock, ort):  # the same errors
            with pytest.raises(ValueError, match=message):
                package.InferenceSession(mlp(), enable_fallback=0, **given)
        assert stock.InferenceSession(mlp(), **given).get_providers() == [CPU]  # the same fallback
        session, messages = opened(**given)
        assert session.get_providers() == [CPU]
        assert len(messages) == 1 and message in messages[0]


def test_options_that_change_between_runs_are_accepted(capfd: pytest.CaptureFixture[str]) -> None:
    session = ort.InferenceSession(mlp())
    for kind in ("Efficient", "Default"):
        session.set_ep_dynamic_options({"ep.dynamic.workload_type": kind})
    said = capfd.readouterr().err
    assert said.count("'ep.dynamic.workload_type' is accepted, but changes nothing") == 1
