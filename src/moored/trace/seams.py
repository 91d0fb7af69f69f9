"""The only file that touches private JAX.

Everything else in moored asks this module for a behaviour ("the default device in force",
"the exact shardings an executable wants"), never for a version. Each quirk is named once,
here, with what was seen of it. Checked on JAX 0.10.2, 0.11.2 and 0.12.0.1.

A *seam* is a set of patches that belong together. A patch remembers what it replaced and,
on leaving, restores it only where what it finds is still its own.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from moored.errors import MachineError

__all__ = [
    "CheckedOn",
    "Internals",
    "Maker",
    "Seam",
    "alias_platforms",
    "client_platform",
    "load",
    "make_seams",
]

#: Makes the replacement for what a patch replaces, given the original.
Maker = Callable[[Any], Any]

#: JAX series (major, minor) on which the seams were checked; on others every seam is tested first.
CheckedOn = frozenset({(0, 10), (0, 11), (0, 12)})

_TP_FLAGS_OFFSET = 168  # PyTypeObject.tp_flags on 64-bit CPython 3.11 to 3.14; asserted before use
_HAVE_VECTORCALL = 1 << 11  # Py_TPFLAGS_HAVE_VECTORCALL


class Internals:
    """Handles into JAX that the collector works with, resolved once per attach.

    Attributes:
        ArrayImpl: The concrete type of ``jax.Array``.
        PjitFunction: The C++ type of every jitted, eager and AOT-compiled callable.
        Tracer: Base of the values that stand for arrays while JAX traces.
        default_device: Holder whose ``.value`` is the default device that the thread has in
            force: a Device, a platform name, or None.
        flatten: ``flatten(tree) -> (leaves, treedef)`` in the order of the C++ dispatch.
        pxla: The module whose functions place arguments.
    """

    def __init__(self) -> None:
        try:
            import jax
            from jax._src import array, config, core, pjit, tree_util, xla_bridge
            from jax._src.interpreters import pxla
        except ImportError as error:
            raise MachineError(
                f"JAX can not be imported ({error}); install it for this machine, "
                "for example: pip install 'moored[jax]'"
            ) from None
        self.jax = jax
        self.version: str = jax.__version__
        self.pxla = pxla
        self.pjit = pjit
        self.array = array
        self.xla_bridge = xla_bridge
        self.ArrayImpl: Any = array.ArrayImpl
        self.PjitFunction: Any = type(jax.jit(_identity))
        self.Tracer: Any = core.Tracer
        self.default_device = config.default_device
        self.flatten: Callable[[Any], tuple[list[Any], Any]] = tree_util.dispatch_registry.flatten
        self._trace_context: Callable[[], Any] | None = getattr(config, "trace_context", None)

    @property
    def is_checked(self) -> bool:
        """Whether the seams were checked on this series of JAX."""
        return tuple(int(n) for n in self.version.split(".")[:2]) in CheckedOn

    def trace_context(self) -> Any:
        """What of JAX's context is part of its cache key (mesh, precision, x64, ...)."""
        return self._trace_context() if self._trace_context is not None else None

    def statics(self, function: Any) -> tuple[frozenset[int], frozenset[str]]:
        """Positions and names of the static arguments of a jitted function."""
        info = getattr(function, "_jit_info", None)
        if info is None:
            return frozenset(), frozenset()
        return frozenset(info.static_argnums), frozenset(info.static_argnames)

    def wanted(self, executable: Any, n_args: int) -> list[tuple[int, Any]]:
        """(position, sharding) of each argument that an executable keeps, pruned ones left out.

        ``executable`` is what ran (``ExecuteReplicated``); positions count the constants that
        JAX lifted out of the function, which come first.
        """
        kept = sorted(i for i in executable.kept_var_idx if i < n_args)
        return list(zip(kept, executable.in_handler.in_shardings, strict=False))

    def backends_ready(self) -> bool:
        """Whether JAX has made its clients; asking for a device before would make them."""
        return bool(self.xla_bridge.backends_are_initialized())

    def devices(self) -> list[Any]:
        """All devices of the clients that JAX has made already."""
        clients = list(getattr(self.xla_bridge, "_backends", {}).values())
        return [device for client in clients for device in client.devices()]

    def forget_dispatch(self) -> None:
        """Empty the C++ dispatch caches, so that warm functions pass through Python once more.

        Dispatch entries only: no executable is dropped and nothing compiles again.
        """
        for name in ("_cpp_pjit_cache_fun_only", "_cpp_pjit_cache_explicit_attributes"):
            cache = getattr(self.pjit, name, None)
            if cache is not None:
                cache.clear()


def _identity(x: Any) -> Any:
    return x


_internals: Internals | None = None


