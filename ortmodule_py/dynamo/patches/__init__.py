"""Functions of TorchDynamo that are replaced while it traces for us."""
