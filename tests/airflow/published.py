# SPDX-License-Identifier: Apache-2.0
"""What services publish about their requests, where no client library has it: names, types, choices, limits.

Livy: ``docs/rest-api.md`` of apache/incubator-livy, ``POST /batches``. Spark operator: the definition of the resource
``SparkApplication`` (v1beta2) in kubeflow/spark-operator, of which the fields are here that the example sets.
Unknown fields are refused: the API server drops them, and Livy answers with an error.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

Positive = Annotated[int, msgspec.Meta(ge=1)]


class _Request(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    """A JSON object."""


class LivyBatch(_Request):
    """The body of Livy's ``POST /batches``."""

    file: str
    proxy_user: str | msgspec.UnsetType = msgspec.UNSET
    class_name: str | msgspec.UnsetType = msgspec.UNSET
    args: list[str] = []
    jars: list[str] = []
    py_files: list[str] = []
    files: list[str] = []
    driver_memory: str | msgspec.UnsetType = msgspec.UNSET
    driver_cores: int | msgspec.UnsetType = msgspec.UNSET
    executor_memory: str | msgspec.UnsetType = msgspec.UNSET
    executor_cores: int | msgspec.UnsetType = msgspec.UNSET
    num_executors: int | msgspec.UnsetType = msgspec.UNSET
    archives: list[str] = []
    queue: str | msgspec.UnsetType = msgspec.UNSET
    name: str | msgspec.UnsetType = msgspec.UNSET
    conf: dict[str, str] = {}


class _Secret(_Request):
    name: str
    path: str
    secret_type: str


class _Variable(_Request):
    name: str
    value: str = ""


class _RestartPolicy(_Request):
    type: Literal["Never", "Always", "OnFailure"]


class _Dependencies(_Request):
    py_files: list[str] = []
    packages: list[str] = []


class _Pod(_Request):
    cores: Positive
    memory: str


class _Driver(_Pod):
    service_account: str = ""
    env: list[_Variable] = []
    secrets: list[_Secret] = []


class _Executor(_Pod):
    instances: Positive = 1


class _Specification(_Request):
    type: Literal["Java", "Python", "Scala", "R"]
    spark_version: str
    main_application_file: str
    driver: _Driver
    executor: _Executor
    python_version: Literal["2", "3"]
    mode: Literal["cluster", "client"]
    image: str
    restart_policy: _RestartPolicy
    arguments: list[str]
    deps: _Dependencies
    spark_conf: dict[str, str]


class _Metadata(_Request):
    name: str
    namespace: str


class SparkApplication(_Request):
    """Kubeflow's resource of a Spark application."""

    api_version: Literal["sparkoperator.k8s.io/v1beta2"]
    kind: Literal["SparkApplication"]
    metadata: _Metadata
    spec: _Specification


def checked(sent: Any, kind: type[msgspec.Struct]) -> Any:
    """Return a request, after it was compared with what its service publishes.

    Raises:
        msgspec.ValidationError: A field is missing, unknown, or of another type.
    """
    msgspec.convert(sent, kind)
    return sent
