"""The method itself, on tensors: it needs torch and NumPy and nothing else.

`reading` is what was read of a layer and `layer_config` how to use it; `histogram` counts states.
The rules (`rule`, `coverage`, `plus`) make scores of the counts, and `pvalues` and `metrics`
measure what the scores are worth.
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
