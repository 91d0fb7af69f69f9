"""Many threads, many events, many places, and a process that is killed."""

import json
import os
import signal
import subprocess
import sys
import threading

import jax
import numpy as np

from moored.model.recording import Recording
from moored.trace.collect import Collector

HOST = np.ones((40, 40), np.float32)


def test_four_threads_count_exactly():
    add = jax.jit(lambda x, y: x + y)
    d = jax.device_put(HOST)
    collector = Collector()
    collector.attach()
    try:

        def work():
            for _ in range(5000):
                add(HOST, d)
                add(d, 2.0)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        recording = collector.snapshot()
    finally:
        collector.detach()
    assert [(t.count, t.nbytes) for t in recording.transfers] == [(20_000, 20_000 * HOST.nbytes)]
    assert recording.header.scalar_uploads == 20_000
    assert recording.header.moored_errors == []


BOUNDED = """
import resource, sys
import jax, numpy as np
from moored.trace.collect import Collector

host = np.ones(64, np.float32)
add = jax.jit(lambda x: x + 1)
sites = {}
source = "\\n".join(f"def f{i}(): return add(host)" for i in range(21_000))
exec(compile(source, "many_places.py", "exec"), {"add": add, "host": host}, sites)
collector = Collector()
collector.attach()
for f in sites.values():
    f()
collector.snapshot()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
last = sites["f0"]
for _ in range(200_000):
    last()
recording = collector.snapshot()
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
collector.detach()
print(len(recording.transfers), recording.transfers[0].count, after - before, recording.header.notes)
"""


def test_memory_is_bounded_over_many_places_and_events(run_python):
    run = run_python("-c", BOUNDED)
    rows, first, grown, notes = run.stdout.strip().split(maxsplit=3)
    assert int(rows) == 20_000, run.stderr
    assert int(first) == 200_001
    assert int(grown) < 20_000  # kB, over 200,000 events of a row that is there
    assert "were not kept" in notes


KILLED = """
import os, sys, time
import jax, numpy as np

host = np.ones(1000, np.float32)
add = jax.jit(lambda x: x + 1)
for _ in range(50):
    add(host)
print("half", flush=True)
sys.stdin.readline()
"""


def test_a_killed_run_leaves_what_was_flushed(tmp_path):
    (tmp_path / "program.py").write_text(KILLED)
    command = [sys.executable, "-m", "moored", "trace", "--record", "run.moored", "program.py"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen(
        command, cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"half\n"
    seen = 0
    while seen < 50 and process.poll() is None:  # the next flush comes within a second
        try:
            seen = sum(t.count for t in Recording.load(tmp_path / "run.moored").transfers)
        except Exception:
            seen = 0
    process.send_signal(signal.SIGKILL)
    process.wait(30)
    recording = Recording.load(tmp_path / "run.moored")
    assert [(t.direction, t.count) for t in recording.transfers] == [("h2d", 50)]
    assert recording.header.jax == jax.__version__
    report = subprocess.run(
        [sys.executable, "-m", "moored", "report", "--format", "json", "run.moored"],
        cwd=tmp_path, capture_output=True, text=True, env=environment, check=False,
    )  # fmt: skip
    assert json.loads(report.stdout)["findings"][0]["rule"] == "MRD102", report.stderr


def test_a_lock_that_is_held_at_a_fork_does_not_stop_the_child(run_python):
    run = run_python(
        "-c",
        "import os, threading\n"
        "from moored.trace.collect import Collector\n"
        "collector = Collector()\n"
        "held, leave = threading.Event(), threading.Event()\n"
        "def hold():\n"
        "    with collector.store._lock:\n"
        "        held.set(); leave.wait(60)\n"
        "threading.Thread(target=hold, daemon=True).start(); held.wait()\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    collector.store.all(); os._exit(7)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))\n"
        "leave.set()\n",
    )
    assert run.stdout == "7\n", run.stderr
