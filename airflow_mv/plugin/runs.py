# SPDX-License-Identifier: Apache-2.0
"""Read from Airflow's database which DAGs refresh views, and how their runs ended.

Every function omits what the user, a :class:`Reader`, may not see.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import unquote, urlsplit
from uuid import UUID

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.base_user import BaseUser
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity, DagDetails
from airflow.models.asset import AssetEvent, AssetModel, TaskOutletAssetReference
from airflow.models.dag import DagModel
from airflow.models.dagrun import DagRun
from airflow.models.taskinstance import TaskInstance
from sqlalchemy import Select, Subquery, and_, func, or_, select, union
from sqlalchemy.engine import Row
from sqlalchemy.orm import Session

from airflow_mv.assets import SCHEME, materialized_view_asset
from airflow_mv.plugin.intervals import Runs, rows_of
from airflow_mv.plugin.manual_run import asking
from airflow_mv.plugin.messages import said
from airflow_mv.tasks.older_airflow import BEFORE_3_2

#: How long a failed try is shown in the list.
_RECENTLY = timedelta(days=30)
_EVENTS = 100
_TASKS = 50
#: Task states that a timeline shows in addition to published refreshes.
_AT_WORK = ("running", "deferred", "queued", "scheduled")
#: A refresh does not start where the task before it has failed, such as the one that creates the view.
_NOT_STARTED = "upstream_failed"
_FAILED = ("failed", "up_for_retry", _NOT_STARTED)
_SHOWN = (*_FAILED, *_AT_WORK)
_UNFINISHED = ("queued", "running")
_IS_VIEW = AssetModel.uri.startswith(f"{SCHEME}://")


@dataclass(frozen=True, slots=True)
class Reader:
    """A user of Airflow who may read assets, and what they may do with DAGs according to Airflow's auth manager.

    Args:
        user: As Airflow has authenticated them.
    """

    user: BaseUser

    def readable(self, dag_ids: Collection[str], session: Session) -> set[str]:
        """Return those of the DAGs whose runs the user may read."""
        teams = _teams(dag_ids, session)
        return {dag_id for dag_id in dag_ids if self._may_read(dag_id, teams)}

    def runnable(self, dag_ids: Collection[str], session: Session) -> set[str]:
        """Return those of the DAGs that the user may run. Airflow's REST API checks it again."""
        teams = _teams(dag_ids, session)
        return {
            dag_id
            for dag_id in dag_ids
            if get_auth_manager().is_authorized_dag(
                method="POST",
                access_entity=DagAccessEntity.RUN,
                details=DagDetails(id=dag_id, team_name=teams.get(dag_id)),
                user=self.user,
            )
        }

    def _may_read(self, dag_id: str, teams: Mapping[str, str | None]) -> bool:
        details = DagDetails(id=dag_id, team_name=teams.get(dag_id))
        manager = get_auth_manager()
        return manager.is_authorized_dag(method="GET", details=details, user=self.user) and manager.is_authorized_dag(
            method="GET", access_entity=DagAccessEntity.RUN, details=details, user=self.user
        )


def _teams(dag_ids: Collection[str], session: Session) -> Mapping[str, str | None]:
    if BEFORE_3_2 or not dag_ids:  # Airflow 3.1 has no teams
        return {}
    return DagModel.get_dag_id_to_team_name_mapping(list(dag_ids), session=session)


def catalog_names(session: Session) -> set[str]:
    """Return the names of the catalogs whose views are assets of this Airflow."""
    uris = session.scalars(select(AssetModel.uri).where(_IS_VIEW))
    return {unquote(urlsplit(uri).netloc) for uri in uris}


def views_of(dag_id: str, session: Session) -> list[str]:
    """Return the views that a DAG refreshes."""
    declared = select(TaskOutletAssetReference.asset_id).where(TaskOutletAssetReference.dag_id == dag_id)
    published = select(AssetEvent.asset_id).where(AssetEvent.source_dag_id == dag_id)
    query = select(AssetModel.name).where(_IS_VIEW, or_(AssetModel.id.in_(declared), AssetModel.id.in_(published)))
    return sorted(set(session.scalars(query)))


