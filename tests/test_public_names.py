"""The public surface: pinned here, lazily imported, each name with a runnable example."""

from __future__ import annotations

import doctest
import importlib
import inspect

import pytest

import moored

PUBLIC = [
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


def test_the_public_names_are_these() -> None:
    assert moored.__all__ == PUBLIC
    assert set(PUBLIC) <= set(dir(moored))


@pytest.mark.parametrize("name", PUBLIC)
def test_each_public_name_is_its_module_s_own(name: str) -> None:
    home = importlib.import_module(moored._MODULES[name])
    assert getattr(moored, name) is getattr(home, name)
    assert name in home.__all__


@pytest.mark.parametrize("name", PUBLIC)
def test_each_public_name_is_documented(name: str) -> None:
    value = getattr(moored, name)
    documentation = inspect.getdoc(value) or ""
    assert documentation
    if not (isinstance(value, type) and issubclass(value, Exception)):
        assert doctest.DocTestParser().get_examples(documentation), f"moored.{name} has no example"


def test_every_error_of_moored_can_be_caught_at_once() -> None:
    import moored.errors

    errors = {getattr(moored.errors, name) for name in moored.errors.__all__}
    assert all(issubclass(error, moored.MooredError) for error in errors)
    assert {error.__name__ for error in errors} == {name for name in PUBLIC if name.endswith("Error")}


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(AttributeError) as refused:
        moored.places  # noqa: B018
    assert str(refused.value) == (
        "module 'moored' has no attribute 'places'; its public names: InputError, MachineError, MooredError, "
        "Placement, PlacementError, RecordingError, put, watch, where"
    )
    assert not hasattr(moored, "places")
