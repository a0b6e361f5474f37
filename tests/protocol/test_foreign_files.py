# SPDX-License-Identifier: Apache-2.0
"""Foreign files are never deleted, whatever the form of a location and wherever they are stored."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.protocol.foreign import Attack, BucketStore, LocalStore, plot


def attack(found: Attack, seeds: range) -> Attack:
    """Build and check one arrangement for each seed."""
    spellings, twins = found.names()
    for seed in seeds:
        found.carry_out(plot(seed, spellings, twins))
    return found


def figures(found: Attack, started: float) -> str:
    return (
        f"{found.collected + found.refused} layouts, {found.collected} carried out, {found.refused} refused, "
        f"{found.benign} benign, {found.foreign} files of others intact, {time.monotonic() - started:.0f} s"
    )


def test_i11_no_file_of_others_is_touched_in_any_layout(tmp_path: Path) -> None:
    """I11: other tables, views and loose files at every position, with every form of a local path."""
    started = time.monotonic()
    found = attack(Attack(LocalStore(tmp_path / "root"), tmp_path), range(30))
    print(figures(found, started))
    assert found.benign > 2
    assert found.refused > 2


def test_i11_no_object_of_others_is_touched_in_any_layout(tmp_path: Path, s3_server: str) -> None:
    """I11: the same in a bucket; each arrangement starts with an empty bucket."""
    started = time.monotonic()
    store = BucketStore(s3_server)
    found = attack(Attack(store, tmp_path), range(3))
    print(figures(found, started))
    assert found.foreign > 25
    store.put("wh/sales/_SUCCESS", b"")
    store.reset(None)
    assert store.client.list_objects_v2(Bucket=store.bucket)["KeyCount"] == 0


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_i11_no_file_of_others_is_touched_in_ten_thousand_layouts(tmp_path: Path, s3_server: str) -> None:
    """I11: 9,500 arrangements of local files and 500 of a bucket."""
    first = int(os.environ.get("TORTURE_SEED", "1")) * 1_000_000
    for store, count in ((LocalStore(tmp_path / "root"), 9_500), (BucketStore(s3_server), 500)):
        scratch = tmp_path / type(store).__name__
        scratch.mkdir()
        started = time.monotonic()
        print(figures(attack(Attack(store, scratch), range(first, first + count)), started))
