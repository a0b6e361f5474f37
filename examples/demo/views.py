# SPDX-License-Identifier: Apache-2.0
"""The demo's three views, and the same three questions put to DuckDB over the raw files."""

from __future__ import annotations

#: Spark SQL of each view.
VIEWS = {
    "daily_carrier_delay": """
SELECT make_date(f.year, f.month, f.day) AS day, f.carrier, a.name AS airline,
       count(*) AS flights,
       count_if(f.dep_time IS NULL) AS cancelled,
       avg(f.dep_delay) AS mean_delay,
       percentile(f.dep_delay, 0.9) AS p90_delay
FROM flights f JOIN airlines a ON f.carrier = a.carrier
GROUP BY make_date(f.year, f.month, f.day), f.carrier, a.name""",
    "route_month": """
SELECT f.year, f.month, f.origin, o.name AS origin_airport, f.dest, d.name AS dest_airport,
       count(*) AS flights,
       sum(f.distance) AS miles,
       avg(f.arr_delay) AS mean_arrival_delay
FROM flights f
JOIN airports o ON f.origin = o.faa
JOIN airports d ON f.dest = d.faa
GROUP BY f.year, f.month, f.origin, o.name, f.dest, d.name""",
    "weather_impact": """
SELECT w.origin, w.time_hour, w.wind_speed, w.precip, w.visib,
       count(*) AS flights,
       avg(f.dep_delay) AS mean_delay,
       count_if(f.dep_delay > 60) AS over_an_hour_late
FROM flights f
JOIN weather w ON f.origin = w.origin AND f.time_hour = w.time_hour
GROUP BY w.origin, w.time_hour, w.wind_speed, w.precip, w.visib""",
}

#: The view that is a table of its name (layout ``table``), for every engine to read.
AS_TABLE = "daily_carrier_delay"

#: The same questions in DuckDB's dialect, over data frames named ``flights``, ``airlines``, …
CHECKS = {
    "daily_carrier_delay": """
SELECT make_date(year, month, day) AS day, flights.carrier, name AS airline, count(*) AS flights,
       sum(CASE WHEN dep_time IS NULL THEN 1 ELSE 0 END) AS cancelled,
       sum(dep_delay) / count(dep_delay) AS mean_delay, quantile_cont(dep_delay, 0.9) AS p90_delay
FROM flights, airlines WHERE flights.carrier = airlines.carrier GROUP BY ALL""",
    "route_month": """
SELECT year, month, origin, (SELECT any_value(name) FROM airports WHERE faa = origin) AS origin_airport,
       dest, (SELECT any_value(name) FROM airports WHERE faa = dest) AS dest_airport, count(*) AS flights,
       sum(distance) AS miles, sum(arr_delay) / count(arr_delay) AS mean_arrival_delay
FROM flights WHERE origin IN (SELECT faa FROM airports) AND dest IN (SELECT faa FROM airports)
GROUP BY year, month, origin, dest""",
    "weather_impact": """
SELECT w.origin, w.time_hour, w.wind_speed, w.precip, w.visib, count(*) AS flights,
       sum(dep_delay) / count(dep_delay) AS mean_delay,
       sum(CASE WHEN dep_delay > 60 THEN 1 ELSE 0 END) AS over_an_hour_late
FROM weather w SEMI JOIN flights USING (origin, time_hour)
JOIN flights f ON f.origin = w.origin AND f.time_hour = w.time_hour GROUP BY ALL""",
}
