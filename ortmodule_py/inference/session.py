"""InferenceSession: loads an ONNX model, plans it for the sizes of its feeds, and runs it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ortmodule_py import _inference
from ortmodule_py.inference.errors import InvalidArgument, NoSuchFile, translated
from ortmodule_py.inference.io_binding import IOBinding
from ortmodule_py.inference.options import RunOptions, SessionOptions
from ortmodule_py.inference.ort_value import (
    OrtDevice,
    OrtValue,
    OrtValueVector,
    numpy_type,
    value_of,
)

_PROVIDERS = ("CPUExecutionProvider",)


@dataclass(frozen=True)
class NodeArg:
    """An input or output of a model.

    `type` is written as onnxruntime writes it ("tensor(float)"). `shape` has a number for a fixed
    size, a name for a named one, and None for an unknown one.
    """

    name: str
    shape: list[int | str | None]
    type: str


@dataclass(frozen=True)
class MemoryReport:
    """What a run takes, in bytes, known before it runs.

    `peak_bytes` is what the run allocates at its peak, outputs included; `total_bytes` adds the
    weights. `exact` is False if a library may allocate more. Feeds belong to the caller.
    """

    weights_bytes: int
    outputs_bytes: int
    peak_bytes: int
    total_bytes: int
    exact: bool


class InferenceSession:
    """Runs an ONNX model.

    Args:
        path_or_bytes: path of the model, or its content.
        sess_options: options; None for the defaults.
        providers: names of execution providers, or (name, options) pairs, in order of preference.
            Those that this build lacks are left out; at least one must be left.
        provider_options: options by provider.

    Raises NoSuchFile, InvalidProtobuf or InvalidArgument. Runs may overlap in several threads.
    """

    def __init__(
        self,
        path_or_bytes: str | os.PathLike[str] | bytes,
        sess_options: SessionOptions | None = None,
        providers: Sequence[str | tuple[str, Mapping[str, Any]]] | None = None,
        provider_options: Sequence[Mapping[str, Any]] | None = None,
        **kwargs: Any,
    ) -> None:
        self._options = sess_options or SessionOptions()
        self._providers = _known_providers(providers)
        model: str | bytes
        if isinstance(path_or_bytes, (bytes, bytearray, memoryview)):
            model = bytes(path_or_bytes)
        else:
            model = os.fspath(path_or_bytes)
            if not os.path.isfile(model):
                raise NoSuchFile(
                    f"[InferenceSession] the model must be a file, but found {model!r}"
                )
        with translated():
            self._session = _inference.Session(model, self._options._engine_options())
        self._inputs = [NodeArg(name, shape, kind) for name, kind, shape in self._session.inputs()]
        self._outputs = [
            NodeArg(name, shape, kind) for name, kind, shape in self._session.outputs()
        ]
        self._names = {i.name for i in self._inputs}
        self._output_places = {output.name: i for i, output in enumerate(self._outputs)}

    def get_inputs(self) -> list[NodeArg]:
        """The inputs without an initializer, in the model's order."""
        return list(self._inputs)

    def get_outputs(self) -> list[NodeArg]:
        """The outputs in the model's order."""
        return list(self._outputs)

    def get_providers(self) -> list[str]:
        """The execution providers that run the model."""
        return list(self._providers)

    def get_session_options(self) -> SessionOptions:
        """The options that the session was made with."""
        return self._options

    def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        run_options: RunOptions | None = None,
    ) -> list[Any]:
        """Runs the model.

        Args:
            output_names: outputs to return, in this order; None or empty for all.
            input_feed: numpy arrays, tensors of torch or OrtValues, by input name; lists of them
                for sequences, None for an optional without an element.
            run_options: options of this run.

        Returns arrays that own their memory, lists of them for sequences. Raises InvalidArgument,
        NotImplemented (which names all nodes that cannot run) or RuntimeException.
        """
        with translated():
            results = self._session.run(self._feeds(input_feed))
        return self._selected(results, output_names)

    def run_with_ort_values(
        self,
        output_names: Sequence[str] | None,
        input_dict_ort_values: Mapping[str, OrtValue],
        run_options: RunOptions | None = None,
    ) -> list[OrtValue]:
        """As run(), with OrtValues in place of arrays, which are shared and not copied."""
        with translated():
            results = self._session.run_values(self._feeds(input_dict_ort_values))
        return [OrtValue(value) for value in self._selected(results, output_names)]

    def run_with_ortvaluevector(
        self,
        run_options: RunOptions | None,
        feed_names: Sequence[str],
        feeds: OrtValueVector,
        fetch_names: Sequence[str],
        fetches: OrtValueVector,
        fetch_devices: Sequence[OrtDevice] = (),
    ) -> None:
        """As run_with_ort_values(), with names and values in lists; results are put in `fetches`.

        The devices of results must be the CPU.
        """
        for device in fetch_devices:
            if device.device_type() != 0:
                raise InvalidArgument(
                    "[run] results must be on device 'cpu', but found another one"
                )
        named = dict(zip(feed_names, map(OrtValue, feeds), strict=True))
        results = self.run_with_ort_values(fetch_names, named, run_options)
        fetches[:] = [value._ortvalue for value in results]

    def io_binding(self) -> IOBinding:
        """A new binding of inputs and outputs to memory, for run_with_iobinding()."""
        return IOBinding(self)

    def run_with_iobinding(
        self, iobinding: IOBinding, run_options: RunOptions | None = None
    ) -> None:
        """Runs the model on what is bound, without copies where none is needed.

        Raises InvalidArgument before anything is written if inputs are missing or an output is bound
        to memory of another type or shape.
        """
        if iobinding._session is not self:
            raise ValueError("[run] an IOBinding must be used with the session that made it")
        with translated():
            iobinding._iobinding.run()

    def create_ortvalue_from_shape_and_type(
        self,
        shape: Sequence[int],
        element_type: Any,
        device_type: str,
        device_id: int = 0,
        vendor_id: int = -1,
    ) -> OrtValue:
        """As OrtValue.ortvalue_from_shape_and_type(): sessions have no memory of their own kind."""
        return OrtValue.ortvalue_from_shape_and_type(
            shape, element_type, device_type, device_id, vendor_id
        )

    def _selected(self, results: list[Any], output_names: Sequence[str] | None) -> list[Any]:
        if not output_names:
            return results
        places = self._output_places
        for name in output_names:
            if name not in places:
                raise InvalidArgument(
                    f"[run] an output must be one of {list(places)}, but found '{name}'"
                )
        return [results[places[name]] for name in output_names]

    def memory(self, shapes: Mapping[str, Any]) -> MemoryReport:
        """What a run takes before it runs.

        `shapes` has sizes by input name, or arrays for inputs whose content decides sizes.
        """
        arrays = any(hasattr(shape, "dtype") for shape in shapes.values())
        with translated():
            if arrays:
                return MemoryReport(**self._session.memory(self._feeds(self._filled(shapes))))
            self._check_names(shapes)
            return MemoryReport(
                **self._session.memory_of_shapes(
                    [[int(size) for size in shapes[i.name]] for i in self._inputs]
                )
            )

    def plan(self, input_feed: Mapping[str, Any]) -> str:
        """The execution plan of such a run, as text: buffers, steps, kernels and their bytes."""
        with translated():
            return self._session.plan(self._feeds(input_feed))

    def _filled(self, shapes: Mapping[str, Any]) -> dict[str, Any]:
        kinds = {i.name: numpy_type(i.type) for i in self._inputs}
        return {
            name: shape if hasattr(shape, "dtype") else np.zeros(shape, kinds.get(name))
            for name, shape in shapes.items()
        }

    def _check_names(self, given: Mapping[str, Any]) -> None:
        names = [i.name for i in self._inputs]
        missing = [name for name in names if name not in given]
        if missing:
            raise ValueError(
                f"Required inputs ({missing}) are missing from input feed ({list(given)})."
            )
        unknown = [name for name in given if name not in names]
        if unknown:
            raise InvalidArgument(f"[run] an input must be one of {names}, but found {unknown}")

    def _feeds(self, input_feed: Mapping[str, Any]) -> list[Any]:
        if len(input_feed) != len(self._names) or not self._names <= input_feed.keys():
            self._check_names(input_feed)
        feeds = [input_feed[i.name] for i in self._inputs]
        for place, value in enumerate(feeds):
            if type(value) is not np.ndarray:
                feeds[place] = _as_feed(value, self._inputs[place])
        return feeds


