-- SPDX-License-Identifier: Apache-2.0
-- Run once, by the image's entry point, on an empty volume. The database `airflow` is there already.
CREATE DATABASE iceberg;
