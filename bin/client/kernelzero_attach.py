"""Actors attached to a run of KernelZero. Needs Python 3.9 and nothing else.

    # kernelzero attach RUN --name watcher -- python watcher.py
    actor = attach()                         # or attach("runs/runs/RUN", name="watcher"): the socket
    actor.freeze("proposer", at_step=40)     # raises Refused if it cannot be
    for event in actor:                      # all events from the first on, then as they come
        print(event.seq, event.name, event.body)

An actor may be slow, fail or leave at any time: the run goes on. What it asks for is in the log under
its name. Standard output is the protocol's; what is printed goes to standard error.
"""

import json
import os
import socket
import sys
from collections import deque, namedtuple

PROTOCOL = 1

# `actor` is a name such as "trainer"; `body` has the fields of the event called `name`.
Event = namedtuple("Event", "seq name actor cause body")


class AttachError(Exception):
    """Anything that went wrong."""


class Refused(AttachError):
    """What was asked for is not done: `code` and `why`."""

    def __init__(self, refusal):
        self.code = refusal["code"]
        self.why = refusal["why"]
        super().__init__(f"{self.code}: {self.why}")


class Gone(AttachError):
    """The daemon has ended the connection, or is gone."""


def attach(run_dir=None, name="attached", after=0, events=None, actors=None, what=""):
    """Attaches to a run. Without `run_dir` over the standard streams, where `kernelzero attach` has
    said who it is; with it over the socket in the run's folder. `after`: a position to go on from;
    `events` and `actors`: names to see, all if absent."""
    if run_dir is None:
        lines, out = sys.stdin.buffer, sys.stdout.buffer
        sys.stdout = sys.stderr
        return Actor(lines, out)
    # A socket's path has at most 107 bytes; this one is always short.
    folder = os.open(run_dir, os.O_RDONLY)
    try:
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(f"/proc/self/fd/{folder}/attach.sock")
    finally:
        os.close(folder)
    wanted = {"events": events, "actors": actors}
    hello = {"protocol": PROTOCOL, "name": name, "what": what, "after": after,
             "filter": {key: list(names) for key, names in wanted.items() if names is not None}}
    out = connection.makefile("wb")
    out.write(json.dumps({"hello": hello}).encode() + b"\n")
    out.flush()
    return Actor(connection.makefile("rb"), out, connection)


class Actor:
    """One attached actor. `run` is the run, `last` its last event when the actor came."""

    def __init__(self, lines, out, connection=None):
        self._lines, self._out, self._connection = lines, out, connection
        self._waiting, self._asked = deque(), 0
        welcome = self._next()
        if "welcome" not in welcome:
            raise Gone(welcome.get("end", {}).get("why", "no welcome"))
        self.run = welcome["welcome"]["run"]
        self.last = welcome["welcome"]["last"]

    def __iter__(self):
        """Events in order, until the daemon ends."""
        while True:
            while self._waiting:
                yield self._waiting.popleft()
            try:
                line = self._next()
            except Gone:
                return
            if "end" in line:
                return
            self._keep(line)

    def freeze(self, policy, at_step=0):
        """Lets "proposer" or "coder" take no more gradient steps than `at_step` in all."""
        return self.ask({"intent": "freeze", "policy": policy, "at-step": at_step})

    def thaw(self, policy):
        """Lets a frozen policy learn again."""
        return self.ask({"intent": "thaw", "policy": policy})

    def set(self, key, value, at=None):
        """Gives a setting another value (text as in TOML), from "step", "phase", "round" or
        {"round": 2, "role": "coder", "step": 0} on. The event's `from` says from which step."""
        intent = {"intent": "set", "key": key, "value": value}
        return self.ask(intent if at is None else {**intent, "at": at})

    def pause(self, reason):
        """Stops all work until someone resumes the run."""
        return self.ask({"intent": "pause", "reason": reason})

    def note(self, text):
        """Writes something down in the log."""
        return self.ask({"intent": "note", "text": text})

    def propose_apis(self, sets, step=None):
        """Asks for API sets in a Proposer step that has not opened: the next one if none is named."""
        intent = {"intent": "apis", "sets": sets}
        return self.ask(intent if step is None else {**intent, "step": step})

    def settings(self):
        """The settings of the run as they are now."""
        return self._get({"get": "settings"})

    def apis(self):
        """All names of the run's API table."""
        return self._get({"get": "apis"})

    def blob(self, digest):
        """The text of a blob that an event names."""
        return self._get({"get": "blob", "blob": digest})

    def ask(self, intent):
        """Asks for one thing; returns the event that it came to. Raises Refused."""
        return _event(self._answer(intent)["accepted"])

    def close(self):
        """Leaves."""
        self._out.close()
        if self._connection is not None:
            self._connection.shutdown(socket.SHUT_RDWR)
            self._connection.close()

    def _get(self, question):
        return self._answer(question)["value"]

    def _answer(self, line):
        self._asked += 1
        try:
            self._out.write(json.dumps({**line, "id": self._asked}).encode() + b"\n")
            self._out.flush()
        except OSError as error:
            raise Gone(str(error)) from error
        while True:
            line = self._next()
            answer = line.get("answer")
            if answer is not None and answer.get("id") in (self._asked, None):
                if "refused" in answer:
                    raise Refused(answer["refused"])
                return answer
            if "end" in line:
                raise Gone(line["end"]["why"])
            self._keep(line)

    def _keep(self, line):
        if "event" in line:
            self._waiting.append(_event(line["event"]))

    def _next(self):
        try:
            text = self._lines.readline()
        except OSError as error:
            raise Gone(str(error)) from error
        if not text:
            raise Gone("the daemon is gone")
        return json.loads(text)


def _event(recorded):
    event, actor = recorded["event"], recorded["actor"]
    # An event without fields is its name alone.
    name, body = (event, {}) if isinstance(event, str) else next(iter(event.items()))
    actor = actor if isinstance(actor, str) else actor["attached"]
    return Event(recorded["seq"], name, actor, recorded["cause"], body)
