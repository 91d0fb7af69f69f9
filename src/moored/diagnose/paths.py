"""File names as the user writes them."""

from __future__ import annotations

import os

import msgspec

from moored.model.recording import Recording

__all__ = ["display_paths"]


def display_paths(recording: Recording, *, script: tuple[str, str], cwd: str) -> None:
    """Name files as the user does, in place: code objects hold absolute paths.

    Args:
        recording: Whose sites are renamed.
        script: Absolute path of the program's main file, and how the user wrote it.
        cwd: Where the program was started: files below it become relative to it.

    >>> from moored.model.site import Site
    >>> recording = Recording(sites=[Site("/home/me/./train.py", 3), Site("/home/me/lib/a.py", 5)])
    >>> display_paths(recording, script=("/home/me/./train.py", "./train.py"), cwd="/home/me")
    >>> [site.text for site in recording.sites]
    ['./train.py:3', 'lib/a.py:5']
    """
    absolute, shown = script
    below = os.path.join(cwd, "")

    def name(path: str) -> str:
        if path == absolute:
            return shown
        tidy = os.path.normpath(path) if os.path.isabs(path) else path
        return tidy.removeprefix(below) if below != os.sep else tidy

    recording.sites = [msgspec.structs.replace(site, path=name(site.path)) for site in recording.sites]
