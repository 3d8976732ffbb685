# What the package says of its types is partly wrong, so pyright is told nothing; mypy skips it too.
from typing import Any

def __getattr__(name: str) -> Any: ...
