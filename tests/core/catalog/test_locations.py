# SPDX-License-Identifier: Apache-2.0
"""Different forms of one location never look like two files; locations proven equal are equal."""

from __future__ import annotations

import itertools
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from airflow_mv.core.catalog.locations import (
    check_regular,
    exact,
    exact_form,
    irregular_segment,
    lies_in,
)
from airflow_mv.errors import InvalidMetadataError
from airflow_mv.extras.maintenance.matcher import LocationMatcher, canonical

SPELLINGS = [
    ("s3://b/a/x", "s3a://b/a/x", "s3n://b//a/x", "S3://b/a/./x", "s3://b/a/y/../x", "s3://b/a/x/", "s3://b/a/%78", "s3://B/A/X"),
    ("s3://b/a%20b/x", "s3://b/a b/x", "s3a://b/a%2520b/x"),
    ("gs://b/a/x", "gcs://b/a/x", "gs://b:443/a/x"),
    ("hdfs://one:8020/a/x", "hdfs:///a/x", "hdfs:/a/x", "hdfs://two/a/x", "viewfs:///a/x", "file:///a/x", "/a/x"),
    (
        "abfs://c@account.dfs.core.windows.net/a/x", "abfss://c@account.dfs.core.windows.net/a/x",
        "wasb://c@account.blob.core.windows.net/a/x", "wasbs://c@account.blob.core.windows.net:443/a/x",
    ),
]  # fmt: skip


@pytest.mark.parametrize("spellings", SPELLINGS)
def test_i11_all_forms_of_one_location_have_one_canonical_form(spellings: tuple[str, ...]) -> None:
    """Otherwise a file could be deleted under one name while it is needed under another."""
    assert len({canonical(item) for item in spellings}) == 1
    places = LocationMatcher()
    for one, other in itertools.product(spellings, repeat=2):
        assert places.forms(one) & places.forms(other)
        assert places.may_lie_in(f"{one.rstrip('/')}/below", other)


def test_i11_all_forms_of_one_local_file_share_a_canonical_form(tmp_path: Path) -> None:
    """Links at any level of the path, in both directions, and percent-encoded names."""
    real = tmp_path / "real folder"
    (real / "deep").mkdir(parents=True)
    (tmp_path / "link").symlink_to(real)
    (real / "back").symlink_to(tmp_path)
    (real / "x").write_bytes(b"rows")
    (tmp_path / "alias").symlink_to(real / "x")
    spellings = (
        f"file://{real}/x", f"file:{tmp_path}/link/x", f"{real}/deep/../x", f"{real}//x", f"{real}/./x",
        f"file://{quote(str(real))}/x", f"{real}/back/link/x", f"{tmp_path}/alias", f"file:///{real}/x",
    )  # fmt: skip
    places = LocationMatcher()
    for one, other in itertools.product(spellings, repeat=2):
        assert places.forms(one) & places.forms(other), (one, other)
    for folder in (f"{tmp_path}/link", f"{real}/", f"{real}/back/real folder", f"file://{quote(str(real))}"):
        assert places.may_lie_in(f"file://{real}/x", folder), folder
        assert places.may_lie_in(folder, f"file://{real}")
    assert not places.may_lie_in(f"file://{tmp_path}/other/x", f"file://{real}")


def test_locations_are_proven_equal_only_if_they_cannot_differ() -> None:
    """A proof or a permission never accepts a location that could be another file."""
    assert exact("s3a://b/a") == exact("s3://b/a/") == exact_form("s3n://b/a")
    assert exact("hdfs://nn:8020/a") == exact("hdfs://nn/a") != exact("hdfs:///a")
    assert len({exact(f"s3://b/{name}") for name in ("a", "A", "%61", "./a", "/a", "a?x", "a#x")}) == 7
    assert lies_in("s3a://b/wh/x", ("s3://b/wh",))
    assert not lies_in("s3://b/WH/x", ("s3://b/wh",))
    assert not lies_in("s3://b/wh2", ("s3://b/wh",))


@pytest.mark.parametrize(
    ("folder", "file"),
    [
        ("s3://b/wh/x;y", "s3://b/wh/x;y/part"),
        ("s3://b/wh/x;y/", "s3://b/wh/x;y/part"),
        ("s3://b/wh/x", "s3://b/wh/x;y/part"),
        ("s3://b/wh/..;y", "s3://b/wh/..;y/part"),
        ("file:///wh/;", "file:///wh/;/part"),
    ],
)
def test_i11_a_file_below_a_folder_with_a_semicolon_may_lie_in_it(folder: str, file: str) -> None:
    """Readers differ in whether the semicolon, and what follows, belongs to the folder's name."""
    assert LocationMatcher().may_lie_in(file, folder)


@given(st.text(max_size=40))
@example("/;")
def test_every_text_has_a_canonical_form(text: str) -> None:
    """Locations of other tables are untrusted input."""
    assert canonical(text).startswith("//")
    assert canonical(f"file://{text}/") == canonical(f"file://{text}") or text.startswith(("?", "#")) or "/" not in text
    exact(text)


@pytest.mark.parametrize(
    "location",
    ["file:///path", "file:/path", "/path/", "s3://bucket", "s3://bucket/", "s3://bucket/x", "s3://b/x/", "hdfs:///a",
     "s3://b/a%2Fb", "s3://b/a.b/..c/.d"],
)  # fmt: skip
def test_a_valid_location_is_accepted(location: str) -> None:
    check_regular(location, what="view v")


@pytest.mark.parametrize(
    ("location", "segment"),
    [
        ("s3://b//x", "//"), ("s3://b/x//", "//"), ("s3://b/a/./x", "."), ("s3://b/a/../x", ".."),
        ("s3://b/%2E/x", "."), ("s3://b/%252e%252e/x", ".."), ("s3://b/a%2F%2Fx", "//"), ("file:////x", "//"),
        ("/a//x", "//"), ("file:///a/.", "."),
    ],
)  # fmt: skip
def test_i19_a_location_that_stores_read_differently_is_refused(location: str, segment: str) -> None:
    assert irregular_segment(location) == f"'{segment}'"
    with pytest.raises(InvalidMetadataError, match=r"view v.*means different folders on different stores"):
        check_regular(location, what="view v")
