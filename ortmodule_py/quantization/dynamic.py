"""quantize_dynamic with onnxruntime's signature."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ortmodule_py import _inference
from ortmodule_py.inference.errors import translated
from ortmodule_py.quantization.choose import choose_faster
from ortmodule_py.quantization.kinds import (
    QuantType,
    integer_type,
    name_set,
    set_option,
    unknown_option,
)
from ortmodule_py.quantization.model_files import Feed, feeds_of, read_model, write_with_report
from ortmodule_py.quantization.report import QuantizationReport

# extra_options of onnxruntime: the option of the engine, or None where it has no meaning here.
_EXTRA_OPTIONS = {
    "ActivationSymmetric": "activation_symmetric",
    "EnableSubgraph": "subgraphs",
    "ForceQuantizeNoInputCheck": "force_direct",
    "MatMulConstBOnly": "const_b_only",
    "MinimumRealRange": "least_range",
    "WeightSymmetric": "weight_symmetric",
    "ActivationRestrictedAsymmetric": None,
    "DefaultTensorType": None,
    "extra.Sigmoid.nnapi": None,
}


def quantize_dynamic(
    model_input: Any,
    model_output: Any,
    op_types_to_quantize: Iterable[str] | None = None,
    per_channel: bool = False,
    reduce_range: bool = False,
    weight_type: Any = QuantType.QInt8,
    nodes_to_quantize: Iterable[str] | None = None,
    nodes_to_exclude: Iterable[str] | None = None,
    use_external_data_format: bool = False,
    extra_options: Mapping[str, Any] | None = None,
    *,
    samples: Any = None,
    choose: str | None = None,
    max_error: float = 0.02,
    verbose: bool = True,
) -> QuantizationReport:
    """Writes a model whose weights are integers and whose activations are quantized in each run.

    Args:
        model_input: path, bytes or ModelProto of the model.
        model_output: path of the quantized model.
        op_types_to_quantize: operators, None for all: Attention, Conv, EmbedLayerNormalization,
            Gather, Gemm, LSTM, MatMul, Transpose.
        per_channel: a scale for each output channel of MatMul, Gemm, Attention and LSTM.
        reduce_range: 7 bits, for processors whose 8-bit products saturate.
        weight_type: QInt8 (symmetric) or QUInt8.
        nodes_to_quantize: names of nodes, None for all.
        nodes_to_exclude: names of nodes that stay as they are.
        use_external_data_format: weights go to `<model_output>.data`; larger ones than 2 GiB
            always do.
        extra_options: onnxruntime's, by name.
        samples: feeds (arrays by input name) to measure the errors of the outputs.
        choose: "faster" quantizes a node where that is faster on this machine and its error on the
            samples stays within `max_error`; the whole is never slower than float32.
        max_error: for `choose`, the largest error of a node's and of the model's outputs, of their
            largest value.
        verbose: prints the report.

    Returns what was quantized, the bytes and the errors. Nodes and names are those of onnxruntime.
    Raises ValueError for options that contradict each other or do not exist.
    """
    options = _inference.DynamicQuantization()
    options.op_types = name_set(op_types_to_quantize, "op_types_to_quantize")
    options.per_channel = bool(per_channel)
    options.reduce_range = bool(reduce_range)
    allowed = (QuantType.QInt8, QuantType.QUInt8)
    options.weight_type = integer_type(weight_type, allowed, "weight_type").tensor_type
    options.nodes_to_quantize = name_set(nodes_to_quantize, "nodes_to_quantize")
    options.nodes_to_exclude = name_set(nodes_to_exclude, "nodes_to_exclude")
    _set_extra(options, extra_options or {})
    feeds = feeds_of(samples)
    external = use_external_data_format
    if _chooses(choose, feeds):
        report = choose_faster(model_input, model_output, options, feeds, max_error, external)
    else:
        model = read_model(model_input)
        with translated():
            found = model.quantize_dynamic(options)
        report = write_with_report(model_input, model_output, model, found, external, feeds)
    if verbose:
        report.print()
    return report


def _chooses(choose: str | None, feeds: Sequence[Feed]) -> bool:
    if choose not in (None, "faster"):
        raise ValueError(f"[quantization] choose must be None or 'faster', but found {choose!r}")
    if choose and not feeds:
        raise ValueError("[quantization] choose='faster' needs samples to measure with")
    return bool(choose)


def _set_extra(options: _inference.DynamicQuantization, extra: Mapping[str, Any]) -> None:
    for name, value in extra.items():
        if name not in _EXTRA_OPTIONS:
            raise unknown_option("dynamic", name, sorted(_EXTRA_OPTIONS))
        target = _EXTRA_OPTIONS[name]
        if target:
            set_option(options, target, name, value)
