"""The container recipes, without Docker. start-sshd.sh runs in a copy of this machine's root."""

import functools
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from paths import ROOT

DOCKER = ROOT / "deploy" / "docker"
# Makes a separate root for a script: all files of this machine, with changes kept in memory.
BOX = """\
set -e
umask 022  # other users have to read these folders
mount -t tmpfs tmpfs /mnt
mkdir /mnt/upper /mnt/work /mnt/root
mount -t overlay -o lowerdir=/,upperdir=/mnt/upper,workdir=/mnt/work overlay /mnt/root
cd /mnt/root
mount -t proc proc proc
mount --rbind /dev dev
mount -t tmpfs tmpfs run
mount -t tmpfs -o mode=1777 tmpfs tmp
ip link set lo up
mkdir -p ssh home/trainer
cp "$1" ssh/start-sshd.sh
rm -rf root/.ssh
# As in an image, root has no password, and the account is locked.
sed -i 's/^root:[^:]*/root:*/' etc/shadow
echo 'trainer:!:20000::::::' >>etc/shadow
echo 'trainer:x:4321:4321::/home/trainer:/bin/bash' >>etc/passwd
for name in id_ed25519 other; do ssh-keygen -q -t ed25519 -N '' -f ssh/$name; done
chown -R 4321:4321 ssh home/trainer
exec chroot --userspec="$2" . env -i HOME=/ PATH="$PATH" bash -c "$3"
"""
# Starts the sshd and waits until it listens.
SSHD = """\
listens() { (: </dev/tcp/127.0.0.1/12345) 2>/dev/null; }
bash /ssh/start-sshd.sh 2>/tmp/log &
for try in {1..200}; do if listens; then break; fi; sleep 0.05; done
"""
# Ends the sshd and waits until nothing listens, as its child may live a moment longer.
END = "kill $!; wait; for try in {1..200}; do if ! listens; then break; fi; sleep 0.05; done\n"


@functools.cache
def unavailable():
    """Returns why this machine cannot make such a root; empty if it can."""
    tools = ("unshare", "chroot", "ip", "ssh", "ssh-keygen", "sshd")
    absent = [tool for tool in tools if not shutil.which(tool, path=f"{os.environ['PATH']}:/usr/sbin:/sbin")]
    if absent:
        return f"not installed: {', '.join(absent)} (Debian: openssh-server openssh-client iproute2 util-linux)"
    trial = (
        "mount -t tmpfs tmpfs /mnt && cd /mnt && mkdir a b c && mount -t overlay -o lowerdir=/,upperdir=a,workdir=b o c"
    )
    done = subprocess.run(["unshare", "-m", "-n", "-p", "-f", "sh", "-c", trial], capture_output=True, text=True)
    return f"no namespaces or overlays here: {done.stderr.strip()}" if done.returncode else ""


def in_box(script, user="0:0"):
    """Runs a bash script as root or trainer (4321:4321) in a separate root; its processes end with it."""
    reason = unavailable()
    if reason:
        pytest.skip(reason)
    box = ["unshare", "-m", "-n", "-p", "-f", "--kill-child", "bash", "-c", BOX, "box"]
    command = [*box, str(DOCKER / "start-sshd.sh"), user, script]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def is_left_out(path):
    """Returns whether .dockerignore keeps a path, relative to the clone, out of the image."""
    parts = Path(path).parts
    for pattern in (ROOT / ".dockerignore").read_text().splitlines():
        expression = re.escape(pattern).replace(r"\*\*/", "(.*/)?").replace(r"\*", "[^/]*")
        if any(re.fullmatch(expression, "/".join(parts[:n])) for n in range(1, len(parts) + 1)):
            return True
    return False


@pytest.mark.parametrize("recipe", DOCKER.glob("Dockerfile*"), ids=lambda path: path.name)
def test_a_recipe_uses_existing_files_and_no_root(recipe):
    text = recipe.read_text()
    used = re.findall(r"^COPY (\S+) ", text, re.M) + re.findall(r'(?:bash |"bash", ")([\w./-]+\.sh)\b', text)
    assert len(used) >= 4 and all((ROOT / path).exists() and not is_left_out(path) for path in used)
    assert re.findall(r"^(?:USER|ARG USER_ID).*", text, re.M) == ["ARG USER_ID=1000", "USER $USER_ID"]


