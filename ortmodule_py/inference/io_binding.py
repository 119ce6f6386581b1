"""IOBinding with onnxruntime's methods: inputs and outputs bound to memory of the caller."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ortmodule_py import _inference
from ortmodule_py.inference.errors import translated
from ortmodule_py.inference.ort_value import (
    OrtValue,
    OrtValueVector,
    device_number,
    value_at,
    value_of,
)

if TYPE_CHECKING:
    from ortmodule_py.inference.session import InferenceSession


class IOBinding:
    """The inputs and outputs of runs of one session; made by `session.io_binding()`.

    Arrays, tensors and OrtValues are kept, with their strides; memory that is bound by its address
    is dense and stays the caller's. Their content is read in each run. An output may be bound to
    memory of an input: results are as if the run had copied its inputs. A binding is for one thread
    at a time; runs of several bindings of one session may overlap.
    """

    def __init__(self, session: InferenceSession) -> None:
        self._session = session
        self._iobinding = _inference.IoBinding(session._session)

    def bind_cpu_input(self, name: str, arr_on_cpu: Any) -> None:
        """Binds an input to a numpy array or a tensor of torch, which is kept and not copied.

        A sequence is bound to a list of them.
        """
        with translated():
            if isinstance(arr_on_cpu, np.ndarray):
                value = _inference.Value.from_numpy(arr_on_cpu)
            else:
                value = self._value_for(name, arr_on_cpu)
            self._iobinding.bind_input(name, value)

    def _value_for(self, name: str, data: Any) -> _inference.Value:
        kind = next((i.type for i in self._session.get_inputs() if i.name == name), "")
        if "seq(" in kind and isinstance(data, (list, tuple)):
            return _inference.Value.sequence([value_of(each, kind) for each in data])
        return value_of(data, kind)

    def bind_input(
        self,
        name: str,
        device_type: str,
        device_id: int,
        element_type: Any,
        shape: Sequence[int],
        buffer_ptr: int,
    ) -> None:
        """Binds an input to dense memory of the caller.

        `device_type` is "cpu" or "cuda", `element_type` a numpy type, a dtype of torch or a number of
        onnx.TensorProto. The memory must live until the run has finished.
        """
        device = device_number(device_type, device_id)
        with translated():
            self._iobinding.bind_input(name, value_at(buffer_ptr, element_type, shape, device))

    def bind_ortvalue_input(self, name: str, ortvalue: OrtValue) -> None:
        """Binds an input to a value, such as an output of the last run."""
        with translated():
            self._iobinding.bind_input(name, _native(ortvalue))

    def bind_output(
        self,
        name: str,
        device_type: str = "cpu",
        device_id: int = 0,
        element_type: Any = None,
        shape: Sequence[int] | None = None,
        buffer_ptr: int | None = None,
    ) -> None:
        """Binds an output to dense memory of the caller, or has each run allocate it.

        Without `buffer_ptr`, type and shape are not needed and not looked at. With it, a run whose
        output has another type or shape raises InvalidArgument and writes nothing.
        """
        device = device_number(device_type, device_id)
        place = None
        if buffer_ptr is not None:
            if element_type is None or shape is None:
                raise ValueError(
                    "`element_type` and `shape` are to be provided if pre-allocated memory is provided"
                )
            place = value_at(buffer_ptr, element_type, shape, device)
        with translated():
            self._iobinding.bind_output(name, place, device)

    def bind_ortvalue_output(self, name: str, ortvalue: OrtValue) -> None:
        """Binds an output to the memory of a value of the output's type and shape."""
        with translated():
            self._iobinding.bind_output(name, _native(ortvalue))

    def synchronize_inputs(self) -> None:
        """Does nothing: runs and torch use one stream, and memory of the CPU is always ready."""

    def synchronize_outputs(self) -> None:
        """Does nothing: a run returns when its outputs are written."""

    def get_outputs(self) -> list[OrtValue]:
        """The bound outputs of the last run, in the order of binding, without copies.

        An output that each run allocates is new memory in each run, so values stay as they are.
        """
        with translated():
            return [OrtValue(value) for value in self._iobinding.outputs()]

    def get_outputs_as_ortvaluevector(self) -> OrtValueVector:
        """The same as a vector of native values."""
        with translated():
            return OrtValueVector(self._iobinding.outputs())

    def copy_outputs_to_cpu(self) -> list[Any]:
        """The outputs as arrays that no later run changes; lists of arrays for sequences.

        Outputs that the run allocated and that nobody else has are handed over, not copied.
        """
        with translated():
            return self._iobinding.arrays()

    def clear_binding_inputs(self) -> None:
        """Lets go of all bound inputs."""
        with translated():
            self._iobinding.clear_inputs()

    def clear_binding_outputs(self) -> None:
        """Lets go of all bound outputs and their results."""
        with translated():
            self._iobinding.clear_outputs()


def _native(value: Any) -> _inference.Value:
    if isinstance(value, OrtValue):
        return value._ortvalue
    if isinstance(value, _inference.Value):
        return value
    raise TypeError(f"[IOBinding] a value must be an OrtValue, but found {type(value)}")
