"""Writes the mean reward of each step to a file, and notes in the log when all of a step are equal.

    kernelzero attach --name rewards --events GroupScored,StepTaken -- python reward_observer.py FILE

One JSON object a line: round, role, step, samples, mean, least, most.
"""

import json
import sys

from kernelzero_attach import Gone, attach

if len(sys.argv) != 2:
    sys.exit(__doc__)
actor = attach()
rewards = []
with open(sys.argv[1], "w", buffering=1) as out:
    for event in actor:
        if event.name == "GroupScored":
            (scores,) = event.body["scores"].values()
            rewards += [score["reward"] for score in scores]
        elif event.name == "StepTaken" and rewards:
            line = {**event.body["step"], "samples": len(rewards), "mean": sum(rewards) / len(rewards),
                    "least": min(rewards), "most": max(rewards)}
            print(json.dumps(line), file=out)
            # Old steps are not worth a note.
            if line["least"] == line["most"] and event.seq > actor.last:
                try:
                    actor.note(f"all {len(rewards)} rewards are {line['mean']}")
                except Gone:
                    pass  # the run may be over before the note; its last events still come
            rewards = []