def refreshers(view: str, reader: Reader, session: Session) -> dict[str, Any]:
    """Return which DAGs refresh a view, and whether the user may run them.

    Returns:
        ``dags``: those that the user may read, each with whether they are ``allowed`` to run it, ``may_run``, what
        prevents a run, ``next_run`` (when its
        schedule creates the next one), and the input of a run (:func:`~airflow_mv.plugin.manual_run.asking`);
        ``hidden``: how many other ones there are.
    """
    dags: dict[str, dict[str, Any]] = {}
    tasks = _tasks(view)
    query = (
        select(tasks.c.task_id, DagModel)
        .join(DagModel, DagModel.dag_id == tasks.c.dag_id)
        .where(~DagModel.is_stale)
        .order_by(DagModel.dag_id, tasks.c.task_id)
    )
    for task_id, dag in session.execute(query):
        entry = {
            "dag_id": dag.dag_id,
            "name": dag.dag_display_name,
            "paused": dag.is_paused,
            "next_run": None if dag.is_paused else _iso(dag.next_dagrun_create_after),
            "tasks": [],
        }
        dags.setdefault(dag.dag_id, entry)["tasks"].append(task_id)
    readable, runnable = reader.readable(dags, session), reader.runnable(dags, session)
    shown = [
        {
            **dag,
            "allowed": dag["dag_id"] in runnable,
            "may_run": dag["dag_id"] in runnable and not dag["paused"],
            "reason": _in_the_way(dag, runnable),
            **asking(dag["dag_id"], session),
        }
        for dag in dags.values()
        if dag["dag_id"] in readable
    ]
    return {"dags": shown, "hidden": len(dags) - len(shown)}


def _tasks(view: str) -> Subquery:
    """Select the tasks that refresh a view. A task mapped over views names none before it has run."""
    reference = TaskOutletAssetReference
    asset = select(AssetModel.id).where(AssetModel.uri == _uri(view)).scalar_subquery()
    declared = select(reference.dag_id.label("dag_id"), reference.task_id.label("task_id"))
    published = select(AssetEvent.source_dag_id, AssetEvent.source_task_id)
    return union(
        declared.where(reference.asset_id == asset),
        published.where(AssetEvent.asset_id == asset, AssetEvent.source_dag_id.is_not(None)),
    ).subquery()


def _in_the_way(dag: Mapping[str, Any], runnable: Collection[str]) -> str:
    if dag["dag_id"] not in runnable:
        return "To run it, you need the permission to create its runs."
    return "This DAG is paused, so its run would wait. Unpause it first." if dag["paused"] else ""


def last_refreshes(views: Iterable[str], reader: Reader, session: Session) -> dict[str, dict[str, Any]]:
    """Return the last refresh of each view that Airflow published."""
    uris = {_uri(view): view for view in views}
    newest = (
        select(func.max(AssetEvent.id))
        .join(AssetModel, AssetModel.id == AssetEvent.asset_id)
        .where(AssetModel.uri.in_(uris))
        .group_by(AssetEvent.asset_id)
    )
    rows = session.execute(_events().where(AssetEvent.id.in_(newest)).add_columns(AssetModel.uri)).all()
    allowed = reader.readable({row.AssetEvent.source_dag_id for row in rows if row.AssetEvent.source_dag_id}, session)
    return {uris[row.uri]: _event(row) for row in rows if row.AssetEvent.source_dag_id in allowed}


def has_refreshed(session: Session) -> bool:
    """Whether a task of this Airflow has refreshed a view, of any user."""
    query = select(AssetEvent.id).join(AssetModel, AssetModel.id == AssetEvent.asset_id).where(_IS_VIEW).limit(1)
    return session.scalar(query) is not None


def at_work(reader: Reader, session: Session) -> set[str]:
    """Return the views that a running or waiting task refreshes, as far as it is declared by its outlets."""
    reference = TaskOutletAssetReference
    query = (
        select(AssetModel.name, TaskInstance.dag_id)
        .join(reference, reference.asset_id == AssetModel.id)
        .join(TaskInstance, and_(TaskInstance.dag_id == reference.dag_id, TaskInstance.task_id == reference.task_id))
        .join(DagRun, and_(DagRun.dag_id == TaskInstance.dag_id, DagRun.run_id == TaskInstance.run_id))
        .where(_IS_VIEW, DagRun.state.in_(_UNFINISHED))
        .where(or_(TaskInstance.state.in_(_AT_WORK), TaskInstance.state.is_(None)))
        .distinct()
    )
    rows = session.execute(query).all()
    allowed = reader.readable({row.dag_id for row in rows}, session)
    return {row.name for row in rows if row.dag_id in allowed}


def failed(reader: Reader, session: Session) -> dict[str, UUID]:
    """Return the views whose last ended try has failed, each with its task instance."""
    rows = session.execute(_last_failures()).all()
    allowed = reader.readable({row.dag_id for row in rows}, session)
    return {row.name: row.id for row in rows if row.dag_id in allowed}


