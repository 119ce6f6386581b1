"""Dynamo's reasons for a graph break or a failure, in the terms of a user of PyTorch."""

from __future__ import annotations

import os
import re
import traceback
import types
from typing import Any

import torch

from ortmodule_py.base.errors import CannotLower, first_line
from ortmodule_py.dynamo import settings
from ortmodule_py.dynamo.errors import RecompileLimit

# ---- words --------------------------------------------------------------------------------------

_READS = "a number is read from a tensor, as by `item()` or `tolist()`"
_BY_VALUES = "a size or a condition depends on the values of a tensor"
_WITHOUT_VALUES = "`{name}` cannot run without the values of tensors"

_DRAWN = "numbers are drawn by `{name}`"
_DRAWN_CONDITION = "a condition depends on a number that `random` draws"

_RAISES = "`{name}` raises an error while it is captured: {error}"

# Dynamo's kind of a reason, by its longest known beginning -> ours. `{name}` is the call that Dynamo names.
_KINDS = {
    "generic_jump": "a condition depends on the values of a tensor",
    "Data-dependent branching": "a condition depends on the values of a tensor",
    "Data-dependent assertion": "an assertion depends on the values of a tensor",
    "Could not guard on data-dependent": _BY_VALUES,
    "Could not extract specialized integer": _BY_VALUES,
    "Consider annotating your code using torch._check": _BY_VALUES,
    "Unsupported Tensor.item() call": _READS,
    "Unsupported Tensor.tolist() call": _READS,
    "Tensor.tolist() with non-integer tensor": _READS,
    "attempted to trace torch._numpy.random": _DRAWN.format(name="numpy.random"),
    "attempted to trace numpy function unsupported": "`{name}` of numpy has no form in torch",
    "list_richcompare_nonconst": "lists are compared whose elements depend on the values of a tensor",
    "Missing tp_iternext": "an iterator that was made in Python, outside of what is captured, is read",
    "Data dependent operator": "`{name}` returns a number that depends on the values of a tensor",
    "Dynamic shape operator": "the shape of the result of `{name}` depends on the values of a tensor",
    "Attempted to call function marked as skipped": "Dynamo does not trace `{name}`",
    "Attempted to inline function marked as skipped": "Dynamo does not trace `{name}`",
    "Attempt to trace generator": "it is a generator",
    "torch.* op returned non-Tensor": "`{name}` returns an object that is no tensor",
    "Unsupported context manager": "a `with` of `{name}`, which Dynamo cannot enter",
    "Failed to trace builtin operator": "Dynamo does not trace `{name}`",
    "Unhandled tensor method": "Dynamo does not trace `Tensor.{name}`",
    "Unsupported Tensor.": "Dynamo does not trace `{name}`",
    "Skip calling `torch.compiler.disable()`d function": "`{name}` is under `torch.compiler.disable`",
    "Attempted to wrap sparse Tensor": "the tensor is sparse",
    "Attempted to wrap strided NestedTensor": "the nested tensor has not the layout torch.jagged",
    "Failed to mutate tensor data attribute": "`.data` of a tensor that forward makes is set",
    "requires_grad_() intermediate leaked": "`requires_grad_()` of a value that is an output, or without which "
    "an output has no other gradient",
    "setattr() on Tensor.requires_grad": "`requires_grad` of a tensor is set",
    "Unsupported Tensor.requires_grad_() call": "`requires_grad_()` changes a tensor from outside of forward",
    "Tensor.retain_grad()": "`retain_grad()` keeps the gradient of a value",
    "HOP: Unsafe side effect": "a hook, or another function that is captured whole, changes something outside of it",
    "Reconstruction failure": "an object that forward makes is needed on both sides of a graph break",
    "Observed exception": "an exception is raised",
    "using `torch.autograd.grad`": "`torch.autograd.grad` that cannot be part of a piece",
    "_autograd_grad with": "a transform of torch.func whose result is called behind a graph break",
    "Operator does not support running with fake tensors": _WITHOUT_VALUES,
    "RuntimeError when making fake tensor call": _WITHOUT_VALUES,
    "Fake tensor propagation exception": _WITHOUT_VALUES,
    "NotImplementedError/UnsupportedFakeTensorException": _WITHOUT_VALUES,
}
_NAMES = (
    re.compile(r"unsupported operator: (\S+)"),
    re.compile(r"FX node with fake tensors: call_\w+ (.+?)\(\*\("),
    re.compile(r"Can't find numpy numpy function (<.+?>|\S+) in"),
    re.compile(r"Explanation:.*?`([^`]+)`", re.DOTALL),
    re.compile(r"example_value type: \w+; op: call_\w+; target: (.+)"),
)
_INPUTS = re.compile(r"graph input \((\w+)\)")
_SPELLINGS = {
    "aten.nonzero": "x[mask]` or `nonzero",
    "aten._unique2": "torch.unique",
    "aten.unique_dim": "torch.unique",
}
_RAISED = re.compile(r"""got \w+\((['"])(.+?)\1\)""", re.DOTALL)
_OBJECT = re.compile(r"<(?:built-in (?:method|function)|function|bound method) ([\w.]+)[^>]*>")
_NO_FAKE = "no fake impl registered"


