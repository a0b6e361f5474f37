# SPDX-License-Identifier: Apache-2.0
"""AWS Glue and Hive Metastores as the home of views, and the errors of AWS' and of Hive's client.

The core imports the module that has the name of a catalog's type, see :mod:`airflow_mv.core.catalog.metastores`.
"""