def failures(tries: Mapping[str, UUID], session: Session) -> dict[str, dict[str, Any]]:
    """Return the failed tries of views. Of a refresh that did not start it is the task that failed before it.

    Args:
        tries: Some of what :func:`failed` has returned.
        session: Of Airflow's database.
    """
    query = (
        select(TaskInstance, DagRun)
        .join(DagRun, and_(DagRun.dag_id == TaskInstance.dag_id, DagRun.run_id == TaskInstance.run_id))
        .where(TaskInstance.id.in_(tries.values()))
    )
    found = {row.TaskInstance.id: row for row in session.execute(query)} if tries else {}
    known = Runs(session)
    return {view: _task(_cause(found[task], session), known, None) for view, task in tries.items() if task in found}


def _cause(row: Row[TaskInstance, DagRun], session: Session) -> Row[TaskInstance, DagRun]:
    """Return the first task of the run that has failed, if the given one did not start."""
    if row.TaskInstance.state != _NOT_STARTED:
        return row
    query = (
        select(TaskInstance, DagRun)
        .join(DagRun, and_(DagRun.dag_id == TaskInstance.dag_id, DagRun.run_id == TaskInstance.run_id))
        .where(TaskInstance.dag_id == row.DagRun.dag_id, TaskInstance.run_id == row.DagRun.run_id)
        .where(TaskInstance.state == "failed")
        .order_by(TaskInstance.end_date)
        .limit(1)
    )
    return session.execute(query).first() or row


def _last_failures() -> Select[str, UUID, str]:
    """Select the failed tries after which no other try of the same view has ended.

    The failed tries of all views are read once. Only the last one of each view is compared with the view's other tries,
    which are many.
    """
    reference = TaskOutletAssetReference
    of_task = and_(TaskInstance.dag_id == reference.dag_id, TaskInstance.task_id == reference.task_id)
    of_views = select(reference.dag_id).join(AssetModel, AssetModel.id == reference.asset_id).where(_IS_VIEW)
    failed = (
        select(TaskInstance.id, TaskInstance.dag_id, TaskInstance.task_id, TaskInstance.end_date)
        .where(TaskInstance.state.in_(_FAILED), TaskInstance.end_date > datetime.now(UTC) - _RECENTLY)
        .where(TaskInstance.dag_id.in_(of_views))
        .cte()
        # Otherwise PostgreSQL may search them again for each view.
        .prefix_with("MATERIALIZED", dialect="postgresql")
    )
    place = func.row_number().over(partition_by=reference.asset_id, order_by=failed.c.end_date.desc())
    tries = (
        select(AssetModel.name, reference.asset_id, failed, place.label("place"))
        .join(reference, reference.asset_id == AssetModel.id)
        .join(failed, and_(failed.c.dag_id == reference.dag_id, failed.c.task_id == reference.task_id))
        .where(_IS_VIEW)
        .subquery()
    )
    # In a function, so that the few instances of the task are searched, and not the many of the DAG in these states.
    state = func.coalesce(TaskInstance.state, "")
    ended_later = (
        select(TaskInstance.id)
        .join(reference, of_task)
        .where(reference.asset_id == tries.c.asset_id, TaskInstance.end_date > tries.c.end_date)
        .where(state.in_((*_FAILED, "success")))
        .correlate(tries)
    )
    return select(tries.c.name, tries.c.id, tries.c.dag_id).where(tries.c.place == 1, ~ended_later.exists())


def dags_of_views(reader: Reader, session: Session) -> dict[str, set[str]]:
    """Return the DAGs that refresh each view, those that the user may read."""
    reference = TaskOutletAssetReference
    declared = select(AssetModel.name, reference.dag_id).join(reference, reference.asset_id == AssetModel.id)
    published = select(AssetModel.name, AssetEvent.source_dag_id).join(AssetEvent, AssetEvent.asset_id == AssetModel.id)
    pairs = union(declared.where(_IS_VIEW), published.where(_IS_VIEW, AssetEvent.source_dag_id.is_not(None))).subquery()
    query = select(pairs).join(DagModel, DagModel.dag_id == pairs.c.dag_id).where(~DagModel.is_stale)
    rows = session.execute(query).all()
    allowed = reader.readable({row.dag_id for row in rows}, session)
    found: dict[str, set[str]] = {}
    for row in rows:
        if row.dag_id in allowed:
            found.setdefault(row.name, set()).add(row.dag_id)
    return found


