"""What hangs on TorchDynamo's internals: its settings, frames, caches and errors."""
