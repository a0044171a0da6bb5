"""The exec agent: what runs commands and moves files inside a sandbox.

Standard library only, Python 3.8 syntax. In an isolated sandbox it is PID 1 and its end is the end of all; in
a `local` one it is a child subreaper. One thread, one epoll loop, one connection an operation:

    request   the fields of a frame, then a body of the announced length
    exec      "exec", timeout_s, limit_bytes, body length, cwd, argument count, arguments..., NAME=VALUE...
    upload    "upload", path, mode, body length
    download  "download", path, limit_bytes, "tail" or ""
    ping      "ping"
    reply     a frame, the first field is "ok" or the error's kind; then the announced bodies

A client that shuts its side down while a command runs has cancelled it: the command's process group is
killed, and the connection is closed when the command is dead. A client that is gone altogether, like a
crashed server, leaves the command to run until its deadline. The agent's other connection, to the sandbox's
keeper, is its lifeline: when that ends, the sandbox ends.
"""
