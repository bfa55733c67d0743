"""Role `tools`: runs compilers, whose command lines the judge wrote, in the private folder. No
code of a candidate runs here, but its text goes through the compilers, which are hostile enough
for the same confinement."""

import json
import os
import resource
import subprocess

import wire
from report import failure

OUTPUT_MAX = 16384


def serve(sock, config):
    os.environ["PATH"] = "/usr/local/bin:/usr/bin:/bin"
    handlers = {"write": write, "unpack": unpack, "run": run, "fetch": fetch}
    while True:
        message, blobs = wire.receive(sock)
        if message is None:
            return
        try:
            reply, out = handlers[message["do"]](message, blobs)
        except Exception as error:
            reply, out = failure("tools", error), []
        wire.send(sock, reply, out)


def write(_message, blobs):
    for name, data in blobs.items():
        with open(name, "wb") as file:
            file.write(data)
    return {}, []


def unpack(message, blobs):
    """Writes the judge's headers into sub-folders of a folder. Names are the judge's as well."""
    for name, text in json.loads(bytes(blobs["files"])).items():
        path = os.path.join(message["folder"], name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
    return {}, []


def run(message, _blobs):
    """Runs the commands at the same time; gives exit codes, the start of what they print, and the
    processor time of all. A single process may take `cpu` seconds, however busy the machine."""
    resource.setrlimit(resource.RLIMIT_CPU, (message["cpu"], message["cpu"]))
    running = []
    for place, argv in enumerate(message["commands"]):
        log = open(f"log{place}", "w+b")
        running.append((log, subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log,
                                              stderr=subprocess.STDOUT)))
    results = []
    for log, process in running:
        code = process.wait()
        log.seek(0)
        results.append([code, log.read(OUTPUT_MAX).decode(errors="replace")])
        log.close()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {"results": results, "cpu": used.ru_utime + used.ru_stime}, []


def fetch(message, _blobs):
    with open(message["file"], "rb") as file:
        return {}, [("file", [file.read()])]
