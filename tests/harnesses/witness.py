"""What a sandbox sees of itself, as one JSON object; runs inside, on whatever Python is there.

Arguments: the gateway's port, and the folder below which session folders lie. Source: proc(5).
"""

import glob
import json
import os
import sys

LISTEN, TIME_WAIT = "0A", "06"


def stat(pid):
    """Parent and process group."""
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return int(fields[1]), int(fields[2])


def text(path):
    with open(path, "rb") as file:
        return file.read().replace(b"\0", b" ").decode("utf-8", "replace").strip()


def processes():
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            parent, group = stat(name)
            line, comm = text(f"/proc/{name}/cmdline"), text(f"/proc/{name}/comm")
        except (OSError, ValueError):
            continue
        # A zombie has no command line, and is nothing that could still act.
        if line and int(name) != os.getpid():
            found.append({"pid": int(name), "parent": parent, "group": group, "name": comm, "line": line})
    return found


def sockets():
    """Inode to the port at the other end, of each connection to somewhere."""
    found = {}
    for kind in ("tcp", "tcp6", "udp", "udp6"):
        try:
            with open("/proc/net/" + kind) as file:
                rows = [line.split() for line in file.readlines()[1:]]
        except OSError:
            continue
        for row in rows:
            local, remote = (int(row[column].rpartition(":")[2], 16) for column in (1, 2))
            if row[3] not in (LISTEN, TIME_WAIT) and row[9] != "0":
                found[f"socket:[{row[9]}]"] = (kind, local, remote)
    return found


def holders(wanted):
    """The processes that hold one of the sockets."""
    for name in filter(str.isdigit, os.listdir("/proc")):
        folder = f"/proc/{name}/fd"
        try:
            links = {os.readlink(os.path.join(folder, each)) for each in os.listdir(folder)}
            if links & wanted:
                yield int(name)
        except OSError:
            continue


def sessions(folder):
    """What is left of session folders; an empty file against a launch that comes too late may stay."""
    found = glob.glob(folder + "/*")
    return [path for path in found if not path.endswith(".retired") or os.path.getsize(path)]


def main():
    port, folder = int(sys.argv[1]), sys.argv[2]
    seen = sockets()
    ours = {inode for inode, (_, _, remote) in seen.items() if remote == port}
    callers = []
    for pid in holders(ours):
        group = stat(pid)[1]
        callers.append({"pid": pid, "group": group, "leader_parent": stat(group)[0]})
    with open("/proc/net/dev") as file:
        interfaces = [line.partition(":")[0].strip() for line in file.readlines()[2:]]
    supervisors = [int(text(path)) for path in glob.glob(folder + "/*/supervisor.pid")]
    told = {
        "callers": callers,
        "elsewhere": sorted(
            f"{kind} {remote}" for kind, local, remote in seen.values() if port not in (local, remote)
        ),
        "interfaces": interfaces,
        "supervisors": supervisors,
        "sessions": sessions(folder),
        "processes": processes(),
    }
    json.dump(told, sys.stdout)


main()
