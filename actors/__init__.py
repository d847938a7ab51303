"""Pykka actors that pass events to the state machines of ``core`` and perform their effects."""
