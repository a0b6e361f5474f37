# SPDX-License-Identifier: Apache-2.0
"""What the page's user may see and do, according to Airflow's auth manager."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.base_user import BaseUser
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity, DagDetails
from airflow.models.dag import DagModel
from sqlalchemy.orm import Session


@dataclass(frozen=True, slots=True)
class Reader:
    """A user of Airflow who may read assets.

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
    return DagModel.get_dag_id_to_team_name_mapping(list(dag_ids), session=session) if dag_ids else {}
