# SPDX-License-Identifier: Apache-2.0
"""Make a view what a definition says: create it, or compare the definition with the existing view."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import takewhile
from typing import Literal, get_args

from airflow_mv.checks import CHECKS_PROPERTY, Check, property_of
from airflow_mv.core.catalog import LoadedView, MaterializedViewCatalog
from airflow_mv.core.define.create import comments_of, create, names_the_same, possible, same_meaning
from airflow_mv.core.define.definition import NEW_STRATEGY, Definition, NewProperties, check_interval_column
from airflow_mv.core.publish.protocol import Effects
from airflow_mv.core.refresh.checks import require_fitting, stored_checks
from airflow_mv.core.refresh.statements import wanted_partitioning
from airflow_mv.core.script import Stager
from airflow_mv.core.spec.choices import DIALECTS_PROPERTY, TIME_TRAVEL_PROPERTY, TRANSPILE_PROPERTY, OnChange
from airflow_mv.core.spec.identifiers import Identifier
from airflow_mv.core.spec.materialized_view import OWN_PROPERTIES, PROPERTY
from airflow_mv.core.spec.properties import partition_transform
from airflow_mv.core.spec.stored import shown
from airflow_mv.core.spec.view import COMMENT_PROPERTY
from airflow_mv.core.sql.query import spark_sql
from airflow_mv.errors import (
    AlreadyExistsError,
    CommitConflictError,
    InvalidMetadataError,
    NotFoundError,
    RefusedLocationError,
)
from airflow_mv.foundation.words import not_one_of

#: What happens if a view exists with another definition.
#: Properties that have their own option, with which they are compared, or none.
_OPTIONS = frozenset({PROPERTY, TIME_TRAVEL_PROPERTY, CHECKS_PROPERTY, DIALECTS_PROPERTY, TRANSPILE_PROPERTY})
_PREFIX = "airflow-mv."
#: How much of two queries is shown before the place where they differ.
_CONTEXT = 20


class Effect(StrEnum):
    """The action for a difference between a definition and the existing view."""

    METADATA = "metadata"
    """A metadata change, which takes effect at once; the rows are kept."""
    REBUILD = "rebuild"
    """The next refresh recomputes all rows."""
    KEPT = "kept"
    """Nothing: the definition does not name it, so the view keeps it."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One difference between a definition and the existing view.

    Args:
        field: The option, or the property, that differs.
        stored: What the view has.
        wanted: What the definition has; ``None`` if it does not name the field.
        effect: What the difference leads to.
        keeps_rows: Whether it gives the view a new version with the same rows, which can be kept.
    """

    field: str
    stored: str
    wanted: str | None
    effect: Effect
    keeps_rows: bool = False

    def __str__(self) -> str:
        if self.wanted is None:
            return f"{self.field} ({self.stored})"
        return f"{self.field}: {self.stored} → {self.wanted}"

    def to_dict(self) -> dict[str, str | None]:
        """Return the JSON form."""
        return {"field": self.field, "stored": self.stored, "wanted": self.wanted, "effect": str(self.effect)}


@dataclass(frozen=True, slots=True)
class DefinitionResult:
    """The changes that made a view what a definition says.

    Args:
        action: ``created``, ``adopted``, ``changed`` (metadata only), ``replaced`` or ``unchanged``.
        differences: All differences that were found before.
        notes: Further sentences about a new definition.
    """

    view: LoadedView
    action: Literal["created", "adopted", "changed", "replaced", "unchanged"]
    differences: tuple[Difference, ...] = ()
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"<definition of {self.view.identifier}: {self.action}, version {self.view.metadata.current_version_id}>"

    @property
    def lines(self) -> list[str]:
        """The changes, in sentences."""
        view = self.view.identifier
        name = {"unchanged": f"{view} has this definition already"}.get(self.action, f"{self.action} {view}")
        heads = {
            Effect.METADATA: "changed",
            Effect.REBUILD: "the next refresh recomputes all rows, because of",
            Effect.KEPT: "kept, because the definition does not name it",
        }
        same = [str(item) for item in self.differences if item.keeps_rows]
        found = {
            effect: [str(item) for item in self.differences if item.effect == effect and not item.keeps_rows]
            for effect in Effect
        }
        return [
            name,
            *([f"a new version with the same rows, because of: {'; '.join(same)}"] if same else []),
            *(f"{heads[effect]}: {'; '.join(texts)}" for effect, texts in found.items() if texts),
            *self.notes,
        ]


def define(
    catalog: MaterializedViewCatalog,
    view: str | Identifier,
    definition: Definition,
    *,
    stager: Stager,
    on_change: OnChange = "apply",
    adopt: Callable[..., LoadedView] | None = None,
    create: Callable[..., LoadedView] = create,
) -> DefinitionResult:
    """Create a view, or give an existing one this definition. Idempotent.

    What the definition does not name stays as it is. Spark runs only for a new view or a rebuild.

    Args:
        catalog: Where the view is, or will be.
        definition: The whole definition.
        stager: Runs the script that finds the query's columns.
        on_change: What happens if the view exists with another definition. ``apply``: settings, properties and checks
            are changed; a difference that needs a recompute of all rows is refused. ``rebuild``: all differences are
            applied, and the next refresh recomputes the rows where needed. ``fail``: every difference is refused.
        adopt: Makes the existing table of this name the view, if it is not a view yet. Has the arguments of
            :func:`airflow_mv.extras.adopt.adopt`.
        create: Creates or replaces a view, with the arguments of :func:`airflow_mv.core.define.create.create`.

    Raises:
        ConfigurationError: ``on_change`` is something else.
        AlreadyExistsError: A difference is refused; the message lists all of them. Nothing was changed. Or the name is
            a plain view's.
        MaterializedViewError: As for :func:`airflow_mv.core.define.create.create`.
    """
    if on_change not in get_args(OnChange):
        raise not_one_of(on_change, get_args(OnChange), field="on_change")
    identifier = catalog.identify(view)
    if not catalog.exists(identifier) and (new := _made(catalog, identifier, definition, stager, adopt or create)):
        return DefinitionResult(new, "adopted" if adopt else "created")
    existing = catalog.load(identifier)
    if existing.settings is None:
        if definition.sql is not None:
            raise AlreadyExistsError(
                f"{identifier} is a plain view: leave out the query (as in `airflow-mv create {identifier}`) to turn "
                "it into a materialized one"
            )
        return DefinitionResult(create(catalog, identifier, definition, stager=stager), "changed")
    possible(catalog, identifier, existing, definition)
    found = differences(catalog, existing, definition)
    _require_allowed(identifier, found, on_change)
    effects = {item.effect for item in found}
    if Effect.REBUILD in effects:
        replaced = create(catalog, identifier, definition, stager=stager, replace=True)
        return DefinitionResult(replaced, "replaced", found)
    definition.require_accepted(catalog, identifier)
    if Effect.METADATA in effects:
        return DefinitionResult(_change_settings(catalog, existing, definition), "changed", found)
    return DefinitionResult(existing, "unchanged", found)


def _made(
    catalog: MaterializedViewCatalog,
    view: Identifier,
    definition: Definition,
    stager: Stager,
    make: Callable[..., LoadedView],
) -> LoadedView | None:
    """Create the view, or adopt its table; ``None`` if another run has done it meanwhile.

    The first runs of a DAG define a view at the same time, for example in a backfill.
    """
    try:
        return make(catalog, view, definition, stager=stager)
    except (AlreadyExistsError, CommitConflictError):
        if catalog.exists(view):
            return None
        raise


def _require_allowed(view: Identifier, found: Sequence[Difference], on_change: OnChange) -> None:
    """Refuse differences that must be asked for.

    Raises:
        AlreadyExistsError: Lists them.
    """
    refused = {"apply": (Effect.REBUILD,), "rebuild": (), "fail": (Effect.METADATA, Effect.REBUILD)}[on_change]
    listed = "; ".join(str(item) for item in found if item.effect in refused)
    if not listed:
        return
    advice = "set on_change to 'rebuild' to apply it, and let the next refresh recompute all rows"
    if all(item.effect != Effect.REBUILD for item in found):
        advice = "set on_change to 'apply' to apply it"
    raise AlreadyExistsError(
        f"view {view} exists with another definition, and on_change is {on_change!r}: {listed}. Nothing was changed: "
        f"{advice}, or choose another name"
    )


def _change_settings(
    catalog: MaterializedViewCatalog,
    existing: LoadedView,
    definition: Definition,
    effects: Effects | None = None,
) -> LoadedView:
    """Give a materialized view the settings, properties and checks of a definition. Query and rows stay; no Spark runs.

    Args:
        definition: Its query, dialects and partitioning are not considered.
        effects: Clock, sleep and jitter.

    Raises:
        ConfigurationError, InvalidQueryError: A setting or check is wrong.
        UnsupportedError: The view has another layout, or another storage table.
        CommitConflictError, CommitStateUnknownError: See :func:`airflow_mv.core.publish.protocol.commit`.
    """
    view = existing.identifier
    definition = possible(catalog, view, existing, definition)
    require_fitting(definition.given_properties, view=str(view), columns=existing.metadata.schema_.names)
    check_interval_column(existing.metadata.schema_.fields, definition.given_properties, view=str(view))
    return NewProperties(catalog, existing, definition, effects or Effects()).publish()


def differences(
    catalog: MaterializedViewCatalog, existing: LoadedView, definition: Definition
) -> tuple[Difference, ...]:
    """Compare a definition with an existing materialized view. Reads metadata only.

    Args:
        definition: What it should be.
    """
    return (
        *_of_query(existing, definition),
        *_of_comments(existing, definition),
        *_of_partitioning(catalog, existing, definition),
        *_of_settings(existing, definition),
        *_of_checks(existing, definition),
        *_of_properties(existing, definition),
    )


def _of_query(existing: LoadedView, definition: Definition) -> Iterator[Difference]:
    stored = spark_sql(existing.metadata, view=str(existing.identifier)).strip().rstrip(";").strip()
    wanted = stored if definition.sql is None else definition.sql.strip().rstrip(";").strip()
    if wanted != stored:
        equal = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(stored, wanted, strict=False)))
        same = max(equal - _CONTEXT, 0)
        texts = [f"{'…' if same else ''}{shown(' '.join(text[same:].split()))}" for text in (stored, wanted)]
        yield Difference(
            "query",
            texts[0],
            texts[1],
            Effect.REBUILD,
            same_meaning((stored, existing.context), (wanted, existing.identifier)),
        )
    elif definition.sql is not None and not names_the_same(stored, existing.context, existing.identifier):
        places = [".".join((view.catalog, *view.namespace)) for view in (existing.context, existing.identifier)]
        yield Difference("namespace of short names", places[0], places[1], Effect.REBUILD)
    names = existing.metadata.schema_.names
    if definition.columns is not None and tuple(definition.columns) != names:
        yield Difference("columns", ", ".join(names), ", ".join(definition.columns), Effect.REBUILD)
    has = existing.metadata.properties.get(DIALECTS_PROPERTY, "")
    dialects = definition.given_dialects
    if dialects is not None and ",".join(dialects) != has:
        yield Difference("dialects", has or "none", ",".join(dialects) or "none", Effect.REBUILD, keeps_rows=True)
    elif has and dialects is None:
        yield Difference("dialects", has, None, Effect.KEPT)


def _of_comments(existing: LoadedView, definition: Definition) -> Iterator[Difference]:
    """A version of a view has its columns with their comments: another comment of one is another version."""
    stored = comments_of(existing.metadata.schema_.fields)
    for column, text in definition.column_comments.items():
        if (before := stored.get(column, "")) != text:
            texts = repr(shown(before)), repr(shown(text))
            yield Difference(f"comment of column {column}", *texts, Effect.REBUILD, keeps_rows=True)
    has, wanted = existing.metadata.properties.get(COMMENT_PROPERTY), definition.comment
    if wanted is not None and wanted != has:
        yield Difference("comment", "none" if has is None else repr(shown(has)), repr(shown(wanted)), Effect.METADATA)
    elif wanted is None and has is not None and COMMENT_PROPERTY not in definition.properties:
        yield Difference("comment", repr(shown(has)), None, Effect.KEPT)


def _of_partitioning(
    catalog: MaterializedViewCatalog, existing: LoadedView, definition: Definition
) -> Iterator[Difference]:
    try:
        storage = catalog.load_storage(existing)
    except RefusedLocationError:
        raise  # it may be intact
    except (NotFoundError, InvalidMetadataError) as error:
        yield Difference("storage table", shown(str(error)), "a new one", Effect.REBUILD)
        return
    has = wanted_partitioning(existing.identifier, existing.metadata, storage.table)
    wanted = [partition_transform(text) for text in definition.partition_by]
    if wanted and [text.casefold() for text in wanted] != [text.casefold() for text in has]:
        yield Difference("partitioning", ", ".join(has) or "none", ", ".join(wanted), Effect.REBUILD)
    elif has and not wanted:
        yield Difference("partitioning", ", ".join(has), None, Effect.KEPT)


def _of_settings(existing: LoadedView, definition: Definition) -> Iterator[Difference]:
    settings = existing.materialized
    travel = existing.metadata.properties.get(TIME_TRAVEL_PROPERTY, "").lower() == "true"
    for name, stored, wanted, default in (
        ("refresh strategy", settings.refresh_strategy, definition.refresh_strategy, NEW_STRATEGY),
        ("allow stale data", settings.allow_stale_data, definition.allow_stale_data, False),
        ("time travel", travel, definition.given_time_travel, False),
    ):
        if wanted is not None and wanted != stored:
            yield Difference(name, str(stored).lower(), str(wanted).lower(), Effect.METADATA)
        elif wanted is None and stored != default:
            yield Difference(name, str(stored).lower(), None, Effect.KEPT)


def _of_checks(existing: LoadedView, definition: Definition) -> Iterator[Difference]:
    stored = stored_checks(existing.metadata.properties, view=str(existing.identifier))
    wanted = definition.given_checks
    if wanted is not None and property_of(wanted) != property_of(stored):
        yield Difference("checks", _names(stored), _names(wanted), Effect.METADATA)
    elif wanted is None and stored:
        yield Difference("checks", _names(stored), None, Effect.KEPT)


def _names(checks: Sequence[Check]) -> str:
    return ", ".join(shown(check.name) for check in checks) or "none"


def _of_properties(existing: LoadedView, definition: Definition) -> Iterator[Difference]:
    stored, given = existing.metadata.properties, definition.properties
    for key in sorted(given.keys() - _OPTIONS):
        if stored.get(key) != given[key]:
            has = repr(shown(stored[key])) if key in stored else "not set"
            yield Difference(f"property {key}", has, repr(shown(given[key])), Effect.METADATA)
    policies = {key for key in stored.keys() - given.keys() - _OPTIONS - OWN_PROPERTIES if key.startswith(_PREFIX)}
    for key in sorted(policies):
        yield Difference(f"property {key}", repr(shown(stored[key])), None, Effect.KEPT)
