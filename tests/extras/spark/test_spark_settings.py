# SPDX-License-Identifier: Apache-2.0
"""Spark reaches the catalog that Python reaches, and its secrets are kept apart."""

from __future__ import annotations

import re
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest

from airflow_mv.errors import ConfigurationError
from airflow_mv.extras.spark.settings import SparkSettings, spark_settings
from airflow_mv.extras.spark.submit import jar_confs
from airflow_mv.foundation.redaction import is_secret, shortened, without_secrets
from tests.rest.java import cache_folder

SECRET = "canary-pässword"


def catalog(settings: SparkSettings, name: str = "lake") -> dict[str, str]:
    prefix = f"spark.sql.catalog.{name}."
    both = {**settings.confs, **settings.secrets}
    return {key.removeprefix(prefix): value for key, value in both.items() if key.startswith(prefix)}


def test_a_sqlite_catalog_uses_the_same_file_in_spark_and_waits_for_other_writers() -> None:
    """The JDBC driver itself waits only 3 s."""
    settings = spark_settings("lake", {"type": "sql", "uri": "sqlite:////abs/x.db", "warehouse": "file:///w"})
    assert catalog(settings) == {
        "catalog-impl": "org.apache.iceberg.jdbc.JdbcCatalog",
        "uri": "jdbc:sqlite:/abs/x.db",
        "jdbc.busy_timeout": "30000",
        "jdbc.init-catalog-tables": "false",
        "jdbc.schema-version": "V1",
        "warehouse": "file:///w",
        "cache-enabled": "false",
    }
    assert settings.secrets == {}
    assert "org.xerial:sqlite-jdbc:3.50.3.0" in settings.packages


@pytest.mark.parametrize("scheme", ["postgresql", "postgresql+psycopg2", "postgresql+psycopg"])
def test_a_password_is_decoded_and_is_never_in_the_url(scheme: str) -> None:
    """Drivers, pools and Spark log URLs."""
    uri = f"{scheme}://me%40home:p%2Fa%25@db.example:5433/lake?sslmode=require&connect_timeout=3"
    settings = spark_settings("lake", {"type": "sql", "uri": uri})
    jdbc = "jdbc:postgresql://db.example:5433/lake?sslmode=require&connectTimeout=3"
    assert settings.confs["spark.sql.catalog.lake.uri"] == jdbc
    assert settings.confs["spark.sql.catalog.lake.jdbc.init-catalog-tables"] == "false"
    assert settings.confs["spark.sql.catalog.lake.jdbc.user"] == "me@home"
    assert settings.secrets == {"spark.sql.catalog.lake.jdbc.password": "p/a%"}


@pytest.mark.parametrize(
    ("properties", "names"),
    [
        ({"type": "sql", "uri": f"postgresql://u:{SECRET}@h/d?socketFactory=evil.Class"}, "socketFactory"),
        ({"type": "sql", "uri": f"postgresql://u:{SECRET}@/d?host=/run/postgresql"}, "host"),
        ({"type": "sql", "uri": f"postgresql://u:{SECRET}@h:port/d"}, "uri"),
        ({"type": "sql", "uri": f"mysql+pymysql://u:{SECRET}@h/d"}, "mysql"),
        ({"type": "sql", "uri": "sqlite:///:memory:"}, "uri"),
        ({"type": "hadoop", "token": SECRET}, "hadoop"),
        ({"token": SECRET}, "type"),
        ({"type": "rest", "uri": "http://h", "auth": SECRET}, "auth"),
        ({"type": "glue", "glue.access-key-id": SECRET}, "glue.access-key-id"),
        ({"type": "glue", "client.access-key-id": SECRET}, "client.access-key-id"),
        ({"type": "glue", "client.profile-name": "prod"}, "Glue client"),
        ({"type": "rest", "uri": "http://h", "s3.profile-name": "prod"}, "s3.profile-name': Spark's S3 client"),
        ({"type": "sql", "uri": "sqlite:////x", "client.profile-name": "prod"}, "AWS_PROFILE"),
        ({"type": "glue", "adls.account-key": SECRET, "warehouse": "abfss://x"}, "adls.account-name"),
    ],
)
def test_an_error_names_the_property_that_spark_cannot_use_and_not_its_value(
    properties: dict[str, str], names: str
) -> None:
    """The message is logged."""
    with pytest.raises(ConfigurationError, match=f"catalog 'lake'.*{re.escape(names)}") as caught:
        spark_settings("lake", properties)
    assert SECRET not in str(caught.value)
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


@pytest.mark.parametrize("other", ["s3.access-key-id", "spark.sql.catalog.lake.client.credentials-provider"])
def test_a_profile_beside_other_credentials_is_accepted(other: str) -> None:
    spark_settings("lake", {"type": "rest", "uri": "http://h", "s3.profile-name": "prod", other: "x"})


