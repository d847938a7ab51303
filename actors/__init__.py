"""The shells: Pykka actors that feed the machines of ``core`` and perform their effects."""
