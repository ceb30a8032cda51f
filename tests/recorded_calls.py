"""The arguments of a call that a builder makes, by name."""

import inspect


def recorded(monkeypatch, module, name):
    """A list that gets the arguments of each call of what a module has by this name, which is called all the same."""
    calls, called = [], getattr(module, name)

    def record(*positional, **named):
        calls.append(inspect.signature(called).bind(*positional, **named).arguments)
        calls[-1].update(calls[-1].pop("arguments", {}))
        return called(*positional, **named)

    monkeypatch.setattr(module, name, record)
    return calls
