"""Private fields of onnxruntime's sessions that other packages read, as insightface does."""

from __future__ import annotations

from typing import Protocol

from ortmodule_py.inference.model_facts import ModelMetadata, NodeArg


class _Facts(Protocol):
    def get_providers(self) -> list[str]: ...
    def get_inputs(self) -> list[NodeArg]: ...
    def get_outputs(self) -> list[NodeArg]: ...
    def get_overridable_initializers(self) -> list[NodeArg]: ...
    def get_modelmeta(self) -> ModelMetadata: ...


class PrivateFields:
    """Their names for what a session's methods tell. `_model_path`, `_provider_options` and
    `_sess_options` are fields of our sessions anyway.
    """

    @property
    def _providers(self: _Facts) -> list[str]:
        return self.get_providers()

    @property
    def _inputs_meta(self: _Facts) -> list[NodeArg]:
        return self.get_inputs()

    @property
    def _outputs_meta(self: _Facts) -> list[NodeArg]:
        return self.get_outputs()

    @property
    def _overridable_initializers(self: _Facts) -> list[NodeArg]:
        return self.get_overridable_initializers()

    @property
    def _model_meta(self: _Facts) -> ModelMetadata:
        return self.get_modelmeta()
