"""InferenceSession: loads an ONNX model, plans it for the sizes of its feeds, and runs it."""

from __future__ import annotations

import atexit
import os
import time
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NoReturn

import numpy as np

from ortmodule_py import _inference
from ortmodule_py.inference import cuda
from ortmodule_py.inference.adapters import with_adapters
from ortmodule_py.inference.ep_devices import OrtEpDevice, device_of_runs
from ortmodule_py.inference.errors import Fail, InvalidArgument, translated
from ortmodule_py.inference.explanation import InferenceExplanation
from ortmodule_py.inference.feeds import as_feed, check_mapping, checked_kind, given_model
from ortmodule_py.inference.io_binding import IOBinding
from ortmodule_py.inference.memory import (
    SHRINKAGE,
    MemoryReport,
    bytes_of,
    memory_options,
    returns_memory,
    shapes_and_sizes,
)
from ortmodule_py.inference.model_config import reads_config, with_config
from ortmodule_py.inference.model_facts import ModelMetadata, NodeArg, OrtMemoryInfo, memory_info
from ortmodule_py.inference.notices import Log, did_you_mean
from ortmodule_py.inference.options import RunOptions, SessionOptions
from ortmodule_py.inference.ort_value import OrtDevice, OrtValue, OrtValueVector
from ortmodule_py.inference.private_fields import PrivateFields
from ortmodule_py.inference.providers import CPU, asked_for, chosen, known

_KEYWORDS = ["enable_fallback", "disabled_optimizers", "read_config_from_model", "memory_limit"]

AsyncCallback = Callable[[list[Any], Any, str], Any]


