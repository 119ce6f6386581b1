"""ORTModule: trains a module in the C++ engine, as a drop-in replacement in any training script."""

from __future__ import annotations

import copy
import importlib
import inspect
import itertools
import time
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from typing import Any

import torch
from torch import nn
from torch.autograd import forward_ad

from ortmodule_py import _C
from ortmodule_py.base.devices import check_model
from ortmodule_py.base.errors import CannotLower
from ortmodule_py.base.sharding import computed_with
from ortmodule_py.base.tree import tensors
from ortmodule_py.compile import backend  # noqa: F401  (installs the patches of Dynamo)
from ortmodule_py.compile.compiler import Compiler
from ortmodule_py.compile.forward_record import EVALUATION, MODES, TRAINING, ForwardRecord
from ortmodule_py.compile.onnx_files import StageFiles
from ortmodule_py.dynamo.cache import drop_with, forget
from ortmodule_py.dynamo.errors import (
    BackendCompilerFailed,
    CannotTrace,
    RecompileLimit,
    ours_within,
)
from ortmodule_py.dynamo.frames import Frames, failed_before_running
from ortmodule_py.dynamo.graph_breaks import mark_input_sizes
from ortmodule_py.dynamo.hooks import (
    Hooks,
    has_hooks,
    hooks_of_all_modules,
    is_as_written,
    observer_of_calls,
)
from ortmodule_py.dynamo.patches import during_runs
from ortmodule_py.dynamo.progress import Progress
from ortmodule_py.dynamo.settings import dynamo_settings
from ortmodule_py.options.debug import DebugOptions, LogLevel
from ortmodule_py.options.engine import EngineOptions
from ortmodule_py.options.logger import module_logger
from ortmodule_py.options.variables import report_environment
from ortmodule_py.report.announcement import announce
from ortmodule_py.report.compare.verifier import Verifier
from ortmodule_py.report.run import RunReport
from ortmodule_py.report.stats import MemoryStatsPrinter
from ortmodule_py.wrap.facade import (
    OriginalFace,
    assign_class,
    is_own_forward,
    own_state,
    parameter_strides,
    put_class,
)
from ortmodule_py.wrap.methods import OriginalMethods
from ortmodule_py.wrap.outputs import by_name, parameters_behind, requested_outputs, with_outputs
from ortmodule_py.wrap.sharding import ShardedFace
from ortmodule_py.wrap.unwrapping import teach_accelerate

_numbers = itertools.count()
_NO_DATA_PARALLEL = (
    "[ORTModule] torch.nn.DataParallel is not supported; use DistributedDataParallel"
)

_MANY_CAPTURES = 3
"""With this many captures, integer attributes of modules become dynamic instead of guarded constants."""

on_training_forward: Callable[[ORTModule], None] | None = None
"""Called after each training forward; `python -m ortmodule_py plan` sets it."""

# Methods of nn.Module that must act on the original, so that keys, parameters and structure are its.
_DELEGATED = (
    "parameters",
    "named_parameters",
    "buffers",
    "named_buffers",
    "children",
    "named_children",
    "modules",
    "named_modules",
    "get_parameter",
    "get_buffer",
    "get_submodule",
    "state_dict",
    "load_state_dict",
    "_load_from_state_dict",
    "register_buffer",
    "register_parameter",
    "zero_grad",
)
# Attributes that a module around the wrapper reads to load state, and `torch.func` to swap parameters.
# The wrapper has no copies of them, as the original may replace them.
_STATE_HOOKS = tuple(name for name in vars(nn.Module()) if "state_dict" in name)
_SHARED = ("_parameters", "_buffers", "_modules", *_STATE_HOOKS)


