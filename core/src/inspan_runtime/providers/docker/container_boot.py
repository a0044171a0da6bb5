"""The first process of a container: take the keeper's word, then the agent's code, and become the agent.

It is copied beside the mounted interpreter and run by that: of this process's version, without any site.
"""

import _socket
import os
import struct

DOOR = "/run/inspan/door/sock"
AGENT_FD, LISTEN_FD = 3, 4


def main() -> None:
    """Connect to the keeper, get the agent's listener from it, and run what it sends."""
    door = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    try:
        door.connect(DOOR)
    except OSError:  # The keeper is dead: so is the sandbox.
        os._exit(0)
    _, ancillary, _, _ = door.recvmsg(1, _socket.CMSG_SPACE(4))
    (listener,) = struct.unpack("i", ancillary[0][2])
    kept = [os.dup(fd) for fd in (door.fileno(), listener)]
    highest = max(*kept, door.fileno(), listener, AGENT_FD, LISTEN_FD)
    moved = [os.dup2(fd, highest + 1 + number) for number, fd in enumerate(kept)]
    os.dup2(moved[0], AGENT_FD)
    os.dup2(moved[1], LISTEN_FD)
    os.closerange(LISTEN_FD + 1, highest + 3)
    door.detach()
    try:
        size = struct.unpack(">I", take(4))[0]
        exec(take(size).decode(), {"__name__": "inspan_boot"})
    except Exception as error:  # Nobody reads a container's standard error.
        os.write(AGENT_FD, b"E" + repr(error).encode("utf-8", "replace")[:1000])


def take(size: int) -> bytes:
    """Return exactly so many bytes of the keeper's."""
    data = b""
    while len(data) < size:
        part = os.read(AGENT_FD, size - len(data))
        if not part:
            os._exit(0)
        data += part
    return data


if __name__ == "__main__":
    main()
