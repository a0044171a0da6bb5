"""One event loop, one gateway and one Agent Server of each harness for all cells; a sandbox for each cell."""

import anyio.from_thread
import pytest

from .world import open_world


@pytest.fixture(scope="session")
def portal():
    """The loop; a coroutine function is called in it by `portal.call`."""
    with anyio.from_thread.start_blocking_portal() as portal:
        yield portal


@pytest.fixture(scope="session")
def world(portal):
    """The servers."""
    with portal.wrap_async_context_manager(open_world()) as world:
        yield world
