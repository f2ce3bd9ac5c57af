"""What machine it was, for a report; the standard library alone, as peers' environments run it, too."""

import os
import platform
import re
from pathlib import Path


def describe_machine() -> str:
    cpu, memory = (_read(f"/proc/{name}") for name in ("cpuinfo", "meminfo"))
    model = re.search(r"model name\s*:\s*(.+)", cpu)
    kib = re.search(r"MemTotal:\s*(\d+)", memory)
    has = ", ".join(f"{flag} {'yes' if f' {flag}' in cpu else 'no'}" for flag in ("avx2", "avx512"))
    gib = f"{int(kib[1]) / 2**20:.0f} GiB" if kib else "memory unknown"
    return f"{model[1] if model else platform.machine()}, {os.cpu_count()} cores, {has}, {gib}"


def _read(path: str) -> str:
    return Path(path).read_text(encoding="utf-8") if os.path.exists(path) else ""