class InferenceSession(PrivateFields):
    """Runs an ONNX model.

    Args:
        path_or_bytes: path of the model, or its content.
        sess_options: options; None for the defaults.
        providers: names of execution providers, or (name, options) pairs, in order of preference.
            The CPU takes over from those that this build lacks, with a warning.
        provider_options: options by provider.
        memory_limit: the most bytes that weights and all runs together may take, or text such as
            "512MiB". A run that never fits is refused before it begins, with the largest batch that
            does; one that has to wait for others waits. Also the session entry `session.memory_limit`.
        kwargs: onnxruntime's `enable_fallback`, `disabled_optimizers` (names of passes of ours) and
            `read_config_from_model` (the model's `ort_config` wins over `sess_options`).

    Raises NoSuchFile, InvalidProtobuf, InvalidGraph, NotImplemented or InvalidArgument. Of a model
    with open sizes, names and operators are checked here, and the rest in the first run, which has
    the sizes. Runs may overlap in several threads.
    """

    def __init__(
        self,
        path_or_bytes: str | os.PathLike[str] | bytes,
        sess_options: SessionOptions | None = None,
        providers: Sequence[str | tuple[str, Mapping[str, Any]]] | None = None,
        provider_options: Sequence[Mapping[str, Any]] | None = None,
        **kwargs: Any,
    ) -> None:
        for name in kwargs:
            if name not in _KEYWORDS:
                raise TypeError(
                    f"[InferenceSession] a keyword must be one of {_KEYWORDS}, but found '{name}'"
                    f"{did_you_mean(name, _KEYWORDS)}"
                )
        self._disabled_passes = set(kwargs.get("disabled_optimizers") or ())
        self._sess_options = checked_kind(sess_options, SessionOptions, "sess_options")
        self._memory_limit = kwargs.get("memory_limit")
        self._model_path, content = given_model(path_or_bytes)
        if reads_config(kwargs.get("read_config_from_model")):
            with translated():
                metadata = self._opened(content, _inference.Options()).metadata()
            self._sess_options = with_config(self._sess_options, metadata["custom_metadata_map"])
        may_fall_back = bool(kwargs.get("enable_fallback", True))
        self._open(asked_for(providers, provider_options, may_fall_back), content)

    def _open(self, asked: list[tuple[str, dict[str, str]]], content: bytes | None = None) -> None:
        """Opens the model at its path, in `content`, or again."""
        options = self._sess_options
        self._log = options._log()
        options._give_notices()
        cpu_takes_over = options._config.find("session.disable_cpu_ep_fallback") != "1"
        self._provider_options = chosen(asked or options._providers, self._log, cpu_takes_over)
        engine_options = options._engine_options()
        engine_options.disabled_passes |= options._known_passes(self._disabled_passes)
        if options._config.find("session.load_model_format", "ONNX") != "ONNX":
            raise InvalidArgument(
                "[InferenceSession] session.load_model_format must be ONNX, but found "
                f"'{options._config.find('session.load_model_format')}'"
            )
        engine_options.memory = self._memory_options()
        if next(iter(self._provider_options)) == cuda.CUDA:
            cuda.configure(engine_options, self._provider_options[cuda.CUDA], self._log)
        begin = time.perf_counter()
        with translated():
            self._session = self._opened(content, engine_options)
            if engine_options.device >= 0 and (why := self._session.why_not_on_device()):
                self._run_on_cpu(why, engine_options)
        self._limit_bytes = engine_options.memory.limit_bytes
        self._device = engine_options.device
        self._on_device = self._device >= 0
        self._inputs = [self._node_arg(*facts) for facts in self._session.inputs()]
        self._overridable = [self._node_arg(*facts) for facts in self._session.overridable()]
        self._outputs = [self._node_arg(*facts) for facts in self._session.outputs()]
        self._typed_outputs: list[NodeArg] | None = None
        self._names = {i.name for i in self._inputs}
        self._output_places = {output.name: i for i, output in enumerate(self._outputs)}
        self._unwritten = ""
        self._first_run = bool(options.enable_fp16 or options.optimized_model_filepath)
        if options.optimized_model_filepath:
            self._write_optimized(options.optimized_model_filepath)
        self._profile_ends: weakref.finalize[..., InferenceSession] | None = None
        if options.enable_profiling:
            self._begin_profile()
        self._log.write(
            1,
            f"opened {self._model_path or 'a model in memory'} in "
            f"{(time.perf_counter() - begin) * 1e3:.1f} ms: {len(self._inputs)} inputs, "
            f"{len(self._outputs)} outputs, {self._session.threads} threads, "
            f"{options.graph_optimization_level.name}",
        )

    def _opened(
        self, content: bytes | None, engine_options: _inference.Options
    ) -> _inference.Session:
        if hasattr(self, "_session"):
            return self._session.reopened(engine_options)
        options = self._sess_options
        model = self._model_path if content is None else content
        assert model is not None
        return _inference.Session(
            model,
            engine_options,
            options._given_arrays(),
            options._external_files,
            options._config.find("session.model_external_initializers_file_folder_path"),
        )

    def _memory_options(self) -> _inference.MemoryOptions:
        provider = next(iter(self._provider_options.values()))
        return memory_options(self._sess_options, provider, self._memory_limit)

    def _node_arg(
        self, name: str, kind: str, shape: list[int | str | None], denotations: dict[int, str]
    ) -> NodeArg:
        """With the sizes that the options fix."""
        options = self._sess_options
        sizes: list[int | str | None] = []
        for axis, size in enumerate(shape):
            if isinstance(size, str):
                size = options._fixed_sizes.get(size, size)
            if not isinstance(size, int) and axis in denotations:
                size = options._fixed_denotations.get(denotations[axis], size)
            sizes.append(size)
        return NodeArg(name, sizes, kind)

    def _run_on_cpu(self, why: str, engine_options: _inference.Options) -> None:
        """Opens the model again for the CPU, with a warning."""
        text = f"{cuda.CUDA} cannot run the model, and {CPU} runs it instead: {why}"
        if self._sess_options._config.find("session.disable_cpu_ep_fallback") == "1":
            raise InvalidArgument(f"[providers] the CPU must not take over, but found: {text}")
        warnings.warn(text, stacklevel=4)
        del self._provider_options[cuda.CUDA]
        engine_options.device = -1
        engine_options.memory = self._memory_options()
        self._session = self._session.reopened(engine_options)

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "[InferenceSession] a session must not be copied; make another of its model"
        )

    # --- facts

    def get_inputs(self) -> list[NodeArg]:
        """The inputs without an initializer, in the model's order."""
        return list(self._inputs)

    def get_outputs(self) -> list[NodeArg]:
        """The outputs in the model's order.

        Types and sizes that the file leaves out are those of all calls: the first use may import the
        model for sizes that are likely. What depends on more stays None.
        """
        if self._typed_outputs is None:
            with translated():
                typed = self._session.typed_outputs()
            self._typed_outputs = [self._node_arg(*facts) for facts in typed]
        return list(self._typed_outputs)

    def get_overridable_initializers(self) -> list[NodeArg]:
        """The inputs that have an initializer. A run uses it where nothing is fed."""
        return list(self._overridable)

    def get_modelmeta(self) -> ModelMetadata:
        """What the file says about the model."""
        return ModelMetadata(**self._session.metadata())

    def get_session_options(self) -> SessionOptions:
        """The options that the session was made with."""
        return self._sess_options

    def get_input_memory_infos(self) -> list[OrtMemoryInfo]:
        """Where the memory of each input is."""
        return [memory_info(self._device) for _ in self._inputs]

    def get_input_epdevices(self) -> list[OrtEpDevice]:
        """The device that each input is read on."""
        return [device_of_runs(self._device) for _ in self._inputs]

    def get_output_memory_infos(self) -> list[OrtMemoryInfo]:
        """Where the memory of each output is."""
        return [memory_info(self._device) for _ in self._outputs]

    # --- providers

    def get_providers(self) -> list[str]:
        """The execution providers that run the model."""
        return list(self._provider_options)

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        """Their options, as text."""
        return {name: dict(options) for name, options in self._provider_options.items()}

    def set_providers(
        self,
        providers: Sequence[str | tuple[str, Mapping[str, Any]]] | None = None,
        provider_options: Sequence[Mapping[str, Any]] | None = None,
    ) -> None:
        """Opens the model again with other execution providers. No run may be under way."""
        kept = dict(self.__dict__)
        try:
            self._open(known(asked_for(providers, provider_options, False)))
        except BaseException:  # the session stays the one that it was
            self.__dict__.update(kept)
            raise

    def disable_fallback(self) -> None:
        """Accepted: runs never go to another provider, so that none must be kept from it."""

    def enable_fallback(self) -> None:
        """Accepted; see disable_fallback."""

    def set_ep_dynamic_options(self, options: Mapping[str, str]) -> None:
        """Accepted with a notice: no provider here has options that change between runs."""
        for name in options:
            self._log.once(f"dynamic {name}", f"option '{name}' is accepted, but changes nothing")

    def get_tuning_results(self) -> list[Any]:
        """What the providers have measured: nothing."""
        return []

    def set_tuning_results(self, results: Sequence[Any], *, error_on_invalid: bool = False) -> None:
        """Accepted if it is empty."""
        if results and error_on_invalid:
            raise InvalidArgument(
                f"[providers] there must be no tuning results, but found {len(results)}"
            )

    def release_captured_graph(self, graph_annotation_id: int = 0) -> None:
        """Accepted: nothing is captured on a CPU."""

    # --- runs

    def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        run_options: RunOptions | None = None,
    ) -> list[Any]:
        """Runs the model.

        Args:
            output_names: outputs to return, in this order; None or empty for all.
            input_feed: numpy arrays, tensors of torch or OrtValues, by name of an input or
                overridable initializer; lists of them for sequences, None for an optional without an element.
            run_options: options of this run.

        Returns arrays that own their memory, lists of them for sequences. Raises InvalidArgument,
        NotImplemented (which names all nodes that cannot run) or RuntimeException; Fail if a node is
        not valid for such feeds, or if the run was terminated.
        """
        places = self._places(output_names)
        control = _control(run_options)
        with translated():
            feeds = self._feeds(with_adapters(input_feed, run_options))
            results = self._session.run(feeds, control)
        if self._first_run:
            self._end_first_run(feeds)
        self._finish(run_options)
        return [results[place] for place in places]

    def run_with_ort_values(
        self,
        output_names: Sequence[str] | None,
        input_dict_ort_values: Mapping[str, OrtValue],
        run_options: RunOptions | None = None,
    ) -> list[OrtValue]:
        """As run(), with OrtValues in place of arrays, which are shared and not copied."""
        places = self._places(output_names)
        control = _control(run_options)
        with translated():
            feeds = self._feeds(with_adapters(input_dict_ort_values, run_options))
            results = self._session.run_values(feeds, control)
        if self._first_run:
            self._end_first_run(feeds)
        self._finish(run_options)
        return [OrtValue(results[place]) for place in places]

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
        if any(device.device_type() for device in fetch_devices):
            raise InvalidArgument("[run] results must be on device 'cpu', but found another one")
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
        control = _control(run_options)
        with translated():
            iobinding._iobinding.run(control)
        if self._first_run:
            self._end_first_run(iobinding._iobinding.inputs())
        self._finish(run_options)

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

    def run_async(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        callback: AsyncCallback,
        user_data: Any,
        run_options: RunOptions | None = None,
    ) -> None:
        """Runs the model in another thread, which calls `callback(results, user_data, error)`.

        `error` is empty, or the message of what went wrong; then `results` is empty. Feeds must not
        change before that. Raises ValueError or InvalidArgument for names at once.
        """
        feed = dict(with_adapters(input_feed, run_options))
        self._check_names(feed)
        names = list(output_names or ())
        self._places(names)

        def task() -> None:
            results, message = [], ""
            try:
                results = self.run(names, feed, run_options)
            except Exception as error:
                message = str(error) or type(error).__name__
            try:
                callback(results, user_data, message)
            except Exception as error:
                self._log.write(3, f"the callback of run_async failed: {error!r}", "run_async")

        _ASYNC_POOL.submit(task)

    def _finish(self, run_options: RunOptions | None) -> None:
        if run_options is not None and returns_memory(run_options._config.find(SHRINKAGE)):
            self._session.return_kept()

    def memory(self, shapes: Mapping[str, Any]) -> MemoryReport:
        """What a run takes before it runs.

        `shapes` has sizes by input name, or arrays for inputs whose content decides sizes. In place
        of an input's shape it may have the model's named sizes, such as {"batch": 8}.
        """
        values, sizes = self._shapes(shapes)
        with translated():
            return MemoryReport(**self._session.memory(values, sizes))

    def explain(self, shapes: Mapping[str, Any]) -> InferenceExplanation:
        """Where the memory of such a run goes: print it for a table, `save_picture` draws the plan.

        `shapes` as for `memory`.
        """
        values, sizes = self._shapes(shapes)
        with translated():
            memory = MemoryReport(**self._session.memory(values, sizes))
            return InferenceExplanation.of(memory, self._session.timeline(values, sizes))

    def largest(
        self,
        size: str,
        limit: int | str | None = None,
        shapes: Mapping[str, Any] | None = None,
        multiple_of: int = 1,
    ) -> int:
        """The largest value of a named size whose run fits in `limit`, weights included.

        Args:
            size: a name that the model gives to a dimension of its inputs. "batch" also stands for
                their first dimension where the model gives no such name.
            limit: bytes, or text such as "512MiB"; None for the session's `memory_limit`.
            shapes: the other sizes, as for `memory`.
            multiple_of: only multiples of this number are tried.

        Returns 0 if nothing fits, and at most 2^31. Makes plans, runs nothing. Raises InvalidArgument.
        """
        values, sizes = self._shapes(shapes or {})
        limit_bytes = self._limit_bytes if limit is None else bytes_of(limit, "limit")
        if limit_bytes == 0:
            raise InvalidArgument("[memory] there must be a limit, but found none; give limit=")
        with translated():
            return self._session.largest(size, limit_bytes, values, sizes, multiple_of)

    def plan(self, input_feed: Mapping[str, Any]) -> str:
        """The execution plan of such a run, as text: buffers, steps, kernels and their bytes."""
        with translated():
            return self._session.plan(self._feeds(input_feed))

    def _shapes(self, given: Mapping[str, Any]) -> tuple[list[Any], dict[str, int]]:
        check_mapping(given, "shapes")
        names = [i.name for i in self._inputs]
        overridable = [o.name for o in self._overridable]
        return shapes_and_sizes(
            names + overridable if any(name in given for name in overridable) else names, given
        )

    def _check_names(self, given: Mapping[str, Any]) -> None:
        missing = [
            i.name
            for i in self._inputs
            if i.name not in given and not i.type.startswith("optional")
        ]
        if missing:
            raise ValueError(
                f"Required inputs ({missing}) are missing from input feed ({list(given)})."
            )
        names = [i.name for i in self._inputs + self._overridable]
        unknown = [name for name in given if name not in names]
        if unknown:
            raise InvalidArgument(
                f"[run] an input must be one of {names}, but found {unknown}"
                f"{did_you_mean(unknown[0], names)}"
            )

    def _places(self, output_names: Sequence[str] | None) -> list[int]:
        """Of the outputs among the results of a run: of all without names."""
        places = self._output_places
        if not output_names:
            if not self._outputs:
                raise InvalidArgument("[run] a model must have an output, but found none")
            return list(range(len(self._outputs)))
        if isinstance(output_names, str):  # else its letters were taken for names
            raise TypeError(f"[run] output_names must be a list, but found '{output_names}'")
        names = list(output_names)  # it may be read only once
        for name in names:
            if name not in places:
                if not isinstance(name, str):
                    raise TypeError(
                        f"[run] the name of an output must be a str, but found {name!r}"
                    )
                raise InvalidArgument(
                    f"[run] an output must be one of {list(places)}, but found '{name}'"
                    f"{did_you_mean(name, list(places))}"
                )
        return [places[name] for name in names]

    def _feeds(self, input_feed: Mapping[str, Any]) -> list[Any]:
        if type(input_feed) is not dict:
            check_mapping(input_feed, "input_feed")
        if len(input_feed) != len(self._names) or not self._names <= input_feed.keys():
            return self._unusual_feeds(input_feed)
        feeds = [input_feed[i.name] for i in self._inputs]
        for place, value in enumerate(feeds):
            if type(value) is not np.ndarray:
                feeds[place] = as_feed(value, self._inputs[place], self._on_device)
        return feeds

    def _unusual_feeds(self, input_feed: Mapping[str, Any]) -> list[Any]:
        """With optional inputs left out, or with initializers replaced."""
        self._check_names(input_feed)
        return [
            as_feed(input_feed[i.name], i, self._on_device) if i.name in input_feed else None
            for i in self._inputs + self._overridable
        ]

    def _write_optimized(self, path: str) -> None:
        with translated():
            why = self._session.save_optimized_early(path)
        if why is not None:
            self._unwritten = path
            self._log.write(2, f"{path} is written after the first run, which decides sizes: {why}")

    def _end_first_run(self, feeds: list[Any]) -> None:
        """Does what had to wait for the sizes of a run."""
        self._first_run = False
        if self._unwritten:
            path, self._unwritten = self._unwritten, ""
            try:
                with translated():
                    self._session.save_optimized(feeds, path)
            except Fail as error:  # the results of the run are not lost
                self._log.write(3, f"{path} could not be written: {error}", "run")
        for dtype in ("bfloat16", "float32"):
            wide = sorted(name for name, t in self._session.wide_weights().items() if t == dtype)
            if wide:
                more = f" and {len(wide) - 3} more" if len(wide) > 3 else ""
                self._log.write(
                    2,
                    f"enable_fp16: {', '.join(wide[:3])}{more}: float16 has no such numbers, kept "
                    f"in {dtype}",
                )

    # --- profiles

    def _begin_profile(self) -> None:
        """A profile that nobody ends is written when the session goes, as in onnxruntime."""
        now = time.time()
        stamp = time.strftime("%Y-%m-%d_%H-%M-%S", time.localtime(now))
        prefix = self._sess_options.profile_file_prefix
        self._profile_path = f"{prefix}_{stamp}_{int(now * 1000) % 1000:03d}.json"
        self._profile_start_ns = self._session.profiling_start_ns()
        self._profile_file = os.path.abspath(self._profile_path)
        end = (_end_profile, self._session, self._profile_file, self._log)
        self._profile_ends = weakref.finalize(self, *end)

    def end_profiling(self) -> str:
        """Writes the trace of the runs so far and ends it. Returns the path, "" without a trace."""
        if self._profile_ends is None or not self._profile_ends.alive:
            return ""
        with translated():
            written = self._session.end_profiling(self._profile_file)
        self._profile_ends.detach()  # only now: a trace that could not be written is not lost
        return self._profile_path if written else ""

    def get_profiling_start_time_ns(self) -> int:
        """When the trace began, on the clock of time.monotonic_ns(); 0 without a trace."""
        return self._profile_start_ns if self._profile_ends is not None else 0


def _end_profile(session: _inference.Session, path: str, log: Log) -> None:
    """Writes a trace where nobody can catch an error."""
    try:
        session.end_profiling(path)
    except RuntimeError as error:
        log.write(3, str(error), "end_profiling")


def _control(run_options: RunOptions | None) -> _inference.RunControl | None:
    """What ends the run; None where nothing can."""
    if run_options is None:
        return None
    checked_kind(run_options, RunOptions, "run_options")._give_notices()
    return run_options._control


# The threads of run_async, shared by all sessions; none is started before the first call.
_ASYNC_POOL = ThreadPoolExecutor(os.cpu_count() or 1, "run_async")
atexit.register(_ASYNC_POOL.shutdown)
