# SPDX-License-Identifier: Apache-2.0
"""Errors that are no refusal yet: what this machine denies, told from a fault of the pack itself.

A disk that is full or a folder that may not be written is nobody's mistake in the code: it becomes a refusal with the path
that it is about. Everything else that comes up here should not have been raised at all, and keeps its traceback.
"""

from __future__ import annotations

import errno
import os
import sys
import time
import traceback

from filelock import Timeout

from pipeline.context import cache_directory
from refusal import Refusal

FAULT = 4  # the exit code of a fault of the pack
# What a machine denies, each with what helps. An error of the operating system with another number is a fault of the pack.
_ROOM, _ACCESS = "free disk space, then run the same command again", "make it writable, or run from another directory"
_PLACE, _LOAD = (
    "check that path, then run the same command again",
    "end other programs, then run the same command again",
)
DENIED = {
    errno.ENOSPC: _ROOM, errno.EDQUOT: _ROOM, errno.EFBIG: _ROOM, errno.EROFS: _ACCESS, errno.EACCES: _ACCESS,
    errno.EPERM: _ACCESS, errno.ENOENT: _PLACE, errno.ENOTDIR: _PLACE, errno.EISDIR: _PLACE, errno.EEXIST: _PLACE,
    errno.ENAMETOOLONG: _PLACE, errno.ELOOP: _PLACE, errno.EIO: _PLACE, errno.ESTALE: _PLACE, errno.EXDEV: _PLACE,
    errno.EMFILE: _LOAD, errno.ENFILE: _LOAD, errno.ENOMEM: _LOAD, errno.EAGAIN: _LOAD, errno.EBUSY: _LOAD,
}  # fmt: skip


def denied(error: BaseException) -> Refusal | None:
    """What this machine denied, as a refusal; None for an error that no machine is to blame for."""
    if isinstance(error, MemoryError):
        return Refusal(
            "not enough memory", expected="what scripts/doctor.py says", where="this machine", next_step=_LOAD
        )
    if isinstance(error, Timeout):
        return Refusal("another process holds the lock", where=str(error.lock_file), next_step="wait for it to end")
    if not isinstance(error, OSError) or error.errno not in DENIED:
        return None
    names = [str(name) for name in (error.filename, error.filename2) if name is not None]
    return Refusal(str(error.strerror), where=" and ".join(names) or "this machine", next_step=DENIED[error.errno])


def keep_fault(error: BaseException) -> str:
    """Keep a fault's traceback in the cache; returns the one line that says so, with the traceback where it cannot be kept."""
    text = "".join(traceback.format_exception(error))
    what = f"fault of the pack: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    try:
        folder = cache_directory() / "faults"
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}-{os.getpid()}.txt"
        path.write_text(f"{sys.argv}\n{text}", errors="backslashreplace")
    except OSError:
        return f"{what}\n{text}"
    return f"{what} (its traceback: {path})"
