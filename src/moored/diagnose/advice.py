"""What a diagnosis means, in plain words: pure functions of its facts, one per thing that can be wrong."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from moored.diagnose.diagnosis import Advice, Diagnosis

__all__ = ["advise"]

_OLDEST = "0.10"
_CUDA = "pip install -U 'jax[cuda13]'"
_NOT_PREALLOCATING = ("false", "False", "0")  # all else means true, "FALSE" and "no" included


def advise(diagnosis: Diagnosis) -> list[Advice]:
    """What is wrong with the set-up, and what is worth knowing; problems first.

    >>> advise(Diagnosis(jax_error="JAX is not installed: pip install jax"))[0].level
    'problem'
    """
    found = [advice for check in _CHECKS for advice in check(diagnosis)]
    return sorted(found, key=lambda advice: advice.level != "problem")


def _problem(text: str) -> Advice:
    return Advice("problem", text)


def _note(text: str) -> Advice:
    return Advice("note", text)


def _jax(d: Diagnosis) -> Iterator[Advice]:
    if d.jax_error is None:
        return
    chosen = d.environment.get("JAX_PLATFORMS")
    if d.jax_found and chosen:
        yield _problem(
            f"{d.jax_error}. JAX_PLATFORMS={chosen} makes JAX start exactly these platforms or fail; "
            "unset it to let JAX choose"
        )
    else:
        yield _problem(d.jax_error)


def _old_jax(d: Diagnosis) -> Iterator[Advice]:
    version = d.packages.get("jax", "")
    if version and _release(version) < _release(_OLDEST):
        yield _problem(
            f"JAX {version} is older than {_OLDEST}, the oldest that moored is tested with: the tracer "
            "may be blind to some copies; pip install -U jax"
        )


def _jaxlib(d: Diagnosis) -> Iterator[Advice]:
    for name, version in d.packages.items():
        if " and " in version:
            yield _problem(
                f"{name} is installed more than once ({version}), and which one runs is chance; "
                f"pip uninstall {name} until none is left, then install it once"
            )
            return
    jax, jaxlib = d.packages.get("jax", ""), d.packages.get("jaxlib", "")
    if jax and not jaxlib:
        yield _problem(f"jax {jax} is installed without jaxlib; pip install -U jax")
    elif jax and not _satisfies(jaxlib, d.requires_jaxlib):
        yield _problem(
            f"jax {jax} needs jaxlib{d.requires_jaxlib}, and jaxlib {jaxlib} is installed; "
            "pip install -U jax jaxlib"
        )
    for name, version in d.packages.items():
        if name.startswith(("jax-cuda", "jax-rocm")) and jaxlib and _release(version) != _release(jaxlib):
            yield _problem(
                f"{name} {version} does not belong to jaxlib {jaxlib}, and JAX may refuse to load it; "
                f"pip install -U {name}=={jaxlib}"
            )


def _unused_gpu(d: Diagnosis) -> Iterator[Advice]:
    if not d.nvidia or not d.platforms or d.simulated or any(p.name in ("gpu", "cuda") for p in d.platforms):
        return
    seen, chosen = d.nvidia[0], d.environment.get("JAX_PLATFORMS", "")
    if chosen and not {"cuda", "gpu"} & {name.strip() for name in chosen.lower().split(",")}:
        yield _problem(f"JAX_PLATFORMS={chosen} hides this machine's NVIDIA GPU ({seen}); unset it")
    elif d.environment.get("CUDA_VISIBLE_DEVICES", "").strip() == "-1":
        yield _problem(f"CUDA_VISIBLE_DEVICES=-1 hides this machine's NVIDIA GPU ({seen}); unset it")
    elif any(name.startswith("jax-cuda") for name in d.packages):
        yield _problem(
            f"this machine has an NVIDIA GPU ({seen}), and JAX's plugin for it did not start; "
            "python -c \"import jax; jax.devices('cuda')\" says why (often the driver is too old)"
        )
    else:
        yield _problem(
            f"this machine has an NVIDIA GPU ({seen}), but the JAX that is installed has no support for it: "
            f"all work runs on the CPU; {_CUDA}"
        )


def _platform_choice(d: Diagnosis) -> Iterator[Advice]:
    chosen = d.environment.get("JAX_PLATFORMS")
    if chosen and d.platforms and not d.simulated and not d.nvidia:
        yield _note(f"JAX_PLATFORMS={chosen}: JAX starts no other platform, whatever is installed")
    if name := d.environment.get("JAX_PLATFORM_NAME"):
        yield _note(f"JAX_PLATFORM_NAME={name} is the old name of JAX_PLATFORMS")


def _memory(d: Diagnosis) -> Iterator[Advice]:
    value = d.environment.get("XLA_PYTHON_CLIENT_PREALLOCATE")
    if value in _NOT_PREALLOCATING:
        yield _note(
            f"XLA_PYTHON_CLIENT_PREALLOCATE={value}: GPU memory is taken as it is needed, which shows what a "
            "program uses, is slower, and can fail from fragmentation where preallocation would not"
        )
    elif value and value.lower() not in ("true", "1"):
        yield _problem(
            f"XLA_PYTHON_CLIENT_PREALLOCATE={value} means true: only 'false', 'False' and '0' turn "
            "preallocation off"
        )
    old, new = (d.environment.get(f"XLA_{name}MEM_FRACTION") for name in ("PYTHON_CLIENT_", "CLIENT_"))
    if old and new:
        yield _problem(
            f"XLA_PYTHON_CLIENT_MEM_FRACTION={old} and XLA_CLIENT_MEM_FRACTION={new} are both set, which "
            "stops JAX on a GPU; unset the first, it is the old name"
        )
    for name in ("XLA_PYTHON_CLIENT_MEM_FRACTION", "XLA_CLIENT_MEM_FRACTION"):
        fraction = d.environment.get(name)
        if fraction and not _is_fraction(fraction):
            yield _problem(f"{name}={fraction} is not a fraction above 0 and up to 1, such as 0.75")
    if d.environment.get("XLA_PYTHON_CLIENT_ALLOCATOR", "").lower() == "platform":
        yield _note(
            "XLA_PYTHON_CLIENT_ALLOCATOR=platform: each array is allocated by the driver, which is slow; "
            "meant for debugging"
        )


def _transfer_guard(d: Diagnosis) -> Iterator[Advice]:
    value = d.environment.get("JAX_TRANSFER_GUARD", "allow")
    if value != "allow":
        yield _note(
            f"JAX_TRANSFER_GUARD={value} is set; it misses the copies of calls that are already warm, "
            "moored trace sees them"
        )


def _one_device(d: Diagnosis) -> Iterator[Advice]:
    if len(d.devices) != 1 or d.simulated:
        return
    has_plugin = "lammps-jax-pjrt-cpu" in d.packages
    more = "" if has_plugin else " (pip install 'moored[sim]'; --simulate=2 works without it)"
    yield _note(
        f"JAX has one device here, {d.devices[0].name}, so no array can drift and no trace of one can show: "
        f"moored trace --simulate PROGRAM adds a simulated accelerator{more}"
    )


def _simulated(d: Diagnosis) -> Iterator[Advice]:
    if d.simulated:
        yield _note(f"{d.simulated}: simulated on the CPU; copies are real, speeds are not a GPU's")


def _seams(d: Diagnosis) -> Iterator[Advice]:
    for seam in d.seams:
        if not seam.live:
            yield _problem(f"moored is blind at {seam.name}: {seam.reason}")


_CHECKS: tuple[Callable[[Diagnosis], Iterator[Advice]], ...] = (
    _jax,
    _old_jax,
    _jaxlib,
    _unused_gpu,
    _platform_choice,
    _memory,
    _transfer_guard,
    _seams,
    _simulated,
    _one_device,
)


def _release(version: str) -> tuple[int, ...]:
    """The numbers of a version, without what follows them ("0.12.0.1.dev3" is 0.12.0.1).

    >>> _release("0.12.0.1") > _release("0.12.0"), _release("0.10") == _release("0.10.0")
    (True, True)
    """
    found = re.match(r"\d+(?:\.\d+)*", version)
    numbers = [int(part) for part in found.group().split(".")] if found else []
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


def _satisfies(version: str, required: str) -> bool:
    """Whether a version meets requirements such as ``"<=0.12.0.1,>=0.11.2"``; what is not understood is met.

    >>> _satisfies("0.12.0", "<=0.12.0.1,>=0.11.2"), _satisfies("0.11.1", "<=0.12.0.1,>=0.11.2")
    (True, False)
    """
    have = _release(version)
    for operator, wanted in re.findall(r"(<=|>=|==)\s*([\d.]+)", required):
        want = _release(wanted)
        if not {"<=": have <= want, ">=": have >= want, "==": have == want}[operator]:
            return False
    return True


def _is_fraction(text: str) -> bool:
    try:
        return 0 < float(text) <= 1
    except ValueError:
        return False
