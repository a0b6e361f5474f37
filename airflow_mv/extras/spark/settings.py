# SPDX-License-Identifier: Apache-2.0
"""Derive Spark's configuration of a catalog from its pyiceberg properties. Pure functions on texts.

A catalog is configured once: the one that Python uses is available in Spark under the same name. A property whose key
starts with ``spark.`` is a raw Spark setting, and overrides the derived one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from airflow_mv.errors import ConfigurationError
from airflow_mv.foundation.redaction import SECRET, is_secret
from airflow_mv.version import DELTA, RUNTIMES, SPARK_WITH_DELTA, runtime, supported

#: The versions of Spark and Scala whose packages a catalog's settings name, and of its Iceberg, until
#: :meth:`SparkSettings.on` names another's.
SPARK = next(iter(RUNTIMES))
ICEBERG_VERSION = RUNTIMES[SPARK]
RUNTIME = f"org.apache.iceberg:iceberg-spark-runtime-{SPARK}:{ICEBERG_VERSION}"
EXTENSIONS = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
SPARK_CATALOG = "org.apache.iceberg.spark.SparkCatalog"
DELTA_PACKAGE = f"io.delta:delta-spark_{SPARK}:{DELTA}"
#: Delta's package names them, and Spark has them. Without them Ivy fetches less, and needs no package of theirs.
_NOT_FETCHED = ("org.apache.hadoop:hadoop-client-api", "org.apache.hadoop:hadoop-client-runtime")
_EXCLUDES_KEY = "spark.jars.excludes"
DELTA_EXTENSION = "io.delta.sql.DeltaSparkSessionExtension"
DELTA_CATALOG = "org.apache.spark.sql.delta.catalog.DeltaCatalog"
_EXTENSIONS_KEY = "spark.sql.extensions"
_SESSION_CATALOG = "spark.sql.catalog.spark_catalog"

#: Spark shows a setting as ``*********(redacted)`` if this matches its key or its value (``user:pw@``). It has neither
#: blanks nor backslashes, so that it survives the command lines of other submitters.
REDACTION = SECRET.pattern + r"|uri$|//[^/]*:[^/]*@|^jdbc:oracle:.*/.*@"

#: The header with which a client requests credentials from a REST server. pyiceberg sends it by itself, Java does not.
DELEGATION = "header.X-Iceberg-Access-Delegation"

BASE_CONFS: Mapping[str, str] = {
    "spark.sql.extensions": EXTENSIONS,
    "spark.redaction.regex": REDACTION,
    "spark.sql.sources.partitionOverwriteMode": "static",
}

SQLITE = "org.xerial:sqlite-jdbc:3.50.3.0"
POSTGRESQL = "org.postgresql:postgresql:42.7.7"
#: The driver's default is 3 s. A refresh may meet several writers on a small machine.
_SQLITE_BUSY_MS = "30000"

#: libpq's name -> pgjdbc's. An allow-list, because some pgjdbc options (``socketFactory``…) load any class.
_POSTGRESQL_OPTIONS = {
    "sslmode": "sslmode",
    "sslrootcert": "sslrootcert",
    "sslcert": "sslcert",
    "sslkey": "sslkey",
    "connect_timeout": "connectTimeout",
    "application_name": "ApplicationName",
    "options": "options",
    "gssencmode": "gssEncMode",
    "channel_binding": "channelBinding",
}
#: ``jdbc.*`` is passed to the JDBC driver unchanged, so this is an allow-list too.
_JDBC_KEYS = frozenset(
    f"jdbc.{key}"
    for key in (
        "user", "password", "schema-version", "init-catalog-tables", "strict-mode", "retryable_status_codes",
        "busy_timeout", "journal_mode", "useSSL", "verifyServerCertificate", "currentSchema", "prepareThreshold",
        "socketTimeout", "loginTimeout", "tcpKeepAlive", *_POSTGRESQL_OPTIONS.values(),
    )
)  # fmt: skip
_SQLITE_OPTIONS = frozenset({"timeout", "check_same_thread", "cached_statements"})

#: pyiceberg's own settings and credentials of this machine, which a Spark driver cannot use.
# fmt: off
_PYTHON_ONLY = frozenset({
    "type", "uri", "name", "echo", "pool_pre_ping", "init_catalog_tables", "py-io-impl", "py-catalog-impl",
    "py-location-provider-impl", "downcast-ns-timestamp-to-us-on-write", "s3.region", "client.region", "glue.region",
    "client.profile-name", "s3.profile-name", "glue.profile-name", "s3.resolve-region", "s3.retry-strategy-impl",
    "s3.force-virtual-addressing", "s3.anonymous", "s3.connect-timeout", "s3.request-timeout", "s3.proxy-uri",
    "s3.server-side-encryption", "s3.sse-kms-key-id", "s3.signer", "client.access-key-id",
    "client.secret-access-key", "client.session-token", "s3.role-arn", "s3.role-session-name", "client.role-arn",
    "client.role-session-name", "glue.access-key-id", "glue.secret-access-key", "glue.session-token",
    "glue.retry-mode", "glue.max-retries", "gcs.access", "gcs.consistency", "gcs.cache-timeout",
    "gcs.requester-pays", "gcs.session-kwargs", "gcs.default-bucket-location", "gcs.version-aware", "adls.sas-token",
    "adls.connection-string", "adls.account-name", "adls.account-key", "adls.account-host", "adls.tenant-id",
    "adls.client-id", "adls.client-secret", "adls.credential", "adls.anon", "snapshot-loading-mode",
    "rest-page-size", "ssl", "auth", "hive.kerberos-authentication", "airflow-mv.allowed-locations",
    "airflow-mv.response-timeout-seconds", "airflow-mv.default-credentials",
})
# fmt: on

_CATALOG_CLASSES = {
    "dynamodb": "org.apache.iceberg.aws.dynamodb.DynamoDbCatalog",
    "bigquery": "org.apache.iceberg.gcp.bigquery.BigQueryMetastoreCatalog",
}
#: pyiceberg has created the tables. Iceberg 1.10, which looks for them, never closes its query: from then on a SQLite
#: database is locked for all other writers.
_JDBC_CATALOG = {
    "catalog-impl": "org.apache.iceberg.jdbc.JdbcCatalog",
    "jdbc.schema-version": "V1",
    "jdbc.init-catalog-tables": "false",
}
_FILE_IO = (
    (("s3", "s3a", "s3n"), "org.apache.iceberg.aws.s3.S3FileIO", "aws"),
    (("gs",), "org.apache.iceberg.gcp.gcs.GCSFileIO", "gcp"),
    (("abfs", "abfss", "wasb", "wasbs"), "org.apache.iceberg.azure.adlsv2.ADLSFileIO", "azure"),
)


@dataclass(frozen=True, slots=True)
class SparkSettings:
    """Jars and settings with which a Spark session reaches one catalog.

    Args:
        confs: Settings without secrets.
        secrets: Secret settings. They must not appear in a command line, log or XCom.
        packages: Maven coordinates.
    """

    confs: Mapping[str, str]
    secrets: Mapping[str, str] = field(repr=False)
    packages: tuple[str, ...]

    def session_confs(self) -> dict[str, str]:
        """Return all settings in one mapping for ``open_session``, with the packages as ``spark.jars.packages``."""
        return {**self.confs, **self.secrets, "spark.jars.packages": ",".join(self.packages)}

    def on(self, spark: str | None, scala: str | None = None) -> SparkSettings:
        """Return the settings for a version of Spark: the packages are its Iceberg runtime, and that Iceberg's bundles.

        Args:
            spark: The version, such as ``4.0.2``; ``None`` for an unknown one.
            scala: The version of its Scala library. By default the one of Spark's PyPI package.

        Raises:
            ConfigurationError: It is not supported.
        """
        release = SPARK if spark is None else runtime(spark, scala)
        if release is None:
            found = f"Spark {spark}" + (f" (Scala {scala})" if scala else "")
            raise ConfigurationError(f"{found} is not supported; supported are {supported()}")
        if release.partition("_")[0] not in SPARK_WITH_DELTA and DELTA_PACKAGE in self.packages:
            raise ConfigurationError(
                f"a view reads a Delta table: that needs Spark {' or '.join(SPARK_WITH_DELTA)}, not {spark}"
            )
        named = (
            package.replace(f"-runtime-{SPARK}:", f"-runtime-{release}:").replace(
                f":{ICEBERG_VERSION}", f":{RUNTIMES[release]}"
            )
            if package.startswith("org.apache.iceberg:iceberg-")
            else package.replace(f"delta-spark_{SPARK}:", f"delta-spark_{release}:")
            for package in self.packages
        )
        return replace(self, packages=tuple(named))

    def with_delta(self, properties: Mapping[str, str]) -> SparkSettings:
        """Return the settings for a session that also reads Delta tables. A session catalog that is set is kept.

        Args:
            properties: pyiceberg's properties of the catalog with whose access to stores they are read. Spark reads
                Delta tables by Hadoop's file systems, not by Iceberg's.
        """
        extensions = self.confs.get(_EXTENSIONS_KEY, EXTENSIONS).split(",")
        excluded = filter(None, self.confs.get(_EXCLUDES_KEY, "").split(","))
        confs = {
            **_hadoop_s3(properties),
            _SESSION_CATALOG: DELTA_CATALOG,
            **self.confs,
            _EXTENSIONS_KEY: ",".join(dict.fromkeys((*extensions, DELTA_EXTENSION))),
            _EXCLUDES_KEY: ",".join(dict.fromkeys((*excluded, *_NOT_FETCHED))),
        }
        secrets = {key: value for key, value in confs.items() if is_secret(key, value)}
        plain = {key: value for key, value in confs.items() if key not in secrets}
        packages = tuple(dict.fromkeys((*self.packages, DELTA_PACKAGE)))
        return SparkSettings(plain, {**secrets, **self.secrets}, packages)

    def merge(self, other: SparkSettings) -> SparkSettings:
        """Return settings for a session with the catalogs of both. ``other`` overrides equal keys."""
        return SparkSettings(
            {**self.confs, **other.confs},
            {**self.secrets, **other.secrets},
            tuple(dict.fromkeys((*self.packages, *other.packages))),
        )


def spark_settings(name: str, properties: Mapping[str, str], *, stores: Collection[str] = ()) -> SparkSettings:
    """Derive a Spark catalog's configuration from a pyiceberg catalog's.

    Args:
        name: The catalog's name, the same on both sides (it is stored in a SQL catalog's rows).
        properties: pyiceberg's catalog properties. Keys that start with ``spark.`` are raw Spark settings.
        stores: Schemes of stores that hold tables of the catalog. The warehouse of a REST catalog may be only a name.

    Raises:
        ConfigurationError: For a type, URI or property that Spark cannot be given. Names the catalog
            and the property, never a secret value.
    """
    if not re.fullmatch(r"[\w-]+", name):
        raise ConfigurationError(
            f"catalog {name!r}: a Spark catalog's name holds letters, digits, '_' and '-' only. Rename it."
        )
    given = {key: str(value) for key, value in properties.items() if value is not None}
    raw = {key: value for key, value in given.items() if key.startswith("spark.")}
    own = {key: value for key, value in given.items() if not key.startswith("spark.")}
    prefix = f"spark.sql.catalog.{name}"
    overridden = {key.removeprefix(f"{prefix}.") for key in raw if key.startswith(f"{prefix}.")}
    _refuse_unsupported(name, own, overridden)
    catalog, packages = _catalog(name, own, overridden)
    confs = {prefix: SPARK_CATALOG, **{f"{prefix}.{key}": value for key, value in catalog.items()}, **raw}
    confs[f"{prefix}.cache-enabled"] = "false"
    packages += _bundles({bundle for schemes, _, bundle in _FILE_IO if set(schemes) & set(stores)})
    packages += tuple(filter(None, confs.pop("spark.jars.packages", "").split(",")))
    confs = {**BASE_CONFS, **confs}
    secrets = {key: value for key, value in confs.items() if is_secret(key, value)}
    plain = {key: value for key, value in confs.items() if key not in secrets}
    return SparkSettings(plain, secrets, tuple(dict.fromkeys((RUNTIME, *packages))))


#: What Hadoop's S3A calls the properties of pyiceberg. Later rows override earlier ones.
_HADOOP_S3 = (
    ("client.region", "endpoint.region"),
    ("s3.region", "endpoint.region"),
    ("client.access-key-id", "access.key"),
    ("s3.access-key-id", "access.key"),
    ("client.secret-access-key", "secret.key"),
    ("s3.secret-access-key", "secret.key"),
    ("client.session-token", "session.token"),
    ("s3.session-token", "session.token"),
    ("s3.endpoint", "endpoint"),
)


def _hadoop_s3(properties: Mapping[str, str]) -> dict[str, str]:
    prefix = "spark.hadoop.fs.s3a"
    found = {f"{prefix}.{hadoop}": properties[key] for key, hadoop in _HADOOP_S3 if properties.get(key)}
    if not found:
        return {}
    path_style = {f"{prefix}.{key}": value for key, value in _s3_endpoint(properties).items()}
    styled = {key.replace(".s3.path-style-access", ".path.style.access"): value for key, value in path_style.items()}
    return {**found, **styled, "spark.hadoop.fs.s3.impl": "org.apache.hadoop.fs.s3a.S3AFileSystem"}


def _catalog(name: str, own: Mapping[str, str], overridden: set[str]) -> tuple[dict[str, str], tuple[str, ...]]:
    kind = _kind(name, own)
    passed = {key: value for key, value in own.items() if key not in _PYTHON_ONLY}
    if "catalog-impl" in own:
        return {**passed, **_uri(own), **_file_io(name, own, overridden)}, _packages(own, kind)
    if kind == "sql":
        jdbc, package = ({}, ()) if "uri" in overridden else _jdbc_properties(name, own)
        return {**passed, **_JDBC_CATALOG, **jdbc, **_file_io(name, own, overridden)}, (*package, *_packages(own, kind))
    if kind == "rest":
        passed = {DELEGATION: "vended-credentials", **passed}
    implementation = {"catalog-impl": _CATALOG_CLASSES[kind]} if kind in _CATALOG_CLASSES else {"type": kind}
    catalog = {**passed, **implementation, **_uri(own), **_file_io(name, own, overridden)}
    return catalog, _packages(own, kind)


def _kind(name: str, own: Mapping[str, str]) -> str:
    kind = own.get("type", "").lower() or _kind_of_uri(own.get("uri", ""))
    if "catalog-impl" in own or kind in ("sql", "rest", "hive", "glue", *_CATALOG_CLASSES):
        return kind
    advice = "Set type to sql, rest, hive, glue, dynamodb or bigquery, or catalog-impl to a Java catalog class."
    if kind:
        raise ConfigurationError(f"catalog {name!r}: Spark has no catalog for type={kind!r}. {advice}")
    raise ConfigurationError(
        f"catalog {name!r}: set 'type' or 'uri', so that the catalog implementation is known. {advice}"
    )


def _kind_of_uri(uri: str) -> str:
    scheme = uri.partition(":")[0].partition("+")[0].lower()
    return {"http": "rest", "https": "rest", "thrift": "hive", "sqlite": "sql", "postgresql": "sql"}.get(scheme, "")


def _uri(own: Mapping[str, str]) -> dict[str, str]:
    return {"uri": own["uri"]} if "uri" in own else {}


#: property -> (the Spark-side property that settles it, advice)
_UNSUPPORTED = {
    "auth": ("rest.auth.type", "Spark's REST client is configured by rest.auth.* properties"),
    "ssl": ("ssl", "Java trusts the certificates in its trust store"),
    "py-catalog-impl": ("catalog-impl", "name its Java counterpart"),
    "adls.client-secret": ("adls.token-credential-provider", "Spark's ADLS client takes a provider class"),
    "adls.credential": ("adls.token-credential-provider", "Spark's ADLS client takes a provider class"),
}


_GLUE_CREDENTIALS = (
    "client.credentials-provider",
    "Spark's Glue client takes credentials from the driver's environment (AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, "
    "AWS_PROFILE, the machine's role). Set them there and remove the property, or name a provider class",
)
#: Credentials that Python's Glue client uses and Spark's does not. Without a word Spark would use others.
_UNSUPPORTED_IN_GLUE = dict.fromkeys(
    ("glue.access-key-id", "client.access-key-id", "glue.profile-name", "client.profile-name"), _GLUE_CREDENTIALS
)
_PROFILE = (
    "client.credentials-provider",
    "Spark's S3 client takes no profile by name, and would use the driver's default credentials. Remove the property "
    "and set AWS_PROFILE for Airflow and for Spark's driver and executors, or name a provider class",
)
#: Settings of credentials beside which a profile is not used.
_OTHER_CREDENTIALS = frozenset({"s3.access-key-id", "client.access-key-id", "client.factory", "s3.signer"})


def _refuse_unsupported(name: str, own: Mapping[str, str], overridden: set[str]) -> None:
    for key in own:
        if key.startswith("jdbc.") and key not in _JDBC_KEYS:
            raise ConfigurationError(
                f"catalog {name!r}: the property {key!r} is not passed to the JDBC driver, because such properties "
                f"can load any class. To pass it anyway, set 'spark.sql.catalog.{name}.{key}'."
            )
    is_glue = own.get("type", "").lower() == "glue" and "client.factory" not in own.keys() | overridden
    unsupported = {**_UNSUPPORTED, **(_UNSUPPORTED_IN_GLUE if is_glue else {})}
    if not _OTHER_CREDENTIALS & (own.keys() | overridden):
        unsupported = {**dict.fromkeys(("s3.profile-name", "client.profile-name"), _PROFILE), **unsupported}
    for key, (settles, advice) in unsupported.items():
        if key in own and not {settles} & (overridden | (own.keys() - {key})):
            raise ConfigurationError(
                f"catalog {name!r}: Spark cannot use the property {key!r}: {advice}. "
                f"Add the property 'spark.sql.catalog.{name}.{settles}' for the Spark side."
            )


def _scheme(own: Mapping[str, str]) -> str:
    scheme, found, _ = own.get("warehouse", "").partition("://")
    return scheme.lower() if found else ""


def _packages(own: Mapping[str, str], kind: str) -> tuple[str, ...]:
    wanted = {
        bundle
        for schemes, _, bundle in _FILE_IO
        if _scheme(own) in schemes or any(key.startswith(_KEY_OF_BUNDLE[bundle]) for key in own)
    }
    wanted |= {"glue": {"aws"}, "dynamodb": {"aws"}, "bigquery": {"gcp"}}.get(kind, set())
    return _bundles(wanted)


def _bundles(names: Collection[str]) -> tuple[str, ...]:
    return tuple(f"org.apache.iceberg:iceberg-{name}-bundle:{_BUNDLES[name]}" for name in sorted(names))


#: The newest version of each bundle on Maven Central that is not newer than the runtime: not all have every release.
_BUNDLES = {"aws": ICEBERG_VERSION, "gcp": "1.11.0", "azure": "1.10.0"}
_KEY_OF_BUNDLE = {"aws": "s3.", "gcp": "gcs.", "azure": "adls."}


def _file_io(name: str, own: Mapping[str, str], overridden: set[str]) -> dict[str, str]:
    mapped: dict[str, str] = {}
    for schemes, implementation, _ in _FILE_IO:
        if _scheme(own) in schemes:
            mapped["io-impl"] = implementation
    mapped |= {
        **_mapped(own, _S3),
        **_s3_access(name, own, overridden),
        **_s3_endpoint(own),
        **_adls(name, own),
    }
    # Properties that already have Java's names are kept.
    return {key: value for key, value in mapped.items() if key not in own or key in _PYTHON_ONLY}


def _milliseconds(seconds: str) -> str:
    return str(round(float(seconds) * 1000))


def _same(value: str) -> str:
    return value


#: Later rows override earlier ones.
_S3: tuple[tuple[str, str, Callable[[str], str]], ...] = (
    ("glue.region", "client.region", _same),
    ("client.region", "client.region", _same),
    ("s3.region", "client.region", _same),
    ("client.access-key-id", "s3.access-key-id", _same),
    ("client.secret-access-key", "s3.secret-access-key", _same),
    ("client.session-token", "s3.session-token", _same),
    ("s3.connect-timeout", "http-client.apache.connection-timeout-ms", _milliseconds),
    ("s3.request-timeout", "http-client.apache.socket-timeout-ms", _milliseconds),
    ("s3.proxy-uri", "http-client.proxy-endpoint", _same),
    ("s3.server-side-encryption", "s3.sse.type", lambda value: "kms" if value.startswith("aws:kms") else "s3"),
    ("s3.sse-kms-key-id", "s3.sse.key", _same),
    ("s3.signer", "s3.remote-signing-enabled", lambda value: str(value == "S3V4RestSigner").lower()),
)


def _mapped(own: Mapping[str, str], rows: tuple[tuple[str, str, Callable[[str], str]], ...]) -> dict[str, str]:
    return {java: convert(own[python]) for python, java, convert in rows if python in own}


def _s3_endpoint(own: Mapping[str, str]) -> dict[str, str]:
    """Set path-style access if an endpoint is given, as pyiceberg does."""
    virtual = own.get("s3.force-virtual-addressing", "").lower() == "true"
    return {"s3.path-style-access": "true"} if "s3.endpoint" in own and not virtual else {}


def _s3_access(name: str, own: Mapping[str, str], overridden: set[str]) -> dict[str, str]:
    if own.get("s3.anonymous", "").lower() == "true":
        provider = "software.amazon.awssdk.auth.credentials.AnonymousCredentialsProvider"
        return {"client.credentials-provider": provider}
    role = own.get("s3.role-arn", own.get("client.role-arn"))
    if role is None or "client.factory" in own:
        return {}
    region = own.get("s3.region", own.get("client.region"))
    if region is None and "client.assume-role.region" not in overridden | own.keys():
        raise ConfigurationError(f"catalog {name!r}: a role (s3.role-arn) needs the property 's3.region' in Spark.")
    session = own.get("s3.role-session-name", own.get("client.role-session-name"))
    return {
        "client.factory": "org.apache.iceberg.aws.AssumeRoleAwsClientFactory",
        "client.assume-role.arn": role,
        **({"client.assume-role.region": region} if region else {}),
        **({"client.assume-role.session-name": session} if session else {}),
    }


def _adls(name: str, own: Mapping[str, str]) -> dict[str, str]:
    """Map ADLS credentials: Java's SAS token and connection string are keyed by the account's host."""
    needing = [key for key in ("adls.sas-token", "adls.connection-string", "adls.account-key") if key in own]
    if not needing:
        return {}
    account = own.get("adls.account-name")
    if account is None:
        raise ConfigurationError(
            f"catalog {name!r}: the property {needing[0]!r} needs 'adls.account-name' beside it in Spark."
        )
    host = own.get("adls.account-host", f"{account}.dfs.core.windows.net")
    mapped = {f"{key}.{host}": own[key] for key in needing if key != "adls.account-key"}
    if "adls.account-key" in own:
        mapped["adls.auth.shared-key.account.name"] = account
        mapped["adls.auth.shared-key.account.key"] = own["adls.account-key"]
    return mapped


def _jdbc_properties(name: str, own: Mapping[str, str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return JdbcCatalog's properties for a SQLAlchemy address, and the driver's Maven coordinates."""
    uri = own.get("uri", "")
    dialect = uri.partition(":")[0].partition("+")[0].lower()
    if dialect == "sqlite":
        return _sqlite(name, uri), (SQLITE,)
    if dialect in ("postgresql", "postgres"):
        return _postgresql(name, uri), (POSTGRESQL,)
    problem = f"no JDBC driver is known for {dialect!r}" if dialect else "it is empty"
    raise ConfigurationError(
        f"catalog {name!r}: the property 'uri' does not fit Spark: {problem}. SQLite and PostgreSQL work by "
        f"themselves; for another database add the properties 'spark.sql.catalog.{name}.uri' (a JDBC URL) and "
        f"'spark.jars.packages' (its driver)."
    )


