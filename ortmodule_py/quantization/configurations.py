"""Options of quantization as objects, as scripts written for onnxruntime hand them on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ortmodule_py.inference.notices import Log
from ortmodule_py.quantization.dynamic import quantize_dynamic
from ortmodule_py.quantization.kinds import CalibrationMethod, QuantFormat, QuantType
from ortmodule_py.quantization.model_files import has_external_data, read_model, write_model
from ortmodule_py.quantization.report import QuantizationReport
from ortmodule_py.quantization.static import quantize_static


@dataclass
class StaticQuantConfig:
    """The arguments of quantize_static() without the files."""

    calibration_data_reader: Any
    calibrate_method: Any = CalibrationMethod.MinMax
    quant_format: Any = QuantFormat.QDQ
    activation_type: Any = QuantType.QInt8
    weight_type: Any = QuantType.QInt8
    op_types_to_quantize: list[str] | None = None
    nodes_to_quantize: list[str] | None = None
    nodes_to_exclude: list[str] | None = None
    per_channel: bool = False
    reduce_range: bool = False
    use_external_data_format: bool = False
    calibration_providers: Any = None
    extra_options: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        _fill(self)


@dataclass
class DynamicQuantConfig:
    """The arguments of quantize_dynamic() without the files."""

    weight_type: Any = QuantType.QInt8
    op_types_to_quantize: list[str] | None = None
    nodes_to_quantize: list[str] | None = None
    nodes_to_exclude: list[str] | None = None
    per_channel: bool = False
    reduce_range: bool = False
    use_external_data_format: bool = False
    extra_options: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        _fill(self)


def _fill(config: StaticQuantConfig | DynamicQuantConfig) -> None:
    """Scripts add to the lists and options of a configuration."""
    config.op_types_to_quantize = list(config.op_types_to_quantize or ())
    config.nodes_to_quantize = list(config.nodes_to_quantize or ())
    config.nodes_to_exclude = list(config.nodes_to_exclude or ())
    config.extra_options = config.extra_options or {}


def quantize(
    model_input: Any,
    model_output: Any,
    quant_config: StaticQuantConfig | DynamicQuantConfig,
) -> QuantizationReport:
    """Calls quantize_static() or quantize_dynamic() with these arguments. Raises TypeError."""
    if isinstance(quant_config, StaticQuantConfig):
        return quantize_static(model_input, model_output, **_arguments(quant_config))
    if isinstance(quant_config, DynamicQuantConfig):
        return quantize_dynamic(model_input, model_output, **_arguments(quant_config))
    raise TypeError(
        "[quantization] quant_config must be a StaticQuantConfig or a DynamicQuantConfig, but found "
        f"{quant_config!r}"
    )


def _arguments(config: StaticQuantConfig | DynamicQuantConfig) -> dict[str, Any]:
    return dict(vars(config))


_NEVER_QUANTIZED = ("Cast", "DequantizeLinear", "QuantizeLinear")
# Arguments of calibrators: the extra option of quantize_static.
_CALIBRATION_OPTIONS = {
    "symmetric": "CalibTensorRangeSymmetric",
    "moving_average": "CalibMovingAverage",
    "averaging_constant": "CalibMovingAverageConstant",
    "max_intermediate_outputs": "CalibMaxIntermediateOutputs",
    "percentile": "CalibPercentile",
}


def get_qdq_config(
    model_input: Any,
    calibration_data_reader: Any,
    calibrate_method: Any = CalibrationMethod.MinMax,
    calibrate_args: Mapping[str, Any] | None = None,
    activation_type: Any = QuantType.QUInt8,
    weight_type: Any = QuantType.QInt8,
    activation_symmetric: bool = False,
    weight_symmetric: bool | None = None,
    per_channel: bool = False,
    reduce_range: bool = False,
    keep_removable_activations: bool = False,
    min_real_range: float | None = None,
    tensor_quant_overrides: Mapping[str, Any] | None = None,
    calibration_providers: Any = None,
    op_types_to_quantize: Iterable[str] | None = None,
    nodes_to_exclude: Iterable[str] | Callable[[Any, Any], bool] | None = None,
    extra_options: Mapping[str, Any] | None = None,
) -> StaticQuantConfig:
    """The arguments with which quantize() turns all operators of a model into integers.

    Args as for quantize_static(), some of its extra options with names of their own, and:
        op_types_to_quantize: None for all operators of the model but Cast and those that quantize.
        nodes_to_exclude: names, or a function of the onnx package's ModelProto and NodeProto.
        extra_options: have the last word.
    """
    excluded = _excluded(model_input, nodes_to_exclude, set(op_types_to_quantize or ()))
    op_types = list(op_types_to_quantize or ()) or sorted(
        {op for name, _, op, _, _ in read_model(model_input).nodes() if name not in excluded}
        - set(_NEVER_QUANTIZED)
    )
    options = {
        "MinimumRealRange": min_real_range,
        "QDQKeepRemovableActivations": keep_removable_activations,
        "ActivationSymmetric": activation_symmetric,
        "WeightSymmetric": weight_symmetric,
        "ForceQuantizeNoInputCheck": True,
        "TensorQuantOverrides": dict(tensor_quant_overrides or {}),
    }
    for name, value in (calibrate_args or {}).items():
        if name in _CALIBRATION_OPTIONS:
            options[_CALIBRATION_OPTIONS[name]] = value
    return StaticQuantConfig(
        calibration_data_reader,
        calibrate_method,
        QuantFormat.QDQ,
        activation_type,
        weight_type,
        op_types,
        nodes_to_exclude=sorted(excluded),
        per_channel=per_channel,
        reduce_range=reduce_range,
        use_external_data_format=has_external_data(model_input),
        calibration_providers=calibration_providers,
        extra_options={**options, **(extra_options or {})},
    )


def _excluded(model_input: Any, given: Any, op_types: set[str]) -> set[str]:
    if not callable(given):
        return set(given or ())
    import onnx  # whose nodes the function takes

    model = model_input
    if not isinstance(model, onnx.ModelProto):
        model = onnx.load(model, load_external_data=False)
    return {
        node.name
        for node in model.graph.node
        if (not op_types or node.op_type in op_types) and given(model, node)
    }


def quant_pre_process(
    input_model: Any = None,
    output_model_path: str | Path | None = None,
    skip_optimization: bool = False,
    skip_onnx_shape: bool = False,
    skip_symbolic_shape: bool = False,
    auto_merge: bool = False,
    int_max: int = 2**31 - 1,
    guess_output_rank: bool = False,
    verbose: int = 0,
    save_as_external_data: bool = False,
    all_tensors_to_one_file: bool = False,
    external_data_location: str | None = None,
    external_data_size_threshold: int = 1024,
    **deprecated_kwargs: Any,
) -> None:
    """Writes the model as it is: quantization here needs no optimized nodes and no known sizes.

    All other arguments are accepted. Large weights go to `<output_model_path>.data`, all of them with
    `save_as_external_data`.
    """
    source = deprecated_kwargs.get("input_model_path") if input_model is None else input_model
    if source is None or output_model_path is None:
        raise ValueError("[quantization] input_model and output_model_path must be given")
    Log().once("pre_process", "quant_pre_process copies the model: it needs no preparation here")
    write_model(read_model(source), output_model_path, save_as_external_data)
