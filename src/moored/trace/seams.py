"""The only file that touches private JAX.

Everything else in moored asks this module for a behaviour ("the default device in force",
"the exact shardings an executable wants"), never for a version. Each quirk is named once,
here, with what was seen of it. Checked on JAX 0.10.2, 0.11.2 and 0.12.0.1.

Here is what is patched, and where; ``patches`` knows how.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from moored.errors import MachineError
from moored.trace.patches import Attribute, BufferSlot, Listener, Maker, Seam, TypeCall

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

#: JAX series (major, minor) on which the seams were checked; on others every seam is tested first.
CheckedOn = frozenset({(0, 10), (0, 11), (0, 12)})


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
            from jax._src import (
                array,
                callback,
                config,
                core,
                debugging,
                dispatch,
                dlpack,
                monitoring,
                pjit,
                source_info_util,
                tree_util,
                xla_bridge,
            )
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
        self.callback, self.debugging = callback, debugging
        self.dispatch, self.dlpack = dispatch, dlpack
        self.monitoring, self._source_info = monitoring, source_info_util
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

    def ran_on(self, executable: Any) -> set[Any]:
        """The devices of this process on which an executable runs."""
        return set(executable._local_devices)

    def named_inside(self, jaxpr: Any, devices: set[Any]) -> tuple[Any, tuple[Any, int] | None]:
        """A device that a function names (``device_put(x, device)``) although it runs on others.

        Returns:
            The device, and the code and instruction that named it; (None, None) where there is none.
        """
        for equation in _equations(jaxpr):
            if equation.primitive.name != "device_put":
                continue
            for target in equation.params.get("devices", ()):
                wanted = getattr(target, "device_set", {target} if hasattr(target, "client") else set())
                if len(wanted) == 1 and not wanted & devices:
                    return next(iter(wanted)), self._written_at(equation)
        return None, None

    def _written_at(self, equation: Any) -> tuple[Any, int] | None:
        """The user's code and instruction behind an equation."""
        traceback = equation.source_info.traceback
        codes, offsets = traceback.raw_frames() if traceback else ([], [])
        for code, lasti in zip(codes, offsets, strict=False):
            if self._source_info.is_user_filename(code.co_filename):
                return code, lasti
        return None

    def dlpack_source(self, frame: Any) -> Any:
        """What ``from_dlpack`` was given, from its frame: its helper is handed only the result."""
        return frame.f_locals.get("external_array")

    def backends_ready(self) -> bool:
        """Whether JAX has made its clients; asking for a device before would make them."""
        return bool(self.xla_bridge.backends_are_initialized())

    def devices(self) -> list[Any]:
        """All devices of the clients that JAX has made already."""
        clients = list(getattr(self.xla_bridge, "_backends", {}).values())
        return [device for client in clients for device in client.devices()]

    def hide_frames(self, paths: Sequence[str]) -> None:
        """Let JAX pass over our frames where it names the user's line.

        It does so in the locations of operations, which profiles and HLO dumps show, in its messages,
        and in explanations of cache misses.
        """
        for path in paths:
            self._source_info.register_exclusion(path)

    def show_frames(self, paths: Sequence[str]) -> None:
        """Undo ``hide_frames``."""
        hidden = self._source_info._exclude_paths
        for path in paths:
            if path in hidden:
                hidden.remove(path)
        self._source_info._exclude_path_regex.cache_clear()
        self._source_info.is_user_filename.cache_clear()

    def forget_dispatch(self) -> None:
        """Empty the C++ dispatch caches, so that warm functions pass through Python once more.

        Dispatch entries only: no executable is dropped and nothing compiles again.
        """
        for name in ("_cpp_pjit_cache_fun_only", "_cpp_pjit_cache_explicit_attributes"):
            cache = getattr(self.pjit, name, None)
            if cache is not None:
                cache.clear()


_MAX_EQUATIONS = 2000  # of one function that are looked at for devices named inside


def _equations(jaxpr: Any) -> Iterator[Any]:
    """The equations of a function and of the functions that it calls, up to a bound."""
    pending, left = [jaxpr], _MAX_EQUATIONS
    while pending and left > 0:
        inner = pending.pop()
        for equation in getattr(getattr(inner, "jaxpr", inner), "eqns", ()):
            left -= 1
            yield equation
            if "jaxpr" in equation.params:
                pending.append(equation.params["jaxpr"])


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


_DIRECT_READS = (
    "np.asarray, .item() and numpy functions on arrays that sit on a CPU device: "
    "they read its buffer directly"
)


def make_seams(jax_: Internals, *, hide_buffers: bool = False) -> list[Seam]:
    """All seams for this JAX, not attached yet.

    Args:
        jax_: The handles into JAX.
        hide_buffers: Make arrays on CPU devices as unreadable to numpy as those on an accelerator, so
            that its reads come through the read seam.
    """
    pxla, array = jax_.pxla, jax_.ArrayImpl
    reads: dict[str, Callable[[], Attribute]] = {"value": lambda: Attribute(array, "_value")}
    if hide_buffers:
        reads["buffer"] = lambda: BufferSlot(array)
    return [
        Seam(
            "calls",
            "implicit copies into jitted, eager and AOT-compiled calls",
            "traffic inside an executable",
            {
                "call": lambda: TypeCall(jax_.PjitFunction),
                "execute": lambda: Attribute(pxla.ExecuteReplicated, "__call__"),
                "place_inputs": lambda: Attribute(pxla.InputsHandler, "__call__"),
                "jaxpr_as_fun": lambda: Attribute(jax_.pjit, "_get_jaxpr_as_fun"),
                "python_call": lambda: Attribute(jax_.pjit, "_pjit_call_impl_python"),
            },
        ),
        Seam(
            "puts",
            "device_put, asarray, constants, host staging",
            "buffers that another library exports through dlpack",
            {
                "shard_args": lambda: Attribute(pxla, "shard_args"),
                "batched_device_put": lambda: Attribute(pxla, "batched_device_put"),
            },
        ),
        Seam(
            "reads",
            "float, bool, int, format, print, tolist, pickle, device_get"
            + (", np.asarray, .item() and numpy functions" if hide_buffers else ""),
            "buffers that another library takes through dlpack" if hide_buffers else _DIRECT_READS,
            reads,
        ),
        Seam(
            "compiles",
            "compilations, and what they took",
            "what was compiled before moored came",
            {"compiled": lambda: Listener(jax_.monitoring)},
        ),
        Seam(
            "callbacks",
            "arrays that pure, io and debug callbacks ship to the host and back",
            "the line of a callback that was made before moored came",
            {
                "callback_made": lambda: Attribute(jax_.callback._FlatCallback, "__init__"),
                "callback_run": lambda: Attribute(jax_.callback._FlatCallback, "__call__"),
                "debug_callback": lambda: Attribute(jax_.debugging.debug_callback_p, "impl"),
            },
        ),
        Seam(
            "arrivals",
            "where device_put, dlpack, pickle and threads leave arrays",
            "arrays that other libraries make",
            {
                "put_results": lambda: Attribute(jax_.dispatch, "_batched_device_put_impl"),
                "place_dlpack": lambda: Attribute(jax_.dlpack, "_place_array"),
                "thread_start": lambda: Attribute(threading.Thread, "start"),
            },
        ),
    ]
