"""How a line of an engine's progress begins while what it does may take however long: that is no start that hangs."""

WAITING = "waiting for"  # the engines of other machines, which are not there yet
OPENING = "opening"  # the model, which may have to be fetched: the hub's library gives up by itself
PATIENT = (WAITING, OPENING)
