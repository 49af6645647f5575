"""Builds the images that sandboxes need, and does nothing where they are there already.

    images/build.py [--refresh]

    sandboxd/debian:bookworm   from a registry where one answers, else bootstrapped from the
                               host's own package sources
    sandboxd/toolbox:<digest>  images/toolbox, ripgrep of the pinned environment, sandboxd/guest
    sandboxd/base:<digest>     images/base

`sandboxd/toolbox:dev` and `sandboxd/base:dev` name the newest. A digest covers everything that
goes into an image, so an unchanged tree costs two questions to the engine. `--refresh` takes
the Debian base and its packages anew.

Exit codes: 0 built or current, 1 a build failed, 2 wrong usage, 3 something is missing here.
"""

import argparse
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RELEASE = "bookworm"
DEBIAN_PUBLIC = f"debian:{RELEASE}-slim"
DEBIAN = f"sandboxd/debian:{RELEASE}"
# A registry that answers delivers 30 MB in this time; one that does not must not hold us up.
PULL_TIMEOUT_S = 20
# An engine that answers a question later than this is stuck.
ANSWER_TIMEOUT_S = 60
# Documentation and translations help nobody in a sandbox; licences stay.
DPKG_EXCLUDES = ("/usr/share/doc/*", "/usr/share/man/*", "/usr/share/locale/*", "/usr/share/info/*")
# A step as the two builders of the engine announce it.
STEP = re.compile(r"Step \d+/\d+ : |#\d+ \[")
# Every change of the guest makes a version; older ones than these are let go.
VERSIONS_MAX = 5
PROXY_VARIABLES = ("http_proxy", "https_proxy", "no_proxy")


class BuildError(Exception):
    """Carries the line for the person and the exit code."""

    def __init__(self, message: str, code: int = 1) -> None:
        super().__init__(message)
        self.code = code


def say(message: str) -> None:
    print(f"images: {message}", flush=True)


def run(*argv: str | Path, env: dict[str, str] | None = None) -> None:
    """Runs a program in the open; its output goes to the terminal as it comes."""
    done = subprocess.run(argv, env=env, check=False)
    if done.returncode != 0:
        raise BuildError(f"`{argv[0]} {argv[1]}` ended with {done.returncode}")


def ask(*argv: str) -> str:
    """The output of a quick question, or an empty text where it fails or nobody is there to ask."""
    try:
        done = subprocess.run(
            argv, capture_output=True, text=True, timeout=ANSWER_TIMEOUT_S, check=False
        )
    except FileNotFoundError:  # not every machine with an engine is a Debian
        return ""
    except subprocess.TimeoutExpired:
        raise BuildError(f"`{' '.join(argv)}` gave no answer in {ANSWER_TIMEOUT_S} s") from None
    return done.stdout.strip() if done.returncode == 0 else ""


def image_id(name: str) -> str:
    return ask("docker", "image", "inspect", "--format", "{{.Id}}", name)


def proxy_environment() -> dict[str, str]:
    """The proxies of this machine: for the build only, they stay out of the images."""
    found = {
        name: os.environ.get(name, os.environ.get(name.upper(), "")) for name in PROXY_VARIABLES
    }
    for scheme in ("http", "https"):
        setting = ask("apt-config", "shell", "proxy", f"Acquire::{scheme}::Proxy")
        if setting and not found[f"{scheme}_proxy"]:
            found[f"{scheme}_proxy"] = setting.partition("=")[2].strip("'")
    return {name: value for name, value in found.items() if value and value != "DIRECT"}


def host_sources() -> list[str]:
    """The host's apt lines for this Debian release, for mirrors that only this machine knows."""
    listed = ask(
        "apt-get",
        "indextargets",
        "--format",
        "$(REPO_URI) $(RELEASE) $(COMPONENT) $(ORIGIN)",
        "Created-By: Packages",
    )
    lines = []
    for line in listed.splitlines():
        uri, suite, component, origin = (line.split() + [""] * 4)[:4]
        if origin == "Debian" and suite.partition("-")[0] == RELEASE and component == "main":
            lines.append(f"deb {uri} {suite} main")
    return lines if any(line.split()[2] == RELEASE for line in lines) else []


