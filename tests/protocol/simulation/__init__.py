# SPDX-License-Identifier: Apache-2.0
"""A deterministic simulation of refreshers that race, fail and die, around the real planner and committer.

Catalog rows, files and clocks are in memory. Every call to them switches to a scheduler, which a seed drives:
it chooses who goes on, and whether the call is done, gets lost before or after it was done, arrives later, is
sent twice, or kills its caller. Between two calls others commit to base tables, expire and roll them back,
replace, drop and re-create the view, roll it back, expire its snapshots and collect its orphans. After each
change the invariants are asked. One seed is one schedule.

==============  ===================================================================
``world``       rows, files, the clock, and the fate of each call
``stores``      the catalog's database and the file store, behind the real catalog
``bases``       base tables
``workers``     Spark, tasks and their tries
``actors``      what others do
``checks``      the invariants
``schedule``    who goes on
``mutants``     planted faults, each of which must be found; ``registered_mutants`` those of that
                layout, ``change_mutants`` those of the loop and of other changes
``product``     what is done to the product for speed
==============  ===================================================================
"""
