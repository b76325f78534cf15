"""Documents: JSON files with a format, and what is said of those that cannot be read."""

import pytest
from torch import nn

from nac_openood.benchmark.run.results import Results
from nac_openood.core.layer_config import IntegralConfig
from nac_openood.errors import FileError
from nac_openood.evaluation.leave_one_out import RankedRun, RankedRuns
from nac_openood.evaluation.ranking import IntegralCandidate, RankedCheckpoint, Ranking
from nac_openood.files import (
    make_folder,
    read_document,
    read_tensors,
    write_document,
    write_json,
    write_tensors,
    write_text,
)
from nac_openood.search.stored import ReadingSet
from nac_openood.sources.weights import load_checkpoint

DOCUMENTS = {
    Results: ("results.json", "expected the folder of a comparison", "Repeat the comparison"),
    Ranking: ("ranking.json", "expected the folder of a ranking", "Rank again"),
    RankedRuns: ("results.json", "expected the folder of a ranking", "Rank again"),
    ReadingSet: ("readings.json", "holds no complete set of readings", "save its readings again"),
}


def test_a_document_is_read_without_its_format(tmp_path):
    write_json(tmp_path / "x.json", {"format": 1, "a": [1, None]})
    found = read_document(tmp_path / "x.json", 1, dict, missing="", again="")
    assert found == {"a": [1, None]}


@pytest.mark.parametrize("kind", DOCUMENTS, ids=lambda kind: kind.__name__)
def test_what_cannot_be_read_is_told_with_a_way_out(kind, tmp_path):
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


def test_a_document_of_another_kind_is_told_apart(tmp_path):
    config = IntegralConfig()
    tried = IntegralCandidate(config, (0.1,), None)
    ranking = Ranking((RankedCheckpoint("s1", "x", 1, 0.1, 0.5),), (tried,), config, "avgpool", {})
    RankedRuns((RankedRun("", None, ranking),)).save(tmp_path)
    told = r"holds a ranking of checkpoints \(of nac-openood rank\), expected a comparison"
    with pytest.raises(FileError, match=told):
        Results.load(tmp_path)


def test_a_document_that_does_not_say_its_kind_is_read(tmp_path):
    write_json(tmp_path / "x.json", {"format": 1, "a": 2})
    found = read_document(tmp_path / "x.json", 1, dict, missing="", again="", kind="a thing")
    write_document(tmp_path / "x.json", 1, found, kind="a thing")
    assert found == {"a": 2}
    assert (
        read_document(tmp_path / "x.json", 1, dict, missing="", again="", kind="a thing") == found
    )


def test_paths_that_safetensors_does_not_open_are_refused(tmp_path):
    path = tmp_path / "\udcff.safetensors"
    path.touch()
    for use in (
        lambda: write_tensors(path, "a thing", 1, {}, {}),
        lambda: read_tensors(path, "a thing", 1),
        lambda: make_folder(tmp_path / "\udcff"),
        lambda: load_checkpoint(nn.Linear(1, 1), path),
    ):
        with pytest.raises(FileError, match="cannot be used: its name is not UTF-8"):
            use()


def test_a_text_about_a_file_whose_name_is_not_utf8(tmp_path):
    assert write_text(tmp_path / "x", "\udcff.png").read_text() == "\\udcff.png"
