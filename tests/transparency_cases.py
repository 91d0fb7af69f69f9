"""Programs whose every visible effect must be the same under ``moored trace`` as without it."""

from __future__ import annotations

from dataclasses import dataclass, field
from textwrap import dedent


@dataclass(frozen=True)
class Case:
    """One program and how it is started.

    ``program`` is the text of ``prog.py``, or the bytes; ``files`` lie beside it. ``target`` is what
    comes after ``python`` or ``moored trace``. ``merged`` also compares stdout and stderr in one stream.
    """

    name: str
    program: str | bytes = ""
    files: dict[str, str | bytes] = field(default_factory=dict)
    target: tuple[str, ...] = ("prog.py",)
    exit: int = 0
    stdin: str = ""
    flags: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    merged: bool = False

    def sources(self) -> dict[str, bytes]:
        return {
            name: text if isinstance(text, bytes) else dedent(text).encode()
            for name, text in {"prog.py": self.program, **self.files}.items()
        }


_SHOW_MAIN = """
    import sys
    shown = {k: type(v).__name__ if k in ("__builtins__", "__loader__") else v for k, v in globals().items()}
    shown["__spec__"] = __spec__ and (__spec__.name, __spec__.origin, __spec__.cached, __spec__.parent)
    del shown["sys"]
    print(sorted(shown.items(), key=lambda item: item[0]))
    print(sys.argv, repr(sys.path[0]), len(sys.path), sys.modules["__main__"].__dict__ is globals())
    print(getattr(__loader__, "name", None), getattr(__loader__, "path", None))
"""
_GROUP = """
    def bad(n):
        try:
            raise KeyError(n)
        except KeyError as error:
            raise ValueError(n) from error
    errors = []
    for n in range(2):
        try:
            bad(n)
        except ValueError as error:
            errors.append(error)
    raise ExceptionGroup("two", errors)
"""
_OWN_HOOK = """
    import sys, traceback
    def hook(kind, error, tb):
        print("mine:", kind.__name__, error, [frame.name for frame in traceback.extract_tb(tb)])
    sys.excepthook = hook
    def f(): raise LookupError("gone")
    f()
"""
_POOL = """
    import multiprocessing
    class Point:
        def __init__(self, x): self.x = x
    def double(point): return Point(point.x * 2)
    if __name__ == "__main__":
        with multiprocessing.get_context("{method}").Pool(1) as pool:
            print([p.x for p in pool.map(double, [Point(1), Point(2)])])
"""
_AT_EXIT = """
    import atexit, threading
    atexit.register(print, "first registered")
    def late():
        threading.main_thread().join()
        print("thread ends after main", "__file__" in globals())
        atexit.register(print, "registered by the thread")
    threading.Thread(target=late).start()
    atexit.register(print, "second registered")
    class Last:
        def __del__(self): print("collected")
    last = Last()
    print("main ends")
"""
_EARLY = """
    import sys
    late = {"asyncio", "concurrent.futures", "jax", "logging", "multiprocessing", "numpy"}
    print(sorted(late & set(sys.modules)))
"""
_GONE = """
    import os
    reader, writer = os.pipe()
    os.dup2(writer, 1)
    os.close(reader)
    print("nobody reads this")
"""
_FORKS = """
    import os, sys
    if os.fork() == 0:
        print("child", flush=True)
        sys.exit(5)
    print(os.waitstatus_to_exitcode(os.wait()[1]))
    if os.fork() == 0:
        os._exit(6)
    print(os.waitstatus_to_exitcode(os.wait()[1]))
"""
_CHANGES_FOLDER = """
    import os
    os.chdir("/")
    import other
    1/0
"""
_WRITES = """
    import sys
    for i in range(5000):
        print(i)
    print("error", file=sys.stderr)
    print("end")
"""

