"""moored finds, explains and prevents arrays that drift between devices in JAX programs.

Importing it is free: it imports no JAX and nothing else outside the standard library, reads no environment,
patches nothing. Each public name is imported from its own module when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from moored.diagnose.watch import watch as watch
    from moored.errors import InputError as InputError
    from moored.errors import MachineError as MachineError
    from moored.errors import MooredError as MooredError
    from moored.errors import PlacementError as PlacementError
    from moored.errors import RecordingError as RecordingError
    from moored.placement import Placement as Placement
    from moored.placement import put as put
    from moored.placement import where as where

__version__ = "0.1.0"

_MODULES = {
    "InputError": "moored.errors",
    "MachineError": "moored.errors",
    "MooredError": "moored.errors",
    "Placement": "moored.placement",
    "PlacementError": "moored.errors",
    "RecordingError": "moored.errors",
    "put": "moored.placement",
    "watch": "moored.diagnose.watch",
    "where": "moored.placement",
}

__all__ = [
    "InputError",
    "MachineError",
    "MooredError",
    "Placement",
    "PlacementError",
    "RecordingError",
    "put",
    "watch",
    "where",
]


def __getattr__(name: str) -> object:
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(
            f"module 'moored' has no attribute {name!r}; its public names: {', '.join(__all__)}"
        )
    from importlib import import_module

    value = globals()[name] = getattr(import_module(module), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
