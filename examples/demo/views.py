# SPDX-License-Identifier: Apache-2.0
"""The demo's views, and the same questions put to DuckDB over the raw files.

When a month of flights and weather is appended, they are refreshed in four ways: groups are recomputed (a percentile),
groups are merged (sums and counts), rows are added (a join), and nothing is to be done (the rows of January).
"""

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
       count(f.arr_delay) AS arrivals,
       sum(f.arr_delay) AS arrival_delay,
       avg(f.arr_delay) AS mean_arrival_delay
FROM flights f
JOIN airports o ON f.origin = o.faa
JOIN airports d ON f.dest = d.faa
GROUP BY f.year, f.month, f.origin, o.name, f.dest, d.name""",
    "weather_impact": """
SELECT f.time_hour, f.origin, f.carrier, f.flight, f.dest, f.dep_delay, w.wind_speed, w.precip, w.visib
FROM flights f
JOIN weather w ON f.origin = w.origin AND f.time_hour = w.time_hour
WHERE f.dep_delay > 60""",
    "january_weather": """
SELECT origin, day, count(*) AS hours, max(wind_speed) AS strongest_wind, sum(precip) AS precipitation
FROM weather
WHERE month = 1
GROUP BY origin, day""",
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
       sum(distance) AS miles, count(arr_delay) AS arrivals, sum(arr_delay) AS arrival_delay,
       sum(arr_delay) / count(arr_delay) AS mean_arrival_delay
FROM flights WHERE origin IN (SELECT faa FROM airports) AND dest IN (SELECT faa FROM airports)
GROUP BY year, month, origin, dest""",
    "weather_impact": """
SELECT time_hour, origin, carrier, flight, dest, dep_delay, wind_speed, precip, visib
FROM (SELECT * FROM flights WHERE dep_delay > 60) late
JOIN (SELECT origin, time_hour, wind_speed, precip, visib FROM weather) hours USING (origin, time_hour)""",
    "january_weather": """
SELECT origin, day, count(*) AS hours, max(wind_speed) AS strongest_wind, sum(precip) AS precipitation
FROM (FROM weather SELECT * WHERE month < 2) january GROUP BY ALL""",
}
