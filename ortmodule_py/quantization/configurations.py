"""Options of quantization as objects, as scripts written for onnxruntime hand them on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ortmodule_py.inference.notices import Log
from ortmodule_py.quantization.dynamic import quantize_dynamic
from ortmodule_py.quantization.kinds import CalibrationMethod, QuantFormat, QuantType
from ortmodule_py.quantization.model_files import read_model, write_model
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
