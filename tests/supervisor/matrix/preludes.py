"""What Python runs before it loads the supervisor: a kernel that hides something, or something that happens
just before a step of the supervisor's. Each text is formatted with what it needs to know.
"""

# Whatever Python opens under this name, something else happens first.
BEFORE_OPENING = """
import os
real_open = os.open
def open_later(path, *arguments, **named):
    if str(path).endswith({name!r}) and arguments[0] & os.O_CREAT:
        os.open = real_open
        {before}
        opened = real_open(path, *arguments, **named)
        {after}
        return opened
    return real_open(path, *arguments, **named)
os.open = open_later
"""
# A kernel that hides something of /proc.
HIDE_TABLE = """
import os
real_listdir = os.listdir
def listdir(path):
    if path == "/proc" and {condition}:
        raise PermissionError(1, "hidden")
    return real_listdir(path)
os.listdir = listdir
"""
HIDE_ROW = """
import builtins, os
real_open = open
def open_but_one(path, *arguments, **named):
    if isinstance(path, str) and path == "/proc/%s/stat" % pid_of_tool():
        raise PermissionError(13, "hidden")
    return real_open(path, *arguments, **named)
def pid_of_tool():
    try:
        return real_open({path!r}).read().strip()
    except OSError:
        return ""
builtins.open = open_but_one
"""
# The harness dies after the stop was noticed, before the look that records the services.
DEATH_BEFORE_RECORD = """
import os
real_listdir = os.listdir
def listdir_after_the_exit(path):
    if path == "/proc" and os.path.exists({flag!r}):
        os.listdir = real_listdir
        pid = int(open({pid!r}).read())
        os.kill(pid, 9)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    return real_listdir(path)
os.listdir = listdir_after_the_exit
"""
# The harness dies just before a look for its orphans.
DEATH_BEFORE_CHILDREN = """
import builtins, os
real_open = open
def open_after_the_exit(path, *arguments, **named):
    if str(path).endswith("/children") and os.path.exists({flag!r}):
        os.unlink({flag!r})
        pid = int(real_open({pid!r}).read())
        os.kill(pid, 9)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    return real_open(path, *arguments, **named)
builtins.open = open_after_the_exit
"""


def statement(text, **values):
    """One statement, for Python's ``-c``."""
    return f"exec({text.format(**values)!r})"
