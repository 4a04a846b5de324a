"""The program that decodes one file for `process.py`: python -m watersmeet.tokenizers.video.child SOURCE RING OUT

The arguments are numbers of open files: the video, the memory that frames are written to, and the pipe that lines of JSON
go to. On standard input come a line with the request, a line with what is wanted once the head is known, and one byte for
each slot of the ring that is free again.
"""

from __future__ import annotations

import json
import mmap
import os
import sys
from dataclasses import asdict
from typing import Any

import numpy as np


def limit_process(max_memory: int, cpu_seconds: int) -> None:
    """Bound what this process can take: memory, time, no core dumps, no files but its own last words."""
    try:
        import resource
    except ImportError:  # not every system has limits
        return
    wanted = {"RLIMIT_AS": max_memory, "RLIMIT_CPU": cpu_seconds, "RLIMIT_CORE": 0, "RLIMIT_FSIZE": 2**20}
    for name, value in wanted.items():
        kind = getattr(resource, name)
        _, hard = resource.getrlimit(kind)
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        try:
            resource.setrlimit(kind, (value, hard))
        except (ValueError, OSError):
            continue  # macOS refuses some of them


def main(source: int, ring: int, out: int) -> None:
    """Serve one request."""
    from watersmeet.core.errors import DecodeError
    from watersmeet.tokenizers.video.frames import Limits
    from watersmeet.tokenizers.video.reader import Reader

    request = json.loads(sys.stdin.buffer.readline())
    limits = Limits(**request["limits"])
    limit_process(limits.max_memory, limits.cpu_seconds)

    def say(kind: str, **values: Any) -> None:
        # short enough for a pipe to take it whole
        os.write(out, json.dumps({"kind": kind, **values}).encode() + b"\n")

    try:
        with os.fdopen(source, "rb") as file:
            reader = Reader(file, request["name"], limits, measured=request["measured"])
            try:
                say("head", **asdict(reader.head))
                _serve(reader, ring, say)
            finally:
                reader.close()
    except DecodeError as error:
        say("error", text=str(error))
    except MemoryError:
        say("error", text=f"{request['name']}: needs more memory than the limit to be decoded")


def _serve(reader: Any, ring: int, say: Any) -> None:
    from watersmeet.tokenizers.video.upright import halved

    line = sys.stdin.buffer.readline()
    if not line:
        return  # nobody wants frames
    wanted = json.loads(line)
    slots, (height, width) = wanted["slots"], wanted["size"]
    memory = mmap.mmap(ring, slots * height * width * 3)
    places = np.frombuffer(memory, dtype=np.uint8).reshape(slots, height, width, 3)
    free = slots
    for number, frame in enumerate(reader.frames(wanted["times"])):
        if free == 0:
            if not sys.stdin.buffer.read(1):
                return
            free += 1
        free -= 1
        np.copyto(places[number % slots], halved(frame.pixels) if wanted["halved"] else frame.pixels)
        say(
            "frame",
            slot=number % slots,
            index=frame.index,
            time_us=frame.time_us,
            key=frame.key,
            guessed=frame.guessed,
            unsure=frame.unsure,
        )
    gaps = [asdict(gap) for gap in reader.gaps]
    for first in range(0, len(gaps), 16):
        say("gaps", gaps=gaps[first : first + 16])
    for note in reader.notes:
        say("note", text=note)
    say("end", end_us=reader.end_us, frames=reader.count)


if __name__ == "__main__":
    try:
        main(*(int(word) for word in sys.argv[1:4]))
    except BrokenPipeError:
        sys.exit(0)  # whoever asked has gone
