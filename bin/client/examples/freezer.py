"""Freezes a policy once it has taken so many of its own gradient steps, then leaves.

    kernelzero attach --name freezer --events StepTaken -- python freezer.py proposer 40

It counts by the log: as soon as it sees the step, the policy is frozen. With --ahead it asks before
the step comes, so that the freeze acts exactly there however late this process is.
"""

import sys

from kernelzero_attach import attach

if len(sys.argv) < 3:
    sys.exit(__doc__)
policy, step = sys.argv[1], int(sys.argv[2])
actor = attach()
if "--ahead" in sys.argv[3:]:
    actor.freeze(policy, at_step=step)
for event in actor:
    after = event.body["after"] if event.name == "StepTaken" else None
    if after and after["role"] == policy and after["steps"] >= step:
        if "--ahead" not in sys.argv[3:]:
            actor.freeze(policy, at_step=step)
        actor.note(f"{policy} is frozen after {after['steps']} steps")
        break
