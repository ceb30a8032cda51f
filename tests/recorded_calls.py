"""Records the arguments of calls."""

import inspect


def recorded(monkeypatch, module, name):
    """Returns a list that receives the arguments, by name, of each call of a module's function; the call proceeds."""
    calls, called = [], getattr(module, name)

    def record(*positional, **named):
        calls.append(inspect.signature(called).bind(*positional, **named).arguments)
        calls[-1].update(calls[-1].pop("arguments", {}))
        return called(*positional, **named)

    monkeypatch.setattr(module, name, record)
    return calls