class ORTModule(OriginalFace, ShardedFace, nn.Module):
    """Runs forward and backward of `module` in the C++ engine.

    `state_dict`, parameters, attributes and `train`/`eval` are those of the original module, which
    stays reachable as `.module`. Environment variables (see docs) are read here.

    Args:
        module: any `torch.nn.Module`.
        debug_options: log level and saved graphs.
        memory_budget: bytes that training may take: `"20GiB"` for all allocations on the device,
            `"activations:900MB"` or `"activations:60%"` for the step alone. Overrides
            `ORTMODULE_MEMORY_OPT_BUDGET`.
        outputs: names (of a dict, dataclass or model output) or positions (of a tuple) of the outputs that
            training reads. In training mode the others are None and not computed, such as the logits
            of a loss head. Overrides `ORTMODULE_OUTPUTS`.

    Raises:
        TypeError: `module` is not a module, is scripted, or is an ORTModule already; `debug_options` are
            not DebugOptions.
        NotImplementedError: `module` is a `torch.nn.DataParallel`.
        ValueError: an environment variable has an invalid value.
        ORTModuleError: this build cannot run on the device of `module`, and
            `ORTMODULE_FALLBACK_POLICY` forbids eager PyTorch.
    """

    def __init__(
        self,
        module: nn.Module,
        debug_options: DebugOptions | None = None,
        *,
        memory_budget: str | int | float | None = None,
        outputs: Sequence[str | int] | None = None,
    ) -> None:
        _refuse_to_wrap(module, debug_options)
        teach_accelerate(ORTModule)
        super().__init__()
        own = self.__dict__
        of_modules = frozenset(own)
        own["_original"] = module
        own["_methods"] = OriginalMethods(self)
        own["_debug_options"] = debug_options or DebugOptions()
        own["_memory_budget"] = memory_budget
        own["_outputs"] = requested_outputs(outputs)
        own["_number"] = next(_numbers)
        own["_logger"] = module_logger(own["_debug_options"].log_level, own["_number"])
        self._set_options(EngineOptions.from_environment(memory_budget))
        self._check_devices(module)
        report_environment(own["_logger"])
        self._warn_of_options()
        own["_announced"] = set()
        own["_is_part"] = False
        for inner in _wrapped_inside(module):
            inner.__dict__["_is_part"] = True
        own["_ortmodule_state"] = frozenset(own) - of_modules
        del own["training"]  # the original's is used
        own["__signature__"] = inspect.signature(module.forward)
        own["_base"] = own.get("_base", type(self))
        put_class(self)
        for name in _DELEGATED:
            own[name] = getattr(module, name)
        for name in _SHARED:
            own.pop(name, None)

    def _set_options(self, options: EngineOptions) -> None:
        """Make everything that depends on the options, before any capture."""
        own, module = self.__dict__, self._original
        own["_engine_options"] = options
        own["_compiler"] = compiler = Compiler(options, self._logger, module)
        if self._debug_options.save_onnx:
            compiler.files = StageFiles(module, self._debug_options, self._logger)
        own["_memory_stats"] = None
        if options.print_memory_stats:
            own["_memory_stats"] = MemoryStatsPrinter(module, self._logger)
        own["_verifier"] = self._new_verifier()
        own["_compiled"] = None
        own["_frames"] = Frames(compiler, options.fullgraph)
        own["_frames"].settings = dynamo_settings()
        own["_hooks"] = Hooks()
        own["_progress"] = Progress(self._logger)
        drop_with(self, own["_progress"].captures, compiler)

    def _warn_of_options(self) -> None:
        options = self._engine_options
        for warning in options.memory.warnings:
            self._logger.warning("ortmodule_py: %s", warning)
        if options.bypass and options.memory.setting:
            self._logger.warning(
                "ortmodule_py: ORTMODULE_BYPASS=1 runs the model in eager PyTorch%s",
                options.memory.without_effect,
            )

    def _check_devices(self, module: nn.Module) -> None:
        """Warn if the module's device is not supported: it may be moved before it runs."""
        reason = None if self._engine_options.bypass else check_model(module)
        if reason is None:
            return
        if not self._engine_options.eager_allowed:
            raise _C.ORTModuleError(f"[device] {reason}")
        self._logger.warning(
            "ortmodule_py: until then it runs in eager PyTorch%s: %s",
            self._engine_options.memory.without_effect,
            reason,
        )

    def save_onnx(self, path: Any, *example_inputs: Any, **options: Any) -> None:
        """Save the model in evaluation mode as an ONNX file; see `ortmodule_py.save.save_onnx`."""
        save = importlib.import_module("ortmodule_py.save").save_onnx
        save(self, path, *example_inputs, **options)

    # ---- running ---------------------------------------------------------------------------------

    def _call_impl(self, *args: Any, **kwargs: Any) -> Any:
        if hooks_of_all_modules() and not has_hooks(self):
            return self.forward(*args, **kwargs)  # they run for the original
        return super()._call_impl(*args, **kwargs)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The original's forward."""
        # Not is_exporting(), which torch 2.11 takes for True in every capture.
        exports = torch.compiler._is_exporting_flag
        if exports or torch.compiler.is_dynamo_compiling():
            # Only torch.export and an outer ORTModule may trace the original.
            inline = exports or self._is_part
            return self._target()(*args, **kwargs) if inline else _untraced(self, args, kwargs)
        methods = self._methods
        before = methods.begin_forward()
        try:
            return self._forward(*args, **kwargs)
        finally:
            methods.end_forward(before)

    def _forward(self, *args: Any, **kwargs: Any) -> Any:
        if (
            torch._C._functorch.peek_interpreter_stack() is not None
            or forward_ad._current_level >= 0
            or torch.jit.is_tracing()
        ):
            # Dynamo skips the frame for good under torch.func; jit.trace and forward AD cannot see into
            # compiled code.
            self._compiler.log.report_without_effect(
                "calls under torch.func, forward-mode AD or torch.jit.trace run"
            )
            return self._target()(*args, **kwargs)
        trains = self._original.training and torch.is_grad_enabled()
        if self._verifier is not None and trains:
            self._verifier.before_forward(args, kwargs)
        if self._memory_stats is not None:
            self._memory_stats.before_forward()
        result = self._run(*args, **kwargs)
        if self._memory_stats is not None:
            self._memory_stats.after_forward(result, trains)
        if on_training_forward is not None and trains:
            on_training_forward(self)
        return result

    def _run(self, *args: Any, **kwargs: Any) -> Any:
        if self._engine_options.bypass:
            return self._target()(*args, **kwargs)
        trains = self._original.training and torch.is_grad_enabled()
        with self._compiler.forward(TRAINING if trains else EVALUATION) as record:
            observer = observer_of_calls()
            if observer is not None:
                self._compiler.log.report_eager(CannotLower(observer))
                return self._target()(*args, **kwargs)
            args, kwargs = self._prepared(args, kwargs)
            start = time.perf_counter()
            try:
                result = self._run_compiled(record, args, kwargs)
            except RecompileLimit as error:
                self._compiler.log.report_eager(self._frames.reason(error))
                return self._target()(*args, **kwargs)
            self._report_left_to_eager(record, result, (args, kwargs))
            if record.captures:
                self._captured(record, result, time.perf_counter() - start)
            record.whole = not record.eager and self._frames.ran_whole(record.runs, self._original)
        return result

    def _prepared(self, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """Compile if needed; the arguments for the compiled module."""
        if self._compiled is None:
            self.__dict__["_compiled"] = self._compile()
        mark_input_sizes(args)
        if kwargs:
            mark_input_sizes(kwargs.values())
        if self._outputs is not None and is_as_written(self._original):
            args, kwargs = by_name(self.__signature__, args, kwargs)
        if self._hooks.changed_on(self._original):
            self._frames.try_skipped()
            if (
                self._compiler.uncaptured_reported()
            ):  # Dynamo may hold code that calls the layers in Python
                forget(self._progress.captures, self._compiler)
        if self._hooks.appeared_in(self._original):
            forget(self._progress.captures, self._compiler)
            self._set_dynamo()
        return args, kwargs

    def _run_compiled(self, record: ForwardRecord, args: Any, kwargs: Any) -> Any:
        """Run the compiled module; eager PyTorch if Dynamo fails before any of it has run."""
        try:
            with self._frames.around_call(), during_runs, self._progress:
                return self._compiled(*args, **kwargs)
        except RecompileLimit:
            raise
        except BackendCompilerFailed as error:
            raise ours_within(error) from None
        except Exception as error:
            self._frames.failed()
            untraced = isinstance(error, CannotTrace) and failed_before_running(error)
            if not untraced or self._engine_options.fullgraph:
                raise
            # If the module itself is wrong, eager raises the clearer error.
            result = self._target()(*args, **kwargs)
            self._compiler.log.report_eager(self._frames.reason(error))
            record.untraced = True
            return result

    def _report_left_to_eager(self, record: ForwardRecord, result: Any, given: Any) -> None:
        """Report what Dynamo did not capture of a forward with these arguments."""
        left = self._frames.succeeded()
        if record.captures:
            self._frames.try_empty()
        if record.piece_runs == 0 and not record.untraced:
            if left:
                self._compiler.uncaptured_is_reported()
            else:
                self._report_uncaptured(result, given)

    def _captured(self, record: ForwardRecord, result: Any, seconds: float) -> None:
        """New pieces ran in this forward, which took `seconds`."""
        if record.piece_runs and not record.untraced and torch.is_grad_enabled():
            self._report_uncovered(result)
        self._compiler.budget.divide(record)
        if self._compiler.files is not None:
            self._compiler.files.ran()
        self._announce(record, seconds)

    def _report_uncaptured(self, result: Any, given: Any) -> None:
        """No piece ran: report it, unless the module computes nothing, such as nn.Identity."""
        if self._compiler.uncaptured_reported():
            return
        known = {id(t) for t in itertools.chain(tensors(given), self.parameters(), self.buffers())}
        found = [id(t) for t in tensors(result, objects=True)]
        idle = known.issuperset(found) if found else self._frames.found_nothing
        if not idle and not self._frames.try_empty():
            self._compiler.report_uncaptured(self._frames.line)

    def _report_uncovered(self, result: Any) -> None:
        """Report layers of torch.nn that Dynamo skips, as it did not capture their container."""
        reached = parameters_behind(tensors(result, objects=True))
        gathered = computed_with(self._original)
        trained = {
            name: p
            for name, p in self.named_parameters()
            # `torch.func.functional_call` replaces parameters by tensors.
            if p.requires_grad and isinstance(p, nn.Parameter)
        }
        names = [
            name
            for name, parameter in trained.items()
            if (known := gathered.get(id(parameter), id(parameter))) in reached
            and known not in self._compiler.parameters
        ]
        if names:
            self._compiler.log.report_uncovered(names, len(trained))

    def _target(self, module: nn.Module | None = None) -> Callable[..., Any]:
        """The callable to capture: the original, or a function that drops unrequested outputs."""
        original: nn.Module = self._original if module is None else module
        return original if self._outputs is None else with_outputs(original, self._outputs)

    def _new_verifier(self) -> Verifier | None:
        every = self._engine_options.verify_every
        if not every or self._engine_options.bypass:
            return None

        def twin() -> Callable[..., Any]:
            return quiet_twin(self, self._original, torch_rng=True)._run

        return Verifier(every, self._run, self._target, self._original, twin)

    def _compile(self) -> Callable[..., Any]:
        teach_accelerate(ORTModule)
        target = self._target()
        # Lightning wraps it, to copy the arguments into the original.
        torch_compile = inspect.unwrap(torch.compile)
        compiled: Callable[..., Any] = torch_compile(
            target, backend=self._compiler, fullgraph=self._engine_options.fullgraph
        )
        self._frames.watch(compiled, target, self._original)
        # Its own `__call__` is a module's again: that of the original follows.
        return compiled.forward if isinstance(compiled, nn.Module) else compiled

    def _set_dynamo(self) -> None:
        many = len(self._compiler.pieces) >= _MANY_CAPTURES
        self._frames.settings = dynamo_settings(many, self._hooks.found)

    def _announce(self, record: ForwardRecord, seconds: float) -> None:
        """Log the banner, once for each mode."""
        self._set_dynamo()
        mode = record.mode
        if mode not in self._announced and record.runs:
            self._announced.add(mode)
            options = self._engine_options
            announce(self._compiler, self._original, options.memory, self._logger, mode, seconds)

    def _report(self) -> RunReport:
        return RunReport.of(self._compiler, self._original)

    # ---- the interface of the original -----------------------------------------------------------

    @property
    def module(self) -> nn.Module:
        """The original module."""
        return self._original

    def train(self, mode: bool = True) -> ORTModule:
        """Set the mode of the original."""
        self._original.train(mode)
        return self

    def _apply(self, fn: Any, recurse: bool = True) -> ORTModule:
        teach_accelerate(ORTModule)  # it may have been imported since
        # A module's own `_apply` may take the function alone.
        return self._call_original("_apply", fn, *(() if recurse else (recurse,)))

    def requires_grad_(self, requires_grad: bool = True) -> ORTModule:
        """Freeze or train the parameters of the original."""
        return self._call_original("requires_grad_", requires_grad)

    def _call_original(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Call the original's method; returns the wrapper where the method returns the original."""
        before = parameter_strides(self._original)
        result = self.__getattr__(name)(*args, **kwargs)
        # Before torch 2.13 Dynamo does not guard on the strides of parameters, which affect outputs.
        if before != parameter_strides(self._original):
            forget(self._progress.captures, self._compiler)
        return self if result is self._original else result

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """No effect: the engine compiles the module already."""
        self._logger.warning(
            "ortmodule_py: compile() has no effect: the engine compiles the module already"
        )

    def apply(self, fn: Any) -> ORTModule:
        """Apply `fn` to every submodule of the original."""
        self._original.apply(fn)
        return self

    def __getattr__(self, name: str) -> Any:
        if "_original" not in self.__dict__:
            raise AttributeError(name)
        value = getattr(self.__dict__["_original"], name)
        if torch.compiler.is_dynamo_compiling() or not isinstance(value, types.MethodType):
            return value
        return self._methods.routed(name, value)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "forward" and is_own_forward(self, value):
            self.__dict__.pop(name, None)
        elif name == "forward" or is_own_forward(self, value):
            self.__dict__[name] = value
        elif name == "__class__":
            assign_class(self, value)
        elif name in self.__dict__ and name not in self.__dict__.get("_ortmodule_state", ()):
            self.__dict__[name] = value
        else:
            setattr(self._original, name, value)

    def __delattr__(self, name: str) -> None:
        if name == "forward" or is_own_forward(self, self.__dict__.get(name)):
            object.__delattr__(self, name)
        else:
            delattr(self._original, name)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *dir(type(self)), *dir(self._original)})

    def __reduce__(self) -> tuple[Any, ...]:
        return ORTModule.__new__, (self._base,), self.__getstate__()

    def __getstate__(self) -> dict[str, Any]:
        return {
            "module": self._original,
            "debug_options": self._debug_options,
            "memory_budget": self._memory_budget,
            "outputs": self._outputs,
            "own": own_state(self),
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        ORTModule.__init__(
            self,
            state["module"],
            state["debug_options"],
            memory_budget=state.get("memory_budget"),
            outputs=state.get("outputs"),
        )
        self.__dict__.update(state.get("own", {}))

    def __deepcopy__(self, memo: dict[int, Any]) -> ORTModule:
        copied: ORTModule = ORTModule.__new__(self._base)
        memo[id(self)] = copied
        copied.__setstate__(copy.deepcopy(self.__getstate__(), memo))
        return copied

    def add_module(self, name: str, module: nn.Module | None) -> None:
        """Add a submodule to the original."""
        self._original.add_module(name, module)

    def _replicate_for_data_parallel(self) -> Any:
        raise NotImplementedError(_NO_DATA_PARALLEL)


def _refuse_to_wrap(module: Any, debug_options: Any) -> None:
    """Raise if an argument of `ORTModule` is invalid."""
    if not isinstance(module, nn.Module):
        raise TypeError(
            f"[ORTModule] module must be a torch.nn.Module, but found {type(module).__name__}"
        )
    if isinstance(module, ORTModule):
        raise TypeError("[ORTModule] module is an ORTModule already; pass the original module")
    if isinstance(module, torch.jit.ScriptModule):
        raise TypeError(
            "[ORTModule] module must not be scripted or traced, as Dynamo cannot capture it, but "
            f"found a {type(module).__name__}; pass the original module"
        )
    if isinstance(module, nn.DataParallel):
        raise NotImplementedError(_NO_DATA_PARALLEL)
    if debug_options is not None and not isinstance(debug_options, DebugOptions):
        raise TypeError(
            "[ORTModule] debug_options must be a DebugOptions, but found "
            f"{type(debug_options).__name__}; pass DebugOptions(log_level=..., save_onnx=...)"
        )


def _wrapped_inside(module: nn.Module) -> Iterator[ORTModule]:
    """The ORTModules among the submodules. `modules()` of an ORTModule yields its original instead."""
    for owner in module.modules():
        yield from (child for child in owner.children() if isinstance(child, ORTModule))


@torch.compiler.disable
def _untraced(model: ORTModule, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """A forward behind a graph break of an outer `torch.compile`; the engine still captures it."""
    # Not `model(...)`: the caller has run the hooks.
    return ORTModule.forward(model, *args, **kwargs)


def last_run_report(model: Any) -> dict[str, Any]:
    """The captures, fallbacks and runs of `model` (an ORTModule) so far, as a dict of plain values.

    Raises:
        TypeError: `model` is not an ORTModule.
    """
    return asdict(as_ortmodule(model, "last_run_report")._report())


def as_ortmodule(model: Any, where: str) -> ORTModule:
    """`model`, an argument of the function `where`.

    Raises:
        TypeError: it is not an ORTModule.
    """
    if isinstance(model, ORTModule):
        return model
    remedy = "wrap it first"
    if isinstance(getattr(model, "module", None), ORTModule):
        remedy = "pass its .module, which is one"
    raise TypeError(
        f"[{where}] model must be an ORTModule, but found {type(model).__name__}; {remedy}"
    )


def quiet_twin(model: nn.Module, module: nn.Module, *, torch_rng: bool | None = None) -> ORTModule:
    """An ORTModule of `module` with the options of `model`, which logs and saves nothing."""
    twin = ORTModule(module, DebugOptions(LogLevel.FATAL))
    own = twin.__dict__
    if isinstance(model, ORTModule):
        own["_outputs"], options = model._outputs, model._engine_options
    else:
        options = twin._engine_options
    options = replace(options, verify_every=0, dump=None, print_memory_stats=False)
    if torch_rng is not None:
        options.torch_rng = torch_rng
    twin._set_options(options)
    own["_announced"] = set(MODES)
    twin._logger.disabled = True
    return twin
