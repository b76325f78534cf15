"""`python -m nac_openood` is `nac-openood`."""

import sys
from pathlib import Path

# Python has put the current folder first, where a file such as torch.py would be imported
if sys.path[0] == str(Path.cwd()) != str(Path(__file__).parents[1]):
    del sys.path[0]

from nac_openood.cli import terminal

sys.exit(terminal())