def test_an_explicit_spark_setting_has_precedence_and_replaces_what_cannot_be_derived() -> None:
    settings = spark_settings(
        "lake",
        {
            "type": "sql",
            "uri": "mysql://u:p@h/d",
            "spark.sql.catalog.lake.uri": "jdbc:mysql://h/d",
            "spark.jars.packages": "com.mysql:mysql-connector-j:9.4.0",
            "spark.executor.memory": "3g",
            "spark.sql.catalog.lake.cache-enabled": "true",
        },
    )
    assert catalog(settings)["uri"] == "jdbc:mysql://h/d"
    assert catalog(settings)["jdbc.init-catalog-tables"] == "false"
    assert settings.confs["spark.executor.memory"] == "3g"
    assert "com.mysql:mysql-connector-j:9.4.0" in settings.packages
    assert catalog(settings)["cache-enabled"] == "false", "a cached table would hide new snapshots"


def test_all_kinds_of_credentials_are_secret_and_hidden_when_printed() -> None:
    """A credential that is not recognized would appear in the arguments of a process."""
    settings = spark_settings(
        "lake",
        {
            "type": "rest",
            "uri": f"https://u:{SECRET}@h/",
            "credential": f"id:{SECRET}",
            "token": SECRET,
            "header.X-Api": SECRET,
            "s3.access-key-id": SECRET,
            "client.secret-access-key": SECRET,
            "s3.session-token": SECRET,
            "gcs.oauth2.token": SECRET,
            "adls.account-name": "acc",
            "adls.sas-token": SECRET,
            "adls.connection-string": SECRET,
            "adls.account-key": SECRET,
            "spark.hadoop.fs.s3a.secret.key": SECRET,
            "scope": "all",
        },
    )
    assert not [key for key, value in settings.confs.items() if SECRET in value]
    assert SECRET not in repr(settings)
    redaction = settings.confs["spark.redaction.regex"]
    assert all(re.search(redaction, key) or re.search(redaction, value) for key, value in settings.secrets.items())
    assert catalog(settings)["scope"] == "all"
    assert settings.secrets["spark.sql.catalog.lake.adls.sas-token.acc.dfs.core.windows.net"] == SECRET


@pytest.mark.parametrize(
    "url",
    [
        "jdbc:mysql://h/d?user=u&password={}",
        "jdbc:mysql://u:{}@h/d",
        "jdbc:mysql://address=(host=h)(user=u)(password={})/d",
        "jdbc:postgresql://h1,h2/d?user=u&sslpassword={}&ssl=true",
        "jdbc:sqlserver://h:1433;database=d;user=u;pwd={};encrypt=true",
        "jdbc:oracle:thin:u/{}@//h:1521/d",
    ],
)
def test_a_password_in_a_jdbc_url_is_a_secret(url: str) -> None:
    """The URL is a setting of its own, where no driver is known for the catalog's URI."""
    key, given = "spark.sql.catalog.lake.uri", url.format("canary-pw")
    settings = spark_settings("lake", {"type": "sql", "uri": "mysql://h/d", key: given})
    assert settings.secrets == {key: given}
    assert re.search(settings.confs["spark.redaction.regex"], given)
    assert without_secrets(f"{given} and canary-pw", settings.secrets) == "*** and ***"
    assert "canary" not in shortened(f"cannot open {given}, not now", 1000)
    plain = re.sub(r"([?&;(][a-z]*(pwd|password)=canary-pw\)?)|:?canary-pw", "", given)
    assert spark_settings("lake", {"type": "sql", "uri": "mysql://h/d", key: plain}).confs[key] == plain


def test_s3_properties_are_translated_to_java_s_names() -> None:
    """Python and Java name the region differently and have opposite defaults for path-style access."""
    settings = spark_settings(
        "lake",
        {
            "type": "glue",
            "warehouse": "s3://bucket/w",
            "s3.region": "eu-west-1",
            "s3.endpoint": "http://minio:9000",
            "s3.connect-timeout": "1.5",
            "client.access-key-id": "AK",
            "client.credentials-provider": "software.amazon.awssdk.auth.credentials.DefaultCredentialsProvider",
            "s3.role-arn": "arn:x",
        },
    )
    mapped = catalog(settings)
    assert mapped["io-impl"] == "org.apache.iceberg.aws.s3.S3FileIO"
    assert mapped["client.region"] == mapped["client.assume-role.region"] == "eu-west-1"
    assert mapped["s3.path-style-access"] == "true"
    assert mapped["http-client.apache.connection-timeout-ms"] == "1500"
    assert mapped["s3.access-key-id"] == "AK"
    assert mapped["type"] == "glue"
    assert "org.apache.iceberg:iceberg-aws-bundle:1.12.0" in settings.packages


@pytest.mark.parametrize(("store", "bundle"), [("gs://b", "gcp-bundle:1.11.0"), ("abfss://b@a", "azure-bundle:1.10.0")])
def test_each_bundle_has_a_version_that_exists(store: str, bundle: str) -> None:
    """They are not released with every version of Iceberg."""
    settings = spark_settings("lake", {"type": "rest", "uri": "http://h", "warehouse": f"{store}/w"})
    assert f"org.apache.iceberg:iceberg-{bundle}" in settings.packages


