"""Notes for the coverage report: what is not measured, and which hooks switched themselves off."""

from __future__ import annotations

import contextlib

_NOTES_MAX = 64
_NOTE_CHARACTERS_MAX = 300


class Report:
    """Collects until the ring is there, then sends what comes. Beyond 64 notes of a kind the rest is dropped; the last
    one kept says so. Never raises."""

    def __init__(self, send):
        self._send = send
        self._kept: dict[str, list[str]] = {"notes": [], "errors": []}
        self._ready = False

    def note(self, text: str) -> None:
        """Something that is not measured, and why."""
        self._add("notes", text)

    def error(self, text: str) -> None:
        """A hook that switched itself off, and why."""
        self._add("errors", text)

    def flush(self) -> None:
        """From now on notes go out at once."""
        self._ready = True
        self._push()

    @property
    def notes(self) -> list[str]:
        return list(self._kept["notes"])

    @property
    def errors(self) -> list[str]:
        return list(self._kept["errors"])

    def _add(self, kind: str, text: str) -> None:
        kept, text = self._kept[kind], text.replace("\n", " ")[:_NOTE_CHARACTERS_MAX]
        if text in kept or len(kept) >= _NOTES_MAX:
            return
        if len(kept) == _NOTES_MAX - 1:
            text = f"more {kind} were dropped; {_NOTES_MAX} are kept"
        kept.append(text)
        if self._ready:
            self._push()

    def _push(self) -> None:
        with contextlib.suppress(Exception):
            self._send({"coverage": {kind: list(texts) for kind, texts in self._kept.items() if texts}})
