"""The exec agent as a container's first process: the image's own environment is the commands'."""

from __future__ import annotations

import os

from inspan_runtime.providers.exec_agent.lean import TYPE_CHECKING
from inspan_runtime.providers.exec_agent.main import main as become_agent

if TYPE_CHECKING:
    from typing import Any

# What the engine adds for the first process, and no command needs.
ENGINES_OWN = (b"HOSTNAME", b"container", b"TERM")


def main(control_fd: int, orders: dict[str, Any]) -> None:
    """Serve; see `inspan_runtime.providers.exec_agent.main.main`.

    Args:
        control_fd: The connected stream to the keeper.
        orders: Likewise; ``env`` has the defaults, ``own_env`` the specification's variables: the image's lie
            between them.
    """
    image = {name: value for name, value in os.environb.items() if name not in ENGINES_OWN}
    env = {**orders["env"], **image, **orders["own_env"]}
    try:
        os.makedirs(env[b"HOME"], 0o700, exist_ok=True)
    except OSError:  # An ordinary user's HOME may be out of its reach; its commands find that out.
        pass
    become_agent(control_fd, {**orders, "env": env})
