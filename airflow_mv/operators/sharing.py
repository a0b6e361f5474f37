# SPDX-License-Identifier: Apache-2.0
"""Run a task's script in the Spark application that its DAG run shares, if that runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from airflow.sdk import Context

from airflow_mv.errors import JobError, StoppedError
from airflow_mv.extras.shared_application.job.requests import FolderContent, JobAnswer, Pulse, is_answered
from airflow_mv.hooks.airflow_compat import one_task_at_a_time
from airflow_mv.operators.submission_files import write_script

if TYPE_CHECKING:
    from airflow.sdk.types import Logger

    from airflow_mv.core.catalog import MaterializedViewCatalog
    from airflow_mv.core.script import Outcome, Script
    from airflow_mv.extras.shared_application.folder import ApplicationFolder

#: The XCom of the application's task that has the folder's location.
FOLDER_KEY = "application_folder"
#: How long a task waits for the task of the application to start.
START_SECONDS = 60.0
#: How long a task that may be deferred waits in its worker first. A small refresh in an application that runs ends
#: earlier, and deferring a task costs another start of its process.
PATIENCE_SECONDS = 10.0
_POLL_SECONDS = 0.5
#: Of a task that waits for its script, which may take less than a second.
_ANSWER_SECONDS = 0.2
#: States of a task that has not begun its first try.
_COMING = (None, "scheduled", "queued")
_RUNNING = "running"


class SharedApplication:
    """The application of this DAG run, as one of its tasks uses it.

    Args:
        task_id: The task that runs the application.
        log: The task's log.
    """

    def __init__(self, task_id: str, log: Logger) -> None:
        self._task_id = task_id
        self._log = log
        #: The location of the script that the application ran before the task was resumed, and the answer.
        self._answered: tuple[str, JobAnswer] | None = None
        self._is_gone = False
        self._asked: tuple[ApplicationFolder, str] | None = None

    def stage(
        self,
        catalog: MaterializedViewCatalog,
        context: Context,
        script: Script,
        defer: Callable[[str, str], None] | None = None,
    ) -> Outcome | None:
        """Run a script in the application.

        Args:
            context: The task's context.
            script: The script, with a location for its outcome.
            defer: Called with folder and key. It ends this try of the task, which continues with the event of the
                trigger; ``None`` to wait here.

        Returns:
            ``None`` if the script has to run in an application of its own. The log says why.

        Raises:
            JobError: The application ran the script, and there is no outcome.
        """
        from airflow_mv.core.script import script_beside
        from airflow_mv.extras.shared_application.folder import new_key, request_of

        if self._answered is not None and self._answered[0] == script_beside(str(script.outcome_location)):
            return self._outcome(catalog, script, self._answered[1])
        folder = None if self._is_gone else self._found(catalog, context)
        if folder is None:
            return None
        request, key = request_of(catalog, script, write_script(catalog, script)), new_key()
        self._asked = folder, key
        folder.ask(key, request)
        self._log.info("The script runs in the Spark application of this DAG run (task %s)", self._task_id)
        answer = self._waited(folder, key, defer)
        self._note(answer)
        return None if answer is None else self._outcome(catalog, script, answer)

    def resume(self, catalog: MaterializedViewCatalog, event: Mapping[str, Any]) -> str | None:
        """Take the event of the trigger.

        Returns:
            The id of the Spark application that ran the script, if one did.

        Raises:
            StoppedError: The task's time has ended. The script was cancelled.
        """
        from airflow_mv.core.script import location_of
        from airflow_mv.extras.shared_application.folder import ApplicationFolder

        folder, key = ApplicationFolder(catalog, str(event["folder"])), str(event["key"])
        if event.get("late"):
            folder.cancel(key)
            raise StoppedError(
                f"the script in the shared Spark application (task {self._task_id}) was cancelled: it ran for longer "
                "than the task's execution_timeout. Nothing was published"
            )
        answered = event["answered"]
        if answered is None:
            self._log.warning("The triggerer cannot read the folder %s: waiting in this worker slot", folder.folder)
            self._asked = folder, key
            answer = self._waited(folder, key, None)
        else:
            answer = folder.answer(key) if answered else None
        request = folder.request(key)
        self._note(answer)
        if request is None or answer is None or not answer.ran:
            self._is_gone = True
            return None
        self._answered = location_of(request.submitted), answer
        return answer.application_id

    def cancel(self) -> None:
        """Stop the script, if one runs."""
        asked, self._asked = self._asked, None
        if asked is not None:
            folder, key = asked
            folder.cancel(key)

    def _waited(
        self, folder: ApplicationFolder, key: str, defer: Callable[[str, str], None] | None
    ) -> JobAnswer | None:
        """Wait for the answer; ``None`` if the application has ended without one."""
        pulse, patient_until = Pulse(), time.monotonic() + PATIENCE_SECONDS
        content = FolderContent.of({})
        while (answered := is_answered(content := folder.content_after(content), key, pulse)) is None:
            if defer is not None and time.monotonic() > patient_until:
                defer(folder.folder, key)
            time.sleep(_ANSWER_SECONDS if time.monotonic() < patient_until else _POLL_SECONDS)
        self._asked = None
        return folder.answer(key) if answered else None

    def _note(self, answer: JobAnswer | None) -> None:
        """Log what the application did."""
        for line in answer.lines if answer else ():
            self._log.info("%s", line)
        if answer is None:
            self._alone("it has ended before it had run the script")
        elif not answer.ran:
            self._alone(str(answer.refusal))

    def _outcome(self, catalog: MaterializedViewCatalog, script: Script, answer: JobAnswer) -> Outcome | None:
        from airflow_mv.core.publish.layout import read_outcome

        if not answer.ran:
            return None
        outcome = read_outcome(catalog, script)
        if outcome is None:
            missing = f"there is no outcome at {script.outcome_location}"
            raise JobError(f"view {script.view}: the Spark job failed: {answer.refusal or missing}")
        return outcome

    def _found(self, catalog: MaterializedViewCatalog, context: Context) -> ApplicationFolder | None:
        """Return the application's folder; ``None`` if its task does not run."""
        from airflow_mv.extras.shared_application.folder import ApplicationFolder

        if one_task_at_a_time():
            return self._beside(context)
        ti: Any = context["ti"]
        deadline = time.monotonic() + START_SECONDS
        while (state := self._state(ti)) in _COMING and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
        while state == _RUNNING and time.monotonic() < deadline:
            folder = ti.xcom_pull(task_ids=self._task_id, key=FOLDER_KEY, map_indexes=-1)
            if folder:
                return ApplicationFolder(catalog, str(folder))
            time.sleep(_POLL_SECONDS)
            state = self._state(ti)
        self._alone(f"its task {self._task_id} is in the state {state or 'not started'}")
        return None

    def _beside(self, context: Context) -> ApplicationFolder | None:
        """Return the folder of an application that runs beside this process's tasks."""
        dag: Any = context["task"].dag
        application: Any = dag.get_task(self._task_id)
        folder: ApplicationFolder | None = application.beside(context)
        if folder is None:
            self._alone("this run has none")
        return folder

    def _state(self, ti: Any) -> str | None:
        states: Mapping[str, Mapping[str, str | None]] = ti.get_task_states(
            dag_id=ti.dag_id, task_ids=[self._task_id], run_ids=[ti.run_id]
        )
        return states.get(ti.run_id, {}).get(self._task_id, "removed")

    def _alone(self, why: str) -> None:
        self._log.info("No shared Spark application: %s. This task starts one of its own", why)
