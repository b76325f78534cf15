"""Networks that other users may have put into the cache are not used."""

import os

import pytest

from nac_openood.demo.trained import cached_file, trained

pytestmark = pytest.mark.skipif(not hasattr(os, "geteuid"), reason="needs owners of files")


@pytest.fixture
def planted(embedded_cache, tmp_path, monkeypatch):
    """The file of a trained network in a cache of its own; training takes no time."""
    made = trained(cache=embedded_cache)
    monkeypatch.setattr("nac_openood.demo.trained.train_embedded", lambda *_, **__: made)
    (tmp_path / "cache").mkdir(mode=0o755)
    path = cached_file("resnet_embedded", cache=tmp_path / "cache")
    trained(cache=path.parent)
    return path


@pytest.mark.parametrize(
    ("target", "mode", "used"),
    [("file", 0o666, False), ("folder", 0o777, False), ("folder", 0o1777, True)],
)
def test_what_everybody_can_change_is_not_used(planted, target, mode, used, recwarn):
    (planted if target == "file" else planted.parent).chmod(mode)
    trained(cache=planted.parent)
    told = [str(warning.message) for warning in recwarn]
    assert bool(told) != used
    assert used or ("other users can write to" in told[0] and "is trained again" in told[0])
    assert planted.stat().st_mode & 0o002 == 0


def test_files_of_another_user_are_not_used(planted, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: planted.stat().st_uid + 1)
    if planted.stat().st_uid == 0:
        os.chown(planted, 12345, -1)
    with pytest.warns(UserWarning, match="other users can write to .*The network is trained again"):
        trained(cache=planted.parent)


def test_a_planted_link_is_not_followed(planted):
    planted.unlink()
    planted.symlink_to(planted.parent / "elsewhere")
    trained(cache=planted.parent)
    assert not planted.is_symlink() and not (planted.parent / "elsewhere").exists()