PLAIN = [
    Case("nothing", ""),
    Case("main-attributes", _SHOW_MAIN, target=("prog.py", "-o", "x", "--", "--format=json")),
    Case("main-attributes-dotted", _SHOW_MAIN, target=("./prog.py", "-m", "y")),
    Case("main-attributes-folder", _SHOW_MAIN, files={"sub/a.py": _SHOW_MAIN}, target=("sub/../sub/a.py",)),
    Case("main-attributes-safe-path", _SHOW_MAIN, flags=("-P",)),
    Case("main-attributes-env-safe-path", _SHOW_MAIN, env={"PYTHONSAFEPATH": "1"}),
    Case("main-attributes-optimised", f"{_SHOW_MAIN}\n    print(__debug__)\n    assert False", flags=("-O",)),
    Case("module", files={"mod.py": _SHOW_MAIN}, target=("-m", "mod", "-m", "x", "-q")),
    Case("module-joined", files={"mod.py": _SHOW_MAIN}, target=("-mmod", "--record", "x")),
    Case(
        "module-safe-path",
        files={"mod.py": _SHOW_MAIN},
        target=("-m", "json.tool"),
        flags=("-P",),
        stdin="[1]",
    ),
    Case(
        "package",
        files={"pkg/__init__.py": "import sys; print(sys.argv)", "pkg/__main__.py": _SHOW_MAIN},
        target=("-m", "pkg", "1"),
    ),
    Case("package-module", files={"p/__init__.py": "", "p/q/m.py": _SHOW_MAIN}, target=("-m", "p.q.m")),
    Case(
        "package-imports-its-main",
        files={"pkg/__init__.py": "import pkg.tool", "pkg/tool.py": "print(__name__)"},
        target=("-m", "pkg.tool"),
    ),
    Case("package-fails", files={"pkg/__init__.py": "1/0", "pkg/a.py": ""}, target=("-m", "pkg.a"), exit=1),
    Case("folder", files={"d/__main__.py": _SHOW_MAIN, "d/b.py": ""}, target=("./d", "x")),
    Case("folder-safe-path", files={"d/__main__.py": "import b", "d/b.py": ""}, target=("d",), flags=("-P",)),
    Case("zip", target=("prog.zip", "x"), files={"zipped/__main__.py": _SHOW_MAIN}),
    Case("byte-code", _SHOW_MAIN, target=("prog.pyc",)),
    Case(
        "flags",
        "import sys; print(sys.flags, sys._xoptions, sys.warnoptions)",
        flags=("-X", "dev", "-W", "error"),
    ),
    Case("stdin", "import sys; print(sys.stdin.read()[::-1], input.__name__)", stdin="abc"),
    Case("exit-number", "import sys; sys.exit(3)", exit=3),
    Case("exit-none", "import sys; sys.exit()"),
    Case("exit-text", "import sys; print('out'); sys.exit('text')", exit=1, merged=True),
    Case("exit-large", "import sys; sys.exit(257)", exit=1),
    Case("exit-object", "raise SystemExit({'a': 1})", exit=1),
    Case("uncaught", "def f():\n    raise ValueError('no')\nprint('out')\nf()", exit=1, merged=True),
    Case("uncaught-cause", _GROUP.replace('ExceptionGroup("two", errors)', "errors[0]"), exit=1),
    Case("uncaught-group", _GROUP, exit=1),
    Case("uncaught-recursion", "def f(): f()\nf()", exit=1),
    Case("uncaught-in-import", "import other", files={"other.py": "x = 1\n1/0"}, exit=1),
    Case("import-error", "import not_there_at_all", exit=1),
    Case(
        "uncaught-class", "class Odd(BaseException):\n    def __str__(self): return 'odd'\nraise Odd", exit=1
    ),
    Case("keyboard-interrupt", "raise KeyboardInterrupt", exit=-2),
    Case("sigint", "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\nprint('never')", exit=-2),
    Case(
        "sigint-caught",
        "import os, signal\ntry: os.kill(os.getpid(), 2)\nexcept KeyboardInterrupt: print('ok')",
    ),
    Case("sigterm", "import os, signal\nprint('lost')\nos.kill(os.getpid(), signal.SIGTERM)", exit=-15),
    Case("sigkill", "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)", exit=-9),
    Case("signal-handlers", "import signal\nprint([signal.getsignal(s) for s in signal.valid_signals()])"),
    Case("abort", "import os\nos.abort()", exit=-6),
    Case("os-exit", "import os\nprint('lost')\nos._exit(7)", exit=7),
    Case("os-exit-flushed", "import os\nprint('kept', flush=True)\nos._exit(0)"),
    Case("os-exit-wrong-type", "import os\nos._exit('x')", exit=1),
    Case("own-excepthook", _OWN_HOOK, exit=1),
    Case("own-excepthook-fails", "import sys\ndef h(*a): raise KeyError(1)\nsys.excepthook = h\n1/0", exit=1),
    Case("own-excepthook-exits", "import sys\nsys.excepthook = lambda *a: sys.exit(9)\n1/0", exit=9),
    Case("thread-fails", "import threading\nt = threading.Thread(target=lambda: 1/0)\nt.start()\nt.join()"),
    Case(
        "thread-own-hook",
        "import threading\nthreading.excepthook = lambda a: print('mine', a.exc_type)\n"
        "threading.Thread(target=lambda: 1/0).start()",
    ),
    Case(
        "thread-daemon",
        "import threading as t\nt.Thread(target=t.Event().wait, daemon=True).start()\nprint('end')",
    ),
    Case("unraisable", "class A:\n    def __del__(self): 1/0\na = A()\ndel a"),
    Case("at-exit-order", _AT_EXIT),
    Case("at-exit-fails", "import atexit\natexit.register(lambda: 1/0)"),
    Case(
        "own-click",
        "import click, rich, msgspec.json\nprint(click.mine, rich.mine, click.__file__)",
        files={"click.py": "mine = 1", "rich/__init__.py": "mine = 2"},
    ),
    Case(
        "own-stdlib-name",
        "import platform, textwrap\nprint(platform.mine)",
        files={"platform.py": "mine = 1"},
    ),
    Case("folder-named-click", "import click\nprint(click.Command)", files={"click/data.txt": ""}),
    Case("not-loaded-early", _EARLY),
    Case("stdout-is-gone", _GONE, exit=120),
    Case(
        "pickle",
        "import pickle\nclass A: x = 1\nprint(type(pickle.loads(pickle.dumps(A()))) is A, A.__module__)",
    ),
    Case("pool-fork", _POOL.replace("{method}", "fork")),
    Case("pool-spawn", _POOL.replace("{method}", "spawn")),
    Case("pool-spawn-module", files={"pkg/m.py": _POOL.replace("{method}", "spawn")}, target=("-m", "pkg.m")),
    Case("fork", _FORKS),
    Case("warnings", "import warnings\nfor _ in range(3):\n    warnings.warn('old', DeprecationWarning)"),
    Case("warnings-syntax", "x = 1 is 1\nprint('\\d')"),
    Case("syntax-error", "x = 1\na b", exit=1),
    Case("syntax-error-later", "import other", files={"other.py": "a b"}, exit=1),
    Case("syntax-not-utf8", b'x = 1\ny = "\xe9"\n', exit=1),
    Case("syntax-unknown-encoding", b"# coding: martian\n", exit=1),
    Case("syntax-null-byte", b"x = 1\x00\n", exit=1),
    Case("syntax-escape-and-error", "print('\\d')\na b", exit=1),
    Case("latin1", b'# -*- coding: latin-1 -*-\nprint(ascii("\xe9"))\n1/0  # \xe9\n', exit=1),
    Case("byte-order-mark", b'\xef\xbb\xbfprint("\xc3\xa9")\r\n'),
    Case("future-not-inherited", "def f(x: undefined_name): pass", exit=1),
    Case("deletes-itself", "import os\nos.unlink(__file__)\n1/0", exit=1),
    Case("changes-folder", _CHANGES_FOLDER, files={"other.py": "print(__file__)"}, exit=1),
    Case("replaces-stdout", "import io, sys\nsys.stdout = io.StringIO()\nprint('kept to myself')"),
    Case("closes-streams", "import sys\nprint('out')\nsys.stdout.close()\nsys.stderr.close()"),
    Case(
        "asyncio", "import asyncio\nasync def f(): await asyncio.sleep(0); return 1\nprint(asyncio.run(f()))"
    ),
    Case("asyncio-fails", "import asyncio\nasync def f(): 1/0\nasyncio.run(f())", exit=1),
    Case("many-writes", _WRITES, merged=True),
    Case("recursion-limit", "import sys\nprint(sys.getrecursionlimit(), sys.getswitchinterval())"),
    Case("threads", "import threading\nprint(threading.Thread().name, threading.active_count())"),
]

