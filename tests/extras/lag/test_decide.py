# SPDX-License-Identifier: Apache-2.0
"""Which views are refreshed now, and which can wait."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from random import Random

import pytest

from airflow_mv.core.spec.identifiers import Identifier
from airflow_mv.errors import InvalidQueryError
from airflow_mv.extras.lag.decide import Decision, ViewLag, decide
from benchmarks.lag_day import World, by_cron, by_targets

NOW = datetime(2026, 1, 5, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


def name(text: str) -> Identifier:
    return Identifier("lake", ("sales",), text)


def view(
    text: str, *, target: int | None = None, behind: float | None = None, reads: str = "", seconds: float = 10
) -> ViewLag:
    """A view; times in minutes."""
    since = None if behind is None else NOW - behind * MINUTE
    wanted = None if target is None else target * MINUTE
    return ViewLag(name(text), wanted, since, tuple(map(name, reads.split())), seconds)


def decided(*views: ViewLag, slots: int = 1) -> Decision:
    return decide(views, NOW, period=MINUTE, slots=slots)


def runs(decision: Decision) -> list[str]:
    return [run.view.name for run in decision.runs]


def test_a_view_waits_until_the_next_decision_would_be_too_late() -> None:
    """Half a minute for the refresh, a minute until the next decision, and a minute of reserve."""
    assert runs(decided(view("a", target=15, behind=12, seconds=20))) == []
    assert decided(view("a", target=15, behind=12)).waiting == ((name("a"), NOW + 2 * MINUTE),)
    assert runs(decided(view("a", target=15, behind=12.6, seconds=20))) == ["a"]
    assert decided(view("a", target=15)) == Decision()
    assert decided(view("a", behind=100)) == Decision()


def test_what_a_view_reads_is_refreshed_before_it_if_it_is_not_fresh() -> None:
    """A view without a target of its own is refreshed as the views that read it need it, and not more often."""
    chain = (view("low", behind=14), view("fresh"), view("top", target=15, behind=14, reads="low fresh"))
    found = decided(*chain, view("other", behind=300, reads="low"))
    assert runs(found) == ["low", "top"]
    assert [run.after for run in found.runs] == [(), (name("low"),)]
    assert [run.due for run in found.runs] == [NOW, NOW]
    assert found.runs[0].why == "a view that reads it is refreshed now"
    assert found.seconds == 30


def test_a_view_that_is_due_soon_is_refreshed_with_what_it_reads() -> None:
    """Otherwise what both read would have to be refreshed again."""
    chain = (view("low", behind=14), view("top", target=15, behind=14, reads="low"))
    assert runs(decided(*chain, view("soon", target=60, behind=50, reads="low"))) == ["low", "soon", "top"]
    assert runs(decided(*chain, view("later", target=60, behind=14, reads="low"))) == ["low", "top"]
    assert runs(decided(*chain, view("apart", target=60, behind=50))) == ["low", "top"]


def test_views_that_are_due_at_one_time_do_not_all_wait_for_the_last_moment() -> None:
    """They are refreshed one after another, or several at a time."""
    many = [view(f"v{number}", target=15, behind=8, seconds=40) for number in range(6)]
    assert runs(decided(*many)) != []
    assert runs(decided(*many, slots=6)) == []


def test_a_long_refresh_does_not_keep_others_from_their_targets() -> None:
    """No decision is made before it ends, so what cannot wait for that is refreshed now."""
    long = view("long", target=60, behind=42, seconds=700)
    found = decided(long, view("short", target=15, behind=5, seconds=10))
    assert runs(found) == ["long", "short"]
    assert found.runs[1].due < found.runs[0].due
    assert [risk.view.name for risk in found.risks] == ["short"]


@pytest.mark.parametrize(
    ("views", "why"),
    [
        ([view("a", target=15, seconds=1200)], "it takes 1200 s to refresh it and what it reads"),
        ([view("a", seconds=600), view("b", target=15, reads="a", seconds=600)], "it takes 1200 s"),
        ([view("a", target=15, behind=20)], "is expected to end 315 s after it is due; its target is 15 minutes"),
        (
            [view("a", target=60, behind=59, seconds=800), view("b", target=15)],
            "the refreshes that begin now take 1200 s",
        ),
    ],
)
def test_a_target_that_cannot_be_kept_is_named_beforehand(views: list[ViewLag], why: str) -> None:
    """Because the refresh takes longer, is late already, or because other refreshes take longer."""
    assert any(why in risk.why for risk in decided(*views).risks), decided(*views).risks


def test_the_same_metadata_lead_to_the_same_decision_and_views_in_a_cycle_are_refused() -> None:
    """In whatever order the views are listed."""
    chain = [view("low", behind=14), view("top", target=15, behind=14, reads="low"), view("b", target=15, behind=14)]
    assert decided(*chain).to_dict() == decided(*reversed(chain)).to_dict() == decided(*chain).to_dict()
    with pytest.raises(InvalidQueryError):
        decided(view("a", reads="b"), view("b", reads="a"))


@pytest.mark.parametrize("seed", range(3))
def test_no_view_is_later_than_its_target_and_a_cron_costs_more(seed: int) -> None:
    """Some hours of views in chains over base tables with bursts, whose refreshes take longer or shorter than told."""
    world = World.drawn(Random(seed), views=40, tables=10, seconds=6 * 3600)
    kept, cron = by_targets(world, slots=2, period=60), by_cron(world, slots=2)
    assert not kept.late
    assert kept.refreshes > 50
    assert kept.seconds < 0.7 * cron.seconds
