"""The package stays as small, and its calls as straight, as they have become; see scripts/size.py."""

from script_module import script_module

size = script_module("size")


def test_sizes_are_within_their_limits():
    found = size.sizes()
    assert {name: found[name] for name, most in size.LIMITS.items() if found[name] > most} == {}


def test_calls_pass_through_few_files():
    found = {name: len(trace.files) for name, trace in size.crossings().items()}
    assert set(found) >= {"nac-openood score", "nac-openood compare", "NACDetector.fit"}
    assert {name: n for name, n in found.items() if n > size.FILE_LIMITS[name]} == {}


def test_lines_are_counted_without_blanks_comments_and_docstrings(tmp_path):
    package = tmp_path / "package"
    package.mkdir()
    (package / "one.py").write_text('"""Doc."""\n\n# why\nx = (\n    1,\n)\n')
    (package / "two.py").write_text("from package.one import x\n")
    (tmp_path / "tests").mkdir()
    found = size.sizes(package, tmp_path / "tests")
    assert found["code lines"] == 4 and found["files"] == 2
    assert found["modules below 120 lines with one importer"] == 1
