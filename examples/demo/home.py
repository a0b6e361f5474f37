# SPDX-License-Identifier: Apache-2.0
"""Where the demo lives: one folder with a catalog, a warehouse and an Airflow, and nothing outside it."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path

#: The catalog's name, in views (``lake.nyc.…``), in Spark and in pyiceberg.
CATALOG = "lake"
NAMESPACE = "nyc"
#: For a JVM that lives for half a minute: the second compiler and the parallel collector pay off later only.
SHORT_LIVED_JAVA = {"SPARK_SUBMIT_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}


@dataclass(frozen=True, slots=True)
class DemoHome:
    """Paths and settings of one demo folder.

    Args:
        folder: Absolute path; made when it is not there.
    """

    folder: Path

    @classmethod
    def default(cls) -> DemoHome:
        """``$AIRFLOW_MV_DEMO_HOME``, or ``.demo`` in the working directory."""
        return cls(Path(os.environ.get("AIRFLOW_MV_DEMO_HOME", ".demo")).resolve())

    @property
    def catalog_properties(self) -> dict[str, str]:
        """What pyiceberg needs to open the catalog."""
        return {
            "type": "sql",
            "uri": f"sqlite:///{self.folder / 'catalog.db'}",
            "warehouse": (self.folder / "warehouse").as_uri(),
        }

    @property
    def airflow_home(self) -> Path:
        """Airflow's folder."""
        return self.folder / "airflow"

    @property
    def log_file(self) -> Path:
        """What Airflow printed."""
        return self.folder / "airflow.log"

    def environment(self) -> dict[str, str]:
        """Return the variables of a process that works in this demo: pyiceberg's, Airflow's, two connections."""
        catalog = {
            f"PYICEBERG_CATALOG__{CATALOG.upper()}__{key.upper()}": value
            for key, value in self.catalog_properties.items()
        }
        iceberg = {"conn_type": "iceberg", "extra": self.catalog_properties}
        spark = {"conn_type": "spark", "host": "local[2]"}
        airflow = {
            "AIRFLOW_HOME": str(self.airflow_home),
            "AIRFLOW__CORE__DAGS_FOLDER": str(dags_folder()),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{self.airflow_home / 'airflow.db'}",
            "AIRFLOW_CONN_ICEBERG_DEFAULT": json.dumps(iceberg),
            "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps(spark),
            # Airflow starts `airflow` and Spark's `spark-submit` by name.
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
            "NO_PROXY": "127.0.0.1,localhost",
        }
        return {**catalog, **airflow}


def dags_folder() -> Path:
    """Return the folder of the demo's DAGs."""
    return Path(__file__).resolve().parent / "dags"
