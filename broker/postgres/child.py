"""The last step before a Postgres program runs: change the user, request to die with the parent,
leave no core, exec.

It runs as a script, `python -I -S child.py PARENT_PID UID GID PROGRAM ARGUMENT...`,
and not as a `preexec_fn`, because Python code between fork and exec is not safe in a process with
threads. It may import only the standard library.

UID and GID are numbers, or `-` to keep the user. The order matters: the kernel forgets the death
signal when a process changes its user, so it is requested last; and the parent may have died before
the request, so this is checked afterwards.
"""

import ctypes
import os
import resource
import signal
import sys

PR_SET_PDEATHSIG = 1  # <sys/prctl.h>


def die_with(parent_pid: int) -> None:
    """Let the kernel send SIGINT (to Postgres: disconnect all and shut down) when the parent dies.

    The signal comes when the *thread* that started this process ends. Linux only: elsewhere a
    killed parent leaves Postgres running, and the next start reports it.
    """
    if sys.platform != "linux":
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, signal.SIGINT, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent_pid:
        sys.exit("the service ended before its Postgres began")


def main(arguments: list[str]) -> None:
    parent_pid, uid, gid, program, *rest = arguments
    if uid != "-":
        os.setgroups([])
        os.setgid(int(gid))
        os.setuid(int(uid))
    die_with(int(parent_pid))
    # Postgres aborts when its disk is full. Its core would lie there, and take the room that was
    # made for its recovery.
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    os.execv(program, [program, *rest])


if __name__ == "__main__":
    main(sys.argv[1:])
