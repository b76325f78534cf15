"""Scripts of this repository as modules, for tests that call their functions."""

import importlib.util
import sys
from pathlib import Path

SCRIPTS = Path(__file__).parents[1] / "scripts"


def script_module(name):
    """The module `scripts/<name>.py`, run without its `main`."""
    if str(SCRIPTS) not in sys.path:  # as if the script were run, for what scripts import
        sys.path.insert(0, str(SCRIPTS))
    spec = importlib.util.spec_from_file_location(name, SCRIPTS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
