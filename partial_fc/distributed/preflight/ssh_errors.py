"""Why ssh did not get through to a host, in one sentence with its fix: read from what `ssh -v` itself says.

Each case was made so between two hosts and is in tests/commands/test_check_hosts_ssh.py.
"""

from __future__ import annotations

import os
import re
from typing import NamedTuple

from .ssh import Call


class SshError(NamedTuple):
    found: str
    fix: str


def explain(said: str, call: Call) -> SshError:
    """The trouble that ended an ssh.

    Args:
        said: its standard error, with -v and in English.
        call: whom it called.
    """
    for look in (_name, _other_service, _connection, _host_key, _login, _ending):
        trouble = look(said, call)
        if trouble:
            return trouble
    return SshError(f"ssh fails: {last_word(said)}", f"try it by hand: ssh {call.option}{call.address} true")


def explain_settings(said: str) -> SshError:
    """The trouble of an ssh that refuses its settings."""
    unsafe = re.search(r"Bad owner or permissions on (\S+)", said)
    if unsafe:
        return SshError(f"others may write ssh's settings: {unsafe[1]}", f"chmod 600 {unsafe[1]}")
    return SshError(
        f"ssh cannot read its settings: {said.splitlines()[0] if said else 'it says nothing'}", "fix that line"
    )


def explain_silence(said: str, call: Call) -> SshError:
    """The trouble of an ssh that had to be ended because its time was up."""
    if "Authenticated to" in said:
        fix = f"see what hangs there: ssh {call.option}{call.address} true   (~/.bashrc? a file server that is away?)"
        return SshError("ssh logs in, but nothing answers in time", fix)
    if "Connection established" in said:
        return _silent_service(call)
    return _no_answer(call) if "Connecting to" in said or call.proxied else no_name_server(call.hostname)


def no_name_server(name: str) -> SshError:
    fix = "see /etc/resolv.conf, or write the IP address instead"
    return SshError(f"the name {name} is still being looked up: a name server is away", fix)


def last_word(said: str) -> str:
    """The last line that ssh wrote for people."""
    return (_spoken(said) or ["it says nothing"])[-1]


def _spoken(said: str) -> list[str]:
    lines = [line.strip() for line in said.splitlines()]
    return [line for line in lines if line and not re.match(r"debug\d:|OpenSSH_|Transferred:|Bytes per|\*\* ", line)]


def _name(said: str, call: Call) -> SshError | None:
    match = re.search(r"Could not resolve hostname (\S+): (.+)", said)
    if not match:
        return None
    fix = f"write its IP address instead, or add  ADDRESS {match[1]}  to /etc/hosts of every host"
    return SshError(f"the name {match[1]} does not resolve: {match[2]}", fix)


def _other_service(said: str, call: Call) -> SshError | None:
    banner = re.search(r"banner line 0: (.+)", said)
    if banner and "Remote protocol version" not in said:
        found = f"no sshd at {_port(call)}: it says {banner[1].strip()!r}"
        return SshError(found, f"{_setting(call, '`Port N`')}, with the port of its sshd")
    return None


def _connection(said: str, call: Call) -> SshError | None:
    match = re.search(r"^ssh: connect to (?:host|address) (\S+) port (\d+): (.+)$", said, re.MULTILINE)
    if not match:
        return _silent_service(call) if "timed out during banner exchange" in said else None
    host, port, why = match[1], match[2], match[3].strip()
    if "refused" in why:
        fix = f"start it there: systemctl start ssh (or sshd); another port: {_setting(call, '`Port N`')}"
        return SshError(f"no sshd at {host} port {port} ({call.port_from}): it refuses connections", fix)
    if "timed out" in why or "No route to host" in why:  # the latter: nobody has that address, or a firewall says so
        return _no_answer(call)
    return SshError(f"no way to {host} port {port}: {why}", f"see the address and the routes: ip route get {host}")


