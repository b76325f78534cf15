"""The packages that an installed nac-openood needs to run, with their versions.

    python scripts/runtime_packages.py > runtime.txt

One line `name==version` for nac-openood's requirements and all that they require in turn, without
extras: what `make audit` looks up in the databases of known vulnerabilities.
"""

from __future__ import annotations

import sys
from importlib import metadata

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version


def runtime_packages(root: str = "nac-openood") -> dict[str, str]:
    """Versions by name, in alphabetical order; `root` itself is not among them."""
    found: dict[str, str] = {}
    waiting = [root]
    while waiting:
        name = waiting.pop()
        for text in metadata.requires(name) or ():
            requirement = Requirement(text)
            needed = canonicalize_name(requirement.name)
            asked = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
            if asked and needed not in found:
                found[needed] = Version(metadata.version(needed)).public  # without +cu128
                waiting.append(needed)
    return dict(sorted(found.items()))


if __name__ == "__main__":
    sys.stdout.writelines(f"{name}=={version}\n" for name, version in runtime_packages().items())
