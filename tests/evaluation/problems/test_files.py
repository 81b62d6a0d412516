"""Files of problems: every kind reads the same."""

import csv
import gzip
import json

import pytest

from trl_spiral.evaluation.problems.files import read_rows


class TestReadRows:
    def test_reads_the_same_from_every_kind_of_file(self, tmp_path):
        import pyarrow
        import pyarrow.parquet

        rows = [{"q": "What is 1+1?", "a": "2"}, {"q": "And, ‘x’\n2+2?", "a": "4"}]
        (tmp_path / "set.jsonl").write_text("".join(json.dumps(row) + "\n\n" for row in rows))
        (tmp_path / "set.json").write_text(json.dumps(rows))
        with gzip.open(tmp_path / "set.jsonl.gz", "wt", encoding="utf-8") as file:
            file.write((tmp_path / "set.jsonl").read_text())
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "set.parquet")
        with (tmp_path / "set.csv").open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, ["q", "a"])
            writer.writeheader()
            writer.writerows(rows)

        found = [read_rows(tmp_path / f"set.{kind}") for kind in ("jsonl", "jsonl.gz", "json", "csv", "parquet")]
        assert found == [rows] * 5

    def test_a_line_separator_inside_a_text_does_not_end_a_row(self, tmp_path):
        (tmp_path / "set.jsonl").write_text('{"q": "one\u2028two", "a": "3"}\n', encoding="utf-8")

        assert read_rows(tmp_path / "set.jsonl") == [{"q": "one\u2028two", "a": "3"}]

    def test_reports_a_missing_file(self, tmp_path):
        with pytest.raises(ValueError, match=r"There is no file .*none.jsonl to read problems from"):
            read_rows(tmp_path / "none.jsonl")

    def test_lists_the_supported_files(self, tmp_path):
        (tmp_path / "set.txt").touch()
        with pytest.raises(ValueError, match=r"set.txt is not a .jsonl, .jsonl.gz, .json, .csv or .parquet file"):
            read_rows(tmp_path / "set.txt")

    @pytest.mark.parametrize(
        ("name", "data"),
        [
            ("cut.jsonl.gz", gzip.compress(b'{"q": 1}\n' * 99, mtime=0)[:-9]),
            ("damaged.jsonl.gz", gzip.compress(b'{"q": 1}\n', mtime=0)[:10] + b"\xff" * 30),
            ("latin.jsonl", '{"q": "Größe"}\n'.encode("latin-1")),
            ("latin.json", '[{"q": "Größe"}]'.encode("latin-1")),
            ("latin.csv", "q\nGröße\n".encode("latin-1")),
            ("wide.csv", b"q\n" + b"x" * 200_000),
            ("cut.parquet", b"PAR1 and no more"),
        ],
        ids=lambda value: value if isinstance(value, str) else "",
    )
    def test_reports_a_damaged_file_in_one_sentence(self, name, data, tmp_path):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(ValueError, match=rf"{name} cannot be read as a \.") as raised:
            read_rows(tmp_path / name)

        assert "\n" not in str(raised.value)

    @pytest.mark.parametrize("kind", ["jsonl", "jsonl.gz", "json"])
    def test_reports_a_broken_file(self, kind, tmp_path):
        (tmp_path / f"set.{kind}").write_text("{'q': 1}\n")

        with pytest.raises(ValueError, match=rf"set.{kind} cannot be read as a .{kind} file \("):
            read_rows(tmp_path / f"set.{kind}")
