"""Files that other users may have put into a cache are not used."""

import os

import pytest

from nac_openood.demo.trained import cached_file, trained
from nac_openood.errors import FileError
from nac_openood.ownership import refuse_foreign

pytestmark = pytest.mark.skipif(not hasattr(os, "geteuid"), reason="needs owners of files")


@pytest.fixture
def file(tmp_path):
    (tmp_path / "cache").mkdir(mode=0o755)
    path = tmp_path / "cache" / "x"
    path.write_text("x")
    path.chmod(0o644)
    return path


def test_files_of_ones_own(file):
    refuse_foreign(file)


def test_files_that_everybody_can_change(file):
    file.chmod(0o666)
    with pytest.raises(FileError, match="x can be written by other users"):
        refuse_foreign(file)
    file.chmod(0o644)
    file.parent.chmod(0o777)
    with pytest.raises(
        FileError, match="other users can replace files in .*: run chmod go-w .*cache"
    ):
        refuse_foreign(file)
    file.parent.chmod(0o1777)  # as /tmp: only owners replace files
    refuse_foreign(file)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="needs root")
def test_files_of_another_user(file, tmp_path):
    link = tmp_path / "link"
    link.symlink_to(file)
    os.chown(file, 12345, -1)
    for path in (file, link):
        with pytest.raises(FileError, match="belongs to another user .number 12345"):
            refuse_foreign(path)
    os.chown(file, 0, -1)
    os.chown(file.parent, 12345, -1)
    with pytest.raises(FileError, match="cache belongs to another user"):
        refuse_foreign(file)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="needs root")
def test_files_that_a_group_can_change(file):
    for path, mode in ((file, 0o664), (file.parent, 0o775)):
        path.chmod(mode)
        refuse_foreign(file)  # the user's own group, in which nobody else is
        os.chown(path, -1, 12345)
        with pytest.raises(FileError, match="other users"):
            refuse_foreign(file)
        path.chmod(mode & ~0o020)


def test_files_of_another_user_as_seen_by_this_one(file, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: file.stat().st_uid + 1)
    monkeypatch.setattr("nac_openood.ownership._ROOT", -1)
    with pytest.raises(FileError, match="belongs to another user"):
        refuse_foreign(file)


def test_a_planted_network_is_not_used(embedded_cache, tmp_path, monkeypatch):
    whole = cached_file("resnet_embedded", cache=embedded_cache)
    cache = tmp_path / "cache"
    cache.mkdir()
    planted = cached_file("resnet_embedded", cache=cache)
    planted.write_bytes(whole.read_bytes())
    planted.chmod(0o666)
    monkeypatch.setattr(
        "nac_openood.demo.trained.train_embedded",
        lambda *args, **options: trained(cache=whole.parent),
    )
    with pytest.warns(UserWarning, match="written by other users. The network is trained again"):
        trained(cache=cache, progress=False)
    assert planted.stat().st_mode & 0o002 == 0
    trained(cache=cache, progress=False)


def test_a_planted_link_is_not_followed(embedded_cache, tmp_path, monkeypatch):
    made = trained(cache=embedded_cache)
    monkeypatch.setattr("nac_openood.demo.trained.train_embedded", lambda *args, **options: made)
    path = cached_file("resnet_embedded", cache=tmp_path)
    path.symlink_to(tmp_path / "elsewhere")
    before = os.umask(0o002)
    try:
        trained(cache=tmp_path, progress=False)
    finally:
        os.umask(before)
    assert not path.is_symlink() and not (tmp_path / "elsewhere").exists()
    assert path.stat().st_mode & 0o022 == 0
