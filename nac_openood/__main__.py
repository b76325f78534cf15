"""`python -m nac_openood` is `nac-openood`."""

import sys

from nac_openood.cli import main

sys.exit(main())
