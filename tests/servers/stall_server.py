"""A server on asyncio whose requests say what they do to it.

The body of a request is JSON; every key that it has is done in turn, then a stream of `events`
events follows, `gap_ms` apart. When the request is over, a line `done SECONDS` says how long the
thread was kept from what it had to do, by its own clocks.

    stall_server.py PORT [workers N | core]

`workers` forks as many processes that share the listener. `core` starts a process of its own for
the work of `core_ms`, with the title of vLLM's.
"""

import asyncio
import ctypes
import json
import mmap
import os
import subprocess
import sys
import threading
import time

CORE = """
import os, sys, time
while True:
    line = os.read(3, 64)
    if not line:
        break
    end = time.thread_time() + float(line) / 1e3
    while time.thread_time() < end:
        pass
    os.write(4, b"x")
"""
core = None


def die_with_parent():
    PR_SET_PDEATHSIG, SIGKILL = 1, 9
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, SIGKILL)


def work(seconds):
    """Uses the processor for so long."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def cold(path):
    """A file of which nothing is in memory."""
    fd = os.open(path, os.O_RDONLY)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    return fd


def read_file(path):
    fd = cold(path)
    at = 0
    while piece := os.pread(fd, 1 << 20, at):
        at += len(piece)
    os.close(fd)


def map_file(path):
    fd = cold(path)
    with mmap.mmap(fd, 0, prot=mmap.PROT_READ) as pages:
        # Backwards, which nobody reads ahead for.
        sum(pages[at] for at in range(len(pages) - 1, 0, -(1 << 18)))
    os.close(fd)


def write_file(path):
    """Puts more into memory than the control group may have."""
    with open(path, "wb") as file:
        for _ in range(96):
            file.write(b"x" * (1 << 20))
    os.unlink(path)


def beside(seconds):
    """Works while another thread does."""
    other = threading.Thread(target=work, args=(seconds,))
    other.start()
    work(seconds)
    return other


async def act(asked):
    """Does what is asked for; seconds in which the thread wanted to go on and could not."""
    wall, used = time.monotonic(), time.thread_time()
    if "block_ms" in asked:
        time.sleep(asked["block_ms"] / 1e3)
    if "spin_ms" in asked:
        work(asked["spin_ms"] / 1e3)
        return time.monotonic() - wall
    if "read" in asked:
        read_file(asked["read"])
    if "map" in asked:
        map_file(asked["map"])
    if "write" in asked:
        write_file(asked["write"])
    other = beside(asked["threads_ms"] / 1e3) if "threads_ms" in asked else None
    held = time.monotonic() - wall - (time.thread_time() - used)
    while other and other.is_alive():
        await asyncio.sleep(0.001)
    # In pieces, so that the loop is never away for long.
    for _ in range(asked.get("pieces", 0)):
        wall, used = time.monotonic(), time.thread_time()
        work(0.002)
        held += time.monotonic() - wall - (time.thread_time() - used)
        await asyncio.sleep(0.001)
    if "core_ms" in asked:
        os.write(core[1], b"%d" % asked["core_ms"])
        loop, future = asyncio.get_running_loop(), asyncio.get_running_loop().create_future()
        loop.add_reader(core[0], lambda: future.set_result(os.read(core[0], 8)))
        await future
        loop.remove_reader(core[0])
    return held


async def serve(reader, writer):
    try:
        while head := await reader.readuntil(b"\r\n\r\n"):
            fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:] if line)
            asked = json.loads(await reader.readexactly(int(fields[b"content-length"])))
            held = await act(asked)
            writer.write(
                b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
                b"x-pid: %d\r\ntransfer-encoding: chunked\r\n\r\n" % os.getpid()
            )
            for _ in range(asked.get("events", 3)):
                event = b'data: {"choices":[{"delta":{"content":"x"}}]}\n\n'
                writer.write(b"%x\r\n%s\r\n" % (len(event), event))
                await writer.drain()
                await asyncio.sleep(asked.get("gap_ms", 5) / 1e3)
            writer.write(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")
            await writer.drain()
            print(f"done {held:.6f}", flush=True)
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()


async def main(listener):
    server = await asyncio.start_server(serve, sock=listener)
    print(f"ready {os.getpid()}", flush=True)
    async with server:
        await server.serve_forever()


def start_core():
    """Its title is all of its command line, so its program comes by the standard input."""
    global core
    (there, ask), (answer, back) = os.pipe(), os.pipe()

    def place():
        # Away from 3 and 4 before those are taken.
        high = [os.dup2(fd, 50 + at) for at, fd in enumerate((there, back))]
        os.dup2(high[0], 3)
        os.dup2(high[1], 4)

    child = subprocess.Popen(
        ["VLLM::EngineCore"],
        executable=sys.executable,
        stdin=subprocess.PIPE,
        preexec_fn=place,
        pass_fds=(3, 4, there, back),
    )
    child.stdin.write(CORE.encode())
    child.stdin.close()
    core = (answer, ask)
    print(f"core {child.pid}", flush=True)


if __name__ == "__main__":
    import socket

    listener = socket.create_server(("127.0.0.1", int(sys.argv[1])), backlog=64)
    if sys.argv[2:3] == ["core"]:
        start_core()
    if sys.argv[2:3] == ["workers"]:
        for _ in range(int(sys.argv[3]) - 1):
            if os.fork() == 0:
                die_with_parent()
                break
    asyncio.run(main(listener))
