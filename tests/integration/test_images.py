"""The two images, used the way sandboxes use them.

The attacks on the toolbox are those of security S11. Each comes with a control that shows the
attack is live: the same image settings do run the foreign code in a program that is not closed.
"""

import json
import secrets
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

pytestmark = [pytest.mark.docker, pytest.mark.timeout(120)]

TOOLBOX = "sandboxd/toolbox:dev"
BASE = "sandboxd/base:dev"
INSIDE = "/.sandboxd/toolbox"
HARDENED = [
    *["--rm", "--network=none", "--cap-drop=ALL", "--read-only", "--user=64000:64000"],
    *["--security-opt=no-new-privileges", "--memory=256m", "--pids-limit=64"],
]
MARK = "foreign code ran"
FOREIGN_CODE = f"""
#include <unistd.h>
__attribute__((constructor)) static void run(void) {{
    static const char text[] = "{MARK}\\n";
    if (write(2, text, sizeof text - 1) < 0) _exit(9);
}}
"""
HOSTILE_IMAGE = """
FROM scratch
COPY busybox /bin/busybox
COPY busybox /bin/sh
COPY foreign.so /foreign.so
COPY foreign.so /lib/libffi.so.8
COPY foreign.so /lib/x86_64-linux-gnu/libffi.so.8
COPY preload /etc/ld.so.preload
ENV LD_PRELOAD=/foreign.so LD_LIBRARY_PATH=/lib GLIBC_TUNABLES=glibc.malloc.check=3 \\
    GCONV_PATH=/ LOCPATH=/ PYTHONPATH=/ PYTHONHOME=/ PYTHONSTARTUP=/foreign.so
"""
REPORT = """
import ctypes, json, os, sys, threading
thread = threading.Thread(target=ctypes.CDLL(None).getpid)
thread.start()
thread.join()
maps = {line.split()[5] for line in open("/proc/self/maps") if len(line.split()) > 5}
print(json.dumps({
    "version": sys.version.split()[0],
    "uid": os.getuid(),
    "pid": ctypes.CDLL(None).getpid(),
    "environment": dict(os.environ),
    "mapped": sorted(path for path in maps if path.startswith("/")),
    "path": sys.path,
}))
"""


def docker(*argv: str | Path, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["docker", *argv], input=stdin, capture_output=True, text=True, timeout=90, check=False
    )


@dataclass(frozen=True)
class Toolbox:
    folder: Path
    argv: list[str]
    rg: list[str]
    python_version: str

    def run(self, image: str, *argv: str) -> subprocess.CompletedProcess[str]:
        mount = f"--volume={self.folder}:{INSIDE}:ro"
        return docker("run", *HARDENED, mount, f"--entrypoint={argv[0]}", image, *argv[1:])

    @property
    def python(self) -> list[str]:
        """How the guest's interpreter starts, without the guest."""
        return self.argv[:-1]


@pytest.fixture(scope="module")
def toolbox(tmp_path_factory: pytest.TempPathFactory) -> Toolbox:
    folder = tmp_path_factory.mktemp("toolbox")
    container = docker("create", TOOLBOX).stdout.strip()
    try:
        copied = docker("cp", f"{container}:{INSIDE}", folder)
        assert copied.returncode == 0, copied.stderr
    finally:
        docker("rm", container)
    record = json.loads((folder / "toolbox/toolbox.json").read_text())
    return Toolbox(folder / "toolbox", record["argv"], record["rg"], record["python"])


