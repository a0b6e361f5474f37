# SPDX-License-Identifier: Apache-2.0
"""Calls of Spark's functions by the class of their value, with placeholders for arguments of a class.

One example of each kind of the functions that the analysis supports. None may fail on any row, because a refresh
of a failing query proves nothing. Classes: ``i`` an exact number, ``w`` an integer, ``f`` a floating number, ``t`` a
string, ``d`` a date, ``m`` a timestamp, ``p`` a boolean, ``b`` bytes, ``l`` a list of numbers, ``o`` any sortable
value, ``=`` the previous argument again.
"""

from __future__ import annotations

SCALARS: dict[str, tuple[str, ...]] = {
    "i": (
        *("abs({i})", "{i} + 1", "{i} * 2", "-{i}", "{i} - {i}", "nvl({i}, 0)", "greatest({i}, 2)", "least({i}, 2)"),
        *("ceil({i})", "floor({f})", "round({i} / 3, 2)", "bround({i} / 2, 0)", "sign({w})", "nullifzero({i})"),
        *(
            "CASE WHEN {p} THEN {i} END",
            "if({p}, {i}, 0)",
            "try_add({i}, 1)",
        ),
    ),
    "w": (
        *("length({t})", "char_length({t})", "octet_length({t})", "{w} % 3", "pmod({w}, 3)", "mod({w}, 2)", "{w} & 3"),
        *("{w} | 1", "{w} ^ 2", "~{w}", "bit_count({w})", "shiftleft({w}, 1)", "{w} div 2", "year({d})", "month({d})"),
        *("day({d})", "dayofweek({d})", "weekday({d})", "quarter({d})", "weekofyear({d})", "hour({m})", "minute({m})"),
        *("datediff({d}, DATE '2020-01-01')", "unix_date({d})", "EXTRACT(DAY FROM {d})", "date_part('month', {d})"),
        *("instr({t}, 'a')", "locate('a', {t})", "position('a' IN {t})", "ascii({t})", "levenshtein({t}, 'ab')"),
        *("crc32({b})", "hash({t})", "xxhash64({t}, {d})", "size({l})", "cardinality({l})", "array_position({l}, 1)"),
        *(
            "coalesce(array_max({l}), 0)",
            "try_element_at({l}, 1)",
            "get({l}, 0)",
            "try_cast({t} AS INT)",
            "CAST({p} AS INT)",
        ),
        *(
            "find_in_set({t}, 'a,b')",
            "zeroifnull({w})",
            "regexp_count({t}, 'a')",
            "regexp_instr({t}, 'a')",
            "aggregate({l}, 0L, (s, x) -> s + 1)",
        ),
        *(
            "date_diff(DAY, {d}, DATE '2020-01-01')",
            "unix_timestamp({d})",
            "DECODE({w}, 1, 10, 20)",
            "octet_length({b})",
        ),
    ),
    "f": (
        *(
            "log10(abs({i}) + 1)",
            "ln(abs({i}) + 1)",
            "log(2, abs({i}) + 1)",
            "sqrt(abs({i}))",
            "power({w}, 2)",
            "cbrt({w})",
        ),
        *(
            "exp(0)",
            "{w} / 2",
            "try_divide({w}, 2)",
            "pi()",
            "degrees({w})",
            "hypot({w}, 1)",
            "atan2({w}, 1)",
            "log1p(abs({w}))",
            "expm1(0)",
            "sin({w})",
        ),
        *("months_between({d}, DATE '2020-01-01')", "CAST({i} AS DOUBLE)", "nanvl({f}, 0)", "coalesce({f}, 1.5D)"),
    ),
    "t": (
        *("upper({t})", "lower({t})", "concat({t}, 'x')", "{t} || {t}", "substring({t}, 1, 2)", "left({t}, 1)"),
        *(
            "right({t}, 1)",
            "trim({t})",
            "btrim({t}, 'a')",
            "TRIM(LEADING 'a' FROM {t})",
            "lpad({t}, 5, '*')",
            "rpad({t}, 4, ' ')",
        ),
        *(
            "replace({t}, 'a', 'b')",
            "regexp_replace({t}, '[a-c]', 'z')",
            "regexp_extract({t}, '(a|b)', 1)",
            "translate({t}, 'a', 'b')",
        ),
        *("regexp_substr({t}, '[a-z]')", "split_part({t}, 'a', 1)", "initcap({t})", "reverse({t})", "repeat({t}, 2)"),
        *(
            "CAST({f} AS STRING)",
            "CAST({f} AS STRING)",
            "CAST({i} AS STRING)",
            "CAST({d} AS STRING)",
            "CAST({m} AS STRING)",
        ),
        *(
            "string({p})",
            "to_char({w}, 'S99999999999999999999')",
            "date_format({d}, 'yyyy-MM')",
            "date_format({m}, 'HH:mm')",
        ),
        *(
            "hex({b})",
            "base64({b})",
            "md5({t})",
            "sha2({t}, 256)",
            "coalesce({t}, 'none')",
            "nullif({t}, '')",
            "soundex({t})",
        ),
        *(
            "CASE {t} WHEN 'a' THEN 'A' ELSE {t} END",
            "format_number({i}, 2)",
            "format_string('%s|%s', {t}, {w})",
            "mask({t})",
        ),
        *(
            "concat_ws('-', {t}, {t})",
            "overlay({t} PLACING '_' FROM 1)",
            "dayname({d})",
            "bin({w})",
            "conv('10', 2, 10)",
        ),
        *("array_join({l}, ',')", "to_json(named_struct('k', {t}))", "url_encode({t})", "quote({t})", "typeof({i})"),
        *(
            "to_char({d}, 'yyyy')",
            "unhex('41')::STRING",
            "substring_index({t}, 'a', 1)",
            "element_at(split({t}, 'a'), 1)",
        ),
    ),
    "d": (
        *("date_add({d}, 3)", "{d} - INTERVAL 1 DAY", "{d} + INTERVAL 1 MONTH", "{d} + INTERVAL 1 YEAR 2 MONTHS"),
        *("add_months({d}, 1)", "last_day({d})", "next_day({d}, 'MON')", "trunc({d}, 'MM')", "to_date({m})"),
        *(
            "to_date(date_format({d}, 'dd/MM/yyyy'), 'dd/MM/yyyy')",
            "make_date(2020, 2, 1 + abs({w}) % 20)",
            "CAST({m} AS DATE)",
        ),
        *(
            "date_sub({d}, 1)",
            "date_from_unix_date(unix_date({d}))",
            "try_to_date({t}, 'yyyy')",
            "{d} + 1",
            "date({m})",
        ),
    ),
    "m": (
        *("{m} + INTERVAL '1 02:03:04' DAY TO SECOND", "{m} + INTERVAL 1 HOUR 30 MINUTES", "date_trunc('hour', {m})"),
        *("{m} - INTERVAL 90 SECONDS", "CAST({d} AS TIMESTAMP)", "to_timestamp(CAST({d} AS STRING), 'yyyy-MM-dd')"),
        *(
            "{m} + INTERVAL 2 DAYS 3 HOURS",
            "timestamp_seconds({w} % 1000)",
            "timestampadd(MINUTE, 5, {m})",
            "{m} - INTERVAL '1-2' YEAR TO MONTH",
        ),
        *("try_to_timestamp({t}, 'yyyy')", "make_timestamp(2020, 1, 1, 0, 0, 1.5)", "date_trunc('MONTH', {d})"),
    ),
    "p": (
        *("{t} LIKE 'a%'", "{t} RLIKE '[ab]'", "regexp_like({t}, 'a')", "{i} BETWEEN 1 AND 3", "{t} IN ('a', 'A')"),
        *(
            "isnull({t})",
            "isnotnull({i})",
            "contains({t}, 'a')",
            "startswith({t}, 'a')",
            "endswith({t}, 'a')",
            "NOT {p}",
        ),
        *("{d} > DATE '2000-01-01'", "array_contains({l}, 1)", "exists({l}, x -> x > 1)", "forall({l}, x -> x < 4)"),
        *(
            "exists({l}, a -> a > {i})",
            "exists({l}, b -> b < {i})",
            "forall({l}, r -> r < {i})",
            "exists({l}, s -> s = {w})",
        ),
        *(
            "{i} IS DISTINCT FROM 2",
            "{t} ILIKE 'A%'",
            "isnan({f})",
            "{i} <=> 1",
            "{t} > 'M'",
            "{p} AND {i} > 1",
            "{p} OR {t} = 'a'",
        ),
        *(
            "{m} < TIMESTAMP '2000-01-01 00:00:00'",
            "{t} NOT LIKE '%a\\\\%%'",
            "{w} IN (1, 2, NULL)",
            "coalesce({p}, false)",
        ),
        *("arrays_overlap({l}, array(1, 2))", "{f} = 0", "{t} LIKE ANY ('a%', '%b')", "{t} IS NULL", "{p} IS NOT TRUE"),
    ),
    "b": (
        "encode({t}, 'UTF-8')",
        "unhex(hex({b}))",
        "to_binary(hex({b}), 'hex')",
        "coalesce({b}, X'01')",
        "CAST({t} AS BINARY)",
    ),
    "l": (
        *("sort_array({l})", "array_distinct({l})", "reverse({l})", "slice({l}, 1, 1)", "transform({l}, x -> x + 1)"),
        *("transform({l}, (a, b) -> a + b)", "transform({l}, y -> coalesce(y, {w}))", "filter({l}, u -> u <> {w})"),
        *("filter({l}, x -> x IS NOT NULL)", "concat({l}, {l})", "array_union({l}, {l})", "array_remove({l}, 1)"),
        *("array_repeat(1, 2)", "flatten(array({l}, {l}))", "array_except({l}, array(1))", "array_compact({l})"),
        *(
            "sequence(1, 3)",
            "array_append({l}, 1)",
            "array_intersect({l}, {l})",
            "zip_with({l}, {l}, (x, y) -> coalesce(x, 0) + coalesce(y, 0))",
        ),
    ),
}
#: Aggregates whose value does not depend on the order of a group's rows.
AGGREGATES = (
    *("count(*)", "count({o})", "sum({i})", "min({o})", "max({o})", "count(DISTINCT {o})", "avg({i})", "bool_and({p})"),
    *("bool_or({p})", "every({p})", "some({p})", "bit_xor({w})", "bit_and({w})", "bit_or({w})", "count_if({p})"),
    *("percentile_cont(0.5) WITHIN GROUP (ORDER BY {i})", "percentile_disc(0.5) WITHIN GROUP (ORDER BY {i} DESC)"),
    *(
        "percentile({w}, 0.25)",
        "percentile({w}, array(0.25, 0.5))",
        "median({w})",
        "stddev({w} % 5)",
        "var_pop({w} % 5)",
    ),
    *(
        "sort_array(collect_list({o}))",
        "sort_array(collect_set({o}))",
        "array_sort(array_agg({i}))",
        "sum(DISTINCT {i})",
    ),
    *("count(*) FILTER (WHERE {p})", "sum({i}) FILTER (WHERE {p})", "try_sum({i})", "try_avg({i})", "mean({i})"),
    *("listagg({t}, ',') WITHIN GROUP (ORDER BY {=})", "string_agg(DISTINCT {t}, '|') WITHIN GROUP (ORDER BY {=})"),
    *(
        "approx_count_distinct({o})",
        "sum({f})",
        "avg({f})",
        "regr_count({w}, {w})",
    ),
    *(
        "sum(CASE WHEN {p} THEN 1 ELSE 0 END)",
        "max({t}) || min({t})",
        "sum({i}) / nullif(count({i}), 0)",
        "count({o}, {o})",
    ),
    *(
        "min(struct({w}, {t}))",
        "covar_pop({w} % 5, {w} % 7)",
        "sum({i}) + count(*)",
        "std({w} % 5)",
    ),
)
WINDOWS = (
    *(
        "rank() OVER ({w})",
        "dense_rank() OVER ({w})",
        "count(*) OVER ({p})",
        "sum({i}) OVER ({p})",
        "max({o}) OVER ({p})",
    ),
    *(
        "row_number() OVER ({w})",
        "percent_rank() OVER ({w})",
        "cume_dist() OVER ({w})",
        "avg({i}) OVER ({w})",
    ),
    *("ntile(2) OVER ({w})",),
    *("count(*) OVER ({w} RANGE BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)",),
)
