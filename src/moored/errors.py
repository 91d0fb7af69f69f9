"""Every error that moored raises on purpose.

::

    MooredError                 base of all (an Exception)
    ├── InputError              a file, option or value from outside can not be used
    │   ├── RecordingError      not a recording, or one of a newer schema
    │   └── PlacementError      a leaf of a pytree can not go where it was asked to go
    └── MachineError            the machine lacks something: JAX, a device, memory

Each message says what happened, where, the actual numbers, and the next step. The
command line prints the message alone, never a traceback, and exits with code 2.
"""

from __future__ import annotations

__all__ = ["InputError", "MachineError", "MooredError", "PlacementError", "RecordingError"]


class MooredError(Exception):
    """Base of all errors that moored raises on purpose."""


class InputError(MooredError):
    """Something handed to moored (a file, an option, a value) can not be used."""


class RecordingError(InputError):
    """A file is not a moored recording, or was written by a newer schema."""


class PlacementError(InputError):
    """A leaf of a pytree can not be placed where it was asked to go."""


class MachineError(MooredError):
    """The machine lacks something that the command needs: JAX, a device, memory."""
