"""Client of `kernelzero serve`. Needs Python 3.9 and nothing else.

    client = Client("http://127.0.0.1:8790")
    job = client.submit(reference, candidate, client_id="step 7 / sample 3")
    result = client.wait(job["id"])          # {"outcome": "correct", "speedup": …, …}
    for result in client.judge_many(pairs):  # (reference, candidate) pairs, results in order
        ...

A submission that names its `client_id` may be sent again after any failure: it is judged once.
"""

import json
import time
import urllib.error
import urllib.parse
import urllib.request


class KernelZeroError(Exception):
    """Anything that went wrong."""


class Unreachable(KernelZeroError):
    """The service does not answer."""


class Refused(KernelZeroError):
    """The service refused a request: `status`, `code`, `field`, `message`, `fix`."""

    def __init__(self, status, error):
        self.status = status
        self.code = error.get("code")
        self.field = error.get("field")
        self.message = error.get("message")
        self.fix = error.get("fix")
        where = f" ({self.field})" if self.field else ""
        super().__init__(f"{status} {self.code}{where}: {self.message}; {self.fix}")


class BadRequest(Refused):
    """A field is not right, or the body is too long."""


class Unauthorized(Refused):
    """The token is missing or another one."""


class NotFound(Refused):
    """There is no such job."""


class Conflict(Refused):
    """The client_id stands for another job, or the job is over."""


class QueueFull(Refused):
    """No room, also after waiting as long as allowed."""


class Unavailable(Refused):
    """The service is going down or cannot write."""


class JobCancelled(KernelZeroError):
    """The job was cancelled before it had a verdict."""


class JudgeFailed(KernelZeroError):
    """The world failed at the job as often as is tried. This is no verdict: submit it again."""


class NotOver(KernelZeroError):
    """The job was not over in time."""


_KINDS = {400: BadRequest, 413: BadRequest, 415: BadRequest, 401: Unauthorized, 403: Unauthorized,
          404: NotFound, 409: Conflict, 429: QueueFull, 503: Unavailable}
# Longest poll in one request; the service allows more, but connections do not always live so long.
_POLL = 30


class Client:
    """Talks to one service. `patience`: seconds to wait for room in a full queue, in all."""

    def __init__(self, address="http://127.0.0.1:8790", token=None, timeout=60.0, patience=600.0):
        self.address = address.rstrip("/")
        self.token = token
        self.timeout = timeout
        self.patience = patience
        host = urllib.parse.urlsplit(self.address).hostname or ""
        # A proxy cannot reach this machine's own names.
        local = host in ("localhost", "::1") or host.startswith("127.")
        self._opener = urllib.request.build_opener(*([urllib.request.ProxyHandler({})] if local else []))

    def submit(self, reference, candidate=None, **options):
        """Submits one job; returns it. Options: answer, backend, profile, seed, trials, timing,
        priority, client_id."""
        return self._call("POST", "/v1/judge", _job(reference, candidate, options))

    def submit_batch(self, jobs):
        """Submits many jobs, given as dicts of `submit`'s arguments: all are taken in, or none."""
        return self._call("POST", "/v1/judge/batch", {"jobs": list(jobs)})["jobs"]

    def get(self, job_id, wait=0):
        """The job as it stands; with `wait`, once it is over or so many seconds have passed."""
        path = f"/v1/judge/{_quoted(job_id)}?wait={int(wait)}"
        return self._call("GET", path, timeout=self.timeout + wait)

    def wait(self, job_id, timeout=None):
        """The job's result. Raises JobCancelled, JudgeFailed, or NotOver after `timeout` seconds."""
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            left = _POLL if end is None else end - time.monotonic()
            job = self.get(job_id, wait=max(0, min(_POLL, left)))
            if job["state"] in ("done", "cancelled", "failed"):
                return _result(job)
            if end is not None and time.monotonic() >= end:
                raise NotOver(f"the job {job_id} is {job['state']} after {timeout} s")

    def judge(self, reference, candidate=None, **options):
        """Submits one job and waits for its result."""
        return self.wait(self.submit(reference, candidate, **options)["id"])

    def judge_many(self, pairs, **options):
        """Results of (reference, candidate) pairs, in their order."""
        jobs = [_job(reference, candidate, options) for reference, candidate in pairs]
        for job in self.submit_batch(jobs):
            yield self.wait(job["id"])

    def stream(self, job_id):
        """The job at each of its changes, the last time with its result."""
        path = f"/v1/judge/{_quoted(job_id)}/events"
        with self._open("GET", path, None, self.timeout) as answer:
            for line in answer:
                if line.startswith(b"data: "):
                    yield json.loads(line[len(b"data: "):])

    def cancel(self, job_id):
        """Cancels a job that is queued or running; returns it."""
        return self._call("DELETE", f"/v1/judge/{_quoted(job_id)}")

    def list(self, **query):
        """Jobs without results. Query: state, client_id, after, limit."""
        return self._call("GET", "/v1/judge?" + urllib.parse.urlencode(query))

    def health(self):
        """What judges, and how many jobs are where."""
        return self._call("GET", "/health")

    def _call(self, method, path, body=None, timeout=None):
        end = time.monotonic() + self.patience
        while True:
            try:
                with self._open(method, path, body, timeout or self.timeout) as answer:
                    return json.load(answer)
            except QueueFull as full:
                if time.monotonic() + full.retry_after > end:
                    raise
                time.sleep(full.retry_after)
            except (OSError, ValueError) as error:
                raise Unreachable(f"{self.address}{path}: {error}") from error

    def _open(self, method, path, body, timeout):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.address + path, data=data, method=method)
        if data is not None:
            request.add_header("Content-Type", "application/json")
        if self.token is not None:
            request.add_header("Authorization", "Bearer " + self.token)
        try:
            return self._opener.open(request, timeout=timeout)
        except urllib.error.HTTPError as answer:
            raise _refused(answer) from None
        except OSError as error:
            raise Unreachable(f"{self.address}: {error}") from error


def _job(reference, candidate, options):
    job = {"reference": reference, **options}
    if candidate is not None:
        job["candidate"] = candidate
    return job


def _quoted(job_id):
    return urllib.parse.quote(job_id, safe="")


def _result(job):
    if job["state"] == "cancelled":
        raise JobCancelled(f"the job {job['id']} was cancelled")
    if job["state"] == "failed":
        raise JudgeFailed(f"the job {job['id']}: {job['result']['reason']}")
    return job["result"]


def _refused(answer):
    with answer:
        try:
            error = json.load(answer)["error"]
        except (ValueError, KeyError, TypeError, OSError):
            error = {"code": "unknown", "message": answer.reason, "fix": "is this the right address?"}
    refused = _KINDS.get(answer.code, Refused)(answer.code, error)
    refused.retry_after = float(answer.headers.get("Retry-After") or 1)
    return refused
