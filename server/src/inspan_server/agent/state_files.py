"""The small files beside the journal: each made once, whole or not at all, and readable by nobody else."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from inspan_core.errors import ConfigError
from inspan_server.agent.config import AgentConfig

SECRET_BYTES = 32
COOKIE_KEY_FILE = "cookie.key"
ADMIN_KEY_FILE = "admin.key"
SERVER_ID_FILE = "server.id"
ADDRESS_FILE = "address"


def check_state_dir(config: AgentConfig) -> None:
    """Refuse a `state_dir` that cannot be had; nothing is made.

    Raises:
        ConfigError: Says why.
    """
    if config.state_dir is None:
        return
    there = Path(config.state_dir)
    while not os.path.lexists(there):
        there = there.parent
    if not there.is_dir():
        raise ConfigError(f"state_dir: {there} is not a folder")
    if not os.access(there, os.W_OK | os.X_OK):
        raise ConfigError(f"state_dir: {there} cannot be written")


def cookie_key(config: AgentConfig) -> bytes:
    """The configured secret, or one of our own, kept with the sessions whose cookies it signs.

    Raises:
        ConfigError: The kept one cannot be had.
    """
    if config.cookie_secret is not None:
        return config.cookie_secret.encode()
    if config.state_dir is None:
        return secrets.token_bytes(SECRET_BYTES)
    return kept_key(Path(config.state_dir) / COOKIE_KEY_FILE)


def admin_key(config: AgentConfig) -> str | None:
    """What the ``inspan sessions`` verbs show the server; None without a `state_dir`.

    Raises:
        ConfigError: It cannot be had.
    """
    if config.state_dir is None:
        return None
    return kept_key(Path(config.state_dir) / ADMIN_KEY_FILE).hex()


def server_id(config: AgentConfig) -> str | None:
    """What every server on this state folder is called; None without one.

    Raises:
        ConfigError: It cannot be had.
    """
    if config.state_dir is None:
        return None
    return kept_key(Path(config.state_dir) / SERVER_ID_FILE).hex()[:32]


def kept_key(path: Path) -> bytes:
    """Random bytes, made where there are none yet.

    Raises:
        ConfigError: They can be neither read nor made.
    """
    try:
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            _make_key(path)
        # A pipe or a device has no size, and is not waited for.
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
            key = file.read(SECRET_BYTES + 1) if os.fstat(file.fileno()).st_size == SECRET_BYTES else b""
    except OSError as error:
        raise ConfigError(f"{path} cannot be had: {error.strerror}") from error
    if len(key) != SECRET_BYTES:
        raise ConfigError(
            f"{path} does not hold {SECRET_BYTES} bytes, as a key does: remove it to get a new one"
        )
    return key


def tell_address(folder: Path, url: str) -> None:
    """Write down where the server listens, for the ``inspan sessions`` verbs: whole or not at all.

    Raises:
        OSError: It cannot be written.
    """
    draft = folder / f"{ADDRESS_FILE}.part"
    draft.write_text(f"{url}\n")
    draft.replace(folder / ADDRESS_FILE)


def _make_key(path: Path) -> None:
    """Whole or not at all: a server that is killed here must not keep the next one from starting."""
    draft = path.with_suffix(".part")
    draft.unlink(missing_ok=True)
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with open(descriptor, "wb") as file:
        file.write(secrets.token_bytes(SECRET_BYTES))
    draft.rename(path)
