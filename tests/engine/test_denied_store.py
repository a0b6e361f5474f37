# SPDX-License-Identifier: Apache-2.0
"""A Spark job whose store refuses its account."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyspark.sql import SparkSession

from airflow_mv.actions import refresh_views
from airflow_mv.core.catalog import MaterializedViewCatalog
from airflow_mv.core.script import Outcome, Script, job_error
from airflow_mv.errors import AccessDeniedError, JobError
from airflow_mv.extras.spark.session import session_stager
from tests.builders import Lake
from tests.duck import DuckStager
from tests.protocol.foreign import BucketStore
from tests.rest.keeping import Keeping, keeping

VIEW = "sales.daily"


@pytest.fixture
def store(s3_server: str) -> Keeping:
    return Keeping(BucketStore(s3_server, f"denied-{uuid.uuid4().hex[:8]}"), denies="")


@pytest.fixture(params=["pointed", "table"])
def home(request: pytest.FixtureRequest, spark: SparkSession, store: Keeping, sqlite_uri: str) -> Iterator[Lake]:
    with keeping(store) as address:
        access = {**store.bucket.access, "s3.endpoint": address}
        name = f"denied{uuid.uuid4().hex[:8]}"  # the session does not know it yet
        iceberg = SqlCatalog(name, uri=sqlite_uri, warehouse=store.bucket.warehouse, **access)
        iceberg.create_namespace("sales")
        catalog = MaterializedViewCatalog(iceberg)
        found = Lake(iceberg, catalog, DuckStager(catalog, iceberg), request.param, refresh_views)
        found.table()
        found.view(sql="SELECT region, sum(amount) AS amount FROM sales.orders GROUP BY region")
        found.stager = session_stager(catalog, spark)  # type: ignore[assignment]
        yield found
        iceberg.engine.dispose()


@pytest.mark.parametrize("method", ["PUT", "HEAD"])
def test_a_job_whose_store_refuses_it_needs_a_permission_and_no_other_try(
    home: Lake, store: Keeping, method: str
) -> None:
    """To write, and to read."""
    staged, folder = home.stager, home.storage().table.location

    def refused(script: Script) -> Outcome:
        store.denies = method
        outcome = staged(script)
        store.denies = ""
        return outcome

    home.stager = refused  # type: ignore[assignment]
    said = rf"the Spark job failed, nothing was published: .*Status Code: 403.*has no permission.*below {folder}"
    with pytest.raises(AccessDeniedError, match=said) as caught:
        home.refresh()
    assert (caught.value.retryable, caught.value.location) == (False, folder)
    home.stager = staged
    assert home.refresh().outcome == "refreshed"


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("java.nio.file.AccessDeniedException: s3a://lake/a: PutObject: Access Denied", AccessDeniedError),
        ("software.amazon.awssdk.services.glue.model.AccessDeniedException: glue:UpdateTable", AccessDeniedError),
        ("org.apache.iceberg.exceptions.ForbiddenException: Forbidden: not allowed", AccessDeniedError),
        ("org.apache.hadoop.security.AccessControlException: Permission denied: user=a", AccessDeniedError),
        ("com.google.cloud.storage.StorageException: 403 Forbidden POST https://storage", AccessDeniedError),
        ("Status code 403, AuthorizationPermissionMismatch", AccessDeniedError),
        ("java.io.FileNotFoundException: /lake/a.parquet (Permission denied)", AccessDeniedError),
        ("S3Exception: The provided token has expired. (Service: S3, Status Code: 403)", JobError),
        ("S3Exception: The Access Key Id you provided does not exist (Service: S3, Status Code: 403)", JobError),
        ("S3Exception: SlowDown (Service: S3, Status Code: 503)", JobError),
    ],
)
def test_refusals_are_recognised_in_the_words_of_each_store(text: str, kind: type[Exception]) -> None:
    """Ended credentials, which another try has new ones for, are none."""
    assert type(job_error(text)) is kind
