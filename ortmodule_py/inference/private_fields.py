"""Private fields of onnxruntime's sessions that other packages read, as insightface does."""

from __future__ import annotations

from ortmodule_py.inference.model_facts import ModelMetadata, NodeArg


class PrivateFields:
    """Their names for what a session's methods tell. `_model_path`, `_provider_options` and
    `_sess_options` are fields of our sessions anyway.
    """

    @property
    def _providers(self) -> list[str]:
        return self.get_providers()

    @property
    def _inputs_meta(self) -> list[NodeArg]:
        return self.get_inputs()

    @property
    def _outputs_meta(self) -> list[NodeArg]:
        return self.get_outputs()

    @property
    def _overridable_initializers(self) -> list[NodeArg]:
        return self.get_overridable_initializers()

    @property
    def _model_meta(self) -> ModelMetadata:
        return self.get_modelmeta()

    def get_providers(self) -> list[str]:
        """The execution providers that run the model."""
        raise NotImplementedError

    def get_inputs(self) -> list[NodeArg]:
        """The inputs without an initializer, in the model's order."""
        raise NotImplementedError

    def get_outputs(self) -> list[NodeArg]:
        """The outputs in the model's order."""
        raise NotImplementedError

    def get_overridable_initializers(self) -> list[NodeArg]:
        """The inputs that have an initializer. A run uses it where nothing is fed."""
        raise NotImplementedError

    def get_modelmeta(self) -> ModelMetadata:
        """What the file says about the model."""
        raise NotImplementedError
