# SPDX-License-Identifier: Apache-2.0
"""How long Spark's executors have worked for a run, as the driver's status store tells it."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pyspark.sql import SparkSession

if TYPE_CHECKING:
    from pyspark.core.context import SparkContext  # a Connect client has none

#: The longest wait for the driver's listeners, in ms: they learn of the end of a stage a moment after the job's end.
_LISTENERS_MS = 20_000


class ExecutorTime:
    """The executor run time of all stages of the jobs that were started under a tag.

    Args:
        context: Spark's Scala context, by py4j; ``None`` over Connect, where a client cannot ask for it.
        tag: The tag of the jobs.
    """

    def __init__(self, context: Any, tag: str) -> None:
        self._context, self._tag = context, tag
        self._stages: dict[int, int] = {}
        self._known = context is not None

    def read(self) -> None:
        """Note the stages that have ended. Called after each step, because Spark forgets old stages."""
        if not self._known:
            return
        try:
            self._context.listenerBus().waitUntilEmpty(_LISTENERS_MS)
            store = self._context.statusStore()
            for job in self._context.statusTracker().getJobIdsForTag(self._tag):
                stages = store.job(job).stageIds()
                for at in range(stages.size()):
                    stage = int(stages.apply(at))
                    self._stages[stage] = int(store.lastStageAttempt(stage).executorRunTime())
        except Exception:  # noqa: BLE001 (py4j's errors have no common base; a run never fails because of it)
            self._known = False

    def seconds(self) -> float | None:
        """Return the time up to now, in seconds; ``None`` if Spark does not tell it."""
        self.read()
        return round(sum(self._stages.values()) / 1000, 3) if self._known else None


@contextmanager
def measured(spark: SparkSession) -> Iterator[ExecutorTime]:
    """Tag the jobs of this thread for a while, and yield the time that executors work for them.

    Args:
        spark: A session, classic or Connect.
    """
    tag = f"airflow-mv-{uuid.uuid4().hex}"
    context = _tagged(spark, tag)
    try:
        yield ExecutorTime(None if context is None else context._jsc.sc(), tag)
    finally:
        if context is not None:
            context.removeJobTag(tag)


def _tagged(spark: SparkSession, tag: str) -> SparkContext | None:
    """Tag this thread's jobs from now on. Return the context; ``None`` over Connect, or if a platform forbids it."""
    try:
        context = spark.sparkContext
        context.addJobTag(tag)
    except Exception:  # noqa: BLE001 (a platform has errors of its own; a run never fails because of it)
        return None
    return context
