"""Drives the client over the socket of a run whose folder is the argument."""

import sys

import kernelzero_attach as kz


def raises(kind, act):
    try:
        act()
    except kind as error:
        return error
    raise AssertionError(f"{kind.__name__} was not raised")


actor = kz.attach(sys.argv[1], name="client", what="the client's test", events=["RunStarted"])
frozen = actor.freeze("proposer", at_step=40)
assert (frozen.name, frozen.actor, frozen.body["value"]) == ("SettingChanged", "client", "40"), frozen
assert actor.settings()["proposer"]["policy"]["freeze-at-step"] == 40
assert actor.thaw("proposer").body["value"] is None
planned = actor.set("coder.beta", "0.5", at="phase")
assert planned.body["from"]["role"] == "proposer", planned
apis = actor.apis()
assert actor.propose_apis([apis[:2]]).name == "ApisProposed"
assert actor.note("all went well").cause == frozen.cause
refusal = raises(kz.Refused, lambda: actor.set("coder.beta", "many"))
assert refusal.code == "bad-setting" and "coder.beta" in refusal.why, refusal
raises(kz.Refused, lambda: actor.blob("0" * 64))

first = next(iter(actor))
assert (first.seq, first.name) == (1, "RunStarted"), first
assert actor.blob(first.body["api_table"]).startswith("a.x\t")
raises(kz.Gone, lambda: kz.attach(sys.argv[1], name="client"))
actor.close()

# Whoever comes again goes on where it was.
again = kz.attach(sys.argv[1], name="again", after=frozen.seq, actors=["client"])
names = []
for event in again:
    names.append(event.name)
    if event.name == "ActorDetached":
        break
assert names == ["SettingChanged", "SettingPlanned", "ApisProposed", "Noted", "IntentRefused",
                 "ActorDetached"], names
again.close()
print("all is well")
