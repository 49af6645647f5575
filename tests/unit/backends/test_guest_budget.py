"""The byte budget of one session."""

from __future__ import annotations

import asyncio

import pytest

from sandboxd.backends.guest_budget import SMALL_BYTES_MAX, Budget, BudgetClosed

LARGE = SMALL_BYTES_MAX + 1


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_budget_is_handed_out_in_order() -> None:
    budget = Budget(3 * LARGE)
    await budget.take(2 * LARGE)
    big = asyncio.create_task(budget.take(3 * LARGE))
    later = asyncio.create_task(budget.take(LARGE))
    await settled()
    assert not big.done()
    assert not later.done()
    budget.give_back(2 * LARGE)
    await settled()
    assert big.done()
    assert not later.done()
    budget.give_back(3 * LARGE)
    await later


async def test_cancelled_wait_keeps_nothing() -> None:
    budget = Budget(LARGE)
    await budget.take(LARGE)
    waiting = asyncio.create_task(budget.take(LARGE))
    await settled()
    # Its turn comes and it is cancelled in the same round.
    budget.give_back(LARGE)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await asyncio.wait_for(budget.take(LARGE), 1)


async def test_cancelled_wait_in_front_lets_the_next_pass() -> None:
    budget = Budget(2 * LARGE)
    await budget.take(LARGE)
    front = asyncio.create_task(budget.take(2 * LARGE))
    behind = asyncio.create_task(budget.take(LARGE))
    await settled()
    front.cancel()
    await settled()
    await asyncio.wait_for(behind, 1)


async def test_closed_budget_hands_out_nothing() -> None:
    budget = Budget(LARGE)
    await budget.take(LARGE)
    waiting = asyncio.create_task(budget.take(LARGE))
    await settled()
    budget.close()
    with pytest.raises(BudgetClosed):
        await waiting
    with pytest.raises(BudgetClosed):
        await budget.take(0)
