"""Read the rows of files of problems."""

from __future__ import annotations

import csv
import gzip
import json
import os
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any


def read_rows(path: str | os.PathLike[str]) -> Iterable[Mapping[str, Any]]:
    """
    Return the rows of a file, in order.

    Args:
        path (`str` or `Path`):
            A `.jsonl`, `.jsonl.gz`, `.json` (a list of objects), `.csv` or `.parquet` file.

    Raises:
        ValueError: If there is no such file, it is of another kind, or it cannot be read.
    """
    file = Path(path)
    if not file.is_file():
        raise ValueError(f"There is no file {file} to read problems from. Check `path`.")
    kind = ".jsonl.gz" if file.name.endswith(".jsonl.gz") else file.suffix
    try:
        match kind:
            case ".jsonl":
                return _lines(file.read_bytes())
            case ".jsonl.gz":
                return _lines(gzip.decompress(file.read_bytes()))
            case ".json":
                rows: list[Mapping[str, Any]] = json.loads(file.read_text(encoding="utf-8"))
                return rows
            case ".csv":
                with file.open(encoding="utf-8", newline="") as opened:
                    return list(csv.DictReader(opened))
            case ".parquet":
                import pyarrow.parquet  # a dependency of `datasets`

                table: list[Mapping[str, Any]] = pyarrow.parquet.read_table(file).to_pylist()
                return table
    # Invalid UTF-8, JSON and Arrow raise a `ValueError`; gzip and Parquet's pages also raise an `OSError`.
    except (ValueError, EOFError, OSError, zlib.error, csv.Error) as error:
        words = str(error).split("\n")[0].rstrip(".")
        raise ValueError(f"{file} cannot be read as a {kind} file ({words}). Fetch or write it again.") from error
    raise ValueError(f"{file} is not a .jsonl, .jsonl.gz, .json, .csv or .parquet file. Convert it to one of them.")


def _lines(data: bytes) -> list[Mapping[str, Any]]:
    # `splitlines` would also break at a line separator inside a text.
    return [json.loads(line) for line in data.decode("utf-8").split("\n") if line.strip()]


def check_limit(limit: int | None) -> None:
    """
    Check the number of problems of an evaluation.

    Raises:
        ValueError: If it is below 1.
    """
    if limit is not None and limit < 1:
        raise ValueError(f"`limit` ({limit}) must be at least 1. Leave it out to ask all problems.")
