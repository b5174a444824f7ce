# SPDX-License-Identifier: Apache-2.0
"""What a kernel object is made of: its C++ source and every header that lies in the pack beside it.

Headers of the AIE API (`#include <...>`) belong to the tools, whose versions are addressed on their own.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from refusal import Refusal

_QUOTED = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.MULTILINE)


def source_with_headers(source: Path) -> tuple[Path, ...]:
    """The source, then each header that it includes in quotes, transitively, in the order of their inclusion.

    Raises:
        Refusal: a header that is not where its include says, seen from the file that includes it.
    """
    files = {source.resolve(): source}
    waiting = [source]
    while waiting:
        path = waiting.pop(0)
        for name in _QUOTED.findall(path.read_text()):
            header = path.parent / name
            if not header.is_file():
                raise Refusal(
                    f'#include "{name}"',
                    expected="a file that is there, seen from the source",
                    where=str(path),
                    next_step="mend the include, or copy the header along with the source",
                )
            if header.resolve() not in files:
                files[header.resolve()] = header
                waiting.append(header)
    return tuple(files.values())


def source_sha256(source: Path) -> str:
    """SHA-256 over the content of the source and its headers: no path counts, every byte does."""
    digest = hashlib.sha256()
    for path in source_with_headers(source):
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()
