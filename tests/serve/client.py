"""Drives the client against a service with one judge and room for two jobs."""

import sys
import threading
import time
from pathlib import Path

import kernelzero_client as kz

address, folder = sys.argv[1], Path(sys.argv[2])
reference, honest, wrong, long = (
    (folder / f"{name}.py").read_text()
    for name in ("leaky_scale", "honest_leaky", "broken_wrong_slope", "slow")
)
client = kz.Client(address, timeout=100)


def raises(kind, act):
    try:
        act()
    except kind as error:
        return error
    raise AssertionError(f"{kind.__name__} was not raised")


assert client.health()["status"] == "ok"
result = client.judge(reference, honest, trials=2, client_id="one")
assert result["outcome"] == "correct", result
again = client.submit(reference, honest, trials=2, client_id="one")
assert again["state"] == "done" and again["result"] == result
chatty = client.judge(reference, answer=f"So:\n```python\n{wrong}```\n", trials=2)
assert chatty["outcome"] == "incorrect", chatty
outcomes = [found["outcome"] for found in client.judge_many([(reference, honest), (reference, wrong)])]
assert outcomes == ["correct", "incorrect"], outcomes

error = raises(kz.BadRequest, lambda: client.submit(reference, honest, profile="lenient"))
assert (error.status, error.field) == (400, "profile") and error.fix
assert raises(kz.Conflict, lambda: client.submit(reference, wrong, client_id="one")).code == "conflict"
raises(kz.NotFound, lambda: client.get("00000000-0000-4000-8000-000000000000"))
raises(kz.Unreachable, lambda: kz.Client("http://127.0.0.1:1").health())

# One runs for long, two wait, and the next one finds no room until one of them is cancelled.
slow = client.submit(reference, long)
while client.get(slow["id"])["state"] == "queued":
    time.sleep(0.05)
waiting = [client.submit(reference, honest, seed=seed) for seed in (1, 2)]
hasty = kz.Client(address, patience=0)
assert raises(kz.QueueFull, lambda: hasty.submit(reference, honest, seed=3)).retry_after >= 1
raises(kz.NotOver, lambda: client.wait(waiting[0]["id"], timeout=1))
threading.Timer(0.2, lambda: client.cancel(waiting[1]["id"])).start()
patient = client.submit(reference, honest, seed=3)
raises(kz.JobCancelled, lambda: client.wait(waiting[1]["id"]))

client.cancel(slow["id"])
states = [job["state"] for job in client.stream(patient["id"])]
assert states[-1] == "done" and len(states) >= 2, states
assert raises(kz.Conflict, lambda: client.cancel(patient["id"])).code == "over"
listed = client.list(state="cancelled")
assert {job["id"] for job in listed["jobs"]} == {slow["id"], waiting[1]["id"]}
print("all is well")
