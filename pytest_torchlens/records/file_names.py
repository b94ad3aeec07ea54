"""Names of files for whatever a model is called."""

from __future__ import annotations

import hashlib
import re

_LONGEST = 80
# Lower case only: some file systems do not tell `Net` from `net`.
_SAFE = re.compile(rf"[a-z0-9](?:[a-z0-9._-]{{0,{_LONGEST - 2}}}[a-z0-9])?")
_DIGESTED = re.compile(r".*-[0-9a-f]{12}")
_RESERVED_ON_WINDOWS = re.compile(r"(?:con|prn|aux|nul|com[0-9]|lpt[0-9])(?:\..*)?")


def file_name(name: str) -> str:
    """Return a name that every file system takes: a plain one as it is, of others what can be read, and a digest."""
    taken = _DIGESTED.fullmatch(name) or _RESERVED_ON_WINDOWS.fullmatch(name)
    if _SAFE.fullmatch(name) and not taken:
        return name
    digest = hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()[:12]
    readable = re.sub(r"[^a-z0-9._]+", "-", name.lower())[:_LONGEST].strip("-._")
    return f"{readable or 'unnamed'}-{digest}"
