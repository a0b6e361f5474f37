# SPDX-License-Identifier: Apache-2.0
"""A deterministic simulation of racing, failing and dying refreshers that run the real planner and committer.

Catalog rows, files and clocks are in memory. Every call to them yields to a scheduler that is driven by a seed:
it chooses which process continues, and whether the call succeeds, is lost before or after it is applied, arrives
late, is sent twice, or kills its caller. Between two calls other actors commit to base tables, expire them and roll
them back; replace, drop and re-create the view, roll it back, expire its snapshots and collect its orphans. After
each change the invariants are checked. One seed is one schedule.

==============  ===================================================================
``world``       rows, files, the clock, and the fate of each call
``stores``      the catalog's database and the file store, behind the real catalog
``bases``       base tables
``workers``     Spark, tasks and their tries
``actors``      actions of others
``checks``      the invariants
``schedule``    which process continues
``mutants``     planted faults, each of which must be detected; ``registered_mutants`` those of that
                layout, ``change_mutants`` those of the loop and of other changes
``product``     changes to the product code for speed
==============  ===================================================================
"""