def timeline(view: str, reader: Reader, session: Session, kind: str | None = None) -> list[dict[str, Any]]:
    """Return a view's events in Airflow, newest first: published refreshes, failures and running tasks.

    Args:
        reader: Who reads.
        session: Of Airflow's database.
        kind: The type of the view's interval column, if it has one.
    """
    newest = _events().where(AssetModel.uri == _uri(view)).order_by(AssetEvent.timestamp.desc()).limit(_EVENTS)
    events = session.execute(newest).all()
    tasks = _unpublished(view, session)
    dag_ids = {row.AssetEvent.source_dag_id for row in events} | {row.TaskInstance.dag_id for row in tasks}
    allowed = reader.readable(dag_ids - {None}, session)
    found = [_event(row) for row in events if row.AssetEvent.source_dag_id in allowed]
    known = Runs(session)
    found += [_task(row, known, kind) for row in tasks if row.TaskInstance.dag_id in allowed]
    return sorted(found, key=lambda item: item["at"] or "", reverse=True)


def _unpublished(view: str, session: Session) -> Sequence[Row[TaskInstance, DagRun]]:
    """Find the latest task instances that refresh the view and have failed, or are unfinished."""
    tasks = _tasks(view)
    query = (
        select(TaskInstance, DagRun)
        .join(DagRun, and_(DagRun.dag_id == TaskInstance.dag_id, DagRun.run_id == TaskInstance.run_id))
        .join(tasks, and_(tasks.c.dag_id == TaskInstance.dag_id, tasks.c.task_id == TaskInstance.task_id))
        .where(or_(TaskInstance.state.in_(_SHOWN), and_(TaskInstance.state.is_(None), DagRun.state.in_(_UNFINISHED))))
        .order_by(TaskInstance.start_date.desc())
        .limit(_TASKS)
    )
    rows = session.execute(query).all()
    return [row for row in rows if row.TaskInstance.map_index < 0 or row.TaskInstance.rendered_map_index == view]


def _events() -> Select[AssetEvent, TaskInstance, DagRun]:
    """Asset events with the task instance and the run that made them, if those still exist."""
    return (
        select(AssetEvent, TaskInstance, DagRun)
        .join(AssetModel, AssetModel.id == AssetEvent.asset_id)
        .outerjoin(
            TaskInstance,
            and_(
                TaskInstance.dag_id == AssetEvent.source_dag_id,
                TaskInstance.run_id == AssetEvent.source_run_id,
                TaskInstance.task_id == AssetEvent.source_task_id,
                or_(TaskInstance.map_index == AssetEvent.source_map_index, AssetEvent.source_map_index.is_(None)),
            ),
        )
        .outerjoin(DagRun, and_(DagRun.dag_id == AssetEvent.source_dag_id, DagRun.run_id == AssetEvent.source_run_id))
    )


def _event(row: Any) -> dict[str, Any]:
    event, task = row.AssetEvent, row.TaskInstance
    extra: Mapping[str, Any] = event.extra if isinstance(event.extra, dict) else {}
    seconds = extra.get("seconds", task.duration if task is not None else None)
    return {
        "kind": "refreshed",
        "at": _iso(event.timestamp),
        "refresh_id": extra.get("refresh_id"),
        "mode": extra.get("mode"),
        "rows_written": extra.get("rows_written"),
        "seconds": seconds,
        "lag": _number(extra.get("lag_seconds")),
        **said(extra),
        "by": _by(row.DagRun),
        "dag_id": event.source_dag_id,
        "run_id": event.source_run_id,
        "task_id": event.source_task_id,
        "map_index": event.source_map_index,
    }


def _task(row: Any, known: Runs, kind: str | None) -> dict[str, Any]:
    task = row.TaskInstance
    span = known.interval(row.DagRun, task.task_id) if kind else None
    return {
        "kind": "failed" if task.state in _FAILED else "running",
        "at": _iso(task.end_date or task.start_date or row.DagRun.run_after),
        "state": task.state or "waiting",
        "interval": rows_of(span, kind).to_dict() if span and kind else None,
        "refresh_id": None,
        "mode": None,
        "rows_written": None,
        "seconds": task.duration,
        "by": _by(row.DagRun),
        "dag_id": task.dag_id,
        "run_id": task.run_id,
        "task_id": task.task_id,
        "map_index": task.map_index,
        "try_number": task.try_number,
    }


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _by(run: DagRun | None) -> str | None:
    """The user who started the run, or its trigger."""
    if run is None:
        return None
    kind = {"asset_triggered": "an asset event", "asset_materialization": "a materialization"}.get(
        run.run_type, str(run.run_type)
    )
    return f"{run.triggering_user_name} ({kind})" if run.triggering_user_name else kind


def _uri(view: str) -> str:
    return materialized_view_asset(view).uri


def _iso(moment: datetime | None) -> str | None:
    return moment.isoformat() if moment else None
