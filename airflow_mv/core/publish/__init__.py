# SPDX-License-Identifier: Apache-2.0
"""Publish changes of views: one protocol for all changes, and three layouts of the storage table."""

from airflow_mv.core.publish.protocol import Effects as Effects
from airflow_mv.core.publish.publications import publish as publish
from airflow_mv.core.publish.refresh import Published as Published
from airflow_mv.core.publish.refresh import PublishOutcome as PublishOutcome
from airflow_mv.core.publish.refresh import RefreshMetrics as RefreshMetrics
from airflow_mv.core.publish.refresh import Requester as Requester
