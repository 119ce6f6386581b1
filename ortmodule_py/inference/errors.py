"""Errors of sessions: onnxruntime's names, all of them RuntimeErrors."""

from __future__ import annotations

from ortmodule_py import _inference


class Fail(RuntimeError):
    """An error of another kind; the base of the others."""


class InvalidArgument(Fail):
    """A feed or an option is not what the model or the session takes."""


class NoSuchFile(Fail):
    """The model's file does not exist."""


class NoModel(Fail):
    """There is no model."""


class EngineError(Fail):
    """The engine cannot do what was asked."""


class RuntimeException(Fail):
    """A kernel failed, or memory ran out."""


class InvalidProtobuf(Fail):
    """The file is no ONNX model, or it is damaged."""


class NotImplemented(Fail):
    """The model has nodes that the engine cannot run; the message lists all of them."""


class InvalidGraph(Fail):
    """The model's nodes or types contradict each other."""


class NotFound(Fail):
    """What was asked for does not exist."""


class EPFail(Fail):
    """An execution provider failed."""


class DeviceReset(Fail):
    """A device was lost."""


class ModelLoaded(Fail):
    """A model is loaded already."""


class ModelLoadCanceled(Fail):
    """Loading was canceled."""


class ModelRequiresCompilation(Fail):
    """The model must be compiled for its execution provider first."""


_KINDS = {
    "[onnx]": InvalidProtobuf,
    "[import]": NotImplemented,
    "[model]": InvalidGraph,
    "[name]": InvalidArgument,  # of a value, as in onnxruntime
    "[feeds]": Fail,
    "[run]": InvalidArgument,
    "[bind]": InvalidArgument,
    "[OrtValue]": InvalidArgument,
    "[dlpack]": InvalidArgument,
    "[numpy]": NotImplemented,
    "[forward]": InvalidArgument,
    "[memory]": RuntimeException,
    "[optimizer]": InvalidArgument,
    "[kernel]": NotImplemented,
    "[save]": Fail,
    "[terminated]": Fail,
}


class _Translation:
    """A context manager without state, since it is entered in every run."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, _inference.EngineError):
            text = str(error)
            raise _KINDS.get(text.partition(" ")[0], RuntimeException)(text) from None


_TRANSLATION = _Translation()


def translated() -> _Translation:
    """Raises errors of the engine as the classes above, by the place that the message names."""
    return _TRANSLATION