def _as_feed(value: Any, wanted: NodeArg) -> Any:
    """An array, a list of arrays for a sequence, or None for an optional without an element."""
    if value is None and wanted.type.startswith("optional("):
        return None
    if "seq(" in wanted.type and isinstance(value, (list, tuple)):
        return [_as_array(element, wanted) for element in value]
    return _as_array(value, wanted)


def _as_array(value: Any, wanted: NodeArg) -> Any:
    """An array, or a native value for an OrtValue and for types that numpy lacks."""
    if isinstance(value, (np.ndarray, np.generic)):
        return np.asarray(value)
    if isinstance(value, OrtValue):
        return value._ortvalue
    if hasattr(value, "detach"):  # a tensor of torch
        try:
            return value.numpy(force=True)
        except TypeError:  # a type that numpy lacks
            return value_of(value.cpu())
    return np.asarray(value, dtype=numpy_type(wanted.type))


def _known_providers(given: Sequence[str | tuple[str, Mapping[str, Any]]] | None) -> list[str]:
    if given is None:
        return list(_PROVIDERS)
    names = [each if isinstance(each, str) else each[0] for each in given]
    known = [name for name in names if name in _PROVIDERS]
    if names and not known:
        raise InvalidArgument(
            f"[providers] one of {list(_PROVIDERS)} must be given, but found {names}"
        )
    return known or list(_PROVIDERS)
