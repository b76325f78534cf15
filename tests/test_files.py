"""Files are written whole or not at all; what cannot be read is an error that says what to do."""

import os
from pathlib import Path

import pytest

from nac_openood.benchmark.run.results import Results
from nac_openood.cli.output import show
from nac_openood.errors import FileError
from nac_openood.evaluation.ranking import RankedRun, RankedRuns, Ranking
from nac_openood.files import read_document, replacing, write_document, write_json, write_text
from nac_openood.search.recipe import ReadingSet
from nac_openood.tensor_files import read_tensors, write_tensors

OLD = Path(__file__).parent / "data" / "v0.1"
DOCUMENTS = {
    Results: ("results.json", "expected the folder of a comparison", "Repeat the comparison"),
    Ranking: ("ranking.json", "expected the folder of a ranking", "Rank again"),
    RankedRuns: ("results.json", "expected the folder of a ranking", "Rank again"),
    ReadingSet: ("readings.json", "holds no complete set of readings", "save its readings again"),
}


@pytest.mark.parametrize("kind", DOCUMENTS, ids=lambda kind: kind.__name__)
def test_the_error_says_how_to_get_a_new_file(kind, tmp_path):
    name, missing, again = DOCUMENTS[kind]
    with pytest.raises(FileError, match=missing):
        kind.load(tmp_path)
    for damaged in (b"{", b"[]", b"\xff", b"{}", b'{"format": 1}', b'{"format": "1"}'):
        (tmp_path / name).write_bytes(damaged)
        with pytest.raises(FileError, match=rf"{name} is damaged \(.*\)\. .*{again}\."):
            kind.load(tmp_path)
    write_json(tmp_path / name, {"format": 9})
    with pytest.raises(FileError, match="has format 9; this nac_openood reads up to 1. Upgrade it"):
        kind.load(tmp_path)


def test_a_document_of_another_kind(tmp_path):
    RankedRuns((RankedRun("", None, Ranking.load(OLD / "rank")),)).save(tmp_path)
    message = r"holds a ranking of checkpoints \(of nac-openood rank\), expected a comparison"
    with pytest.raises(FileError, match=message):
        Results.load(tmp_path)


def test_early_documents_lack_kind_and_checksum(tmp_path):
    path, content = tmp_path / "x.json", {"a": [1, None]}
    for write in (
        lambda: write_json(path, {"format": 1, **content}),
        lambda: write_document(path, 1, content, kind="a thing"),
    ):
        write()
        found = read_document(path, 1, dict, missing="", again="", kind="a thing")
        assert found == content


def test_text_that_is_no_utf_8(tmp_path, capsys):
    text = os.fsdecode(b"n\xff.png")
    assert write_text(tmp_path / "x", text).read_text(encoding="utf-8") == "n\\udcff.png"
    show(text)
    assert capsys.readouterr().out == "n\\udcff.png\n"


def test_a_link_stays_and_its_target_is_replaced(tmp_path):
    (tmp_path / "folder").mkdir()
    target = tmp_path / "folder" / "target"
    (tmp_path / "link").symlink_to(target)
    for text in ("new", "newer"):  # at first there is no target
        write_text(tmp_path / "link", text)
        assert (tmp_path / "link").is_symlink() and target.read_text() == text
    assert [path.name for path in target.parent.iterdir()] == ["target"]
    (tmp_path / "nowhere").symlink_to(tmp_path / "missing" / "target")
    with pytest.raises(FileError, match="cannot write .*nowhere: there is no folder .*missing"):
        write_text(tmp_path / "nowhere", "x")
    for no_file in (tmp_path, "/dev/null"):
        with pytest.raises(FileError, match=f"cannot write {no_file}: it is a folder or a device"):
            write_text(no_file, "x")


@pytest.mark.skipif(os.name != "posix", reason="needs modes")
def test_a_file_keeps_its_mode(tmp_path):
    path = write_text(tmp_path / "x", "old")
    for mode in (0o600, 0o666):
        path.chmod(mode)
        with replacing(path) as temporary:
            assert temporary.stat().st_mode & 0o777 == mode
            temporary.write_text("new")
        assert (path.stat().st_mode & 0o777, path.read_text()) == (mode, "new")


def test_what_may_not_be_read_is_not_called_damaged(tmp_path, monkeypatch):
    write_tensors(tmp_path / "t", "kind", 1, {}, {})
    write_json(tmp_path / "results.json", {})

    def refused(path, *args, **options):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(type(tmp_path), "open", refused)
    with pytest.raises(FileError, match="cannot read .*t: Permission denied.$"):
        read_tensors(tmp_path / "t", "kind", 1)
    with pytest.raises(FileError, match="cannot read .*results.json: Permission denied.$"):
        Results.load(tmp_path)
