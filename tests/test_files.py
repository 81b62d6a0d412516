"""Atomic writes, and digests of files."""

import pytest

from trl_spiral.files import damage, digest_of, link_tree, replacing, write_text


class TestReplacing:
    def test_replaces_the_file_at_the_end(self, tmp_path):
        path = tmp_path / "a.txt"
        path.write_text("old")
        with replacing(path) as partial:
            partial.write_text("new")
            during = path.read_text()

        assert (during, path.read_text()) == ("old", "new")
        assert list(tmp_path.iterdir()) == [path]

    def test_keeps_the_old_file_after_an_error(self, tmp_path):
        path = tmp_path / "a.txt"
        path.write_text("old")
        with pytest.raises(RuntimeError, match="interrupted"), replacing(path) as partial:
            partial.write_text("ne")
            raise RuntimeError("interrupted")

        assert path.read_text() == "old"

    def test_creates_a_folder_whole(self, tmp_path):
        folder = tmp_path / "adapter"
        with replacing(folder) as partial:
            partial.mkdir()
            (partial / "a.txt").write_text("a")
            existed = folder.exists()

        assert not existed
        assert [path.name for path in folder.iterdir()] == ["a.txt"]


class TestWriteText:
    def test_writes_utf_8(self, tmp_path):
        write_text(tmp_path / "a.txt", "é\n")

        assert (tmp_path / "a.txt").read_bytes() == b"\xc3\xa9\n"


class TestDamage:
    def test_describes_the_difference(self, tmp_path):
        path = tmp_path / "a.bin"
        path.write_bytes(b"abc")
        digest = digest_of(path)

        assert damage(path, 3, digest) is None
        assert damage(path, 4, digest) == "has 3 bytes and should have 4"
        assert damage(path, 3, "0") == "is not what was written"
        assert damage(tmp_path / "b.bin", 3, digest) == "is missing"


class TestLinkTree:
    def test_replaces_the_target(self, tmp_path):
        (tmp_path / "from" / "inner").mkdir(parents=True)
        (tmp_path / "from" / "inner" / "a.txt").write_text("a")
        (tmp_path / "to").mkdir()
        (tmp_path / "to" / "old.txt").write_text("old")
        link_tree(tmp_path / "from", tmp_path / "to")

        assert [str(path.relative_to(tmp_path / "to")) for path in (tmp_path / "to").rglob("*.txt")] == ["inner/a.txt"]