def _no_answer(call: Call) -> SshError:
    fix = f"is it up, and is port {call.port} open? ping {call.hostname}; a firewall may drop packets"
    return SshError(f"no answer from {_port(call)}", fix)


def _port(call: Call) -> str:
    return f"{call.hostname} port {call.port} ({call.port_from})"


def _setting(call: Call, what: str) -> str:
    return f"`Host {call.address}` with {what} in ~/.ssh/config"


def _silent_service(call: Call) -> SshError:
    found = f"{_port(call)} accepts connections but says nothing: no sshd, or it hangs"
    return SshError(found, "is it sshd's port? else restart it there: systemctl restart ssh (or sshd)")


def _host_key(said: str, call: Call) -> SshError | None:
    if "REMOTE HOST IDENTIFICATION HAS CHANGED" in said:
        remove = re.search(r"ssh-keygen .*-R .+", said)
        name = call.hostname if call.port == "22" else f"[{call.hostname}]:{call.port}"
        command = remove[0].strip() if remove else f'ssh-keygen -R "{name}"'
        fix = f"if it was installed anew: {command}   then: ssh {call.option}{call.address}"
        return SshError("its host key is not the one known here: installed anew, or another machine answers", fix)
    if "Host key verification failed" in said:
        fix = f"ssh {call.option}{call.address}   once, compare the fingerprint with the host's, and answer yes"
        return SshError("its host key is not known here, and mpirun cannot ask", fix)
    return None


def _login(said: str, call: Call) -> SshError | None:
    if "Too many authentication failures" in said:
        fix = _setting(call, "`IdentityFile KEY` and `IdentitiesOnly yes`")
        return SshError(f"{call.who} takes none of the first keys offered, and no more", fix)
    if not re.search(r"^\S+: Permission denied \(", said, re.MULTILINE):
        return None
    unsafe = re.search(r"Permissions \d+ for '(.+)' are too open", said)
    if unsafe:
        return SshError(f"others may read the key {unsafe[1]}, so ssh does not use it", f"chmod 600 {unsafe[1]}")
    accepted = re.search(r"Server accepts key: (\S+)", said)
    if accepted and not re.search(r"Server accepts key: .* agent$", said, re.MULTILINE):
        if not os.path.exists(accepted[1]):
            fix = f"bring it back, or: ssh-keygen -t ed25519   then: ssh-copy-id {call.option}{call.who}"
            return SshError(f"{call.who} takes the key {accepted[1]}, but only its .pub is here", fix)
        fix = f'eval "$(ssh-agent)"; ssh-add {accepted[1]}   in the shell that starts the training'
        return SshError(f"{call.who} takes the key {accepted[1]}, but it has a passphrase and no agent knows it", fix)
    offered = re.search(r"Offering (?:\w+ )?public key: (\S+)", said)
    copy = f"ssh-copy-id {call.option}"
    if offered:
        public = f"-i {offered[1]}.pub " if os.path.exists(f"{offered[1]}.pub") else ""
        return SshError(f"{call.who} does not take the key {offered[1]}", f"{copy}{public}{call.who}")
    return SshError("there is no ssh key here", f"ssh-keygen -t ed25519   then: {copy}{call.who}")


def _ending(said: str, call: Call) -> SshError | None:
    if "Authenticated to" in said:
        fix = f"ssh {call.option}{call.address} true   must end with 0: a shell that is there, a user who may log in"
        return SshError("ssh logs in, but no command runs there", fix)
    if call.proxied and "Remote protocol version" not in said:
        wrong = next(iter(_spoken(said)), "it says nothing")
        found = f"ssh's way through another host or program fails: {wrong}"
        return SshError(found, "see ProxyJump or ProxyCommand in ~/.ssh/config")
    if re.search(r"(Connection (closed|reset)|closed by remote host)", said):
        fix = "see why there: journalctl -u ssh (or sshd); MaxStartups, hosts.deny and fail2ban do this"
        return SshError(f"{call.hostname} port {call.port} ends the connection before the login", fix)
    return None
