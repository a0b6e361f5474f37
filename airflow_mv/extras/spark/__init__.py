# SPDX-License-Identifier: Apache-2.0
"""Start Spark for refreshes: the settings of a session, a session of this process, and what spark-submit needs."""
