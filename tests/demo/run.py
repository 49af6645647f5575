"""The main job on real input: an agent repairs a real package's failing tests in a sandbox.

`make demo` runs this. It starts the daemon, a model and the orchestrator as the processes
that they are, shows each step, proves the repair in a fresh sandbox, and leaves nothing behind
but the log. Without MODEL_BASE_URL and MODEL the model is a scripted one, over HTTP.
"""

from __future__ import annotations

import asyncio
import difflib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import docker
from docker.errors import DockerException
from rich.console import Console
from rich.text import Text

ROOT: Final = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from orchestrator.config import WorkspaceSettings  # noqa: E402
from orchestrator.errors import OrchestratorError  # noqa: E402
from orchestrator.escape import printable  # noqa: E402
from orchestrator.messages import Outcome, ToolCall  # noqa: E402
from orchestrator.sandbox import Sandbox, call_id  # noqa: E402
from orchestrator.workspace.copy_in import copy_in  # noqa: E402
from orchestrator.workspace.host_tree import HostTree  # noqa: E402
from tests.demo.package import BROKEN_FILE, DemoFailed, break_it, fetch, unpack  # noqa: E402
from tests.demo.processes import END_TIMEOUT_S, server  # noqa: E402

CACHE: Final = ROOT / ".cache" / "demo"
SCRIPT: Final = Path(__file__).with_name("script.json")
TESTS: Final = "python3 -m pytest -q"
TASK: Final = (
    "The test suite of this package fails. Find the cause and repair the package; leave its "
    f"tests as they are. Run them with `{TESTS}` and finish when all of them pass."
)
SCRIPTED_AGENT: Final = (
    "a scripted model; with MODEL_BASE_URL, MODEL_API_KEY and MODEL set, a live one does it"
)


@dataclass(frozen=True)
class Model:
    """Whom the orchestrator asks."""

    name: str
    base_url: str
    """Empty: the scripted model's, once it runs."""


def main() -> int:
    """Runs the demo; the exit code says whether the repaired tests pass."""
    # Ended from outside, it still ends what it started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    console = Console(highlight=False, markup=False, soft_wrap=True)
    model = Model(os.environ.get("MODEL", ""), os.environ.get("MODEL_BASE_URL", ""))
    if bool(model.name) != bool(model.base_url):
        console.print("demo: set MODEL and MODEL_BASE_URL both, or neither", style="red")
        return 2
    engine = _engine()
    if engine is None:
        if model.name:
            console.print(
                "demo: no container engine can be had, and a live model's commands are not run "
                "without one",
                style="red",
            )
            return 3
        console.print(
            "demo: no container engine can be had, so the commands of the scripted model run on "
            "this machine, in a temporary folder, isolated from nothing",
            style="yellow",
        )
    try:
        return _demo(console, model, engine)
    except (DemoFailed, OrchestratorError) as error:
        console.print(f"demo: {error}", style="red")
        return 1
    except KeyboardInterrupt:
        console.print("demo: interrupted", style="red")
        return 130


def _demo(console: Console, model: Model, engine: docker.DockerClient | None) -> int:
    begun = time.monotonic()
    with ExitStack() as stack:
        if engine is not None:
            stack.callback(engine.close)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sandboxd-demo-")))
        package, broken = folder / "package", folder / "broken"
        pinned = fetch(CACHE)
        unpack(pinned.archive, package)
        shutil.copytree(package, folder / "original")
        break_it(package)
        shutil.copytree(package, broken)
        with ExitStack() as servers:
            env = _environment()
            address = servers.enter_context(
                server(
                    "sandboxd",
                    _daemon(folder, engine is not None),
                    r"listening on (\S+)",
                    folder / "daemon.log",
                    env,
                )
            ).group(1)
            scripted = not model.base_url
            if scripted:
                url = servers.enter_context(
                    server(
                        "the scripted model",
                        ["-m", "orchestrator", "scripted-model", "--script", str(SCRIPT)],
                        r"ready at (\S+)",
                        folder / "model.log",
                        env,
                    )
                ).group(1)
                model = Model("scripted", url)
            _field(
                console,
                "package",
                f"{pinned.name} from the package index, broken on purpose in `{BROKEN_FILE}`",
            )
            if scripted:
                _field(console, "agent", SCRIPTED_AGENT)
            _field(console, "set-up", f"daemon and model in {time.monotonic() - begun:.1f} s")
            agent = _orchestrate(model, address, package, env)
            _show_diff(console, broken, package)
            _restore_tests(package, folder / "original")
            proof = asyncio.run(_prove(address, package))
        left = _left_behind(engine, folder / "state")
    _report(console, agent, proof, left, begun)
    return 0 if agent == 0 and proof.exit_code == 0 and not left else 1


def _engine() -> docker.DockerClient | None:
    try:
        engine = docker.from_env(timeout=10)
        engine.ping()
    except DockerException:
        return None
    return engine


