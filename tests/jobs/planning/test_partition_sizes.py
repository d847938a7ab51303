"""Sizes of partitions come from files of several forms."""

import json
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from regent.jobs.command import InputError
from regent.jobs.planning.partition_sizes import sizes_from_file

ROWS = [
    {"topic": "a", "partition": 0, "bytes": 2**40},
    {"topic": "a", "partition": 1, "bytes": 0},
    {"topic": "b", "partition": 0, "bytes": 5},
]


def test_a_list_and_lines_and_parquet_are_read(tmp_path: Path):
    files = {
        "list.json": json.dumps([{**row, "more": 1} for row in ROWS]),
        "lines.json": "\n".join(json.dumps({**row, "more": 1}) for row in ROWS),
    }
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(ROWS), tmp_path / "sizes.parquet")
    for path in tmp_path.iterdir():
        assert sizes_from_file(path, str(path)).table.sort_by("bytes").to_pylist() == sorted(
            ROWS, key=lambda row: int(str(row["bytes"]))
        )


def test_of_several_replicas_the_largest_counts(tmp_path: Path):
    path = tmp_path / "sizes"
    path.write_text(json.dumps([ROWS[2], {**ROWS[2], "bytes": 9}, {**ROWS[2], "bytes": 7}]))
    found = sizes_from_file(path, str(path))
    assert found.table.to_pylist() == [{"topic": "b", "partition": 0, "bytes": 9}]
    assert found.repeated == 1


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("", "it is empty"),
        ("[7]", "entry 0 is not an object: 7"),
        ("nonsense", "line 1 is not JSON: "),
        ("[1, 2", "it is not JSON: "),
        ('[{"topic": "a", "partition": 0}]', "entry 0 has no bytes"),
        ('{"topic": "a", "partition": 0, "bytes": "x"}', "line 1 has an impossible bytes: 'x'"),
        ('{"topic": "a", "partition": 0, "bytes": 1}\n{"topic": "a', "line 2 is not JSON: "),
        ('{"topic": "a", "partition": 0, "bytes": 1}\n\n{"topic": "a"}', "line 3 has no partition"),
        ('[{"topic": "a", "partition": 0, "bytes": -1}]', "entry 0 has an impossible bytes: -1"),
        ('[{"topic": "a", "partition": -1, "bytes": 1}]', "has an impossible partition: -1"),
        ('[{"topic": 1, "partition": 0, "bytes": 1}]', "entry 0 has an impossible topic: 1"),
        (f'[{{"topic": "a", "partition": 0, "bytes": {2**62}}}]', "more than an exbibyte"),
    ],
)
def test_other_files_are_refused_in_one_line(tmp_path: Path, content: str, problem: str):
    path = tmp_path / "sizes"
    path.write_text(content)
    with pytest.raises(InputError) as caught:
        sizes_from_file(path, str(path))
    assert problem in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_folder_without_parquet_is_named(tmp_path: Path):
    with pytest.raises(InputError, match="--sizes: s3a://b/sizes has no Parquet files"):
        sizes_from_file(tmp_path, "s3a://b/sizes")


def test_a_missing_file_is_named():
    with pytest.raises(InputError, match="--sizes: /nowhere cannot be read: No such file"):
        sizes_from_file(Path("/nowhere"), "/nowhere")