_JIT = "import jax, jax.numpy as jnp\nprint(jnp.arange(3).sum())\n"
_NESTED = """
    import jax, jax.numpy as jnp
    @jax.jit
    def inner(x):
        if x > 0: return x
        raise ValueError
    @jax.jit
    def outer(x): return jax.grad(lambda y: inner(y) * 2)(x)
    outer(1.0)
"""
_PRINTS = """
    import jax, jax.numpy as jnp, numpy as np
    x = jnp.arange(4.0)
    print(x, float(x[0]), x.tolist(), f"{x[1]:.2f}", np.asarray(x), jax.jit(lambda a: a * 2)(x))
    print(jax.vmap(jnp.sin)(x), jax.grad(lambda a: a.sum())(x), jax.devices()[0].platform)
    print(jax.__spec__.loader, jax.__loader__ is jax.__spec__.loader)
"""
JAX = [
    Case("jax-prints", _PRINTS),
    Case(
        "jax-flags-before-import",
        "import os\nos.environ['XLA_FLAGS'] = '--xla_force_host_platform_device_count=3'\n"
        "import jax\nprint(len(jax.devices('cpu')))",
    ),
    Case("jax-function-fails", f"{_JIT}def f(x): raise ValueError('no')\njax.jit(f)(1)", exit=1),
    Case(
        "jax-function-fails-unfiltered",
        f"{_JIT}def f(x): raise ValueError('no')\njax.jit(f)(1)",
        exit=1,
        env={"JAX_TRACEBACK_FILTERING": "off"},
    ),
    Case("jax-nested-fails", _NESTED, exit=1),
    Case("jax-shapes-fail", f"{_JIT}jnp.ones(3) @ jnp.ones(4)", exit=1),
    Case("jax-conversion-fails", f"{_JIT}float(jnp.ones(3))", exit=1),
    Case("jax-not-hashable", f"{_JIT}jax.jit(lambda x, y: x, static_argnums=1)(1, [])", exit=1),
    Case("jax-recursion", f"{_JIT}@jax.jit\ndef f(x): return f(x + 1)\nf(1)", exit=1),
    Case(
        "jax-group",
        f"{_JIT}def f(x): raise ValueError('no')\ntry: jax.jit(f)(1)\n"
        "except ValueError as e: raise ExceptionGroup('g', [e])",
        exit=1,
    ),
    Case(
        "jax-thread-fails", f"{_JIT}import threading\nthreading.Thread(target=jax.jit(lambda: 1/0)).start()"
    ),
    Case("jax-exit", f"{_JIT}import sys\nsys.exit(4)", exit=4),
    Case("jax-os-exit", f"{_JIT}import os\nsys = os._exit(4)", exit=4),
    Case(
        "jax-import-fails", "import jax", exit=1, files={"jax/__init__.py": "raise RuntimeError('too old')"}
    ),
    Case("jax-in-at-exit", f"{_JIT}import atexit\natexit.register(lambda: print(jnp.ones(2) + 1))"),
    Case("jax-pool-spawn", f"import jax\n{dedent(_POOL.replace('{method}', 'spawn'))}"),
]
