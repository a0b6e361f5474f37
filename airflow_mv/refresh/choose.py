# SPDX-License-Identifier: Apache-2.0
"""Choose the mode of a refresh, and say why."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeVar

from airflow_mv.errors import ConfigurationError, RefreshRefusedError
from airflow_mv.freshness.state import Freshness, State
from airflow_mv.refresh.candidates import Candidate
from airflow_mv.refresh.cost import Estimate, human
from airflow_mv.spec.reasons import NOT_INCREMENTAL, Code, Mode, Reason

FallbackPolicy = Literal["full", "fail", "skip"]
#: View properties: the policy of a view, where a call names none.
ON_FALLBACK_PROPERTY = "airflow-mv.on-fallback"
MAX_FULL_BYTES_PROPERTY = "airflow-mv.max-full-bytes"
UP_TO_PROPERTY = "airflow-mv.incremental-up-to"

_POLICIES: Mapping[str, FallbackPolicy] = {"full": "full", "fail": "fail", "skip": "skip"}
_Value = TypeVar("_Value")
_Number = TypeVar("_Number", int, float)


def _at_least_zero(kind: Callable[[str], _Number]) -> Callable[[str], _Number]:
    def convert(text: str) -> _Number:
        if (number := kind(text)) >= 0:
            return number
        raise ValueError(text)

    return convert


@dataclass(frozen=True, slots=True)
class Policy:
    """What may be done to make an incremental view fresh.

    Args:
        on_fallback: What to do where it would have to be recomputed in full. With ``full`` the estimates decide;
            with ``fail`` and ``skip`` an incremental way is taken wherever there is one.
        max_full_bytes: Bytes of base table files that such a recompute may read; more is refused. ``None``: any.
        up_to: An incremental way is taken up to this many times the estimated seconds of a full refresh.
    """

    on_fallback: FallbackPolicy = "full"
    max_full_bytes: int | None = None
    up_to: float = 1.0

    @classmethod
    def of(
        cls,
        properties: Mapping[str, str],
        *,
        view: str,
        on_fallback: FallbackPolicy | None = None,
        max_full_bytes: int | None = None,
    ) -> Policy:
        """Return the policy of a view's properties, with what a call asks for in their place.

        Args:
            properties: The view's.
            view: For messages.
            on_fallback: The call's.
            max_full_bytes: The call's.

        Raises:
            ConfigurationError: A property is none of what it may be.
        """

        def read(name: str, convert: Callable[[str], _Value], wanted: str) -> _Value | None:
            text = properties.get(name)
            try:
                return None if text is None else convert(text)
            except (ValueError, KeyError):
                raise ConfigurationError(f"view {view}, property {name}: {text!r} is not {wanted}") from None

        stored = read(ON_FALLBACK_PROPERTY, _POLICIES.__getitem__, "full, fail or skip")
        budget = read(MAX_FULL_BYTES_PROPERTY, _at_least_zero(int), "a number of bytes")
        up_to = read(UP_TO_PROPERTY, _at_least_zero(float), "a number, such as 1.0")
        return cls(
            on_fallback=on_fallback or stored or "full",
            max_full_bytes=budget if max_full_bytes is None else max_full_bytes,
            up_to=1.0 if up_to is None else up_to,
        )

    def allows(self, full: Estimate) -> bool:
        """Whether a full refresh is within the budget; one of unknown size is within none."""
        if self.max_full_bytes is None:
            return True
        return full.bytes_read is not None and full.bytes_read <= self.max_full_bytes


@dataclass(frozen=True, slots=True)
class Alternatives:
    """The two ways to make an incremental view fresh.

    Args:
        incremental: The cheapest incremental one, or why there is none.
        full: What the other one is expected to take.
    """

    incremental: Candidate | tuple[Reason, ...]
    full: Estimate


@dataclass(frozen=True, slots=True)
class Choice:
    """The mode that a view's state calls for.

    Args:
        mode: What to do.
        reasons: Why, in order of weight.
        candidate: How, where the mode is an incremental one.
        estimates: What the ways that were compared are expected to take, the chosen one first.
    """

    mode: Mode
    reasons: tuple[Reason, ...]
    candidate: Candidate | None = None
    estimates: tuple[Estimate, ...] = ()


def choose(
    freshness: Freshness,
    *,
    strategy: Literal["full", "incremental"],
    forced: bool,
    policy: Policy,
    view: str,
    ways: Callable[[], Alternatives],
) -> Choice:
    """Choose the cheapest mode that makes the view fresh.

    Args:
        freshness: The verdict; not ``unknown``.
        strategy: The view's ``refresh-strategy``.
        forced: Recompute although nothing may have changed.
        policy: What an incremental view may fall back to.
        view: For messages.
        ways: Looks for the incremental way; asked only where there may be one.

    Raises:
        RefreshRefusedError: The policy forbids what would be needed.
    """
    if forced:
        return Choice(Mode.FULL, (Reason(Code.FORCED, "a full refresh was asked for"), *_news(freshness)))
    if freshness.state == State.FRESH:
        return Choice(Mode.FAST_FORWARD if freshness.moved else Mode.NOOP, freshness.reasons)
    if strategy == "full":
        why = Reason(Code.STRATEGY_FULL, "the view's refresh strategy is full")
        return Choice(Mode.FULL, (*freshness.reasons, why))
    if freshness.state in (State.NEVER_REFRESHED, State.DEFINITION_CHANGED):
        return Choice(Mode.FULL, freshness.reasons)
    found = ways()
    if isinstance(found.incremental, Candidate):
        return _cheaper(freshness, found.incremental, found.full, policy)
    return _fallback(freshness, found.incremental, found.full, policy, view)


def _cheaper(freshness: Freshness, candidate: Candidate, full: Estimate, policy: Policy) -> Choice:
    within = policy.allows(full)
    # To record new snapshot ids is never the dearer way, whatever the property asks for.
    dearer = bool(candidate.steps) and _is_longer(candidate.estimate, full, policy.up_to)
    if policy.on_fallback == "full" and within and dearer:
        told = "full is expected to be cheaper"
        if not _is_longer(candidate.estimate, full):
            told = f"{candidate.mode} may take {policy.up_to:,.10g} times as long as full at most ({UP_TO_PROPERTY})"
        why = Reason(Code.COST, f"{told}: {full}, {candidate.estimate}")
        dropped = tuple(reason for reason in candidate.reasons if reason.code != Code.INCREMENTAL)
        return Choice(Mode.FULL, (*freshness.reasons, why, *dropped), None, (full, candidate.estimate))
    against = "" if not dearer else "; full is not allowed" if within else "; full reads more than is allowed"
    if not dearer and _is_longer(candidate.estimate, full):
        against = f"; it may take {policy.up_to:,.10g} times as long as full ({UP_TO_PROPERTY})"
    why = Reason(Code.COST, f"expected: {candidate.estimate}, {full}{against}")
    reasons = (*freshness.reasons, *candidate.reasons, why)
    return Choice(candidate.mode, reasons, candidate, (candidate.estimate, full))


def _is_longer(one: Estimate, other: Estimate, times: float = 1.0) -> bool:
    """Whether one way takes longer than so many times another; not where the cost of one of them is not known."""
    return one.seconds is not None and other.seconds is not None and one.seconds > other.seconds * times


def _fallback(freshness: Freshness, refused: tuple[Reason, ...], full: Estimate, policy: Policy, view: str) -> Choice:
    head = Reason(Code.INCREMENTAL_UNAVAILABLE, NOT_INCREMENTAL)
    why = (*freshness.reasons, head, *(reason for reason in refused if reason not in freshness.reasons))
    told = "; ".join(reason.message for reason in refused)
    if policy.on_fallback == "skip":
        skipped = Reason(Code.SKIPPED, "on_fallback is 'skip': the view stays as it is")
        return Choice(Mode.NOOP, (*why, skipped), None, (full,))
    if policy.on_fallback == "fail":
        raise RefreshRefusedError(
            f"view {view} would have to be recomputed in full, and on_fallback is 'fail': {told}. "
            "Allow it with on_fallback='full', or force it once with --full"
        )
    if not policy.allows(full):
        raise RefreshRefusedError(
            f"view {view} would have to be recomputed in full, which reads {human(full.bytes_read)}, and "
            f"max_full_bytes allows {human(policy.max_full_bytes or 0)}: {told}. Raise it, or force it once with --full"
        )
    return Choice(Mode.FULL, why, None, (full,))


def _news(freshness: Freshness) -> tuple[Reason, ...]:
    return tuple(reason for reason in freshness.reasons if reason.code != Code.FRESH)
