"""The keeper: one small process a sandbox that holds it alive, ends it in time and leaves nothing of it.

Standard library only. It runs in a session of its own, so it outlives the server; its own death ends the
sandbox (the agent's lifeline). It listens on ``control.sock`` in the sandbox's state folder:

    request   a frame: "ping" or "stop"
    reply     a frame: "ok"; after "stop" nothing of the sandbox lives and the folder is gone

The exclusive lock on the folder's ``lock`` is held exactly as long as the keeper lives.
"""
