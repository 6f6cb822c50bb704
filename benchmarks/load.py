"""The load on a web server: `python -m benchmarks.load PORT CONNECTIONS COUNT` posts COUNT jobs, one after
another on each connection, over bare sockets, so that little of what is measured is the client's own.

With a COUNT of 0 it posts until its stdin ends. It prints a line when the first answer has come, and at the
end one with the answers as JSON: for each, when its request was sent (seconds since 1970), and how long it
took.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from itertools import count

from benchmarks.bench import POSTED

LONGEST = 120.0
"""Seconds after which it ends in any case."""


def main() -> None:
    port, connections, posts = (int(word) for word in sys.argv[1:])
    answers = asyncio.run(_load(port, connections, posts))
    print(json.dumps([(round(sent, 6), round(seconds, 6)) for sent, seconds in answers]))


async def _load(port: int, connections: int, posts: int) -> list[tuple[float, float]]:
    answers: list[tuple[float, float]] = []
    stopped = asyncio.Event()
    if not posts:
        asyncio.get_running_loop().add_reader(sys.stdin.fileno(), stopped.set)
    each = posts // connections if posts else None
    async with asyncio.timeout(LONGEST):
        await asyncio.gather(*(_post(port, each, stopped, answers) for _ in range(connections)))
    return answers


async def _post(
    port: int, posts: int | None, stopped: asyncio.Event, answers: list[tuple[float, float]]
) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for number in count():
        if stopped.is_set() or number == posts:
            break
        body = b'{"type":"%s","payload":{"number":%d}}' % (POSTED.encode(), number)
        request = (
            b"POST /api/tasks HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n%s" % (port, len(body), body)
        )
        sent, began = time.time(), time.perf_counter()
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 201 "):
            raise RuntimeError(f"not accepted: {head.decode()}")
        place = head.lower().index(b"content-length:") + len(b"content-length:")
        await reader.readexactly(int(head[place : head.index(b"\r\n", place)]))
        answers.append((sent, time.perf_counter() - began))
        if len(answers) == 1:
            print("begun", flush=True)
    writer.close()


if __name__ == "__main__":
    main()
