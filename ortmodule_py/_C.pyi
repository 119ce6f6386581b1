from typing import Any

torch_version: str
__version__: str

def __getattr__(name: str) -> Any: ...