def _sqlite(name: str, uri: str) -> dict[str, str]:
    rest = uri.partition("://")[2]
    path, _, query = rest.partition("?")
    options = _options(name, query, _SQLITE_OPTIONS)
    path = path.removeprefix("/")
    if path in ("", ":memory:") or path.startswith("file:"):
        raise ConfigurationError(
            f"catalog {name!r}: the property 'uri' names no database file, so Spark cannot share it. "
            f"Use sqlite:////absolute/path.db"
        )
    try:
        busy = str(round(float(options["timeout"]) * 1000)) if "timeout" in options else _SQLITE_BUSY_MS
    except ValueError:
        raise ConfigurationError(f"catalog {name!r}: 'timeout' in the property 'uri' is not a number.") from None
    return {"uri": f"jdbc:sqlite:{os.path.abspath(path)}", "jdbc.busy_timeout": busy}  # noqa: PTH100 - text only


def _postgresql(name: str, uri: str) -> dict[str, str]:
    try:
        parts = urlsplit(uri)
        port = parts.port or 5432
    except ValueError:  # its text may contain the password
        raise ConfigurationError(
            f"catalog {name!r}: the property 'uri' is not a URL (escape special characters of a password as %XX)."
        ) from None
    options = _options(name, parts.query, frozenset(_POSTGRESQL_OPTIONS))
    if not parts.hostname or "," in parts.netloc:
        raise ConfigurationError(
            f"catalog {name!r}: the property 'uri' must name one host: Java has no Unix sockets. "
            f"For more than one, set 'spark.sql.catalog.{name}.uri' to a JDBC URL."
        )
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    query = "&".join(f"{_POSTGRESQL_OPTIONS[key]}={quote(value, safe='')}" for key, value in options.items())
    jdbc = {"uri": f"jdbc:postgresql://{host}:{port}/{quote(parts.path[1:], safe='')}{'?' if query else ''}{query}"}
    if parts.username is not None:
        jdbc["jdbc.user"] = unquote(parts.username)
    if parts.password is not None:
        jdbc["jdbc.password"] = unquote(parts.password)
    return jdbc


def _options(name: str, query: str, allowed: frozenset[str]) -> dict[str, str]:
    options = dict(parse_qsl(query, keep_blank_values=True))
    for key in options:
        if key not in allowed:
            raise ConfigurationError(
                f"catalog {name!r}: the option {key!r} in the property 'uri' is not handed to Spark. Allowed are "
                f"{', '.join(sorted(allowed))}; anything else goes into 'spark.sql.catalog.{name}.uri' (a JDBC URL)."
            )
    return options