def reason_in_words(message: str) -> str:
    """The reason in a message of Dynamo, in one line: ours, if we have one, or the first line."""
    kind = first_line(message)
    known = max(
        (beginning for beginning in _KINDS if kind.startswith(beginning)), key=len, default=""
    )
    text = _KINDS.get(known, kind)
    if known == "Data-dependent branching" and _is_drawn(message):
        return _DRAWN_CONDITION
    if "{name}" not in text:
        return text
    name = _named(message)
    if name.startswith(("RandomState.", "Generator.")):  # of numpy
        return _DRAWN.format(name="numpy.random")
    if name.startswith("Random."):  # methods of the generator behind the functions of `random`
        return _DRAWN.format(name=name.replace("Random", "random", 1))
    if name == "aten._local_scalar_dense":
        return _READS
    unknown = _NO_FAKE in message
    hint = "; register a fake implementation of it" if unknown else ""
    raised = _RAISED.search(message)
    if raised and text == _WITHOUT_VALUES and not unknown:
        error = first_line(raised[2].replace("\\n", "\n"))
        text = _RAISES.replace("{error}", error.replace("{", "{{").replace("}", "}}"))
    return text.format(name=_spelled(name)) + hint if name else kind


def _is_drawn(message: str) -> bool:
    """Whether a condition depends on numbers of `random` alone."""
    inputs = _INPUTS.findall(message)
    return bool(inputs) and all("random_value" in name for name in inputs)


def _named(message: str) -> str:
    """The call that a message is about."""
    found = next(filter(None, (pattern.search(message) for pattern in _NAMES)), None)
    if found is None:
        return ""
    name = _OBJECT.sub(r"\1", found[1]).removeprefix("<unknown module>.")
    return name.removesuffix(".default").removesuffix(".")


def _spelled(name: str) -> str:
    """An operator of torch as programs write it."""
    if name in _SPELLINGS:
        return _SPELLINGS[name]
    function = name.removeprefix("aten.")
    if function == name:
        return name
    for module in ("linalg", "fft", "special"):
        inside = function.removeprefix(f"{module}_")
        if inside != function and hasattr(getattr(torch, module), inside):
            return f"torch.{module}.{inside}"
    return f"torch.{function}" if hasattr(torch, function) else name


# ---- places -------------------------------------------------------------------------------------

_LIBRARIES = (
    os.path.join(torch.__path__[0], ""),
    os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), ""),
)
_REST = re.compile(r"^torch_dynamo_resume_in_(.+)_at_(\d+)$")


def innermost_line(frames: list[Any]) -> str:
    """File and line of the innermost of these frames that is the user's code; "" without frames."""
    # Dynamo and our patches replace some functions by others, which are not the user's line.
    frames = [frame for frame in frames if not frame.filename.startswith(_LIBRARIES)] or frames
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else ""


def line_of_code(code: types.CodeType) -> str:
    """ "file.py:line" of a function."""
    return f"{code.co_filename}:{code.co_firstlineno}"


def _line_of(error: BaseException, code: types.CodeType | None) -> str:
    """ "file.py:line" where Dynamo failed, or of the function."""
    stack: Any = getattr(error, "real_stack", None)
    known = innermost_line(list(stack)) if isinstance(stack, traceback.StackSummary) else ""
    return known or (line_of_code(code) if code is not None else "")


def _function(code: types.CodeType) -> str:
    rest = _REST.match(code.co_name)
    return (
        f"the rest of {rest[1]} behind line {rest[2]}" if rest else f"the function {code.co_name}"
    )


# ---- failures -----------------------------------------------------------------------------------

_OF_LOOPS = "graph break in loop"
_OF_CONTEXTS = "Graph break under GenericContextWrappingVariable"
_EXPLAINED: Any = (torch._dynamo.exc.Unsupported, torch._dynamo.exc.UserError)


def why_skipped(error: BaseException, code: types.CodeType) -> CannotLower:
    """Why Dynamo runs the function with this code in Python, as a whole."""
    message = str(getattr(error, "msg", error))
    if _OF_LOOPS in message:
        why = "as its graph breaks inside of a loop"
    elif _OF_CONTEXTS in message:
        why = "as its graph breaks inside of a `with`"
    else:
        return why_untraced(error, code)
    reason = f"{_function(code)}, {why}: {reason_in_words(message)}"
    return CannotLower(reason, ("", _line_of(error, code)))


def why_untraced(error: BaseException, code: types.CodeType | None = None) -> CannotLower:
    """Why Dynamo failed on the function with this code."""
    place = ("", _line_of(error, code))
    function = "a function" if code is None else _function(code)
    if isinstance(error, RecompileLimit):
        count = settings.CAPTURES_PER_FUNCTION
        return CannotLower(f"{function} was captured {count} times, which is the limit", place)
    message = str(getattr(error, "msg", error))
    if isinstance(error, _EXPLAINED) or "Explanation:" in message:
        why = f"which Dynamo cannot trace: {reason_in_words(message)}"
    else:
        why = "on which Dynamo fails with an error of its own"
    return CannotLower(f"{function}, {why}", place)
