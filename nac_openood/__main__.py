"""`python -m nac_openood` is `nac-openood`."""

import sys

from nac_openood.cli import terminal

sys.exit(terminal())
