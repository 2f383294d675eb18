# Binding the classes of all its models takes pyright longer than our own code does.
from typing import Any

def __getattr__(name: str) -> Any: ...