@pytest.fixture(scope="module")
def hostile_image(toolbox: Toolbox, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    context = tmp_path_factory.mktemp("hostile")
    (context / "foreign.c").write_text(FOREIGN_CODE)
    (context / "preload").write_text("/foreign.so\n")
    (context / "busybox").write_bytes((toolbox.folder / "bin/busybox").read_bytes())
    (context / "busybox").chmod(0o755)
    (context / "Dockerfile").write_text(HOSTILE_IMAGE)
    compiled = docker(
        *["run", "--rm", "--network=none", f"--volume={context}:/src", "--workdir=/src", BASE],
        *["gcc", "-shared", "-fPIC", "-o", "foreign.so", "foreign.c"],
    )
    assert compiled.returncode == 0, compiled.stderr
    name = f"sandboxd-test/hostile:{secrets.token_hex(4)}"
    built = docker("build", "--quiet", f"--tag={name}", context)
    assert built.returncode == 0, built.stderr
    yield name
    docker("rmi", name)


def test_toolbox_runs_closed_in_an_image_with_nothing_but_a_static_busybox(
    toolbox: Toolbox, hostile_image: str
) -> None:
    """S11: no library, preload list, variable or module path of the image reaches process 1."""
    ran = toolbox.run(hostile_image, *toolbox.python, "-c", REPORT)
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr == ""
    report = json.loads(ran.stdout)
    assert report["version"] == toolbox.python_version
    assert (report["uid"], report["pid"]) == (64000, 1)
    assert report["environment"] == {"LC_ALL": "C"}
    assert f"{INSIDE}/lib/libffi.so.8" in report["mapped"]
    assert [path for path in report["mapped"] if not path.startswith(INSIDE)] == []
    assert [path for path in report["path"] if not path.startswith(INSIDE)] == []


def test_hostile_environment_does_reach_a_loader_that_is_started_with_it(
    toolbox: Toolbox, hostile_image: str
) -> None:
    """Control of the test above: without the emptied environment the attack works."""
    loader = toolbox.python[toolbox.python.index(f"{INSIDE}/lib/ld.so") :]
    ran = toolbox.run(hostile_image, *loader, "-c", "pass")
    assert MARK in ran.stderr


def test_hostile_preload_list_does_reach_an_ordinary_program(
    toolbox: Toolbox, hostile_image: str, tmp_path: Path
) -> None:
    """Control: the preload list works, as soon as the loader is not the toolbox's."""
    container = docker("create", hostile_image, "/bin/sh").stdout.strip()
    docker("cp", f"{container}:/foreign.so", tmp_path)
    docker("cp", f"{container}:/etc/ld.so.preload", tmp_path)
    docker("rm", container)
    ran = docker(
        *["run", "--rm", "--network=none"],
        f"--volume={tmp_path}/foreign.so:/foreign.so:ro",
        f"--volume={tmp_path}/ld.so.preload:/etc/ld.so.preload:ro",
        *[BASE, "/bin/true"],
    )
    assert MARK in ran.stderr


def test_toolbox_search_program_searches_in_a_foreign_image(
    toolbox: Toolbox, hostile_image: str
) -> None:
    """S11: rg runs through the toolbox's loader, with an environment of its own."""
    clean = [f"{INSIDE}/bin/busybox", "env", "-i", "LC_ALL=C"]
    ran = toolbox.run(
        hostile_image,
        *[*clean, *toolbox.rg, "--no-config", "-n", "-e", "^import stat as st$"],
        *["--", f"{INSIDE}/lib/python{toolbox.python_version.rpartition('.')[0]}/os.py"],
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr == ""
    assert ran.stdout.rstrip().endswith(":import stat as st")


def test_base_image_serves_a_user_without_an_account() -> None:
    script = """
        set -e
        cd /workspace
        export HOME=/workspace
        git init -q . && echo x > a && git add a && git commit -q -m first && git log --oneline
        printf 'def test_it():\\n    assert "é" == "\\\\u00e9"\\n' > test_it.py
        python -m pytest -q test_it.py
        python3 -m venv --without-pip made && made/bin/python -c 'import sys; print(sys.prefix)'
        python -m pip --version
        printf 'all:\\n\\tgcc -o hello hello.c && ./hello\\n' > Makefile
        printf '#include <stdio.h>\\nint main(void) { puts("compiled"); return 0; }\\n' > hello.c
        make -s
        rg --version | head -n 1; jq -n '1 + 1'; locale charmap
        command -v bash curl file less patch ps tree unzip xxd > /dev/null
    """
    tmpfs = "--tmpfs=/workspace:exec,size=64m,uid=64000,gid=64000,mode=700"
    ran = docker("run", *HARDENED, tmpfs, "--tmpfs=/tmp", BASE, "bash", "-c", script)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    for word in ("first", "1 passed", "/workspace/made", "pip ", "compiled", "ripgrep", "UTF-8"):
        assert word in ran.stdout


@pytest.mark.parametrize("image", [BASE, TOOLBOX])
def test_images_leave_to_the_daemon_what_security_s12_gives_it(image: str) -> None:
    described = json.loads(docker("image", "inspect", image).stdout)[0]["Config"]
    assert not described.get("User")
    assert not described.get("Volumes")
    assert not described.get("Healthcheck")
    assert not described.get("Entrypoint")
    assert not described.get("StopSignal")
    assert described["WorkingDir"] in {"", "/"}
