"""Which boot of the machine this is: in another, process numbers and commits not yet on disk mean nothing."""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path

_LINUX = Path("/proc/sys/kernel/random/boot_id")
_MACOS = ("/usr/sbin/sysctl", "-n", "kern.bootsessionuuid")
_PATIENCE_S = 5.0  # it takes milliseconds; a server that starts must not hang on it


@cache
def boot_id() -> str:
    """Tells one boot from another; empty where the system does not say."""
    try:
        return _LINUX.read_text().strip()
    except OSError:
        pass
    try:
        done = subprocess.run(_MACOS, capture_output=True, text=True, timeout=_PATIENCE_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()