def test_an_image_has_all_sources_but_no_large_and_local_files():
    for path in (".git/HEAD", ".venv/bin/python", ".venv.lock", ".venv-torch/bin/python", "data/demo/train.rec"):
        assert is_left_out(path)
    assert is_left_out("models/a/b.onnx")
    folders = ("partial_fc", "mxnet", "tools", "examples", "setup-utils", "deploy", "benchmarks", "tests")
    files = [*ROOT.iterdir(), *(path for folder in folders for path in (ROOT / folder).rglob("*"))]
    sources = [path.relative_to(ROOT) for path in files if path.suffix in (".py", ".sh", ".txt", ".cmake")]
    assert len(sources) > 200 and not [str(path) for path in sources if is_left_out(path)]


@pytest.mark.parametrize("user, name", [("0:0", "root"), ("4321:4321", "trainer")])
def test_containers_of_a_job_log_in_to_each_other_without_prompts(user, name):
    done = in_box(SSHD + "umask; ssh 127.0.0.1 'id -un; umask'; ssh 127.0.0.2 true && cat /tmp/log", user)
    assert done.returncode == 0, done.stderr
    umask, *seen = done.stdout.split()[:3]
    assert seen == [name, umask]  # so that others can read the files of the training
    assert done.stdout.count(f"Accepted publickey for {name} from 127.0.0.1") == 2


def test_a_command_runs_beside_the_sshd_with_the_key_of_kubernetes():
    key = "rm /ssh/id_ed25519; ssh-keygen -q -t ecdsa -m PEM -N '' -f /ssh/id_rsa;"
    done = in_box(f"{key} bash /ssh/start-sshd.sh 12345 bash -c 'ssh 127.0.0.1 echo inside; exit 3'")
    assert (done.returncode, done.stdout) == (3, "inside\n"), done.stderr


def test_another_key_is_rejected():
    other = "install -m 600 /ssh/other /tmp/other; ssh -o IdentitiesOnly=yes -i /tmp/other -F none -p 12345"
    options = "-o StrictHostKeyChecking=no -o NumberOfPasswordPrompts=1"
    done = in_box(f"{SSHD} {other} {options} 127.0.0.1 true")
    assert done.returncode == 255
    assert "Permission denied (publickey)." in done.stderr


def test_a_host_with_another_key_is_not_trusted():
    done = in_box(SSHD + "echo partial_fc $(cat /ssh/other.pub) >~root/.ssh/known_hosts; ssh 127.0.0.1 true")
    assert done.returncode == 255
    assert "Host key verification failed" in done.stderr


def test_a_container_can_be_restarted():
    done = in_box(f"{SSHD} {END} {SSHD} ssh 127.0.0.1 ls -A .ssh")
    assert done.stdout.split() == ["authorized_keys", "config", "id_ed25519", "known_hosts"], done.stderr


def test_an_existing_ssh_folder_is_kept():
    done = in_box("mkdir ~root/.ssh && echo kept >~root/.ssh/config && ! bash /ssh/start-sshd.sh && cat ~root/.ssh/*")
    assert (done.returncode, done.stdout) == (0, "kept\n")
    assert f"{os.path.expanduser('~root')}/.ssh exists and would be overwritten" in done.stderr


@pytest.mark.parametrize(
    "script, user, message",
    [
        ("rm /ssh/id_ed25519;", "0:0", "ssh-keygen -q -t ed25519 -N '' -f ssh/id_ed25519"),
        ("ssh-keygen -q -p -N secret -f /ssh/id_ed25519;", "0:0", "not a private key without a passphrase"),
        ("", "4322:4321", "user 4322 cannot read it"),
        ("chmod 644 /ssh/*; exec chroot --userspec=4322:4322 /", "0:0", "--build-arg USER_ID=4322"),
    ],
)
def test_errors_are_reported(script, user, message):
    done = in_box(f"{script} bash /ssh/start-sshd.sh", user)
    assert done.returncode == 1
    assert message in done.stderr
