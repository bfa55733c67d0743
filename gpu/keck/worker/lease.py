"""This worker's share of the device while a question is answered. It begins without one: what a worker
does on processors (drawing inputs, compiling, handing results over) keeps nobody from the device."""


class Lease:
    def __init__(self):
        self.sock, self.depth = None, 0

    def say(self, word, waits=True):
        """Tells the judge what comes now; `waits` for its word that the device is there for it."""
        if self.sock:
            self.sock.send(b'{"device": "%s"}' % word)
            if waits:
                self.sock.recv(64)

    def begin(self, sock):
        """For a question that is answered without a share at first; without a socket there is none
        to be had."""
        self.sock, self.depth = sock, 0

    def take(self):
        self.say(b"wanted")

    def leave(self):
        self.say(b"free", waits=False)

    def __enter__(self):
        """Gives it away for a while, as often as that is nested."""
        self.depth += 1
        if self.depth == 1:
            self.leave()

    def __exit__(self, *_):
        self.depth -= 1
        if self.depth == 0:
            self.take()


LEASE = Lease()
