"""What every test shares."""

import asyncio


def pytest_configure() -> None:
    """Keep pytest's plug-ins from making an event loop that nobody closes.

    They ask for the current loop before a test has one, and Python up to 3.13 then makes it.
    Once a loop, even None, has been set, it raises instead, which they handle.
    """
    asyncio.set_event_loop(None)