def apt_options() -> Iterator[str]:
    """Archive checks that this machine has switched off, for archives kept at one date."""
    for option in ("Acquire::Check-Valid-Until", "Acquire::Check-Date"):
        if ask("apt-config", "dump", "--format", "%v", option) == "false":
            yield f'--aptopt={option} "false"'


def ensure_bootstrapper() -> None:
    if shutil.which("mmdebstrap"):
        return
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        raise BuildError("no registry answers, and `mmdebstrap` is not installed here", 3)
    say("installing mmdebstrap")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    run("apt-get", "update", "-q", env=environment)
    run("apt-get", "install", "-y", "-q", "--no-install-recommends", "mmdebstrap", env=environment)


def bootstrap_debian() -> None:
    """Makes the base from packages alone and imports it."""
    ensure_bootstrapper()
    say(f"bootstrapping {RELEASE} from the package archive")
    with tempfile.TemporaryDirectory() as folder:
        archive = Path(folder) / "debian.tar"
        excludes = [f"--dpkgopt=path-exclude={pattern}" for pattern in DPKG_EXCLUDES]
        options = ["--variant=minbase", "--quiet", *apt_options(), *excludes]
        options.append("--dpkgopt=path-include=/usr/share/doc/*/copyright")
        # The bootstrap copies both from this machine; the engine makes them for each container.
        options.append('--customize-hook=rm -f "$1/etc/resolv.conf" "$1/etc/hostname"')
        run(
            *["mmdebstrap", *options, RELEASE, os.fspath(archive), *host_sources()],
            env={**os.environ, **proxy_environment()},
        )
        run("docker", "import", archive, DEBIAN)


def ensure_debian(refresh: bool) -> str:
    """The id of the base image, pulled or bootstrapped where it is missing."""
    if not refresh and (found := image_id(DEBIAN)):
        return found
    say(f"looking for {DEBIAN_PUBLIC}, {PULL_TIMEOUT_S} s at most")
    try:
        pulled = subprocess.run(
            ["docker", "pull", "--quiet", DEBIAN_PUBLIC],
            timeout=PULL_TIMEOUT_S,
            capture_output=True,
            check=False,
        )
        answered = pulled.returncode == 0
    except subprocess.TimeoutExpired:
        answered = False
    if answered:
        run("docker", "tag", DEBIAN_PUBLIC, DEBIAN)
    else:
        bootstrap_debian()
    return image_id(DEBIAN)


def context_files(context: dict[str, Path]) -> Iterator[tuple[str, Path]]:
    """Name in the build context and path on disk, in a fixed order."""
    for name, path in sorted(context.items()):
        if not path.exists():
            raise BuildError(f"`{path}` is not there", 3)
        if path.is_file():
            yield name, path
            continue
        # A folder is a Python package; what else lies in it does not go into an image.
        for inner in sorted(path.rglob("*.py")):
            yield f"{name}/{inner.relative_to(path)}", inner


def digest_of(debian: str, files: list[tuple[str, Path]]) -> str:
    whole = hashlib.sha256(debian.encode())
    for name, path in files:
        content = hashlib.sha256(path.read_bytes()).hexdigest()
        whole.update(f"\n{name} {content}".encode())
    return whole.hexdigest()[:16]


