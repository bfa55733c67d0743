"""A sampler of API sets: asks for the APIs that were drawn least so far, for one step after the other.

    kernelzero attach --name rare-first --events ApisSampled -- python sampler.py

Where it is late or gone, the run draws as ever.
"""

from collections import Counter

from kernelzero_attach import Refused, attach

actor = attach()
apis, settings = actor.apis(), actor.settings()
size = settings["sampler"]["apis-min"]
sets = settings["proposer"]["policy"]["batch-prompts"]
drawn = Counter({api: 0 for api in apis})


def ask():
    """Sets of the rarest APIs for the next step; a set in which all are as rare goes by name."""
    rarest = sorted(apis, key=lambda api: (drawn[api], api))
    wanted = [[rarest[(first * size + i) % len(rarest)] for i in range(size)] for first in range(sets)]
    try:
        actor.propose_apis(wanted)
    except Refused as refusal:
        print(refusal)


for event in actor:
    if event.name != "ApisSampled":
        continue
    drawn.update(event.body["apis"])
    # The first set of a step that has just opened: time to ask for the next one.
    if event.seq > actor.last and event.body["index"] == 0:
        ask()
