"""Errors of ssh, caused between real sshds, and found by one check of all of them at once."""

import re
import shlex
import subprocess
import sys
import time

import pytest

from paths import ROOT
from virtual_hosts import Hosts, unavailable

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(unavailable()), reason=unavailable())]

# Port of hostb -> what the service there does with a connection.
SERVICES = {
    2301: "c.sendall(b'220 mail.example ESMTP\\r\\n'); c.recv(1000)",
    2302: "c.close()",
    2303: "kept.append(c)",
}
SERVICE = """
import socket, sys
server, kept = socket.create_server(("0.0.0.0", {port})), []
print("ready", flush=True)
while True:
    c, _ = server.accept()
    {act}
"""
# An alias of ~/.ssh/config -> its lines; all lead to hostb unless their lines change that.
ALIASES = {
    "good": "",
    "unknown-key": "UserKnownHostsFile /dev/null",
    "changed-key": "UserKnownHostsFile {ssh}/changed",
    "no-sshd": "Port 2300",
    "mail": "Port 2301",
    "closing": "Port 2302",
    "silent": "Port 2303",
    "no-key": "IdentityFile /nonexistent\n IdentitiesOnly yes",
    "other-key": "IdentityFile {ssh}/other\n IdentitiesOnly yes",
    "locked-key": "IdentityFile {ssh}/locked\n IdentitiesOnly yes",
    "half-key": "IdentityFile {ssh}/half\n IdentitiesOnly yes",
    "open-key": "IdentityFile {ssh}/open\n IdentitiesOnly yes",
    "many-keys": "IdentitiesOnly yes\n " + "\n ".join(f"IdentityFile {{ssh}}/many{number}" for number in range(7)),
    "no-command": "Port 2304",
    "hanging": "Port 2305",
    "nowhere": "HostName 203.0.113.9",
    "proxy": "ProxyCommand /nonexistent/proxy %h",
    "away": "HostName hostc",
}
# Alias -> what the table prints for it: the problem and the fix.
EXPECTED = {
    "unknown-key": (r"its host key is not known here", r"ssh unknown-key   once, .* answer yes"),
    "changed-key": (
        r"its host key has changed",
        r".*ssh-keygen -f .*/changed. -R .hostb.   then: ssh ch",
    ),
    "no-sshd": (r"no sshd at hostb port 2300 \(from ~/\.ssh/config\): it refuses", r".*systemctl start ssh .*`Port N`"),
    "mail": (r"no sshd at hostb port 2301 .*: it says '220 mail\.example ESMTP'", r"`Host mail` with `Port N`"),
    "closing": (r"hostb port 2302 closes the connection before the login", r".*journalctl -u ssh"),
    "silent": (r"hostb port 2303 .* accepts connections but sends nothing", r".*systemctl restart ssh"),
    "no-key": (r"this machine has no ssh key", r"ssh-keygen -t ed25519   then: ssh-copy-id \w+@hostb"),
    "other-key": (r"\w+@hostb rejects the key \S+/other", r"ssh-copy-id -i \S+/other\.pub \w+@hostb"),
    "locked-key": (
        r"\w+@hostb accepts the key \S+/locked, but it has a passphrase and no ssh-agent",
        r".*ssh-add \S+/locked",
    ),
    "half-key": (r"\w+@hostb accepts the key \S+/half, but only its \.pub exists here", r".*ssh-copy-id \w+@hostb"),
    "open-key": (r"other users can read the key \S+/open", r"chmod 600 \S+/open"),
    "many-keys": (r"\w+@hostb rejects the first keys that ssh offers", r".*`IdentitiesOnly yes`"),
    "no-command": (r"ssh logs in, but no command runs there", r"ssh -p 2304 no-command true"),
    "hanging": (r"ssh logs in, but nothing answers in time", r".*ssh -p 2305 hanging true"),
    "nowhere": (r"no route to 203\.0\.113\.9 port 22: Network is unreachable", r".*ip route get 203\.0\.113\.9"),
    "proxy": (r"ssh's proxy fails: .*/nonexistent/proxy", r".*ProxyCommand"),
    "away": (r"no answer from hostc port 22 \(the default\)", r".*ping hostc"),
    "hostz": (r"the name hostz does not resolve", r".*/etc/hosts"),  # does not exist
}