@pytest.mark.slow
@pytest.mark.parametrize("spark", ["3.5.8", "4.0.2", "4.1.3"])
def test_every_package_is_on_maven_central(spark: str) -> None:
    """Of each store and each supported Spark. Only their descriptions are loaded.

    They are kept apart: in the user's repository Spark would find a description without its jar, and fail.
    """
    of_stores = [
        spark_settings("lake", {"type": "rest", "uri": "http://h", "warehouse": f"{store}/w"}).on(spark).packages
        for store in ("s3://b", "gs://b", "abfss://b@a")
    ]
    get = ["mvn", "-q", "-B", f"-Dmaven.repo.local={cache_folder() / 'descriptions'}"]
    get += ["dependency:get", "-Dtransitive=false"]
    if shutil.which("mvn") is None or not loads([*get, "-Dartifact=org.apache.iceberg:iceberg-bom:1.11.0:pom"]):
        pytest.skip("Maven Central is not reached")
    for package in sorted({package for packages in of_stores for package in packages}):
        assert loads([*get, f"-Dartifact={package}:pom"]), package


def loads(command: list[str]) -> bool:
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


@pytest.mark.parametrize(
    ("uri", "kind"), [("https://h/cat", "rest"), ("thrift://h:9083", "hive"), ("sqlite:////x.db", None)]
)
def test_a_missing_type_is_inferred_from_the_uri(uri: str, kind: str | None) -> None:
    """As in pyiceberg."""
    assert catalog(spark_settings("lake", {"uri": uri})).get("type") == kind


def test_settings_of_two_catalogs_go_into_one_session() -> None:
    """A view may join tables of several catalogs."""
    one = spark_settings("one", {"type": "sql", "uri": "sqlite:////x.db"})
    two = spark_settings("two", {"type": "rest", "uri": "http://h", "token": SECRET})
    both = one.merge(two)
    assert catalog(both, "one")["uri"] == "jdbc:sqlite:/x.db"
    assert both.secrets == two.secrets
    assert len(set(both.packages)) == len(both.packages) == 2


@pytest.mark.parametrize("has_jar", [True, False])
def test_spark_takes_the_jars_in_the_named_folder_and_a_missing_one_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, has_jar: bool
) -> None:
    """Without access to Maven, Spark's own error would only name the repositories that it asked."""
    monkeypatch.setenv("AIRFLOW_MV_JARS", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path / "nobody"))
    package, jar = "org.xerial:sqlite-jdbc:3.50.3.0", tmp_path / "sqlite-jdbc-3.50.3.0.jar"
    if has_jar:
        with zipfile.ZipFile(jar, "w") as archive:
            archive.writestr("driver", "")
    confs = jar_confs({"spark.jars.packages": package})
    assert confs == (
        {"spark.jars.packages": "", "spark.jars": str(jar)} if has_jar else {"spark.jars.packages": package}
    )
    warning = f"AIRFLOW_MV_JARS={tmp_path} has no jar of {package}: Spark downloads it from Maven"
    assert caplog.messages == ([] if has_jar else [warning])


@pytest.mark.parametrize(
    "name", ["WAREHOUSE_API_KEY", "SNOWFLAKE_PRIVATE_KEY", "AZURE_STORAGE_KEY", "SSH_PASSPHRASE", "AZURE_STORAGE_SAS"]
)
def test_the_name_of_an_environment_variable_shows_a_secret(name: str) -> None:
    assert is_secret(f"spark.executorEnv.{name}")


def test_the_packages_follow_the_version_of_spark() -> None:
    """The bundle's version is the runtime's, of which Spark 4.0 has an older one."""
    settings = spark_settings("lake", {"type": "rest", "uri": "http://h", "warehouse": "s3://b/w"})
    older = ("iceberg-spark-runtime-4.0_2.13:1.11.0", "iceberg-aws-bundle:1.11.0")
    assert settings.on("4.0.2-amzn-0").packages == tuple(f"org.apache.iceberg:{name}" for name in older)
    assert settings.on("4.1.4") == settings.on(None) == settings
    by_scala = {scala: settings.on("3.5.6", scala).packages[0] for scala in ("2.12", "2.13")}
    runtime = "org.apache.iceberg:iceberg-spark-runtime-3.5"
    assert by_scala == {"2.12": f"{runtime}_2.12:1.12.0", "2.13": f"{runtime}_2.13:1.11.0"}
    assert settings.on("3.5").packages[0] == by_scala["2.12"]  # that of the PyPI package
    with pytest.raises(ConfigurationError, match=r"Spark 3\.4\.4 is not supported; supported are Spark 4\.1 "):
        settings.on("3.4.4")
    with pytest.raises(ConfigurationError, match=r"Delta table: that needs Spark 4\.1 or 4\.0, not 3\.5\.6"):
        settings.with_delta({}).on("3.5.6")
