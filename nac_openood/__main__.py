"""`python -m nac_openood` is `nac-openood`."""

import sys
from pathlib import Path

# Python has put the current folder first, in which anything may be called torch.py
if sys.path[0] == str(Path.cwd()) != str(Path(__file__).parents[1]):
    del sys.path[0]

from nac_openood.cli import terminal

sys.exit(terminal())
