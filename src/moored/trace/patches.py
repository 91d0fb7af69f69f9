"""Patches: things of JAX's that are replaced for a while, and put back.

A *seam* is a set of patches that belong together. A patch remembers what it replaced and,
on leaving, restores it only where what it finds is still its own.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterator
from typing import Any

__all__ = ["Attribute", "BufferSlot", "Listener", "Maker", "Seam", "TypeCall"]

_TP_FLAGS_OFFSET = 168  # PyTypeObject.tp_flags on 64-bit CPython 3.11 to 3.14; asserted before use
_TP_AS_BUFFER_OFFSET = 160  # PyTypeObject.tp_as_buffer, the field before it
_HAVE_VECTORCALL = 1 << 11  # Py_TPFLAGS_HAVE_VECTORCALL

#: Makes the replacement for what a patch replaces, given the original.
Maker = Callable[[Any], Any]


def _assert_layout(owner: type) -> ctypes.c_ulong:
    """The flags of a type, where they are expected: the fields around them then are, too."""
    flags = ctypes.c_ulong.from_address(id(owner) + _TP_FLAGS_OFFSET)
    if flags.value != owner.__flags__:
        raise RuntimeError(
            f"the layout of types on this Python ({sys.version.split()[0]}) is not the expected one"
        )
    return flags


class Attribute:
    """One attribute of a module or class, replaced and restored."""

    def __init__(self, owner: Any, name: str) -> None:
        self.owner, self.name = owner, name
        self.original = owner.__dict__[name]
        self.replacement: Any = None

    def install(self, make: Callable[[Any], Any]) -> None:
        """Put what ``make`` makes of the original in its place."""
        self.replacement = make(self.original)
        setattr(self.owner, self.name, self.replacement)

    def restore(self) -> str:
        """Put the original back; returns why not, or an empty string."""
        if self.replacement is None:
            return ""
        if self.owner.__dict__.get(self.name) is not self.replacement:
            return f"{self.name} was patched again by somebody else and is left as it is"
        setattr(self.owner, self.name, self.original)
        self.replacement = None
        return ""


class TypeCall(Attribute):
    """``__call__`` of the C++ type of jitted functions.

    CPython up to 3.11 keeps calling the type's vectorcall slot after ``__call__`` was assigned,
    until the type's flag says that it has none; 3.12 and later clear the flag themselves. None
    of them sets it again on restoring, which would leave every later call slower.
    """

    def __init__(self, owner: type) -> None:
        super().__init__(owner, "__call__")
        self.had_vectorcall = bool(owner.__flags__ & _HAVE_VECTORCALL)
        self._flags = _assert_layout(owner)

    def _set_vectorcall(self, on: bool) -> None:
        flags = self._flags.value
        self._flags.value = flags | _HAVE_VECTORCALL if on else flags & ~_HAVE_VECTORCALL
        ctypes.pythonapi.PyType_Modified(ctypes.py_object(self.owner))

    def install(self, make: Callable[[Any], Any]) -> None:
        """The same, and make sure that CPython looks at it."""
        super().install(make)
        if self._flags.value & _HAVE_VECTORCALL:
            self._set_vectorcall(False)

    def restore(self) -> str:
        """The same, and let CPython take its short way again."""
        trouble = super().restore()
        if not trouble and self.had_vectorcall and not self._flags.value & _HAVE_VECTORCALL:
            self._set_vectorcall(True)
        return trouble


class BufferSlot(Attribute):
    """The slot through which numpy reads a type's memory directly, emptied for a while.

    Without it numpy asks the object for an array instead, as it must on an accelerator, and
    ``memoryview(x)`` raises TypeError, as it does there. A Python function can not stand in
    the slot: it could not report an error, and a failing export would hand out garbage.
    """

    def __init__(self, owner: type) -> None:
        self.owner, self.name, self.replacement = owner, "buffer", None
        _assert_layout(owner)
        procs = ctypes.c_void_p.from_address(id(owner) + _TP_AS_BUFFER_OFFSET).value
        if not procs:
            raise RuntimeError(f"{owner.__name__} exports no buffer on this JAX")
        self._slot = ctypes.c_void_p.from_address(procs)
        self.original = self._slot.value

    def install(self, make: Callable[[Any], Any]) -> None:
        """Empty the slot."""
        self.replacement = make(self.original)
        self._slot.value = None

    def restore(self) -> str:
        """Fill it again."""
        if self.replacement is None:
            return ""
        self.replacement = None
        if self._slot.value is not None:
            return "the buffer slot was filled by somebody else and is left as it is"
        self._slot.value = self.original
        return ""


class Listener(Attribute):
    """A listener of JAX's own monitoring, in the place of a patch."""

    def __init__(self, monitoring: Any) -> None:
        self.monitoring, self.replacement = monitoring, None

    def install(self, make: Callable[[Any], Any]) -> None:
        """Register what ``make`` makes."""
        self.replacement = make(None)
        self.monitoring.register_event_duration_secs_listener(self.replacement)

    def restore(self) -> str:
        """Remove it again."""
        if self.replacement is not None:
            self.monitoring.unregister_event_duration_listener(self.replacement)
            self.replacement = None
        return ""


class Seam:
    """Patches that belong together, attached and detached as one.

    Args:
        name: Stable name, shown in reports.
        sees: What passes through it.
        blind_to: What it can not see.
        patches: Factories, so that a missing private name makes this seam dead, not the others.
    """

    def __init__(
        self, name: str, sees: str, blind_to: str, patches: dict[str, Callable[[], Attribute]]
    ) -> None:
        self.name, self.sees, self.blind_to = name, sees, blind_to
        self._factories = patches
        self._installed: list[Attribute] = []
        self.reason = "not attached"

    @property
    def live(self) -> bool:
        """Whether the seam sees events now."""
        return bool(self._installed)

    @property
    def points(self) -> Iterator[str]:
        """Names of the patches; attach() wants a replacement for each."""
        return iter(self._factories)

    def attach(self, makers: dict[str, Maker]) -> None:
        """Patch all of it, or nothing; a failure is kept in ``reason``."""
        try:
            patches = [(self._factories[name](), makers[name]) for name in self._factories]
            for patch, make in patches:
                patch.install(make)
                self._installed.append(patch)
            self.reason = ""
        except Exception as error:
            self.detach()
            self.reason = f"{type(error).__name__}: {error}"

    def detach(self, reason: str = "detached") -> None:
        """Restore all of it, last patch first."""
        troubles = [patch.restore() for patch in reversed(self._installed)]
        self._installed.clear()
        self.reason = "; ".join(filter(None, troubles)) or reason
