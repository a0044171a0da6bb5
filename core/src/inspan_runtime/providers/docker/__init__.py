"""Provider ``docker``: sandboxes of the docker or podman command line, from images.

A sandbox that this provider creates is a container with a keeper on the host. Where the engine runs on this
host, the container's first process is the exec agent, run by an interpreter of our own that is mounted
read-only: the image needs neither Python nor a shell. Elsewhere (a remote engine, an image of another
architecture, a container that somebody else made) every operation is one ``exec`` of the engine, and the
container needs a shell with ``setsid``, ``env``, ``stat`` and the usual small programs.
"""
