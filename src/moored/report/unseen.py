"""What moored could not see in a run, and what else a reader must know: one sentence each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from moored.model.recording import Recording
from moored.units import format_bytes, format_count

__all__ = ["unseen"]

_MANY_SCALARS = 1_000


def unseen(recording: Recording, changed: Sequence[str] = ()) -> Iterator[str]:
    """Sentences for the end of a report, most important first.

    Args:
        recording: The run.
        changed: Source files that are newer than the run.

    >>> from moored.model.recording import Header
    >>> next(unseen(Recording(Header(simulated="accel"))))
    'Simulated (accel): what moved is real, the timings are not those of a GPU.'
    """
    header = recording.header
    if header.simulated:
        yield f"Simulated ({header.simulated}): what moved is real, the timings are not those of a GPU."
    if header.exit not in (None, 0):
        yield f"The program ended with {header.exit}; what it moved until then is above."
    for seam in header.seams:
        if not seam.live:
            yield f"Not seen: {seam.name}, because {seam.reason or 'the seam was not attached'}."
    if len(header.devices) == 1 and not header.simulated:
        yield (
            f"Not seen: copies between devices. There is only {header.devices[0]} here, so nothing can "
            "drift; --simulate adds a simulated accelerator."
        )
    for seam in header.seams:
        if seam.name == "reads" and seam.live and seam.blind_to and _computes_on_cpu(recording):
            on_a_gpu = " On a GPU each of these reads waits and copies; --simulate shows them."
            yield f"Not seen: {seam.blind_to}.{'' if header.simulated else on_a_gpu}"
    if header.scalar_uploads >= _MANY_SCALARS:
        yield (
            f"{format_count(header.scalar_uploads, 'index or Python number', 'indices and Python numbers')} "
            f"({format_bytes(header.scalar_nbytes)}) went to a device with calls; they are not counted above."
        )
    if any(t.predicted for t in recording.transfers):
        yield "Some calls were warm before moored came: their counts are exact, their devices are inferred."
    for path in changed:
        yield f"{path} has changed since the run: its lines are not shown."
    yield from (f"Note: {note}." for note in header.notes)
    for error in header.moored_errors:
        yield (
            f"moored itself failed {format_count(error.count, 'time')} in {error.where}: {error.error}; "
            "the program was not affected."
        )


def _computes_on_cpu(recording: Recording) -> bool:
    """Whether the arrays sit in host memory, on the CPU's own client or a simulated accelerator's."""
    default = recording.header.default_device or ""
    return bool(recording.header.simulated) or default.startswith(("cpu:", "accel:"))
