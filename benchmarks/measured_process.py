"""The memory of a process, and what is measured in a process of its own."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, Union


def memory_mb(field: str, pid: Union[int, str] = "self") -> float:
    """A figure of a process, as Linux tells it (ru_maxrss would start at the parent's).

    Args:
        field: `VmRSS` (now), `VmHWM` (the most so far) or `RssAnon` (that no file backs).
        pid: which process.
    """
    status = Path(f"/proc/{pid}/status").read_text()
    found = re.search(rf"^{field}:\s+(\d+) kB", status, re.MULTILINE)
    assert found is not None
    return int(found[1]) / 1024


def in_a_process(module: str, call: str) -> dict[str, Any]:
    """What a call returns in a new process, e.g. `fit("nac", 10)` of the module `memory` here."""
    code = f"import json, {module}; print(json.dumps({module}.{call}))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(__file__).parent, capture_output=True, text=True, check=True,
    )  # fmt: skip
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found
