# SPDX-License-Identifier: Apache-2.0
"""Which functions a shared library exports: the dynamic symbol table of a 64-bit little-endian ELF file.

Section and symbol layouts: System V ABI, ELF-64 object file format, version 1.5.
"""

from __future__ import annotations

import struct
from pathlib import Path

SHT_DYNSYM = 11
STT_FUNC = 2
STB_LOCAL = 0


def exported_functions(path: Path) -> list[str]:
    """Names of the defined, non-local functions, in alphabetical order."""
    data = path.read_bytes()
    if data[:6] != b"\x7fELF\x02\x01":
        return []
    table, entry_size, count = struct.unpack_from("<Q", data, 40)[0], *struct.unpack_from("<HH", data, 58)
    sections = [struct.unpack_from("<IIQQQQIIQQ", data, table + i * entry_size) for i in range(count)]
    names = set()
    for _, kind, _, _, offset, size, link, _, _, symbol_size in sections:
        if kind != SHT_DYNSYM:
            continue
        strings = sections[link][4]
        for at in range(offset, offset + size, symbol_size):
            name, info, _, section, _, _ = struct.unpack_from("<IBBHQQ", data, at)
            if info & 15 == STT_FUNC and info >> 4 != STB_LOCAL and section != 0:
                end = data.index(b"\0", strings + name)
                names.add(data[strings + name : end].decode())
    return sorted(names)
