"""Sessions of a Resources Server that are open because of this server: each is owed a close, a kill or not.

One file each, beside the journal: made before the seed is sent, removed when the close is answered. The next
server on the folder closes what a killed one left. They hold the cookies of the seed, so nobody else reads
them.
"""

from __future__ import annotations

import json
import logging
import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

from attrs import define, field, frozen

from inspan_core.codec import decode, encode
from inspan_core.errors import ConfigError, InspanError, WireError
from inspan_core.wire import EpisodeId
from inspan_server.bounded_file import read_bounded

FILE_NAME = re.compile(r"resources-session-[0-9a-f]{32}\.json")
FILE_LIMIT_BYTES = 1 << 20
log = logging.getLogger(__name__)


class OweError(InspanError):
    """It cannot be kept that a session is open: says why."""


@frozen(kw_only=True)
class OwedClose:
    """One open session.

    Attributes:
        session_id: At the Resources Server.
        episode_id: Of its seed.
        base_url: Of the Resources Server.
        cookies: What its seed set.
    """

    session_id: str
    episode_id: EpisodeId
    base_url: str
    cookies: dict[str, str] = field(factory=dict, repr=False)


@define
class OwedCloses:
    """The open sessions of one server.

    Attributes:
        folder: Made with mode 0700 if needed; None: nothing is kept, and a kill forgets them.
    """

    folder: Path | None

    def keep(self, owed: OwedClose) -> None:
        """Keep one, whole or not at all; again, to change it.

        Raises:
            OweError: It cannot be written, or is too large to be read again.
        """
        if self.folder is None:
            return
        path = self._path(owed.session_id)
        draft = path.with_suffix(".part")
        told = {
            "session_id": owed.session_id,
            "episode_id": encode(owed.episode_id),
            "base_url": owed.base_url,
            "cookies": owed.cookies,
        }
        text = json.dumps(told)
        if len(text) > FILE_LIMIT_BYTES:
            raise OweError(f"{path} would have {len(text)} bytes, at most {FILE_LIMIT_BYTES} are kept")
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            draft.unlink(missing_ok=True)
            descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
            with open(descriptor, "w") as file:
                file.write(text)
            draft.replace(path)
        except OSError as error:
            with suppress(OSError):  # It holds cookies.
                draft.unlink()
            raise OweError(f"{path} cannot be written: {error.strerror}") from error

    def drop(self, session_id: str) -> None:
        """It is closed. Where that cannot be kept, the next server closes it once more."""
        if self.folder is None:
            return
        try:
            self._path(session_id).unlink(missing_ok=True)
        except OSError as error:
            log.warning("%s cannot be removed: %s", self._path(session_id), error.strerror)

    def left(self) -> list[OwedClose]:
        """What a server that was killed left; files that are none of ours, or not whole, are passed over."""
        if self.folder is None or not self.folder.is_dir():
            return []
        found = []
        for path in sorted(self.folder.iterdir()):
            if path.suffix == ".part":
                # Its seed was not sent yet, or is kept as it was before.
                with suppress(OSError):
                    path.unlink()
            elif FILE_NAME.fullmatch(path.name) and path.is_file() and not path.is_symlink():
                try:
                    found.append(_read(path))
                except (OSError, ValueError, KeyError, TypeError, ConfigError, WireError) as error:
                    log.warning("%s cannot be read, its session is not closed: %s", path, error)
        return found

    def _path(self, session_id: str) -> Path:
        assert self.folder is not None  # the callers have looked
        return self.folder / f"{session_id}.json"


def _read(path: Path) -> OwedClose:
    told: dict[str, Any] = json.loads(read_bounded(path, FILE_LIMIT_BYTES))
    return OwedClose(
        session_id=path.stem,
        episode_id=decode(EpisodeId, told["episode_id"]),
        base_url=str(told["base_url"]),
        cookies={str(name): str(value) for name, value in told["cookies"].items()},
    )
