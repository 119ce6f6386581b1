"""quantize_static with onnxruntime's signature: QDQ or QOperator, ranges from calibration data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ortmodule_py import _inference
from ortmodule_py.inference.errors import translated
from ortmodule_py.quantization.histograms import create_calibrator
from ortmodule_py.quantization.kinds import (
    CalibrationMethod,
    QuantFormat,
    QuantType,
    integer_type,
    name_set,
    set_option,
    unknown_option,
)
from ortmodule_py.quantization.model_files import feeds_of, read_model, write_with_report
from ortmodule_py.quantization.overrides import set_overrides
from ortmodule_py.quantization.ranges import (
    TensorsData,
    load_tensors_data,
    save_tensors_data,
)
from ortmodule_py.quantization.report import QuantizationReport

_INTEGERS = (QuantType.QInt8, QuantType.QUInt8, QuantType.QInt16, QuantType.QUInt16)

# extra_options of onnxruntime: the option of the engine and whether it is the opposite.
_EXTRA_OPTIONS = {
    "ActivationSymmetric": ("activation_symmetric", False),
    "ActivationRestrictedAsymmetric": ("activation_restricted", False),
    "WeightSymmetric": ("weight_symmetric", False),
    "ForceQuantizeNoInputCheck": ("force_direct", False),
    "AddQDQPairToWeight": ("pair_for_weights", False),
    "QuantizeBias": ("quantize_bias", False),
    "QDQKeepRemovableActivations": ("keep_removable", False),
    "QDQDisableWeightAdjustForInt32Bias": ("adjust_weights", True),
    "UseQDQContribOps": ("microsoft_domain", False),
    "MinimumRealRange": ("least_range", False),
    "OpTypesToExcludeOutputQuantization": ("ops_without_output", False),
    "QDQOpTypePerChannelSupportToAxis": ("axis_by_op", False),
    "MatMulConstBOnly": ("constant_weights", False),
}
# Those of calibration: the option of the calibrater, and what it must be.
_CALIBRATION: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "CalibTensorRangeSymmetric": ("symmetric", bool),
    "CalibMovingAverage": ("moving_average", bool),
    "CalibPercentile": ("percentile", float),
}
# Those of another method have no effect, as in onnxruntime.
_OPTIONS_OF_METHODS = {
    "MinMax": ("symmetric", "moving_average"),
    "Percentile": ("symmetric", "percentile"),
    "Entropy": ("symmetric",),
}
_WITHOUT_EFFECT = (
    "EnableSubgraph",
    "CalibMaxIntermediateOutputs",
    "CalibMovingAverageConstant",
    "DefaultTensorType",
    "extra.Sigmoid.nnapi",
)
_NOT_OFFERED = (
    "BlockSize",
    "CalibStridedMinMax",
    "DedicatedQDQPair",
    "SmoothQuant",
    "SmoothQuantAlpha",
    "SmoothQuantFolding",
)


def quantize_static(
    model_input: Any,
    model_output: Any,
    calibration_data_reader: Any = None,
    quant_format: Any = QuantFormat.QDQ,
    op_types_to_quantize: Iterable[str] | None = None,
    per_channel: bool = False,
    reduce_range: bool = False,
    activation_type: Any = QuantType.QInt8,
    weight_type: Any = QuantType.QInt8,
    nodes_to_quantize: Iterable[str] | None = None,
    nodes_to_exclude: Iterable[str] | None = None,
    use_external_data_format: bool = False,
    calibrate_method: Any = CalibrationMethod.MinMax,
    calibration_providers: Any = None,
    extra_options: Mapping[str, Any] | None = None,
    calibration_cache_path: Any = None,
    *,
    samples: Any = None,
    verbose: bool = True,
) -> QuantizationReport:
    """Writes a model whose weights and activations are integers with scales found beforehand.

    Args:
        model_input: path, bytes or ModelProto of the model.
        model_output: path of the quantized model.
        calibration_data_reader: gives the feeds that the ranges are taken from; a list of feeds
            will do. None if `calibration_cache_path` exists.
        quant_format: QuantFormat.QDQ, or QOperator, whose nodes take integers themselves (QLinearConv,
            QGemm ...) and whose types have 8 bits.
        op_types_to_quantize: as for quantize_dynamic, as are `per_channel`, `reduce_range`,
            `nodes_to_quantize`, `nodes_to_exclude` and `use_external_data_format`.
        activation_type: QInt8, QUInt8, QInt16 or QUInt16.
        weight_type: as `activation_type`.
        calibrate_method: CalibrationMethod.MinMax, Percentile or Entropy; Distribution is refused.
        calibration_providers: accepted; the feeds run on the CPU.
        extra_options: onnxruntime's, by name.
        calibration_cache_path: ranges are read from that file or, if it does not exist, written.
        samples: feeds to measure the errors of the outputs.
        verbose: prints the report.

    Returns what was quantized, the bytes and the errors. Raises ValueError for options that
    contradict each other or are not offered.
    """
    format_name = getattr(quant_format, "name", quant_format)
    if format_name not in ("QDQ", "QOperator"):
        raise ValueError(
            "[quantization] quant_format must be QuantFormat.QDQ or QOperator, but found "
            f"{quant_format}"
        )
    if getattr(calibrate_method, "name", calibrate_method) == "Distribution":
        # Its ranges are symmetric, so what takes the place of a Relu would let negative values pass.
        raise ValueError(
            "[quantization] calibrate_method must be MinMax, Percentile or Entropy for integers, but "
            "found Distribution, which is for float8"
        )
    options = _options(per_channel, reduce_range, activation_type, weight_type)
    options.qoperator = format_name == "QOperator"
    options.op_types = name_set(op_types_to_quantize, "op_types_to_quantize")
    options.nodes_to_quantize = name_set(nodes_to_quantize, "nodes_to_quantize")
    options.nodes_to_exclude = name_set(nodes_to_exclude, "nodes_to_exclude")
    calibration = _set_extra(options, extra_options or {})
    model = read_model(model_input)
    with translated():
        names = model.values_to_calibrate(options)
    ranges = _ranges(
        model_input,
        names,
        calibration_data_reader,
        calibrate_method,
        calibration,
        calibration_cache_path,
    )
    ends = {
        name: (float(np.min(each.lowest)), float(np.max(each.highest)))
        for name, each in ranges.items()
    }
    with translated():
        found = model.quantize_static(options, ends)
    feeds, external = feeds_of(samples), use_external_data_format
    return write_with_report(
        model_input, model_output, model, found, external, feeds, verbose=verbose
    )


def _options(
    per_channel: bool, reduce_range: bool, activation_type: Any, weight_type: Any
) -> _inference.StaticQuantization:
    activations = integer_type(activation_type, _INTEGERS, "activation_type")
    options = _inference.StaticQuantization()
    options.per_channel = bool(per_channel)
    options.reduce_range = bool(reduce_range)
    options.activation_type = activations.tensor_type
    options.weight_type = integer_type(weight_type, _INTEGERS, "weight_type").tensor_type
    return options


def _ranges(
    model: Any, names: list[str], reader: Any, method: Any, options: dict[str, Any], cache: Any
) -> TensorsData:
    if cache is not None and Path(cache).exists():
        ranges = load_tensors_data(cache)
        if ranges.calibration_method.name != getattr(method, "name", method):
            raise ValueError(
                f"[quantization] {cache}: must be calibrated with {method}, but found "
                f"{ranges.calibration_method}; delete it or pass that method"
            )
        return ranges
    if reader is None:
        raise ValueError(
            "[quantization] a calibration_data_reader or an existing calibration_cache_path must "
            "be given"
        )
    known = _OPTIONS_OF_METHODS.get(getattr(method, "name", method), ())
    calibrator = create_calibrator(
        model,
        calibrate_method=method,
        extra_options={name: options[name] for name in options if name in known},
        names=names,
    )
    calibrator.collect_data(reader)
    ranges = calibrator.compute_data()
    if cache is not None:
        save_tensors_data(ranges, cache)
    return ranges


def _set_extra(options: _inference.StaticQuantization, extra: Mapping[str, Any]) -> dict[str, Any]:
    """Sets the engine's options; returns those of the calibration."""
    calibration: dict[str, Any] = {}
    for name, value in extra.items():
        if name in _EXTRA_OPTIONS:
            target, opposite = _EXTRA_OPTIONS[name]
            if target == "ops_without_output":
                value = name_set(value, f"extra option {name!r}")
            set_option(options, target, name, not value if opposite else value)
        elif name in _CALIBRATION:
            option, kind = _CALIBRATION[name]
            calibration[option] = kind(value)
        elif name == "TensorQuantOverrides":
            set_overrides(options, value, _INTEGERS)
        elif name in _NOT_OFFERED:
            if value:
                raise ValueError(f"[quantization] extra option {name!r} is not offered here")
        elif name not in _WITHOUT_EFFECT:
            known = [*_EXTRA_OPTIONS, *_CALIBRATION, *_WITHOUT_EFFECT, "TensorQuantOverrides"]
            raise unknown_option("static", name, sorted(known))
    return calibration