def build(name: str, context: dict[str, Path], debian: str, refresh: bool) -> None:
    """Builds `sandboxd/NAME` under its digest, unless that is there, and points `dev` at it."""
    files = list(context_files(context))
    digest = digest_of(debian, files)
    tag, stable = f"sandboxd/{name}:{digest}", f"sandboxd/{name}:dev"
    begun = time.monotonic()
    current = image_id(tag)
    if refresh or not current:
        say(f"building {tag}")
        with tempfile.TemporaryDirectory() as folder:
            for inner, path in files:
                target = Path(folder) / inner
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(path, target)
                target.chmod(0o755 if path.stat().st_mode & 0o100 else 0o644)
            # An edit between digest and copy would live on under the wrong name.
            if digest_of(debian, [(inner, Path(folder) / inner) for inner, _ in files]) != digest:
                raise BuildError(f"the sources of {name} changed while they were copied: try again")
            run_build(name, [*build_command(tag, refresh), folder])
        say(f"built {tag} in {time.monotonic() - begun:.0f} s")
        forget_old_versions(name)
    else:
        say(f"{tag} is current")
    if image_id(stable) != image_id(tag):
        run("docker", "tag", tag, stable)


def forget_old_versions(name: str) -> None:
    # Newest first. Without force, so that the engine keeps what a container still uses.
    listed = ask("docker", "image", "ls", "--format", "{{.Tag}}", f"sandboxd/{name}").split()
    for tag in [tag for tag in listed if tag != "dev"][VERSIONS_MAX:]:
        ask("docker", "rmi", f"sandboxd/{name}:{tag}")


def buildkit_is_there() -> bool:
    """Which builder this client has: BuildKit is a plugin of newer clients."""
    return bool(ask("docker", "buildx", "version"))


def build_command(tag: str, refresh: bool) -> list[str]:
    # The host's network: package mirrors are often reachable from the host alone.
    command = ["docker", "build", "--network=host", f"--build-arg=DEBIAN={DEBIAN}", f"--tag={tag}"]
    if refresh:
        command.append("--no-cache")
    if not buildkit_is_there():
        command.append("--force-rm")  # the older builder keeps the container of a failed step
    # The engine keeps these well-known arguments out of the image and its history.
    return command + [f"--build-arg={name}={value}" for name, value in proxy_environment().items()]


def run_build(name: str, command: list[str]) -> None:
    """Shows the steps as they come and keeps everything else for the one who needs it."""
    log_file = ROOT / f".build/{name}.log"
    with (
        log_file.open("w") as log,
        subprocess.Popen(
            command,
            env=build_environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        ) as building,
    ):
        assert building.stdout is not None
        for line in building.stdout:
            log.write(line)
            if STEP.match(line):
                say(f"  {line.strip()[:100]}")
    if building.returncode != 0:
        print("".join(log_file.read_text().splitlines(keepends=True)[-30:]), file=sys.stderr)
        raise BuildError(f"the build of {name} failed; all of it is in `{log_file}`")


def build_environment() -> dict[str, str]:
    chosen = {"DOCKER_BUILDKIT": "1" if buildkit_is_there() else "0"}
    return {**chosen, "BUILDKIT_PROGRESS": "plain", **os.environ}


def main() -> int:
    parser = argparse.ArgumentParser(description="Build the toolbox and the base image.")
    parser.add_argument("--refresh", action="store_true", help="take Debian's packages anew")
    refresh = parser.parse_args().refresh
    images = ROOT / "images"
    scripts = ("Dockerfile", "layout.py", "pack_guest.py", "prove.py")
    toolbox = {name: images / "toolbox" / name for name in scripts}
    toolbox |= {"rg": Path(sys.prefix) / "bin/rg", "guest": ROOT / "sandboxd/guest"}
    base = {name: images / "base" / name for name in ("Dockerfile", "gitconfig")}
    lock_file = ROOT / ".build/images.lock"
    lock_file.parent.mkdir(exist_ok=True)
    # Two builds at once would each bootstrap the same base.
    with lock_file.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another build is at work here; waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            if shutil.which("docker") is None:
                raise BuildError("there is no `docker` command here: `make engine`", 3)
            debian = ensure_debian(refresh)
            build("base", base, debian, refresh)
            build("toolbox", toolbox, debian, refresh)
        except BuildError as failure:
            print(f"images: {failure}", file=sys.stderr)
            return failure.code
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
