"""Why ssh could not reach a host, and how to fix it, from the output of `ssh -v`.

tests/commands/test_check_hosts_ssh.py causes each of these errors between two hosts.
"""

from __future__ import annotations

import os
import re
from typing import NamedTuple

from .ssh import Call


class SshError(NamedTuple):
    """Why ssh failed.

    Attributes:
        found: What is wrong.
        fix: How to fix it.
    """

    found: str
    fix: str


def explain(log: str, call: Call) -> SshError:
    """Explain why an ssh failed.

    Args:
        log: Its standard error, with -v and in English.
        call: The host that it called.
    """
    for match in (_name, _other_service, _connection, _host_key, _login, _session):
        error = match(log, call)
        if error:
            return error
    return SshError(f"ssh failed: {last_message(log)}", f"run it by hand: ssh {call.option}{call.address} true")


def explain_configuration(log: str) -> SshError:
    """Explain why ssh rejects its configuration."""
    unsafe = re.search(r"Bad owner or permissions on (\S+)", log)
    if unsafe:
        return SshError(f"other users can write ssh's configuration: {unsafe[1]}", f"chmod 600 {unsafe[1]}")
    first = log.splitlines()[0] if log else "no message"
    return SshError(f"ssh cannot read its configuration: {first}", "correct that line")


def explain_timeout(log: str, call: Call) -> SshError:
    """Explain why an ssh did not end in time."""
    if "Authenticated to" in log:
        fix = f"find what hangs: ssh {call.option}{call.address} true   (~/.bashrc? a file server that is down?)"
        return SshError("ssh logs in, but nothing answers in time", fix)
    if "Connection established" in log:
        return _silent_service(call)
    return _no_answer(call) if "Connecting to" in log or call.proxied else name_server_timeout(call.hostname)


def name_server_timeout(name: str) -> SshError:
    """The error of a name that is not resolved in time."""
    fix = "check /etc/resolv.conf, or use the IP address"
    return SshError(f"resolving the name {name} timed out: the name server does not answer", fix)


def last_message(log: str) -> str:
    """The last line of ssh's output that is not debugging output."""
    return (_messages(log) or ["no message"])[-1]


def _messages(log: str) -> list[str]:
    lines = [line.strip() for line in log.splitlines()]
    return [line for line in lines if line and not re.match(r"debug\d:|OpenSSH_|Transferred:|Bytes per|\*\* ", line)]


def _name(log: str, call: Call) -> SshError | None:
    match = re.search(r"Could not resolve hostname (\S+): (.+)", log)
    if not match:
        return None
    fix = f"use its IP address, or add  ADDRESS {match[1]}  to /etc/hosts of every host"
    return SshError(f"the name {match[1]} does not resolve: {match[2]}", fix)


def _other_service(log: str, call: Call) -> SshError | None:
    banner = re.search(r"banner line 0: (.+)", log)
    if banner and "Remote protocol version" not in log:
        found = f"no sshd at {_port(call)}: it says {banner[1].strip()!r}"
        return SshError(found, f"{_setting(call, '`Port N`')}, with the port of its sshd")
    return None


def _connection(log: str, call: Call) -> SshError | None:
    match = re.search(r"^ssh: connect to (?:host|address) (\S+) port (\d+): (.+)$", log, re.MULTILINE)
    if not match:
        return _silent_service(call) if "timed out during banner exchange" in log else None
    host, port, reason = match[1], match[2], match[3].strip()
    if "refused" in reason:
        fix = f"start it on that host: systemctl start ssh (or sshd); another port: {_setting(call, '`Port N`')}"
        return SshError(f"no sshd at {host} port {port} ({call.port_from}): it refuses connections", fix)
    if "timed out" in reason or "No route to host" in reason:  # the latter: no host has the address, or a firewall
        return _no_answer(call)
    return SshError(
        f"no route to {host} port {port}: {reason}", f"check the address and the routes: ip route get {host}"
    )


def _no_answer(call: Call) -> SshError:
    fix = f"is it up, and is port {call.port} open? ping {call.hostname}; a firewall may drop packets"
    return SshError(f"no answer from {_port(call)}", fix)


