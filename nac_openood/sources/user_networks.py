"""Networks of the user's own code: `package.module:factory` or `path/to/file.py:factory`."""

from __future__ import annotations

from torch import nn

from nac_openood.errors import NACError
from nac_openood.sources.code import call_code, is_code, load_code
from nac_openood.sources.network_kind import NetworkKind

_WHAT = "`arch`"


class UserNetworks(NetworkKind):
    """Networks that the user's code makes."""

    form = "your own code, package.module:factory or path/to/file.py:factory"

    def is_mine(self, arch: str) -> bool:
        """Whether `arch` names code."""
        return is_code(arch)

    def build(self, arch: str, n_classes: int) -> nn.Module:
        """What the factory returns, in evaluation mode.

        It is called with the number of classes if it takes it, otherwise with nothing.
        """
        found = load_code(arch, _WHAT)
        if not isinstance(found, nn.Module):
            if not callable(found):
                raise NACError(
                    f"{_WHAT}: {arch} is a {type(found).__name__}, expected a function or class "
                    "that makes a network."
                )
            offered = {"n_classes": n_classes, "num_classes": n_classes}
            found = call_code(found, arch, _WHAT, offered)
        if not isinstance(found, nn.Module):
            raise NACError(
                f"{_WHAT}: {arch} returned a {type(found).__name__}, expected a network "
                "(torch.nn.Module)."
            )
        return found.eval()
