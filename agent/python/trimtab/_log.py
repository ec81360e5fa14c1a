"""trimtab's own lines: short, prefixed, on stderr or in a file; never an exception to the job."""

from __future__ import annotations

import os
import sys

_PREFIX = "trimtab: "
_LINE_BYTES_MAX = 2000


def say(text: str) -> None:
    """Writes one line. TRIMTAB_LOG_FILE redirects it; errors of writing are swallowed."""
    line = _PREFIX + text.replace("\n", " ")[:_LINE_BYTES_MAX] + "\n"
    path = os.environ.get("TRIMTAB_LOG_FILE")
    try:
        if path:
            with open(path, "a", encoding="utf-8") as file:
                file.write(line)
        else:
            sys.stderr.write(line)
            sys.stderr.flush()
    except (OSError, ValueError, AttributeError):
        pass
