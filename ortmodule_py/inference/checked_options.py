"""Attributes of options: typed, with a default, and unknown names are errors."""

from __future__ import annotations

import operator
import os
from collections.abc import Callable
from enum import IntEnum
from functools import cache
from typing import Any, Generic, TypeVar, overload

from ortmodule_py.inference.errors import InvalidArgument
from ortmodule_py.inference.notices import Log, checked_severity, did_you_mean

T = TypeVar("T")


class Option(Generic[T]):
    """An attribute whose values are converted or refused by `kind`, or by the type of its default."""

    def __init__(
        self, default: T, notice: str = "", kind: Callable[[Any], Any] | None = None
    ) -> None:
        kinds: dict[type, Callable[[Any], Any]] = {bool: as_bool, int: as_int, str: as_text}
        self.default = default
        self._kind = kind or kinds.get(type(default), type(default))
        self.notice = notice  # what another value than the default does not do

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, instance: None, owner: type) -> Option[T]: ...
    @overload
    def __get__(self, instance: object, owner: type) -> T: ...
    def __get__(self, instance: object | None, owner: type) -> Option[T] | T:
        if instance is None:
            return self
        value: T = instance.__dict__.get(self.name, self.default)
        return value

    def __set__(self, instance: object, value: T) -> None:
        try:
            instance.__dict__[self.name] = self._kind(value)
        except (TypeError, ValueError) as error:
            where = type(instance).__name__
            raise TypeError(
                f"[{where}] {self.name} must be {self._expected()}, but found {value!r}"
            ) from error

    def _expected(self) -> str:
        kind = type(self.default)
        if issubclass(kind, IntEnum):
            return f"one of {kind.__name__}'s values"
        return {bool: "a bool", int: "an integer", str: "a string"}.get(kind, kind.__name__)


def as_bool(value: Any) -> bool:
    """True, False, 1 or 0, also of numpy."""
    if isinstance(value, str) or value not in (0, 1):
        raise ValueError
    return bool(value)


def as_int(value: Any) -> int:
    """An integer, also of numpy."""
    if isinstance(value, bool):
        return int(value)
    return operator.index(value)


def as_text(value: Any) -> str:
    """A string or a path."""
    return os.fspath(value) if not isinstance(value, bytes) else value.decode()


def as_severity(value: Any) -> int:
    """The severity of messages, -1 for that of the default logger."""
    return -1 if as_int(value) == -1 else checked_severity(as_int(value))


class CheckedOptions:
    """Options whose unknown names are errors; subclasses of users may add attributes."""

    log_severity_level = Option(-1, kind=as_severity)
    log_verbosity_level = Option(0, "there is one level of verbose messages")
    logid = Option("")
    _config: ConfigEntries

    def __setattr__(self, name: str, value: Any) -> None:
        cls = type(self)
        own = cls.__module__.startswith(__name__.partition(".")[0])
        if own and not name.startswith("_") and not hasattr(cls, name):
            raise AttributeError(
                f"[{cls.__name__}] an option must be one of onnxruntime's, but found '{name}'"
                f"{did_you_mean(name, self._option_names())}"
            )
        super().__setattr__(name, value)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"[{type(self).__name__}] has no attribute '{name}'"
            f"{did_you_mean(name, [n for n in dir(type(self)) if not n.startswith('_')])}"
        )

    @classmethod
    @cache
    def _option_names(cls) -> list[str]:
        return [name for name in dir(cls) if isinstance(getattr(cls, name), (Option, property))]

    def _log(self) -> Log:
        return Log(self.log_severity_level, self.logid)

    def _give_notices(self) -> None:
        """Says once what the options that are set do not do."""
        log, config = self._log(), self._config
        for name in self._option_names():
            option = getattr(type(self), name)
            if not isinstance(option, Option) or not option.notice:
                continue
            if getattr(self, name) != option.default:
                log.once(f"{config.where}.{name}", f"{name} is accepted, but {option.notice}")
        for key in config.without_effect():
            text = f"{config.word} '{key}' is accepted, but changes nothing"
            log.once(f"{config.where}[{key}]", text)


class ConfigEntries:
    """Configuration entries. Raises InvalidArgument for keys that are nearly known ones.

    `known` has what a key changes, by key, and "" for keys that change nothing.
    """

    def __init__(self, where: str, word: str, known: dict[str, str]) -> None:
        self.where, self.word = where, word
        self._known = known
        self._entries: dict[str, str] = {}

    def add(self, key: str, value: str) -> None:
        if not isinstance(key, str) or not isinstance(value, str):
            raise TypeError(
                f"[{self.where}] key and value of an entry must be strings, but found "
                f"{key!r}: {value!r}"
            )
        near = did_you_mean(key, list(self._known), 0.87)
        if key not in self._known and near:
            raise InvalidArgument(
                f"[{self.where}] the key of an entry must be known, but found '{key}'{near}"
            )
        self._entries[key] = value

    def get(self, key: str) -> str:
        if key not in self._entries:
            raise InvalidArgument(
                f"[options] {self.where} does not have configuration with key: {key}; it has "
                f"{list(self._entries)}{did_you_mean(key, list(self._entries))}"
            )
        return self._entries[key]

    def find(self, key: str, default: str = "") -> str:
        return self._entries.get(key, default)

    def without_effect(self) -> list[str]:
        """The keys that change nothing here."""
        return [key for key in self._entries if not self._known.get(key)]