def load() -> Internals:
    """The handles into the JAX of this process.

    Raises:
        MachineError: JAX is missing, or lacks something that every seam needs.
    """
    global _internals
    if _internals is None:
        try:
            _internals = Internals()
        except AttributeError as error:
            raise MachineError(
                f"this JAX is not one that moored knows ({error}); moored works with JAX 0.10 to 0.12"
            ) from None
    return _internals


def client_platform(device: Any) -> str:
    """The name by which users know a device's platform: ``"cpu"``, ``"gpu"``, ``"accel"``.

    ``Device.platform`` is right for a GPU (whose client is registered as "cuda" or "rocm"), but
    two clients can both call themselves "cpu" (a plug-in built from the CPU client does), so there
    the client objects are compared.
    """
    if device.platform != "cpu":
        return str(device.platform)
    client = device.client
    bridge = load().xla_bridge
    for name, backend in list(getattr(bridge, "_backends", {}).items()):
        if backend is client:
            return str(name)
    return "cpu"


def alias_platforms(names: Sequence[str], platform: str) -> None:
    """Let ``jax.devices(name)`` mean ``platform`` for each of ``names``.

    Registering the plug-in itself as "gpu" or "cuda" makes its client vanish; the alias
    table works on all checked versions.
    """
    aliases = load().xla_bridge._alias_to_platforms
    for name in names:
        aliases[name] = [platform]


class _Attribute:
    """One attribute of a module or class, replaced and restored."""

    def __init__(self, owner: Any, name: str) -> None:
        self.owner, self.name = owner, name
        self.original = owner.__dict__[name]
        self.replacement: Any = None

    def install(self, make: Callable[[Any], Any]) -> None:
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


class _TypeCall(_Attribute):
    """``__call__`` of the C++ type of jitted functions.

    CPython up to 3.11 keeps calling the type's vectorcall slot after ``__call__`` was assigned,
    until the type's flag says that it has none; 3.12 and later clear the flag themselves. None
    of them sets it again on restoring, which would leave every later call slower.
    """

    def __init__(self, owner: type) -> None:
        super().__init__(owner, "__call__")
        self.had_vectorcall = bool(owner.__flags__ & _HAVE_VECTORCALL)
        self._flags = ctypes.c_ulong.from_address(id(owner) + _TP_FLAGS_OFFSET)
        if self._flags.value != owner.__flags__:
            raise RuntimeError(
                f"the layout of types on this Python ({sys.version.split()[0]}) is not the expected one"
            )

    def _set_vectorcall(self, on: bool) -> None:
        flags = self._flags.value
        self._flags.value = flags | _HAVE_VECTORCALL if on else flags & ~_HAVE_VECTORCALL
        ctypes.pythonapi.PyType_Modified(ctypes.py_object(self.owner))

    def install(self, make: Callable[[Any], Any]) -> None:
        super().install(make)
        if self._flags.value & _HAVE_VECTORCALL:
            self._set_vectorcall(False)

    def restore(self) -> str:
        trouble = super().restore()
        if not trouble and self.had_vectorcall and not self._flags.value & _HAVE_VECTORCALL:
            self._set_vectorcall(True)
        return trouble


class Seam:
    """Patches that belong together, attached and detached as one.

    Args:
        name: Stable name, shown in reports.
        sees: What passes through it.
        blind_to: What it can not see.
        patches: Factories, so that a missing private name makes this seam dead, not the others.
    """

    def __init__(
        self, name: str, sees: str, blind_to: str, patches: dict[str, Callable[[], _Attribute]]
    ) -> None:
        self.name, self.sees, self.blind_to = name, sees, blind_to
        self._factories = patches
        self._installed: list[_Attribute] = []
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


def make_seams(jax_: Internals) -> list[Seam]:
    """All seams for this JAX, not attached yet."""
    pxla, array = jax_.pxla, jax_.ArrayImpl
    return [
        Seam(
            "calls",
            "implicit copies into jitted, eager and AOT-compiled calls",
            "traffic inside an executable",
            {
                "call": lambda: _TypeCall(jax_.PjitFunction),
                "execute": lambda: _Attribute(pxla.ExecuteReplicated, "__call__"),
                "place_inputs": lambda: _Attribute(pxla.InputsHandler, "__call__"),
                "jaxpr_as_fun": lambda: _Attribute(jax_.pjit, "_get_jaxpr_as_fun"),
            },
        ),
        Seam(
            "puts",
            "device_put, asarray, constants, host staging",
            "buffers that another library exports through dlpack",
            {
                "shard_args": lambda: _Attribute(pxla, "shard_args"),
                "batched_device_put": lambda: _Attribute(pxla, "batched_device_put"),
            },
        ),
        Seam(
            "reads",
            "float, bool, int, format, print, tolist, pickle, device_get",
            "np.asarray, .item() and numpy functions on arrays that sit on a CPU device: "
            "they read its buffer directly",
            {"value": lambda: _Attribute(array, "_value")},
        ),
    ]