def _environment() -> dict[str, str]:
    # What the demo starts is on this machine, whatever proxy leads out of it.
    direct = ",".join(filter(None, [os.environ.get("no_proxy"), "127.0.0.1"]))
    return {**os.environ, "PYTHONUNBUFFERED": "1", "no_proxy": direct, "NO_PROXY": direct}


def _daemon(folder: Path, contained: bool) -> list[str]:
    arguments = ["-m", "sandboxd", "serve", "--listen", "127.0.0.1:0", "--metrics", "off"]
    arguments += ["--state-dir", str(folder / "state"), "--on-shutdown", "delete"]
    if contained:
        return [*arguments, "--backend", "docker"]
    # The machine's own python3 may have no pytest; this one has.
    settings = folder / "local.toml"
    path = f"{Path(sys.executable).parent}:{os.environ.get('PATH', os.defpath)}"
    settings.write_text(
        f'[profiles.default.env]\nPATH = """{path}"""\n'
        # Of pytest's plugins, none that this machine happens to have.
        'PYTEST_DISABLE_PLUGIN_AUTOLOAD = "1"\n'
    )
    return [*arguments, "--backend", "local", "--allow-unsafe-local", "--config", str(settings)]


def _orchestrate(model: Model, address: str, package: Path, env: Mapping[str, str]) -> int:
    command = [
        sys.executable,
        "-m",
        "orchestrator",
        "run",
        TASK,
        "--sandbox",
        address,
        "--workspace",
        str(package),
        "--model",
        model.name,
        "--model-base-url",
        model.base_url,
        "--log",
        str(CACHE / "log.sqlite3"),
    ]
    process = subprocess.Popen(command, env=dict(env), stdin=subprocess.DEVNULL)
    try:
        return process.wait()
    except BaseException as ended:
        # After Ctrl-C the terminal has told it already; told twice it would end by force.
        if not isinstance(ended, KeyboardInterrupt):
            process.terminate()
        try:
            process.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        raise


def _show_diff(console: Console, broken: Path, package: Path) -> None:
    console.print(Text("\ndiff", "bold"))
    styles = {"+": "green", "-": "red", "@": "cyan"}
    for path in sorted({p.relative_to(r) for r in (broken, package) for p in r.rglob("*")}):
        old, new = broken / path, package / path
        if any(p.exists() and not p.is_file() for p in (old, new)):
            continue
        for line in difflib.unified_diff(
            _lines(old), _lines(new), f"a/{path}", f"b/{path}", lineterm=""
        ):
            console.print(Text(f"    {printable(line)}", styles.get(line[:1], "default")))


def _lines(path: Path) -> list[str]:
    return path.read_text(errors="replace").splitlines() if path.is_file() else []


def _restore_tests(package: Path, original: Path) -> None:
    # The proof is worth nothing if whoever repaired the package wrote its tests.
    for path in sorted(original.rglob("test*.py")):
        shutil.copyfile(path, package / path.relative_to(original))


async def _prove(address: str, package: Path) -> Outcome:
    """Runs the package's original tests on the repaired package, in a sandbox of its own."""
    async with Sandbox(address, "", 10.0) as sandbox:
        with HostTree(package) as tree:
            await copy_in(tree, sandbox, WorkspaceSettings())
        bash = next(tool for tool in sandbox.tools if tool.name == "bash")
        call = ToolCall(call_id=call_id(), name="bash", arguments={"command": TESTS})
        return await sandbox.call(call, bash)


def _left_behind(engine: docker.DockerClient | None, state: Path) -> list[str]:
    """What is left of the demo's sessions: containers, mounts, folders.

    Other daemons may share the engine, so a container is told by what it mounts.
    """
    left: list[str] = []
    for container in engine.containers.list(all=True, ignore_removed=True) if engine else []:
        sources = [str(mount.get("Source", "")) for mount in container.attrs.get("Mounts", [])]
        if any(source.startswith(f"{state}/") for source in sources):
            left.append(f"container {container.name}")
    mounts = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    left += [f"mount {mount}" for mount in mounts if mount.startswith(f"{state}/")]
    return left + [f"folder {entry}" for entry in (state / "s").glob("*")]


def _report(console: Console, agent: int, proof: Outcome, left: list[str], begun: float) -> None:
    last = proof.text.rstrip().splitlines()
    said = next((line for line in reversed(last) if re.search(r"passed|failed|error", line)), "")
    passed = proof.exit_code == 0
    console.print()
    _field(
        console,
        "tests",
        f"{printable(said) or 'did not run'} (a fresh sandbox, the package's original tests)",
        "bold green" if passed else "bold red",
    )
    if agent != 0:
        _field(console, "", f"the orchestrator ended with code {agent}", "red")
    words = "nothing left behind" if not left else f"left behind: {', '.join(left)}"
    _field(console, "end", words, "red" if left else "")
    _field(console, "took", f"{time.monotonic() - begun:.1f} s")


def _field(console: Console, name: str, value: str, style: str = "") -> None:
    console.print(Text().append(f"{name:<9}", "bold").append(value, style))


if __name__ == "__main__":
    sys.exit(main())