def _port(call: Call) -> str:
    return f"{call.hostname} port {call.port} ({call.port_from})"


def _setting(call: Call, what: str) -> str:
    return f"`Host {call.address}` with {what} in ~/.ssh/config"


def _silent_service(call: Call) -> SshError:
    found = f"{_port(call)} accepts connections but sends nothing: not an sshd, or it hangs"
    return SshError(found, "if the port is sshd's, restart it on that host: systemctl restart ssh (or sshd)")


def _host_key(log: str, call: Call) -> SshError | None:
    if "REMOTE HOST IDENTIFICATION HAS CHANGED" in log:
        remove = re.search(r"ssh-keygen .*-R .+", log)
        name = call.hostname if call.port == "22" else f"[{call.hostname}]:{call.port}"
        command = remove[0].strip() if remove else f'ssh-keygen -R "{name}"'
        fix = f"if the host was reinstalled: {command}   then: ssh {call.option}{call.address}"
        return SshError("its host key has changed: it was reinstalled, or another machine answers", fix)
    if "Host key verification failed" in log:
        fix = f"ssh {call.option}{call.address}   once, compare the fingerprint with the host's, and answer yes"
        return SshError("its host key is not known here, and mpirun cannot ask", fix)
    return None


def _login(log: str, call: Call) -> SshError | None:
    if "Too many authentication failures" in log:
        fix = _setting(call, "`IdentityFile KEY` and `IdentitiesOnly yes`")
        return SshError(f"{call.login} rejects the first keys that ssh offers, and then closes the connection", fix)
    if not re.search(r"^\S+: Permission denied \(", log, re.MULTILINE):
        return None
    unsafe = re.search(r"Permissions \d+ for '(.+)' are too open", log)
    if unsafe:
        return SshError(f"other users can read the key {unsafe[1]}, so ssh ignores it", f"chmod 600 {unsafe[1]}")
    accepted = re.search(r"Server accepts key: (\S+)", log)
    if accepted and not re.search(r"Server accepts key: .* agent$", log, re.MULTILINE):
        return _unusable_key(accepted[1], call)
    offered = re.search(r"Offering (?:\w+ )?public key: (\S+)", log)
    copy = f"ssh-copy-id {call.option}"
    if offered:
        public = f"-i {offered[1]}.pub " if os.path.exists(f"{offered[1]}.pub") else ""
        return SshError(f"{call.login} rejects the key {offered[1]}", f"{copy}{public}{call.login}")
    return SshError("this machine has no ssh key", f"ssh-keygen -t ed25519   then: {copy}{call.login}")


def _unusable_key(key: str, call: Call) -> SshError:
    """The error of a key that the host accepts but ssh cannot use."""
    if not os.path.exists(key):
        fix = f"restore it, or: ssh-keygen -t ed25519   then: ssh-copy-id {call.option}{call.login}"
        return SshError(f"{call.login} accepts the key {key}, but only its .pub exists here", fix)
    fix = f'eval "$(ssh-agent)"; ssh-add {key}   in the shell that starts the training'
    return SshError(f"{call.login} accepts the key {key}, but it has a passphrase and no ssh-agent holds it", fix)


def _session(log: str, call: Call) -> SshError | None:
    if "Authenticated to" in log:
        fix = f"ssh {call.option}{call.address} true   must exit with 0: check the user's shell and login permissions"
        return SshError("ssh logs in, but no command runs there", fix)
    if call.proxied and "Remote protocol version" not in log:
        first = next(iter(_messages(log)), "no message")
        return SshError(f"ssh's proxy fails: {first}", "correct ProxyJump or ProxyCommand in ~/.ssh/config")
    if re.search(r"(Connection (closed|reset)|closed by remote host)", log):
        fix = "read its log: journalctl -u ssh (or sshd); MaxStartups, hosts.deny and fail2ban do this"
        return SshError(f"{call.hostname} port {call.port} closes the connection before the login", fix)
    return None