def test_ssh_errors(tmp_path):
    assert set(EXPECTED) == {*ALIASES, "hostz"} - {"good"}
    with Hosts(["hosta", "hostb", "hostc"], tmp_path) as hosts:
        prepare(tmp_path)
        hosts.drop("hostc")
        services = [start(hosts, port, act) for port, act in SERVICES.items()]
        special_sshd(hosts, tmp_path, 2304, "/bin/sh -c 'echo closed for today; exit 1'")
        special_sshd(hosts, tmp_path, 2305, "/bin/sleep 60")
        began = time.monotonic()
        command = ["bash", ROOT / "setup-utils" / "check.sh", "--hosts", ",".join(["good", *EXPECTED])]
        done = hosts.run("hosta", command, timeout=40)
        seconds = time.monotonic() - began
        left = hosts.run("hosta", ["pgrep", "-x", "ssh"]).stdout
        for service in services:
            service.kill()
            service.wait()
    text = done.stdout + done.stderr
    blocks = {block.split(",")[0]: block for block in done.stdout.split("\n\n")}
    wrong = [
        name
        for name, (found, fix) in EXPECTED.items()
        if not re.fullmatch(rf"{name}, 1 rank:\n\[bad\] +ssh +{found}.*\n +-> {fix}.*", blocks[name])
    ]
    assert wrong == [], text
    # The others do not affect the host that answers, the check ends in time, and no process is left.
    for row in (r"ssh +as \w+ to 10\.77\.0\.2", r"code .* as here", r"network +reached by hosta"):
        assert re.search(rf"^\[ok\] +{row}", blocks["good"], re.MULTILINE), text
    assert done.returncode == 1 and seconds < 20 and left == ""


def prepare(folder):
    """Keys and settings of the user on hosta."""
    ssh = folder / "hosta" / "ssh"
    for name in ("other", *(f"many{number}" for number in range(7))):
        make_key(ssh / name)
    (ssh / "half.pub").write_bytes((ssh / "id_ed25519.pub").read_bytes())
    for name, mode in (("locked", 0o600), ("open", 0o644)):
        (ssh / name).write_bytes((ssh / "id_ed25519").read_bytes())
        (ssh / name).chmod(mode)
    subprocess.run(["ssh-keygen", "-q", "-p", "-P", "", "-N", "secret", "-f", ssh / "locked"], check=True, timeout=20)
    hosta, hostb, _ = (line.split() for line in (ssh / "known_hosts").read_text().splitlines())
    (ssh / "changed").write_text(f"{hostb[0]} {' '.join(hosta[1:])}\n")
    config = [f"Host {name}\n {lines.format(ssh=ssh)}\n" for name, lines in ALIASES.items()]
    (ssh / "config").write_text("".join(config) + "Host " + " ".join(ALIASES) + "\n HostName hostb\n")
    (ssh / "config").chmod(0o600)


def make_key(path):
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", path], check=True, timeout=20)


def start(hosts, port, act):
    command = hosts.command("hostb", [sys.executable, "-c", SERVICE.format(port=port, act=act)])
    service = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert service.stdout.readline() == "ready\n"
    return service


def special_sshd(hosts, folder, port, command):
    """An sshd on hostb that runs this command instead of any other."""
    usual = (folder / "hostb" / "sshd_config_22").read_text()
    config = folder / "hostb" / f"sshd_config_{port}"
    config.write_text(re.sub("Port .*", f"Port {port}", usual) + f"ForceCommand {command}\n")
    done = hosts.run(
        "hostb", ["bash", "-c", f'PATH=$PATH:/usr/sbin; "$(command -v sshd)" -f {shlex.quote(str(config))}']
    )
    assert done.returncode == 0, done.stderr
