"""The method itself, on tensors; it depends on torch and NumPy only.

`reading` has the readings of layers, `layer_config` their settings, and `histogram` counts states.
The rules (`rule`, `coverage`, `plus`) turn counts into scores; `pvalues` decides by scores, and
`metrics` evaluates them.
"""

from __future__ import annotations

from typing import Any

#: The rules by name: the title in tables and figures, and the class, or "module:class" of a rule
#: that is imported when it is first used. Others are added by `nac_openood.register_rule`. They are
#: listed here because the command line shows them, and importing this file does not import torch.
RULES: dict[str, tuple[str, Any]] = {
    "nac": ("NAC", "nac_openood.core.coverage:Coverage"),
    "nac_plus": ("NAC+", "nac_openood.core.plus:NACPlus"),
    "nac_plus_1": ("NAC+ 1", "nac_openood.core.plus:NACPlus1"),
}
